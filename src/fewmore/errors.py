"""What can go wrong, in one tree.

    FewmoreError                 every error that is the input's fault, not the program's
    ├── ConfigError            a setting that cannot be
    │   └── UnknownName        a name that is not in a table; says which ones are close
    ├── DataError              images, labels or files that are not as they should be
    │   ├── MissingData        a file or folder that is not there; says where to get it
    │   ├── ImageError       an image that cannot be decoded or used; names it
    │   └── DownloadError      a transfer that failed, or whose bytes are not the published ones
    ├── SplitError             classes and shots that do not fit the images
    ├── MethodError            a method that breaks its contract
    ├── CheckpointError        a run folder or checkpoint that cannot be used
    ├── ModelFileError         a model file that cannot be read, used or written
    ├── ExportError            a classifier that cannot be written in another program's format
    └── NotFitted              used before `fit`

A message says what was given, why that cannot be, and what to type instead. The command line prints it alone;
a user never sees a traceback for a bad input.
"""

from collections.abc import Iterable
from difflib import get_close_matches

MOST_NAMES = 50  # of a table that a message lists


class FewmoreError(Exception):
    """Every error that is the input's fault, not the program's."""


class ConfigError(FewmoreError):
    """A setting that cannot be."""


class UnknownName(ConfigError):
    """A name that is not in a table; the message names the close ones, or all."""

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = get_close_matches(given, names, n=3, cutoff=0.5)
        more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"there are: {', '.join(names[:MOST_NAMES])}{more}"
        )
        super().__init__(f"no {kind} is named '{given}': {hint}")


class DataError(FewmoreError):
    """Images, labels or files that are not as they should be."""


class MissingData(DataError):
    """A file or folder that is not there; the message says where to get it."""


class ImageError(DataError):
    """An image that cannot be decoded or used; the message names it."""


class DownloadError(DataError):
    """A transfer that failed, or whose bytes are not the published ones."""


class SplitError(FewmoreError):
    """Classes and shots that do not fit the images."""


class MethodError(FewmoreError):
    """A method that breaks its contract."""


class CheckpointError(FewmoreError):
    """A run folder or checkpoint that cannot be used."""


class ModelFileError(FewmoreError):
    """A model file that cannot be read, used or written."""


class ExportError(FewmoreError):
    """A classifier that cannot be written in another program's format."""


class NotFitted(FewmoreError):
    """Used before `fit`."""
