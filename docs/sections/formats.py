"""Quote what the code says about the files that it writes."""

import inspect
import re

from fewmore.classifier.model_file import format as model_format
from fewmore.research import run_folder
from fewmore.research.results import RunResult

FIELD = re.compile(r"^    (\w+): ([^#\n=]+?)(?: *# (.*))?$", re.MULTILINE)


def model_file() -> str:
    """Quote the description of a model file."""
    return _quote(model_format.__doc__)


def run_folders() -> str:
    """Quote the description of a run folder."""
    return _quote(run_folder.__doc__)


def result() -> str:
    """List the keys of a result with their types and comments."""
    fields, _, _ = inspect.getsource(RunResult).partition("    @property")
    lines = [
        f"{name:<16} {kind}{'  # ' + comment if comment else ''}"
        for name, kind, comment in FIELD.findall(fields)
    ]
    return "\n".join(["```text", *lines, "```"]) + "\n"


def _quote(docstring: str | None) -> str:
    """Return a docstring without its first sentence, which is the heading here."""
    _, _, text = (docstring or "").strip().partition("\n\n")
    return f"```text\n{inspect.cleandoc(text)}\n```\n"
