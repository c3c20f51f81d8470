"""Represent a known class by the sum of its images' features.

Sum and count give the class mean (the prototype), and more images of a class refine its mean
exactly as if all images had come at once.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from fewmore.classifier.text import NONE_OF_THESE
from fewmore.errors import DataError

MAX_NAME_LENGTH = 200  # characters
DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # embeddings


@dataclass(frozen=True, eq=False)
class KnownClass:
    """Hold a class's name, the sum and number of its images' features, and their content hashes."""

    name: str
    feature_sum: Tensor  # (d,) float64 on the CPU
    count: int
    hashes: frozenset[int] = frozenset()  # empty where features were given instead of images

    @property
    def mean(self) -> Tensor:
        """Return the class mean, (d,) float64."""
        return self.feature_sum / self.count

    def with_images(self, features: Tensor, hashes: Iterable[int] = ()) -> "KnownClass":
        """Return the class with more images, given by their features (k, d) and content hashes."""
        feature_sum = self.feature_sum.clone()
        # One by one: the sum has the same bits however the images are grouped into calls.
        for feature in features.detach().cpu().double():
            feature_sum += feature
        return KnownClass(
            self.name,
            feature_sum,
            self.count + len(features),
            self.hashes | frozenset(hashes),
        )

    def without_images(self, features: Tensor, hashes: Iterable[int]) -> "KnownClass":
        """Return the class without images that it has, given as in `with_images`."""
        left = self.count - len(features)
        feature_sum = self.feature_sum - features.detach().cpu().double().sum(0)
        return KnownClass(self.name, feature_sum, left, self.hashes - frozenset(hashes))


@dataclass(frozen=True)
class SupportSet:
    """Hold the images of one class to learn: features (k, d), and content hashes if known."""

    name: str
    features: Tensor
    hashes: tuple[int, ...] = ()

    def to_class(self) -> KnownClass:
        """Return a new class made of these images alone."""
        return empty_class(self.name, self.features.shape[1]).with_images(
            self.features, self.hashes
        )


def empty_class(name: str, dim: int) -> KnownClass:
    """Return a class without images, of features with `dim` dimensions."""
    return KnownClass(name, torch.zeros(dim, dtype=torch.float64), 0)


def name_notes(added: Sequence[str], known: Sequence[str]) -> list[str]:
    """Say which names of new classes are easily mistaken for another, or for no class."""
    notes = []
    named = {name.casefold(): name for name in known}
    for name in added:
        other = named.setdefault(name.casefold(), name)
        if other != name:
            notes.append(f"{name} and {other} differ in capitals alone, and are two classes")
        if name.casefold() == NONE_OF_THESE:
            notes.append(f"a class is named '{name}', as unknown images are: rename it")
    return notes


def clean_name(name: object) -> str:
    """Return a class name in composed form (NFC) without spaces around it, or refuse it.

    A whole number becomes a text.
    """
    if isinstance(name, Integral) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str):
        raise DataError(
            f"a class's name must be a text or a whole number, not {name!r} ({type(name).__name__})"
        )
    clean = unicodedata.normalize("NFC", name).strip()
    if not clean:
        raise DataError(f"a class's name must not be empty, and {name!r} is")
    if len(clean) > MAX_NAME_LENGTH:
        raise DataError(
            f"a class's name must have at most {MAX_NAME_LENGTH} characters, "
            f"and '{clean[:20]}…' has {len(clean)}"
        )
    control = ("Cc", "Cs", "Zl", "Zp")
    if odd := next((c for c in clean if unicodedata.category(c) in control), None):
        raise DataError(
            f"a class's name must hold no control characters, and {clean!r} holds {odd!r}"
        )
    return clean


def check_free(name: str) -> None:
    """Refuse a new name that unknown images have; models of before may have such a class."""
    if name.casefold() == NONE_OF_THESE:
        raise DataError(
            f"no class can be named '{name}', as unknown images are: leave such images out, or "
            "choose another name, such as 'other'"
        )


def check_visible(name: str) -> None:
    """Refuse a new name that people would see as nothing, or as another one.

    Model files of before may have such names, so `clean_name` takes them.
    """
    check_free(name)
    if all(unicodedata.category(c) in ("Cf", "Mn", "Me", "Zs") for c in name):
        raise DataError(f"a class's name must have a visible character, and {name!a} has none")
    if odd := next((c for c in name if c in DIRECTIONS), None):
        raise DataError(
            "a class's name must hold no characters that change the direction of writing, "
            f"and {name!a} holds {odd!a}"
        )
