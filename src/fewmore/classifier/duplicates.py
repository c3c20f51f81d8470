"""Find images that come more than once, by their content hashes."""

from collections.abc import Sequence

from torch import Tensor

from fewmore.classifier.classes import KnownClass, SupportSet
from fewmore.classifier.inputs import LabeledImages
from fewmore.classifier.text import count_noun, join_names


class SeenImages:
    """Collect the content hashes of base images, and find those that come more than once."""

    def __init__(self, images: LabeledImages) -> None:
        self.images = images
        self.hashes: list[set[int]] = [set() for _ in images.names]  # of each class
        self.first_label: dict[int, int] = {}  # by hash
        self.duplicates: list[str] = []
        self.in_two_classes: list[str] = []

    def add(self, position: int, digest: int) -> bool:
        """Add an image; return False if its class has it already."""
        label = self.images.labels[position]
        title = self.images.titles[position]
        if digest in self.hashes[label]:
            self.duplicates.append(title)
            return False
        self.hashes[label].add(digest)
        first = self.first_label.setdefault(digest, label)
        if first != label:
            self.in_two_classes.append(f"{title}, also in {self.images.names[first]}")
        return True

    def notes(self) -> tuple[str, ...]:
        """Describe the images that came more than once."""
        notes = []
        if self.duplicates:
            notes.append(
                f"{count_noun(len(self.duplicates), 'duplicate')} of images in the same class, "
                f"not counted again: {join_names(self.duplicates)}"
            )
        if self.in_two_classes:
            notes.append(
                f"{count_noun(len(self.in_two_classes), 'image')} in two classes: "
                f"{join_names(self.in_two_classes)}"
            )
        return tuple(notes)


def drop_duplicates(
    images: LabeledImages,
    features: Tensor,
    hashes: tuple[int, ...],
    classes: Sequence[KnownClass],
) -> tuple[list[SupportSet], list[str]]:
    """Return the images that are new to their class, and warnings about the others."""
    known = {one.name: one.hashes for one in classes}
    new: dict[str, list[int]] = {name: [] for name in images.names}
    in_call: dict[int, list[str]] = {}  # class names by content hash
    warnings = []
    for index, (label, digest, title) in enumerate(
        zip(images.labels, hashes, images.titles, strict=True)
    ):
        name = images.names[label]
        names = in_call.setdefault(digest, [])
        if name in names or digest in known.get(name, ()):
            warnings.append(
                f"{title} is a duplicate: {name} has that image already, "
                "and it is not counted again"
            )
            continue
        others = (other for other, of_other in known.items() if digest in of_other)
        if other := next(others, names[0] if names else None):
            warnings.append(f"{title} is an image of {other} too: it now counts for both")
        names.append(name)
        new[name].append(index)
    support = [
        SupportSet(name, features[indices], tuple(hashes[index] for index in indices))
        for name, indices in new.items()
        if indices
    ]
    return support, warnings
