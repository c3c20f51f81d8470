"""Find copies of images: the same pixels, or re-saved, resized and brightened ones.

Two images count as copies if thumbnails of 16 × 16 pixels correlate by at least 0.985. Copies of
bird photos at a quarter of their size, or of JPEG quality 40, correlate by 0.99 and more; of a
million pairs of different ones, none by more than 0.92.
"""

import torch

from fewmore.classifier.checking.measure import Measured

SIMILAR = 0.985  # correlation of thumbnails
BLANK = 2.0  # contrast below which thumbnails are noise, and are not compared
BLOCK = 1024  # images whose thumbnails are compared with all others at a time


def group_copies(measured: Measured) -> list[list[int]]:
    """Return groups of two or more copies, as indices of measured images, in their order."""
    parent = list(range(len(measured)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[int, int] = {}
    for index, digest in enumerate(measured.hashes):
        parent[root(index)] = root(first.setdefault(digest, index))
    seen = (measured.contrast >= BLANK).nonzero().squeeze(1)
    thumbnails = measured.thumbnails[seen].float()
    for start in range(0, len(seen), BLOCK):
        similar = thumbnails[start : start + BLOCK] @ thumbnails[start:].T >= SIMILAR
        for row, column in similar.triu(1).nonzero().tolist():
            one, other = root(int(seen[start + row])), root(int(seen[start + column]))
            parent[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for index in range(len(measured)):
        groups.setdefault(root(index), []).append(index)
    return [group for group in groups.values() if len(group) > 1]


def without_copies(measured: Measured, groups: list[list[int]]) -> torch.Tensor:
    """Return which images count in their class: (n,) bool.

    Of copies in one class the first one counts; an image in two classes counts in neither.
    """
    counted = torch.ones(len(measured), dtype=torch.bool)
    for group in groups:
        same_class = len({int(measured.labels[index]) for index in group}) == 1
        counted[group[1:] if same_class else group] = False
    return counted
