"""Check README.md: two screens, whose commands and code run, with a picture that moves."""

import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def snippet(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return str(text)


def test_it_has_two_screens_and_the_commands_that_people_and_ci_need() -> None:
    assert len(TEXT.splitlines()) <= 105
    assert "    pip install fewmore " in TEXT
    assert "    make test " in TEXT
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("\nmake test")
    for kind in ("python", "bash"):
        assert len([line for line in snippet(kind).splitlines() if line]) <= 5


def test_its_picture_moves_and_is_small() -> None:
    path = ROOT / "docs" / "figures" / "teaching.gif"
    assert "docs/figures/teaching.gif" in TEXT
    assert path.stat().st_size < 500_000
    with Image.open(path) as animation:
        assert animation.n_frames > 20
        assert animation.info["loop"] == 0


@pytest.mark.usefixtures("small_pretrained")
def test_its_code_and_commands_run(
    shell: Callable[[Sequence[str]], int],
    photos: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    photos("photos", {"robin": 5, "wren": 5})
    animals = photos("animals", {"okapi": 4}) / "okapi"
    for number, name in enumerate(("a", "b", "c", "unknown")):
        shutil.copy(animals / f"{number:02}.png", f"{name}.jpg")
    names: dict[str, object] = {}
    exec(compile(snippet("python"), "README.md", "exec"), names)
    assert "okapi" in names["birds"].names  # type: ignore[attr-defined]
    *commands, serve = snippet("bash").splitlines()
    for line in commands:
        assert shell(shlex.split(line)) == 0, line
    out = capsys.readouterr().out
    assert re.search(r"unknown.jpg .*okapi", out)
    assert "undone: the learn" in out
    assert serve == "fewmore serve birds.fewmore"  # tests/service runs it
