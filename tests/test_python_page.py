"""Run every snippet of docs/python.md as it stands, in order."""

import re
from pathlib import Path
from typing import Any

import pytest

from fewmore.errors import CheckpointError
from fewmore.research import results
from fewmore.research.trained import load_method

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_snippets_run(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    Path("photos").symlink_to(tiny_folder)
    names: dict[str, Any] = {}
    for text in SNIPPETS:
        exec(compile(text, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith("4 base classes, then 2 a session\n")
    assert "| decoupled-l2" in out
    assert f"decoupled-cosine {names['result'].accuracy}" in out
    predicted = names["predictions"].by_session[-1]
    order, scores = names["order"], names["scores"]
    test = names["task"].test.select_classes(order)
    again = names["method"].scores(test).argmax(1)
    assert again.tolist() == predicted.tolist(), "the loaded model predicts as the run did"
    assert scores.shape == (6, 6)
    assert names["method"].scores(names["images"]).shape == (3, 6)
    assert [len(session.indices) for session in names["birds"].split.sessions] == [24, 5, 4]
    own = results.read(names["folder"])
    assert (own.benchmark, own.split) == ("birds", names["own_result"].split)
    assert [len(session.indices) for session in names["hub"].split.sessions] == [12, 2, 2]
    assert "draw 0: 4 base, 1-way 2-shot" in out
    run = names["folders"][0]
    with pytest.raises(CheckpointError, match="such as runs/RUN/seed0"):
        load_method(run)
    (run / "seed0" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="such as runs/RUN/seed0"):
        load_method(run / "seed0")
