"""Write the reference from the code: Python names, commands, settings, HTTP."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules, resolve_name
from types import ModuleType
from typing import Any

import typer
from fastapi import FastAPI
from typer.cli import get_docs_for_click

import fewmore
from fewmore.cli import app
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.methods import FEATURES, METHODS
from fewmore.research import recipes
from fewmore.research.setting_list import Setting, list_settings
from fewmore.service import openapi, routes
from fewmore.service.guard import Access
from sections.markdown import markdown_table
from sections.recorded import ROOT

SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Pages whose snippets of Python are run by tests.
RUN_PAGES = (
    "quickstart",
    "classifier",
    "export",
    "python",
    "tuning",
    "training",
    "own-method",
    "own-benchmark",
)
GROUP_TITLES = ("setting", "value", "meaning")


def api() -> str:
    """List the public names of fewmore, then all that the snippets of the docs import.

    The site shows signatures and whole docstrings below these headings: docs/site.py.
    """
    public = [f"fewmore.{name}" for name in fewmore.__all__ if not name.startswith("__")]
    errors = [name for name in public if _is_error(resolve_name(name))]
    pages = imported()
    photos = [name for name in public if name not in errors]
    photos += [name for name in pages if name.startswith("fewmore.classifier.")]
    research = [name for name in pages if name not in (*photos, *errors)]
    parts = []
    for title, names in (("The classifier", photos), ("Research", research), ("Errors", errors)):
        parts += [f"## {title}\n", *_entries(names, pages)]
    return "\n".join(parts)


def _entries(names: Iterable[str], pages: Mapping[str, list[str]]) -> Iterator[str]:
    for name in names:
        first, _, _ = (inspect.getdoc(resolve_name(name)) or "").partition("\n\n")
        shown = [f"[{page}.md]({page}.md)" for page in pages.get(name, ())]
        used = f"\nUsed in {', '.join(shown)}.\n" if shown else ""
        yield f"### `{name}`\n\n{' '.join(first.split())}\n{used}"


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def imported() -> dict[str, list[str]]:
    """Return the names of fewmore that snippets use, by dotted name, with their pages."""
    found: dict[str, list[str]] = {}
    for page in RUN_PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        tree = ast.parse("\n".join(SNIPPET.findall(text)))
        for name in sorted(_used_names(tree)):
            pages = found.setdefault(name, [])
            pages += [page] if page not in pages else []
    return dict(sorted(found.items()))


def _used_names(tree: ast.Module) -> Iterator[str]:
    """Yield what is imported from fewmore; of a module, what is used of it."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fewmore":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if isinstance(resolve_name(name), ModuleType):
                    modules[alias.asname or alias.name] = name
                else:
                    yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and not isinstance(resolve_name(f"{module}.{node.attr}"), ModuleType):
                yield f"{module}.{node.attr}"


def commands() -> str:
    """Write what typer knows of the commands, with a link to each."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="fewmore")
    text = get_docs_for_click(obj=command, ctx=context, name="fewmore")
    listed = text[text.index("## ") :]
    listed = re.sub(r"^\* `--help`: .*\n", "", listed, flags=re.MULTILINE)
    listed = re.sub(r"(^Example: )(.*)$", r"\1`\2`", listed, flags=re.MULTILINE)
    return listed.rstrip() + "\n"


def settings() -> str:
    """List the settings that all methods share, then those of some methods and of features."""
    benchmark = BENCHMARKS["cifar100"]
    common: dict[str, Setting] = {}
    own: dict[tuple[str, str], dict[str, Setting]] = {}  # by name and meaning, then by method
    for name in METHODS:
        listed = list_settings(recipes.recipe("official", benchmark, name))
        common = common or {setting.name: setting for setting in listed if not setting.own}
        for setting in listed:
            if setting.own:
                own.setdefault((setting.name, setting.meaning), {})[name] = setting
    shared: dict[tuple[str, ...], list[Setting]] = {}  # by the methods that have them
    for of_methods in own.values():
        one = next(iter(of_methods.values()))
        values = {name: setting.value for name, setting in of_methods.items()}
        shared.setdefault(tuple(values), []).append(replace(one, value=_values(values)))
    parts = [
        f"## Of the method{'s' if len(names) > 1 else ''} {', '.join(names)}\n\n"
        f"{_setting_table(found)}"
        for names, found in shared.items()
    ]
    for name in FEATURES:
        listed = list_settings(recipes.recipe("official", benchmark, "cec", features=name))
        other = [
            replace(setting, value=_values({name: setting.value}))
            for setting in listed
            if not setting.own and setting.name not in common
        ]
        if other:
            parts.append(f"## Of the features {name}\n\n{_setting_table(other)}")
    of_all = [replace(one, value=_values({"all": one.value})) for one in common.values()]
    first = f"## Of all methods\n\n{_setting_table(of_all)}"
    return "\n".join([first, *parts])


def _values(by_method: Mapping[str, str]) -> str:
    """Return the most frequent value, and the others with their methods."""
    methods: dict[str, list[str]] = {}
    for method, value in by_method.items():
        methods.setdefault(f"`{value or '()'}`", []).append(method)
    usual, *others = sorted(methods, key=lambda value: len(methods[value]), reverse=True)
    return "; ".join([usual, *(f"{', '.join(methods[value])}: {value}" for value in others)])


def _setting_table(settings: list[Setting]) -> str:
    rows = [(f"`{one.name}`", one.value, _cell(one.meaning)) for one in settings]
    return "\n".join(markdown_table(GROUP_TITLES, rows)) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def http() -> str:
    """List the requests of the service from the OpenAPI document of its routes."""
    service = FastAPI(title="fewmore")
    for found in sorted(iter_modules(routes.__path__), key=lambda one: one.name):
        module = import_module(f"{routes.__name__}.{found.name}")
        if hasattr(module, "router"):
            service.include_router(module.router)
    openapi.describe(service, Access())
    document = service.openapi()
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines = [f"### `{method.upper()} {path}`", "", operation["description"], ""]
            rows = list(_inputs(operation, document))
            if rows:
                lines += [*markdown_table(("input", "where", "meaning"), rows), ""]
            lines.append(f"Responses: {_responses(operation)}.")
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _inputs(operation: dict[str, Any], document: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for parameter in operation.get("parameters", ()):
        meaning = parameter.get("description", "")
        yield f"`{parameter['name']}`", parameter["in"], _cell(" ".join(meaning.split()))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for name, described in schema.get("properties", {}).items():
            meaning = described.get("description", "")
            yield f"`{name}`", f"body, {kind}", _cell(" ".join(meaning.split()))


def _responses(operation: dict[str, Any]) -> str:
    """Name the status codes, and what a successful response is."""
    good = operation["responses"].get("200", {}).get("content", {})
    shapes = []
    for kind, content in good.items():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        shapes.append(f"`{name}` as {kind}" if name else kind)
    others = ", ".join(code for code in sorted(operation["responses"]) if code != "200")
    return f"200 ({' or '.join(shapes)})" + (f"; problems: {others}" if others else "")
