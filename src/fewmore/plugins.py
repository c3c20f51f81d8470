"""Load code that is not fewmore's own: from a file, a module or an installed package.

A package offers methods and benchmarks as entry points of the groups `fewmore.methods` and
`fewmore.benchmarks`; they are then named like fewmore's own.
"""

import hashlib
import importlib
import importlib.util
import sys
import threading
import traceback
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from fewmore.errors import FewmoreError, MissingData

_LOADING = threading.Lock()


def installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages offer, by name; nothing of them is imported."""
    return {entry.name: entry for entry in entry_points(group=group)}


def package_of(entry: EntryPoint) -> str:
    """Return the name and the version of the package that offers an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""


def problem_of(entry: EntryPoint) -> str | None:
    """Say why an entry point cannot be loaded, as far as that shows without importing it."""
    match = entry.pattern.match(entry.value)
    if match is None or not match["attr"]:
        return f"'{entry.value}' is not of the form package.module:NAME"
    top = match["module"].partition(".")[0]
    return None if is_module(top, FewmoreError) else f"there is no package {top}"


def check(entry: EntryPoint, error_type: type[FewmoreError]) -> None:
    """Refuse an entry point that cannot be loaded."""
    if problem := problem_of(entry):
        raise error_type(
            f"'{entry.name}' of the package {package_of(entry)} cannot be loaded ({problem}): "
            "install that package again, or remove it"
        )


def is_module(name: str, error_type: type[FewmoreError]) -> bool:
    """Return whether a dotted name is that of a module that can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # no such package, or not a name at all
        return False
    except Exception as error:  # a package's own code runs before its modules are found
        raise _failure(name, error, error_type) from error


def load(where: str, name: str, error_type: type[FewmoreError]) -> ModuleType:
    """Import the file or module that holds a name; what fails is an error of this type."""
    if where.endswith(".py"):
        return _load_file(Path(where), name, error_type)
    try:
        return importlib.import_module(where)
    except Exception as error:
        raise _failure(where, error, error_type) from error


def _load_file(path: Path, name: str, error_type: type[FewmoreError]) -> ModuleType:
    """Import a user's file, once for each content: later calls must give the same classes.

    As in a script, modules of the file's own folder can be imported.
    """
    if not path.is_file():
        raise MissingData(
            f"there is no file {path}: give the path of the Python file that holds {name}"
        )
    digest = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:8]
    module_name = f"fewmore_own_{path.stem}_{digest}"
    with _LOADING:
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise error_type(f"{path} cannot be loaded as a Python file")
        module = importlib.util.module_from_spec(spec)
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)
        sys.modules[module_name] = module  # dataclasses look their module up while it is loaded
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise _failure(str(path), error, error_type) from error
        return module


def _failure(where: str, error: Exception, error_type: type[FewmoreError]) -> FewmoreError:
    """Return the error of code that fails when it is loaded, with the line of it that failed."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
        place = f"{own[-1].filename}, line {own[-1].lineno}" if own else where
    return error_type(f"{where} fails when it is loaded: {type(error).__name__}: {error} ({place})")


def source_of(module: ModuleType) -> dict[str, str]:
    """Return a module's file and the hash of its content."""
    file = module.__file__ or ""
    content = Path(file).read_bytes() if file else b""
    return {"file": file, "sha256": hashlib.sha256(content).hexdigest()}
