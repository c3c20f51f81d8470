"""List what the code offers: methods, benchmarks, backbones, files."""

import ast
import re
from importlib import import_module
from pathlib import Path

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.methods import FEATURES, METHODS
from fewmore.nn.backbones import BACKBONES
from sections.markdown import markdown_table
from sections.recorded import ROOT

METHOD_TITLES = ("name", "what it is", "from", "keeps of old images")
# A paragraph of tensor dimensions, such as "N: classes   d: features".
LEGEND = re.compile(r"\w(, \w)*: [^.]*$")
# An extra, its packages, and the comment behind them; a list of TOML is one of Python.
EXTRA = re.compile(r"^([\w-]+) = (\[.*?\])(?: *# ([^\n]*))?$", re.MULTILINE | re.DOTALL)
REQUIREMENT = re.compile(r"[\w.-]+(\[[^]]*\])?")


def methods() -> str:
    """List all methods of the registry."""
    return "\n".join(markdown_table(METHOD_TITLES, map(_method_cells, METHODS))) + "\n"


def catalogue() -> str:
    """Quote the docstring of each method's file above the methods that it implements."""
    names_by_module: dict[str, list[str]] = {}
    for name, info in METHODS.items():
        names_by_module.setdefault(info.module, []).append(name)
    parts = []
    for module, names in names_by_module.items():
        paragraphs = (import_module(module).__doc__ or "").strip().split("\n\n")
        text = "\n\n".join(part for part in paragraphs if not LEGEND.match(part))
        table = markdown_table(METHOD_TITLES, map(_method_cells, names))
        parts.append("\n".join([f"## {', '.join(names)}", "", text, "", *table]))
    return "\n\n".join(parts) + "\n"


def _method_cells(name: str) -> tuple[str, ...]:
    info = METHODS[name]
    return f"`{info.name}`", info.title, info.paper, info.memory


def features() -> str:
    """List all feature recipes."""
    rows = ((f"`{info.name}`", info.title, info.paper) for info in FEATURES.values())
    titles = ("features", "what stage 1 learns them by", "from")
    return "\n".join(markdown_table(titles, rows)) + "\n"


def example() -> str:
    """Quote the example of a user's own method."""
    path = ROOT / "docs" / "examples" / "power_means.py"
    return f"`{path.relative_to(ROOT)}`:\n\n```python\n{path.read_text()}```\n"


def extras() -> str:
    """List the extras of pyproject.toml: what each brings, and the comment behind it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    rows = []
    for name, brought, purpose in EXTRA.findall(text):
        packages = [REQUIREMENT.match(line)[0] for line in ast.literal_eval(brought)]
        rows.append((f"`fewmore[{name}]`", purpose, ", ".join(packages)))
    return "\n".join(markdown_table(("extra", "what for", "brings"), rows)) + "\n"


def benchmarks() -> str:
    """List all benchmarks."""
    titles = (
        "name",
        "what it is",
        "classes",
        "base",
        "sessions",
        "way × shot",
        "pixels",
        "backbone",
    )
    rows = [
        (
            f"`{benchmark.name}`",
            benchmark.title,
            str(benchmark.classes),
            str(benchmark.base),
            str(benchmark.sessions - 1),
            f"{benchmark.way} × {benchmark.shot}",
            str(benchmark.transform.size),
            benchmark.backbone,
        )
        for benchmark in BENCHMARKS.values()
    ]
    return "\n".join(markdown_table(titles, rows)) + "\n"


def backbones() -> str:
    """List all backbones."""
    rows = []
    for name, info in BACKBONES.items():
        parameters = sum(parameter.numel() for parameter in info.build().parameters())
        rows.append((f"`{name}`", str(info.dim), f"{parameters:,}", info.remark))
    return "\n".join(markdown_table(("name", "features", "parameters", "for"), rows)) + "\n"


def tree() -> str:
    """Draw the packages and their files, each with the first sentence of its docstring."""
    source = ROOT / "src" / "fewmore"
    lines = [_tree_line(source, 0), *_file_lines(source, 1)]
    for package in _packages(source):
        lines += [_tree_line(package, 1), *_file_lines(package, 2)]
        lines += [_tree_line(inner, 2) for inner in _packages(package)]
    return "\n".join(["```text", *lines, "```"]) + "\n"


def _packages(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if (path / "__init__.py").exists())


def _file_lines(folder: Path, depth: int) -> list[str]:
    paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("__"))
    return [_tree_line(path, depth) for path in paths]


def _tree_line(path: Path, depth: int) -> str:
    """Write the name of a file or package and the first sentence of its docstring."""
    module = path / "__init__.py" if path.is_dir() else path
    name = f"{path.name}/" if path.is_dir() else path.name
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"\.(?=\s+[A-Z`]|$)", docstring.split("\n\n")[0])[0]
    return f"{'  ' * depth}{name:<24} {' '.join(sentence.split())}".rstrip()
