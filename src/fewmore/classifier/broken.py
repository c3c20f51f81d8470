"""Find image files that cannot be read, all of them once one was met.

Nothing is decoded twice where all can be read.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from errno import ENOENT
from pathlib import Path
from typing import TypeVar

from fewmore.classifier.embedding import Progress
from fewmore.classifier.inputs import LabeledImages
from fewmore.classifier.text import count_noun, join_names
from fewmore.data.decode import suppress_warnings, try_decode
from fewmore.data.folders import from_printable
from fewmore.data.threads import threaded_map
from fewmore.errors import DataError, ImageError

SHORT_SIDE = 256  # pixels that an image is decoded to; a large JPEG is then read at a fraction
CHUNK = 16  # images that a thread reads at a time
ABSENT = "is not there"  # a problem
MAX_NOTED = 50  # images that a note names, which is kept in the model file

T = TypeVar("T")


def use_readable(
    images: LabeledImages, skip: bool, progress: Progress, use: Callable[[LabeledImages], T]
) -> tuple[LabeledImages, T]:
    """Use images; if some cannot be read, refuse them all, or use the others if `skip`.

    Return the images that were used, and the result.
    """
    try:
        return images, use(images)
    except ImageError:
        readable = _drop_broken(images, skip, progress)
        if len(readable) == len(images):  # it was no file that cannot be read
            raise
        return readable, use(readable)


def _drop_broken(images: LabeledImages, skip: bool, progress: Progress) -> LabeledImages:
    """Return the images that can be read; only files are tried.

    Where some cannot be, one error names them all, unless they are to be skipped: then a note
    names them.
    """
    problems = _find_broken(images, progress)
    if not problems:
        return images
    broken = [f"{images.titles[position]} ({problem})" for position, problem in problems.items()]
    if not skip:
        raise ImageError(_refusal(images, problems))
    kept = [position for position in range(len(images)) if position not in problems]
    labels = [images.labels[position] for position in kept]
    present = set(labels)
    if empty := [name for label, name in enumerate(images.names) if label not in present]:
        raise DataError(
            f"none of the images of {', '.join(empty)} can be read: replace them, "
            "or leave the class out"
        )
    note = f"{count_noun(len(broken), 'broken image')} left out: {join_names(broken, MAX_NOTED)}"
    return replace(
        images,
        labels=tuple(labels),
        images=[images.images[position] for position in kept],
        titles=tuple(images.titles[position] for position in kept),
        notes=(*images.notes, note),
    )


def _refusal(images: LabeledImages, problems: dict[int, str]) -> str:
    instead = "leave out what is broken with --skip-broken (in Python: skip_broken=True)"
    if len(problems) == 1:
        ((position, problem),) = problems.items()
        what = f"cannot be read as an image ({problem})" if problem != ABSENT else problem
        return f"{images.titles[position]} {what}: replace it, or {instead}"
    lines = "".join(f"\n  {images.titles[i]} ({problem})" for i, problem in problems.items())
    return f"{len(problems):,} images cannot be read: replace them, or {instead}:{lines}"


def _find_broken(images: LabeledImages, progress: Progress) -> dict[int, str]:
    """Decode all files; return what is wrong with those that cannot be, by their positions."""
    files = images.files()

    def check(start: int) -> list[tuple[int, str]]:
        found = []
        for position in files[start : start + CHUNK]:
            path = from_printable(Path(images.images[position]).expanduser())
            result = try_decode(path, SHORT_SIDE)
            if isinstance(result, str):
                found.append((position, ABSENT if result == os.strerror(ENOENT) else result))
        return found

    problems: dict[int, str] = {}
    starts = range(0, len(files), CHUNK)
    with suppress_warnings():
        for start, found in zip(starts, threaded_map(check, starts), strict=True):
            problems |= dict(found)
            progress("checking images", min(start + CHUNK, len(files)), len(files))
    return problems
