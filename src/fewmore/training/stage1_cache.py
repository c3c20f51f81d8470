"""Keep trained stage-1 networks, so that methods with the same stage 1 share one training.

A file's name is a hash of all that decides its content: settings, seed, images, weights, device,
threads, precision, versions, and the source files of the packages and classes that stage 1 runs
through. After an edit of any of them, stage 1 is trained anew.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

import fewmore
from fewmore import io, plugins
from fewmore.data.paths import cache_folder
from fewmore.errors import ConfigError
from fewmore.io import file_hash, hash_files
from fewmore.training.fast_path import yield_gpu
from fewmore.training.runtime import Runtime

# What stage 1 runs through. It is more than it needs, so that nothing is missed.
SOURCES = (
    "random.py",
    "data",
    "nn",
    "accel",
    "training",
    "methods/network.py",
    "methods/recipe.py",
)


def make_folder() -> Path:
    """Make the folder where runs share stage 1, before a training whose end would need it."""
    folder = cache_folder() / "stage1"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made ({error.strerror}): set FEWMORE_CACHE to another folder"
        ) from error
    return folder


def cache_file(folder: Path, runtime: Runtime, weights: Path | None, settings: object) -> Path:
    """Return where a stage 1 is kept; `settings` must say all that decides it, as its repr."""
    parts = (
        fewmore.__version__,
        torch.__version__,
        source_digest(),
        runtime.device.type,
        torch.get_num_threads() if runtime.device.type == "cpu" else None,
        runtime.describe(),
        None if weights is None else file_hash(weights),
        settings,
    )
    return folder / f"{sha256(repr(parts).encode()).hexdigest()[:16]}.safetensors"


def code_of(*types: type) -> list[tuple[str, str, str]] | None:
    """Return module, name and hash of the file of each class, and of those it derives from.

    None where one is of no file, as in a notebook: its code is not known.
    """
    found = []
    for cls in dict.fromkeys(base for each in types for base in each.__mro__[:-1]):
        module = sys.modules.get(cls.__module__)
        source = {} if module is None else plugins.source_of(module)
        if not source.get("file") and cls.__module__ not in sys.builtin_module_names:
            return None
        found.append((cls.__module__, cls.__qualname__, source["sha256"]))
    return found


@cache
def source_digest(*more: str) -> str:
    """Hash the source files that decide what stage 1 learns, and more files or folders."""
    root = Path(fewmore.__file__).parent
    files = [
        file
        for source in (*SOURCES, *more)
        for file in ([root / source] if source.endswith(".py") else (root / source).rglob("*.py"))
    ]
    return hash_files(root, files)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one run at a time use a file: of runs with the same stage 1, the first trains it."""
    with ExitStack() as held:
        with yield_gpu():
            held.enter_context(io.locked(path.with_suffix(".lock")))
        yield
