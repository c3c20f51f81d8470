"""Define every error that a user can cause, in one tree.

    FewmoreError             an error in the input, not in the program
    ├── ConfigError          a setting that cannot be
    │   └── UnknownName      a name that is not in a table; the message suggests close ones
    ├── StateError           an operation that the current state does not allow
    ├── NotFittedError       a use before `fit`
    ├── DataError            images, labels or files that are not as they should be
    │   ├── MissingData      a file or folder that is not there; the message says where to get it
    │   ├── ImageError       an image that cannot be decoded or used; the message names it
    │   └── DownloadError    a transfer that failed, or whose bytes are not the published ones
    ├── SplitError           classes and shots that do not fit the images
    ├── BenchmarkError       a benchmark of a user's own code that breaks its contract
    ├── MethodError          a method that breaks its contract, or fails
    ├── CheckpointError      a run folder or checkpoint that cannot be used
    ├── ModelFileError       a model file that cannot be read, used or written
    └── ExportError          a classifier that cannot be written in another program's format

A message says what was given, why that cannot be, and what to type instead. The command line
prints the message alone: a user never sees a traceback for bad input.
"""

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from traceback import walk_tb
from typing import TypeVar

T = TypeVar("T")

MAX_NAMES = 50  # names of a table that a message lists
# Packages in whose code a mistake of the code that calls them shows, beside the standard library.
LIBRARIES = ("fewmore", "torch", "torchvision", "timm", "numpy", "scipy", "sklearn", "PIL")


class FewmoreError(Exception):
    """Report an error in the input, not in the program."""


class ConfigError(FewmoreError):
    """Report a setting that cannot be."""


class UnknownName(ConfigError):
    """Report a name that is not in a table, with close names or all of them."""

    def __init__(self, kind: str, given: str, known: Iterable[str], more: str = "") -> None:
        names = sorted(known)
        close = get_close_matches(given, names, n=3, cutoff=0.5)
        if close:
            hint = f"did you mean {' or '.join(close)}?"
        else:
            rest = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
            hint = f"there are: {', '.join(names[:MAX_NAMES])}{rest}"
        super().__init__(f"no {kind} is named '{given}': {hint}{more and f' ({more})'}")


class StateError(FewmoreError):
    """Report an operation that the current state does not allow, such as a name that is taken."""


class NotFittedError(FewmoreError):
    """Report a use before `fit`."""


class DataError(FewmoreError):
    """Report images, labels or files that are not as they should be."""


class MissingData(DataError):
    """Report a file or folder that is not there, and where to get it."""


class ImageError(DataError):
    """Report an image that cannot be decoded or used, by its name."""


class DownloadError(DataError):
    """Report a transfer that failed, or whose bytes are not the published ones."""


class SplitError(FewmoreError):
    """Report classes and shots that do not fit the images."""


class BenchmarkError(FewmoreError):
    """Report a benchmark of a user's own code that breaks its contract."""


class MethodError(FewmoreError):
    """Report a method that breaks its contract, or fails."""


class CheckpointError(FewmoreError):
    """Report a run folder or checkpoint that cannot be used."""


class ModelFileError(FewmoreError):
    """Report a model file that cannot be read, used or written."""


class ExportError(FewmoreError):
    """Report a classifier that cannot be written in another program's format."""


def fitted(learnt: T | None) -> T:
    """Return what `fit` learns; before it, there is nothing yet."""
    if learnt is None:
        raise NotFittedError("nothing is learnt yet: call fit with the base session first")
    return learnt


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without full stop, or its kind if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")


def own_lines(error: BaseException) -> list[tuple[str, int]]:
    """Return the lines of a user's own code that an error went through: file and number."""
    libraries = {*LIBRARIES, *sys.stdlib_module_names}
    return [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in libraries
    ]


def describe(error: BaseException) -> str:
    """Describe an error that is not of the input: its kind, its first line, and where it was.

    That is the last line of a user's own code, or the last of all where there is none.
    """
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    where = "".join(f" ({file}:{line})" for file, line in (own_lines(error) or lines)[-1:])
    message = next((line for line in str(error).splitlines() if line.strip()), "")
    return type(error).__name__ + (message and f": {message}") + where
