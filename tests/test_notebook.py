"""Execute the notebooks in examples/, and check the outputs that are written in them."""

import importlib.util
import shutil
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fewmore.data import glyphs

ROOT = Path(__file__).resolve().parents[1]
SMALLER = {'"pretrain.epochs=8"': '"pretrain.epochs=1"'}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Import docs/notebook.py, which executes notebooks."""
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "docs" / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> list[str]:
    return [output["output_type"] for output in cell["outputs"]]


def printed(cell: dict[str, Any]) -> str:
    return "".join("".join(output.get("text", ())) for output in cell["outputs"])


def test_it_executes_and_gives_outputs_as_those_written(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyphs, "load", partial(glyphs.load, train_per_class=8, test_per_class=2))
    shutil.copy(ROOT / "examples" / "teen.py", tmp_path)
    written = script.read("research")
    [changed] = SMALLER
    assert changed in "".join("".join(cell["source"]) for cell in written["cells"])
    executed = script.execute(written, SMALLER)
    assert [cell["source"] for cell in executed["cells"]] == [
        cell["source"] for cell in written["cells"]
    ]
    for before, after in zip(code_cells(written), code_cells(executed), strict=True):
        assert kinds(before) == kinds(after), before["source"]
        assert bool(printed(before)) == bool(printed(after))
    text = "".join(map(printed, code_cells(executed)))
    assert "| decoupled-cosine" in text
    assert "| teen" in text
    assert "fewmore run glyphs -m teen.py:TEEN --recipe quick --base 20 --way 20" in text
    assert len(list((tmp_path / "stage1").glob("*.safetensors"))) == 2, "a task and its validation"
    assert len(list((tmp_path / "tune").glob("*/trial*/result.json"))) == 3


def shown(cell: dict[str, Any]) -> list[str]:
    """Return the kinds of the outputs that do not depend on how well a network works."""
    return [kind for kind in kinds(cell) if kind != "stream"]


@pytest.mark.usefixtures("small_pretrained")
@pytest.mark.parametrize("name", ["photos", "service"])
def test_the_others_execute_with_a_small_network(
    name: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "service":
        pytest.importorskip("fastapi")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(ROOT / "examples")
    written = script.read(name)
    fewer = {"count=20": "count=6", "count=12": "count=5", "count=10": "count=2"}
    executed = script.execute(written, fewer)
    for before, after in zip(code_cells(written), code_cells(executed), strict=True):
        assert shown(before) == shown(after), before["source"]
    last = code_cells(executed)[-1]["outputs"][-1]
    if name == "service":
        assert last["data"]["text/plain"] == ["['circle', 'square', 'triangle', 'star']"]
    else:
        assert "learning of star\n" in last["text"]


@pytest.mark.parametrize(("name", "images"), [("research", 2), ("photos", 2), ("service", 0)])
def test_outputs_are_written_in_order(name: str, images: int, script: ModuleType) -> None:
    cells = code_cells(script.read(name))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(bool(cell["outputs"]) for cell in cells) >= 5
    drawn = [o for cell in cells for o in cell["outputs"] if "image/png" in o.get("data", {})]
    assert len(drawn) == images


def test_every_notebook_is_one_of_those(script: ModuleType) -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.ipynb")} == set(script.NOTEBOOKS)


def test_an_error_in_a_cell_is_not_hidden(script: ModuleType) -> None:
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": []}
    with pytest.raises(ZeroDivisionError):
        script.execute({"cells": [cell]})


def test_the_value_of_the_last_line_is_an_output(script: ModuleType) -> None:
    cell = {"cell_type": "code", "source": ["a = 2\n", "print('b')\n", "a + 1"], "outputs": []}
    [done] = script.execute({"cells": [cell]})["cells"]
    assert kinds(done) == ["stream", "execute_result"]
    assert done["outputs"][1]["data"] == {"text/plain": ["3"]}
