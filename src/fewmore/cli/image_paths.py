"""Find the image files that a command was given: directly, in folders and in manifests."""

from collections.abc import Sequence
from pathlib import Path

from fewmore.errors import DataError


def find_images(paths: Sequence[Path], recursive: bool) -> list[Path]:
    """List image files; of a folder, the images in it, and in its sub-folders if recursive."""
    from fewmore.data.folders import IMAGE_SUFFIXES
    from fewmore.data.manifests import is_manifest, manifest_paths

    images: list[Path] = []
    for path in paths:
        if is_manifest(path, labeled=False):
            images += manifest_paths(path)
            continue
        inside = images_in(path, recursive) if path.is_dir() else [path]
        if not inside:
            where = "in it" if recursive else "straight in it"
            raise DataError(
                f"{path} has no images {where}: give a folder that has some "
                f"({', '.join(sorted(IMAGE_SUFFIXES))}), or images"
            )
        images += inside
    return images


def images_in(folder: Path, recursive: bool) -> list[Path]:
    """List the images of a folder by name, without hidden ones."""
    from fewmore.data import folders

    try:
        return folders.find_images(folder, recursive)
    except OSError as error:
        raise folders.unreadable(error, folder) from error


def seen_from(folder: Path, image: str) -> str:
    """Return a path as seen from a folder that it is in, and any other one as it is."""
    folder = folder.expanduser()
    return str(Path(image).relative_to(folder)) if Path(image).is_relative_to(folder) else image
