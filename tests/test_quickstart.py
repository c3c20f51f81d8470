"""Run every snippet of docs/quickstart.md as it stands, in order, with a small backbone."""

import importlib.util
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "quickstart.md"
SNIPPETS = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
PRINTED = PAGE.parent.parent / "results" / "outputs"  # what the page shows: docs/outputs.py
NEEDS_EXPORT = ("fewmore export", "onnxruntime")  # packages of an extra


def commands(text: str) -> list[list[str]]:
    """Return the words of each command of fewmore, without where its output goes."""
    lines = [shlex.split(line) for line in text.splitlines()]
    without_target = [words[: words.index(">")] if ">" in words else words for words in lines]
    return [words for words in without_target if words[0] != "pip"]


@pytest.mark.usefixtures("small_pretrained")
def test_the_snippets_run(
    shell: Callable[[Sequence[str]], int],
    photos: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    photos("photos", {"robin": 6, "wren": 5, "goldfinch": 5})
    photos("new-photos", {"jay": 3, "owl": 3})
    photos("test-photos", {"robin": 2, "wren": 2, "jay": 2})
    photos("holiday", {"wren": 2})
    animals = photos("animals", {"okapi": 3, "zebra": 4})
    for name, count in (("okapi", 3), ("zebra", 4)):
        for number in range(count):
            shutil.copy(animals / name / f"{number:02}.png", f"{name}{number + 1}.jpg")
    shutil.copy("photos/robin/00.png", "unknown.jpg")
    assert {kind for kind, _ in SNIPPETS} == {"bash", "python"}
    has_export = all(
        importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")
    )
    names: dict[str, object] = {}
    for kind, text in SNIPPETS:
        if not has_export and any(word in text for word in NEEDS_EXPORT):
            continue
        if kind == "bash":
            if "fewmore train" in text:
                Path("birds.fewmore").unlink(missing_ok=True)
            for words in commands(text):
                assert shell(words) == 0, words
        else:
            exec(compile(text, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert "learnt okapi: 3 images" in out
    for name, pattern in (("train", r"^  \S.*?  "), ("evaluate", r"^\w[\w ]*:")):
        shown = re.findall(pattern, (PRINTED / f"{name}.txt").read_text(), re.MULTILINE)
        stale = [text for text in shown if f"\n{text}" not in out]
        assert shown, name
        assert stale == [], f"{name}.txt: run docs/outputs.py again"
    assert "['zebra'] [] [" in out, "what the snippet of learn prints"
    assert Path("birds-confusion.png").stat().st_size
    if has_export:
        assert out.splitlines()[-1] in ("robin", "none of these")
