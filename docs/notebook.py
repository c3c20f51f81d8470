"""Execute the notebooks in examples/ and write their outputs into them: python docs/notebook.py

    python docs/notebook.py photos service     # these alone

Cells are executed as Jupyter does, without Jupyter: what is printed, the value of the last line and
the figures of pyplot become the outputs of a cell. Run folders and images go into a folder that is
removed afterwards. photos.ipynb and service.ipynb need the weights of mobilenet_v2, as
`fewmore train` does.
"""

import ast
import base64
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NOTEBOOKS = ("photos", "research", "service")

Notebook = dict[str, Any]


def execute(notebook: Notebook, replacements: Mapping[str, str] | None = None) -> Notebook:
    """Return a notebook with the outputs of its code cells, executed in the current folder.

    `replacements` are changes to the code, such as fewer epochs; they are executed, not written.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    count = 0
    with _file_backend():
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                code = "".join(cell["source"])
                for old, new in (replacements or {}).items():
                    code = code.replace(old, new)
                outputs = list(_run_cell(code, f"<cell {count}>", names, count))
                cell = {**cell, "execution_count": count, "outputs": outputs}
            cells.append(cell)
    return {**notebook, "cells": cells}


@contextlib.contextmanager
def _file_backend() -> Iterator[None]:
    """Let pyplot draw without a window."""
    before = matplotlib.get_backend()
    pyplot.switch_backend("agg")
    try:
        yield
    finally:
        pyplot.close("all")
        pyplot.switch_backend(before)


def _run_cell(code: str, file: str, names: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Execute a cell and yield its outputs in nbformat 4."""
    tree = ast.parse(code, file)
    is_shown = bool(tree.body) and not code.rstrip().endswith(";")
    last = tree.body.pop() if is_shown and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, file, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        yield {"name": "stdout", "output_type": "stream", "text": text}
    for number in pyplot.get_fignums():
        image = io.BytesIO()
        pyplot.figure(number).savefig(image, format="png", dpi=72, bbox_inches="tight")
        data = {"image/png": base64.b64encode(image.getvalue()).decode()}
        yield {"data": data, "metadata": {}, "output_type": "display_data"}
    pyplot.close("all")
    if value is not None:
        lines = repr(value).splitlines(keepends=True)
        yield {
            "data": {"text/plain": lines},
            "execution_count": count,
            "metadata": {},
            "output_type": "execute_result",
        }


def read(name: str = "research") -> Notebook:
    """Read a notebook of examples/."""
    notebook: Notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    return notebook


def main() -> None:
    """Execute notebooks beside copies of the examples, and write their outputs into them."""
    for name in sys.argv[1:] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            for example in EXAMPLES.glob("*.py"):
                shutil.copy(example, folder)
            os.chdir(folder)
            sys.path.insert(0, folder)  # as Jupyter does
            executed = execute(read(name))
            sys.path.remove(folder)
        text = json.dumps(executed, indent=1, ensure_ascii=False) + "\n"
        (EXAMPLES / f"{name}.ipynb").write_text(text, encoding="utf-8")
        print(f"{name}.ipynb: {len(executed['cells'])} cells", file=sys.stderr)


if __name__ == "__main__":
    main()
