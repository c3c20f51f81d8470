"""Load methods that are not fewmore's own: from a file, a module or an installed package.

A package offers methods as entry points of the group `fewmore.methods`; they are then named like
those of the table.
"""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import threading
import traceback
from collections.abc import Container
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fewmore.errors import MethodError, MissingData, UnknownName

if TYPE_CHECKING:
    from fewmore.methods.base import Method

GROUP = "fewmore.methods"
NAME = re.compile(r"[A-Za-z0-9][\w-]*")  # usable in the names of folders and settings
_LOADING = threading.Lock()


def installed() -> dict[str, EntryPoint]:
    """Return the methods that installed packages offer, by name; nothing of them is imported."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def is_module(name: str) -> bool:
    """Return whether a dotted name is that of a module that can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # no such package, or not a name at all
        return False
    except Exception as error:  # a package's own code runs before its modules are found
        raise _failure(name, error) from error


def load(where: str, class_name: str) -> ModuleType:
    """Import the file or module that holds a class."""
    if where.endswith(".py"):
        return _load_file(Path(where), class_name)
    try:
        return importlib.import_module(where)
    except Exception as error:
        raise _failure(where, error) from error


def _load_file(path: Path, class_name: str) -> ModuleType:
    """Import a user's file, once for each content: later calls must give the same classes.

    As in a script, modules of the file's own folder can be imported.
    """
    if not path.is_file():
        raise MissingData(
            f"there is no file {path}: give the path of the Python file that holds {class_name}"
        )
    digest = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:8]
    module_name = f"fewmore_own_{path.stem}_{digest}"
    with _LOADING:
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise MethodError(f"{path} cannot be loaded as a Python file")
        module = importlib.util.module_from_spec(spec)
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)
        sys.modules[module_name] = module  # dataclasses look their module up while it is loaded
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise _failure(str(path), error) from error
        return module


def _failure(where: str, error: Exception) -> MethodError:
    """Return the error of code that fails when it is loaded, with the line of it that failed."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
        place = f"{own[-1].filename}, line {own[-1].lineno}" if own else where
    return MethodError(
        f"{where} fails when it is loaded: {type(error).__name__}: {error} ({place})"
    )


def find_class(module: ModuleType, name: str, where: str) -> "type[Method]":
    """Return a class of a module, if it is a complete method."""
    from fewmore.methods.base import Method

    cls = getattr(module, name, None)
    if cls is None:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise UnknownName(f"class in {where}", name, classes)
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
    if not (
        isinstance(config, type)
        and issubclass(config, MethodConfig)
        and "__dataclass_fields__" in vars(config)
    ):
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


def source_of(module: ModuleType) -> dict[str, str]:
    """Return a module's file and the hash of its content."""
    file = module.__file__ or ""
    content = Path(file).read_bytes() if file else b""
    return {"file": file, "sha256": hashlib.sha256(content).hexdigest()}
