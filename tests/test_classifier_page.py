"""Run every snippet of docs/classifier.md as it stands, in order, with a small backbone."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fewmore import IncrementalClassifier, cli
from fewmore.classifier import hub

PAGE = Path(__file__).resolve().parent.parent / "docs" / "classifier.md"
SNIPPETS = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("small_pretrained")
def test_the_snippets_run(
    photos: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    photos("photos", {"robin": 10, "wren": 10, "goldfinch": 10})
    for name in ("zebra", "okapi"):
        folder = photos("animals", {name: 2}) / name
        for number in (1, 2):
            shutil.copy(folder / f"{number - 1:02}.png", f"{name}{number}.jpg")
    photos("folder-of-gnus", {"gnu": 3})

    def push(clf: IncrementalClassifier, repository: str, license: str, private: bool) -> None:
        hub.save(clf, repository, repository, license)  # which is then a folder here

    monkeypatch.setattr(hub, "push", push)
    names: dict[str, Any] = {}
    for kind, text in SNIPPETS:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert "6 classes: goldfinch, robin, wren, zebra, okapi and 1 more" in out
    assert names["birds"].score(names["X_test"], names["y_test"]) == 1.0
    # Two of ten digits are learnt from five images each; old ones alone would be 0.80 at most.
    assert names["vectors"].score(names["features"], names["digits"]) > 0.82
    assert names["same"].classes_.tolist() == names["birds"].classes_.tolist()
    (command,) = [line for kind, line in SNIPPETS if kind == "bash" and "fewmore card" in line]
    names["birds"].save("birds.fewmore")
    words = shlex.split(command)
    result = CliRunner().invoke(cli.app, words[1 : words.index(">")])
    assert result.output == Path("me/birds/README.md").read_text(encoding="utf-8")
