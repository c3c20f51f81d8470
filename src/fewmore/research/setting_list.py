"""List the settings of a recipe with their values and meanings, for `fewmore settings`.

A setting's meaning is what its dataclass says about it: the comment behind the field or above it,
or else its line in the docstring's list of attributes.
"""

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from fewmore.methods.base import Recipe

ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |^\S|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Setting:
    """Describe a setting as `--set` takes it."""

    name: str
    value: str
    meaning: str
    own: bool  # of the method, not common to all methods


def list_settings(recipe: Recipe) -> list[Setting]:
    """Return all settings of a recipe: those of its method first, then the common ones."""
    meanings = cache(_meanings)
    return [
        Setting(leaf.name, leaf.value, meanings(leaf.config).get(leaf.field, "").rstrip("."), own)
        for own, leaf in _leaves_of(recipe)
    ]


def setting_values(recipe: Recipe) -> dict[str, str]:
    """Return the values of all settings of a recipe by name, as `--set` takes them.

    No source is read for it: a user's file may have been edited since it was loaded.
    """
    return {leaf.name: leaf.value for _, leaf in _leaves_of(recipe)}


def setting_defaults(recipe: Recipe) -> dict[str, str]:
    """Return each setting's default in the class that introduces it; empty where it has none."""
    return {leaf.name: _default(leaf.config, leaf.field) for _, leaf in _leaves_of(recipe)}


@dataclass(frozen=True)
class _Leaf:
    """Hold a setting that is a single value: its config's field, and its name in a recipe."""

    config: type
    field: str
    name: str
    value: str


def _leaves_of(recipe: Recipe) -> Iterator[tuple[bool, _Leaf]]:
    """Yield all settings of a recipe, and whether they are the method's own."""
    for leaf in _leaves(recipe.method):
        yield True, leaf
    for leaf in _leaves(recipe, leave_out=("name", "method", "features")):
        yield False, leaf


def _leaves(config: Any, prefix: str = "", leave_out: Container[str] = ()) -> Iterator[_Leaf]:
    for field in dataclasses.fields(config):
        if field.name in leave_out:
            continue
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{name}.")
        else:
            yield _Leaf(type(config), field.name, name, format_value(value))


def _default(config: type, field: str) -> str:
    for cls in reversed(config.__mro__):
        found = vars(cls).get("__dataclass_fields__", {}).get(field)
        if found is not None:
            if found.default_factory is not dataclasses.MISSING:
                return format_value(found.default_factory())
            return "" if found.default is dataclasses.MISSING else format_value(found.default)
    return ""


def format_value(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(format_value, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _meanings(config: type) -> dict[str, str]:
    """Return what a dataclass and its bases say about their fields, by name."""
    meanings: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        if "__dataclass_fields__" in vars(cls):
            meanings |= _attributes(cls) | _comments(cls)
    return meanings


def _attributes(cls: type) -> dict[str, str]:
    """Return the docstring's list of attributes."""
    _, _, listed = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    return {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(listed)}


def _comments(cls: type) -> dict[str, str]:
    """Return the comments behind fields or directly above them."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # made without a file
        return {}
    lines = source.splitlines()
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    [definition] = ast.parse(source).body
    found: dict[str, str] = {}
    for node in getattr(definition, "body", []):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue  # not a field
        first, last = node.lineno, node.end_lineno or node.lineno
        while lines[first - 2].lstrip().startswith("#"):  # line numbers begin at 1
            first -= 1
        texts = [comments[number] for number in range(first, last + 1) if number in comments]
        if texts:
            found[node.target.id] = " ".join(texts)
    return found
