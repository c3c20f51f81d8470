"""Load code that is not fewmore's own: from a file, a module or an installed package.

A package offers methods and benchmarks as entry points of the groups `fewmore.methods` and
`fewmore.benchmarks`; they are then named like fewmore's own.
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from fewmore.errors import FewmoreError, MissingData

_LOADING = threading.Lock()
_LOADED: dict[Path, str] = {}  # the modules that users' files imported, with their hashes then
OWN = "fewmore_own_"  # how the names of modules of users' files begin


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
    files = files_of(path)
    digest = hashlib.sha256(f"{path.resolve()} {_hash(files)}".encode()).hexdigest()[:8]
    module_name = f"{OWN}{path.stem}_{digest}"
    with _LOADING:
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise error_type(f"{path} cannot be loaded as a Python file")
        module = importlib.util.module_from_spec(spec)
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)  # for what is imported later, within functions
        _forget_edited(files[1:])
        sys.modules[module_name] = module  # dataclasses look their module up while it is loaded
        sys.path.insert(0, folder)
        writes_bytecode = not sys.dont_write_bytecode
        sys.dont_write_bytecode = True  # it is old where a file is edited twice within a second
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise _failure(str(path), error, error_type) from error
        finally:
            sys.path.remove(folder)
            sys.dont_write_bytecode = not writes_bytecode
        try:
            _check_helpers(path, files[1:], error_type)
        except FewmoreError:
            del sys.modules[module_name]
            raise
        _LOADED.update((file, _hash([file])) for file in files[1:])
        return module


def files_of(path: Path) -> list[Path]:
    """List a file, and the files of its own folder that it imports, and that these import."""
    folder = path.resolve().parent
    found = [path.resolve()]
    for file in found:  # which grows on the way
        for name in _imported_names(file):
            module, package = folder / f"{name}.py", folder / name
            inside = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else []
            found += [each for each in (*inside, module) if each.is_file() and each not in found]
    return found


def code_hash(path: Path) -> str:
    """Hash a file with all that it imports from its own folder."""
    return _hash(files_of(path))


def _hash(files: Sequence[Path]) -> str:
    """Return the hash of the content of files; of a single one, that of this file."""
    digest = hashlib.sha256(files[0].read_bytes())
    for file in sorted(files[1:]):
        inside = file.relative_to(files[0].parent).as_posix()
        digest.update(f"{inside} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def _imported_names(file: Path) -> set[str]:
    """Return the first names of the modules that a file imports anywhere."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # which loading it reports
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - {""}


def _forget_edited(helpers: Sequence[Path]) -> None:
    """Drop these modules where one of them was edited since, so that all are imported anew."""
    if all(_LOADED.get(file, _hash([file])) == _hash([file]) for file in helpers):
        return
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/") in helpers:
            del sys.modules[name]


def _check_helpers(path: Path, helpers: Sequence[Path], error_type: type[FewmoreError]) -> None:
    """Refuse a file that got another module of a name than the one in its own folder."""
    for helper in helpers:
        inside = helper.relative_to(path.resolve().parent).with_suffix("")
        name = ".".join(inside.parts).removesuffix(".__init__")
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and (file is None or _hash([Path(file)]) != _hash([helper])):
            raise error_type(
                f"{path} imports {name}, which is in its own folder, but another {name} was "
                f"imported before ({file or 'built in'}): rename one of the two, or run them in "
                "two commands"
            )


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
    """Return a module's file, and the hash of what it and its own folder's modules contain."""
    file = module.__file__ or ""
    if module.__name__.startswith(OWN):
        return {"file": file, "sha256": code_hash(Path(file))}
    content = Path(file).read_bytes() if file else b""
    return {"file": file, "sha256": hashlib.sha256(content).hexdigest()}
