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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from fewmore.errors import FewmoreError, MissingData, own_lines

_LOADING = threading.RLock()  # a user's file may load another one
_LOADED: dict[Path, str] = {}  # the modules that users' files imported, with their hashes then
_CODE: dict[str, str] = {}  # by the names of modules of users' files: the hash they were loaded by


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
    code = _hash(files)
    digest = hashlib.sha256(f"{path.resolve()} {code}".encode()).hexdigest()[:8]
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
            sys.path.append(folder)  # for what is imported later, within functions
        _forget_edited(files[1:])
        _CODE[module_name] = code
        sys.modules[module_name] = module  # dataclasses look their module up while it is loaded
        try:
            with _importing_from(folder):
                spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise _failure(str(path), error, error_type) from error
        try:
            _check_helpers(path, files[1:], error_type)
        except FewmoreError:
            del sys.modules[module_name]
            raise
        return module


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Look into a folder first for what is imported, and write no bytecode of it.

    Bytecode is old where a file is edited twice within a second.
    """
    wrote_no_bytecode = sys.dont_write_bytecode
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.dont_write_bytecode = wrote_no_bytecode


def files_of(path: Path) -> list[Path]:
    """List a file, and the files of its own folder that it imports, and that these import."""
    folder = path.resolve().parent
    found = [path.resolve()]
    for file in found:  # which grows on the way
        for place in _imported_places(file, folder):
            inside = sorted(place.rglob("*.py")) if (place / "__init__.py").is_file() else []
            files = (*inside, place.with_suffix(".py"))
            found += [each for each in files if each.is_file() and each not in found]
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


def _imported_places(file: Path, folder: Path) -> list[Path]:
    """Return where a folder would hold what a file imports anywhere: paths without suffix."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # which loading it reports
        return []
    names: list[tuple[str, ...]] = []
    own = file.relative_to(folder).parent.parts  # where relative imports begin
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = own[: max(0, len(own) - node.level + 1)] if node.level else ()
            module = node.module.split(".") if node.module else []
            names += [(*start, *module, alias.name) for alias in node.names]
    # Folders on the way need no __init__.py to be imported from.
    parts = {name[:end] for name in names for end in range(1, len(name) + 1)}
    return [folder.joinpath(*each) for each in sorted(parts)]


def _forget_edited(helpers: Sequence[Path]) -> None:
    """Drop these modules where one of them was edited since, so that all are imported anew."""
    hashes = {file: _hash([file]) for file in helpers}
    edited = any(_LOADED.get(file, digest) != digest for file, digest in hashes.items())
    # Also where the file that imports them fails: they may stay imported.
    _LOADED.update(hashes)
    if not edited:
        return
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/") in helpers:
            del sys.modules[name]
            # A folder without __init__.py would give its old modules to `from folder import`.
            parent = sys.modules.get(name.rpartition(".")[0])
            if parent is not None and getattr(parent, "__file__", None) is None:
                vars(parent).pop(name.rpartition(".")[2], None)


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
        what, place = error.msg, f"{error.filename}, line {error.lineno}"
    else:
        own = own_lines(error)
        what, place = str(error), "{}, line {}".format(*own[-1]) if own else where
    return error_type(f"{where} fails when it is loaded: {type(error).__name__}: {what} ({place})")


def loaded_source(cls: type) -> dict[str, str] | None:
    """Return file and hash of a class of a user's file, as it was loaded; None of other classes."""
    return source_of(sys.modules[cls.__module__]) if cls.__module__ in _CODE else None


def source_of(module: ModuleType) -> dict[str, str]:
    """Return a module's file and the hash of its content, which is empty where there is no file.

    Of a user's file it is the hash that it was loaded by, with the modules of its own folder: what
    runs, even if the file was edited since.
    """
    file = getattr(module, "__file__", None) or ""
    digest = _CODE.get(module.__name__)
    if digest is None:
        digest = hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()
    return {"file": file, "sha256": digest}
