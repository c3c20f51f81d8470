"""Find image files that cannot be read, before time is spent on the others."""

from collections.abc import Sequence
from dataclasses import replace

from fewmore.classifier.embedding import Progress
from fewmore.classifier.inputs import LabeledImages
from fewmore.classifier.text import count_noun
from fewmore.data.decode import suppress_warnings, try_decode
from fewmore.data.threads import threaded_map
from fewmore.errors import DataError, ImageError

SHORT_SIDE = 256  # pixels that an image is decoded to; a large JPEG is then read at a fraction
CHUNK = 16  # images that a thread reads at a time


def drop_broken(images: LabeledImages, skip: bool, progress: Progress) -> LabeledImages:
    """Return the images that can be read; only files are tried.

    Where some cannot be, one error names them all, unless they are to be skipped: then a note
    names them.
    """
    problems = _find_broken(images, progress)
    if not problems:
        return images
    broken = [f"{images.titles[position]} {problem}" for position, problem in problems.items()]
    if not skip:
        raise ImageError(_refusal(broken))
    kept = [position for position in range(len(images)) if position not in problems]
    labels = [images.labels[position] for position in kept]
    if empty := [name for i, name in enumerate(images.names) if i not in set(labels)]:
        raise DataError(
            f"none of the images of {', '.join(empty)} can be read: replace them, "
            "or leave the class out"
        )
    note = f"{count_noun(len(broken), 'broken image')} left out: {', '.join(broken)}"
    return replace(
        images,
        labels=tuple(labels),
        images=[images.images[position] for position in kept],
        titles=tuple(images.titles[position] for position in kept),
        notes=(*images.notes, note),
    )


def _refusal(broken: Sequence[str]) -> str:
    instead = "leave out what is broken with --skip-broken (in Python: skip_broken=True)"
    if len(broken) == 1:
        return f"{broken[0]}: replace it, or {instead}"
    lines = "".join(f"\n  {line}" for line in broken)
    return f"{len(broken):,} images cannot be read: replace them, or {instead}:{lines}"


def _find_broken(images: LabeledImages, progress: Progress) -> dict[int, str]:
    """Decode all files; return what is wrong with some, by their positions."""
    files = list(images.files().items())

    def check(start: int) -> list[tuple[int, str]]:
        found = []
        for position, path in files[start : start + CHUNK]:
            result = try_decode(path, SHORT_SIDE)
            if isinstance(result, str):
                problem = f"cannot be read as an image ({result})"
                found.append((position, problem if path.exists() else "is not there"))
        return found

    problems: dict[int, str] = {}
    starts = range(0, len(files), CHUNK)
    with suppress_warnings():
        for start, found in zip(starts, threaded_map(check, starts), strict=True):
            problems |= dict(found)
            progress("checking images", min(start + CHUNK, len(files)), len(files))
    return problems
