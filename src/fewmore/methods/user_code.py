"""Load methods that are not fewmore's own, and check that they are complete.

`plugins.py` imports their file, module or installed package.
"""

import inspect
import re
from collections.abc import Container
from dataclasses import fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from fewmore import plugins
from fewmore.errors import MethodError, UnknownName

if TYPE_CHECKING:
    from fewmore.methods.base import Method

GROUP = "fewmore.methods"
NAME = re.compile(r"[A-Za-z0-9][\w-]*")  # usable in the names of folders and settings


def refuse_file(path: str, base: type, kind: str) -> NoReturn:
    """Say which class of a file to name: those that derive from a method's or recipe's base."""
    module = plugins.load(path, f"the {kind}", MethodError)
    names = [
        f"{path}:{name}"
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base)
        if value.__module__ == module.__name__
    ]
    if names:
        raise MethodError(f"{path} is a file: name the class of the {kind}, {' or '.join(names)}")
    raise MethodError(
        f"{path} is a file without a {kind}: write a class in it that derives from "
        f"{base.__module__}.{base.__name__}"
    )


def member_of(module: ModuleType, name: str, where: str) -> Any:
    """Return what a module has under a name that a user gave; it may be no class."""
    found = getattr(module, name, None)
    if found is None:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise UnknownName(f"class in {where}", name, classes)
    return found


def is_config(value: object, base: type) -> bool:
    """Return whether a value is a dataclass of settings that derives from a base."""
    is_derived = isinstance(value, type) and issubclass(value, base)
    return is_derived and "__dataclass_fields__" in vars(value)


def title_of(cls: type, name: str) -> str:
    """Return the first line of a class's docstring; without one, its name."""
    return ((cls.__doc__ or "").strip() or name).splitlines()[0]


def find_class(module: ModuleType, name: str, where: str) -> "type[Method]":
    """Return a class of a module, if it is a complete method."""
    from fewmore.methods.base import Method
    from fewmore.training.pretrain import PretrainConfig

    cls = member_of(module, name, where)
    if isinstance(cls, type) and issubclass(cls, PretrainConfig):
        raise MethodError(
            f"{name} in {where} is a feature recipe, not a method: name a method with it, such as "
            f"fewmore settings decoupled-cosine --features {where}:{name}"
        )
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise MethodError(
            f"{name} in {where} is not a Method: derive it from fewmore.methods.base.Method"
        )
    if cls.__abstractmethods__:
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise MethodError(f"{name} in {where} does not implement {missing}")
    try:
        inspect.signature(cls).bind("recipe", "runtime", 0)
    except TypeError as error:
        raise MethodError(
            f"{name} in {where} cannot be constructed as {name}(recipe, runtime, seed): {error}; "
            "give it these three parameters, and settings a Config"
        ) from None
    _check_config(cls, where)
    return cls


def _check_config(cls: "type[Method]", where: str) -> None:
    """Refuse settings that `--set` could not reach."""
    from fewmore.methods.base import MethodConfig, Recipe

    config = cls.config_type
    if not is_config(config, MethodConfig):
        raise MethodError(
            f"config_type of {cls.__name__} in {where} must be a frozen dataclass that derives "
            "from fewmore.methods.base.MethodConfig"
        )
    taken = {field.name for field in fields(config)} & {field.name for field in fields(Recipe)}
    if taken:
        raise MethodError(
            f"settings of {cls.__name__} in {where} must not be called "
            f"{', '.join(sorted(taken))}: every recipe has settings of that name"
        )


def display_name(cls: "type[Method]", where: str, taken: Container[str]) -> str:
    """Return the name of a user's class in tables and run folders; no registered name is used."""
    name = cls.name or cls.__name__.lower()
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise MethodError(
            f"the name of {cls.__name__} in {where} must be made of letters, digits, - and _, "
            f"and is {name!r}"
        )
    return f"own-{name}" if name in taken else name
