"""Apply `--set name=value` to recipes.

A name is a dotted path into a recipe: `pretrain.epochs` is common to all methods, `pseudo.lr` is a
setting of the method's own `Config`. The method's name may come first: `cec.pseudo.lr`.
"""

import ast
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fewmore.errors import ConfigError, FewmoreError, UnknownName, describe
from fewmore.methods import METHODS
from fewmore.methods.base import Recipe
from fewmore.methods.recipe import override

COMMON = {field.name for field in dataclasses.fields(Recipe)} - {"name", "method", "features"}


def distribute_settings(
    settings: Sequence[str], recipes: Sequence[Recipe], methods: Sequence[str] = ()
) -> list[dict[str, str]]:
    """Return, for each recipe, the settings that it has, as text by name.

    A setting that no recipe has is an error. Of equal names the last one counts. Where the names
    of the recipes' methods are given, `mine.alpha` is the setting alpha of the method mine alone.
    """
    texts: list[dict[str, str]] = [{} for _ in recipes]
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {setting}: write it as name=value, such as --set pretrain.epochs=50"
            )
        name, chosen = _without_method(name, setting, recipes, methods)
        _check_name(name, [recipes[index] for index in chosen], {*METHODS, *methods})
        for index in chosen:
            if _has(recipes[index], name):
                texts[index][name] = text
    return texts


def _without_method(
    name: str, setting: str, recipes: Sequence[Recipe], methods: Sequence[str]
) -> tuple[str, list[int]]:
    """Return a name without the method that it may begin with, and the recipes that it is for."""
    first, _, rest = name.partition(".")
    everyone = list(range(len(recipes)))
    if not rest or any(_has(recipe, first) for recipe in recipes):
        return name, everyone
    if first in methods:
        return rest, [index for index in everyone if methods[index] == first]
    if methods and first in METHODS:
        raise ConfigError(
            f"--set {setting}: {first} is not a method of this command, which has "
            f"{', '.join(methods)}: leave the setting out, or name {first} too"
        )
    return name, everyone


def apply_settings(recipe: Recipe, texts: Mapping[str, str]) -> Recipe:
    """Replace settings that the recipe has, all at once, as configs check them together."""
    changes: dict[str, Any] = {}
    for name, text in texts.items():
        groups, last = _path_of(name)
        config = _group_at(recipe, groups, name)
        current = getattr(config, last)
        if dataclasses.is_dataclass(current):
            names = ", ".join(f"{name}.{field.name}" for field in dataclasses.fields(current))
            raise ConfigError(f"--set {name}: that is a group of settings; name one of {names}")
        values = changes
        for group in groups:
            values = values.setdefault(group, {})
        values[last] = _parse(text, get_type_hints(type(config))[last], current, name)
    try:
        changed = override(recipe, changes)
    except ConfigError as error:
        raise ConfigError(f"{_options(texts, str(error))}: {error}") from None
    except FewmoreError:
        raise
    except Exception as error:  # of a user's own class of settings
        raise ConfigError(f"{_options(texts, str(error))}: {describe(error)}") from error
    _check_read(changed, texts)
    return changed


def _path_of(name: str) -> tuple[list[str], str]:
    """Split a setting's name into the groups that it lies in, from the recipe on, and its own."""
    path = name.split(".")
    *groups, last = path if path[0] in COMMON else ["method", *path]
    return groups, last


def _group_at(recipe: Recipe, groups: Iterable[str], name: str) -> Any:
    """Return the innermost of these groups of settings; `name` is the setting, for messages."""
    config: Any = recipe
    for group in groups:
        config = getattr(config, group)
        if not dataclasses.is_dataclass(config):
            raise ConfigError(f"--set {name}: '{group}' is a single value, not a group of settings")
    return config


def _options(texts: Mapping[str, str], complaint: str) -> str:
    """Return the settings that a complaint is about, as they are typed: those that it names."""
    words = re.findall(r"\w+", complaint)
    named = [name for name in texts if name.rpartition(".")[2] in words]
    return "--set " + " ".join(f"{name}={texts[name]}" for name in named or texts)


def _check_read(recipe: Recipe, names: Iterable[str]) -> None:
    """Refuse settings that others leave without effect, where a config says so."""
    for name in names:
        groups, last = _path_of(name)
        reason = getattr(_group_at(recipe, groups, name), "unread", {}).get(last)
        if reason is not None:
            raise ConfigError(f"--set {name}: it has no effect with {reason}; leave it out")


def _check_name(name: str, recipes: Sequence[Recipe], methods: Iterable[str] = ()) -> None:
    """Raise UnknownName where no recipe has a setting, with the names that there are.

    Of `mine.alpha`, the first part may also be a method that is mistyped.
    """
    groups: list[Any] = list(recipes)
    path: list[str] = []
    for part in name.split("."):
        members = [_members(group) for group in groups if dataclasses.is_dataclass(group)]
        if not members:
            return  # the path goes on below a single value: apply_settings refuses it
        groups = [values[part] for values in members if part in values]
        if not groups:
            kind = f"setting of {'.'.join(path)}" if path else "setting"
            close = [] if path or part == name else get_close_matches(part, methods, cutoff=0.6)
            kind += " or method" if close else ""
            known = {name for values in members for name in values}
            raise UnknownName(kind, part, {*known, *close})
        path.append(part)


def _has(recipe: Recipe, name: str) -> bool:
    try:
        _check_name(name, [recipe])
    except UnknownName:
        return False
    return True


def _members(group: Any) -> dict[str, Any]:
    """Return a group's settings by name; a recipe's are the common ones and its method's."""
    members = {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    if isinstance(group, Recipe):
        del members["name"], members["features"]
        members |= _members(members.pop("method"))
    return members


def check_types(config: Any, name: str) -> None:
    """Refuse a user's settings that `--set` could not change nor config.json hold."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_types(value, name)
            continue
        try:
            convert(value, hints[field.name])
        except ConfigError as error:
            raise ConfigError(
                f"{field.name} of the settings of {name} is {value!r}, {error}: a setting is bool, "
                "int, float, str, a Literal, a tuple of these, or any of them or None, and its "
                "default is of the type that is annotated"
            ) from None


_MISMATCH = object()
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "none",
}


def _parse(text: str, hint: Any, current: Any, name: str) -> Any:
    """Return the value of a text, of a type that the setting's annotation allows."""
    constants = {"true": "True", "false": "False", "none": "None"}
    try:
        value = ast.literal_eval(constants.get(text.lower(), text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = text  # not a Python literal
    if value is None and _convert(None, hint) is _MISMATCH:
        value = text  # of a setting that has "none" among its words
    if str in _kinds(hint) and _convert(value, hint) is _MISMATCH:
        value = text  # such as 2024, of a setting that is no number
    try:
        return convert(value, hint)
    except ConfigError as error:
        raise ConfigError(f"--set {name}={text}: '{text}' is {error}; it was {current!r}") from None


def convert(value: Any, hint: Any) -> Any:
    """Return a value as a type that an annotation allows; ConfigError says what it is not."""
    converted = _convert(value, hint)
    if converted is _MISMATCH:
        raise ConfigError(f"not {' or '.join(map(_in_words, _kinds(hint)))}")
    return converted


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _convert(value: Any, kind: Any) -> Any:
    """Return a value as a type, or _MISMATCH."""
    if len(_kinds(kind)) > 1:
        fitting = (_convert(value, member) for member in _kinds(kind))
        return next((item for item in fitting if item is not _MISMATCH), _MISMATCH)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    if kind is int and is_number and (isinstance(value, int) or value.is_integer()):
        return int(value)
    if get_origin(kind) is tuple:
        return _convert_tuple(value, get_args(kind))
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _MISMATCH
    return value if kind in (bool, str, NoneType) and isinstance(value, kind) else _MISMATCH


def _convert_tuple(value: Any, kinds: tuple[Any, ...]) -> Any:
    """Return a tuple of converted items; a single value is a tuple of one, no text an empty one."""
    if value == "":
        values: tuple[Any, ...] = ()
    else:
        parts = value.split(",") if isinstance(value, str) else value
        values = tuple(parts) if isinstance(parts, (tuple, list)) else (parts,)
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        return _MISMATCH
    items = tuple(_convert(item, kind) for item, kind in zip(values, kinds, strict=True))
    return _MISMATCH if _MISMATCH in items else items


def _in_words(kind: Any) -> str:
    """Describe a type for an error message."""
    if get_origin(kind) is tuple:
        items = get_args(kind)
        if get_origin(items[0]) is Literal:
            return f"{', '.join(map(str, get_args(items[0])))}, with commas between them"
        count = "" if items[-1] is ... else f"{len(items)} "
        return f"{count}numbers with commas between them"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return _KINDS.get(kind, str(kind))
