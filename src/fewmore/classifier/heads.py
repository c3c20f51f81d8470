"""From features to scores: a classifier's rows as they are used, brought up to date class by class.

A score is 16 times the cosine of an image's features and a class's mean, or what the adapter makes of the two. The mean of few
images is longer than that of many, by what chance adds to it, and all cosines to it are smaller for that: they are
corrected, or classes of five images would lose to classes of fifty. The adapter of a wide backbone works on the features'
principal directions: in 1,280 dimensions its own matrices would cost more than the backbone.

q: queries   N: classes   d: features   r: dimensions that the adapter works in
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.classes import KnownClass
from fewmore.nn.adapter import Adapter, Context
from fewmore.nn.prototypes import GrowingBuffer
from fewmore.nn.similarity import TEMPERATURE

REBUILD = 0.25  # a context of which a larger share changes at once is built anew


@dataclass(frozen=True, eq=False)
class Head:
    """What training settled about scoring: it is the same whatever is learnt later."""

    device: torch.device
    dim: int  # features an image
    spread: float = (
        0.0  # the squared distance of an image's features from their class's mean, on average
    )
    adapter: Adapter | None = None
    projection: Tensor | None = None  # (d, r)

    def to_adapter(self, features: Tensor) -> Tensor:
        return features if self.projection is None else features @ self.projection


@dataclass(frozen=True, eq=False)
class Scorer:
    """The rows of all known classes. Immutable: learning gives another one, and shares with it what did not change."""

    head: Head
    classes: tuple[KnownClass, ...]
    rows: GrowingBuffer  # unit means, (N, d)
    stretch: Tensor  # (N,): how much longer a mean is than the mean of very many images would be
    context: Context | None

    @classmethod
    def of(cls, head: Head, classes: Sequence[KnownClass]) -> "Scorer":
        """Built from nothing."""
        units, stretch = _units(classes, head)
        return cls(head, tuple(classes), GrowingBuffer(units), stretch, _context(head, classes))

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def unit_rows(self) -> Tensor:
        """(N, d) float32."""
        return self.rows.filled

    def knowing(self, classes: tuple[KnownClass, ...]) -> "Scorer":
        """A scorer of other classes; what both have in common is taken over."""
        if not self.classes or not classes:
            return Scorer.of(self.head, classes)
        known = len(self.classes)
        if classes[:known] == self.classes:  # compared as objects: nothing but new ones at the end
            units, stretch = _units(classes[known:], self.head)
            rows, stretch = self.rows.grown(units), torch.cat([self.stretch, stretch])
            return Scorer(
                self.head, classes, rows, stretch, self._context_with((), (), classes, known)
            )
        places = {id(one.total): place for place, one in enumerate(self.classes)}
        kept = [places.get(id(one.total), -1) for one in classes]
        fresh = [place for place, old in enumerate(kept) if old < 0]
        units, lengths = _units([classes[place] for place in fresh], self.head)
        taken, stretch = self.unit_rows[kept], self.stretch[kept]
        taken[fresh], stretch[fresh] = units, lengths
        return Scorer(self.head, classes, GrowingBuffer(taken), stretch, self._context_for(classes))

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """16 times cosines, corrected or adapted: (q, N)."""
        if self.head.adapter is not None and self.context is not None:
            return self.head.adapter.scores(self.head.to_adapter(features), self.context)
        return TEMPERATURE * self.likeness(features)

    @torch.no_grad()
    def likeness(self, features: Tensor) -> Tensor:
        """The cosine to each class's mean, (q, N), corrected for how few images that was made of."""
        return F.normalize(features, dim=1) @ self.unit_rows.T * self.stretch

    def familiarity(self, features: Tensor) -> Tensor:
        """The likeness to the most similar class, (q,)."""
        return self.likeness(features).amax(1)

    def closeness(self, mean: Tensor, count: int) -> Tensor:
        """The cosine of a class's mean, made of so many images, with each known one, corrected on both sides: (N,)."""
        length = mean.norm()
        closeness = self.unit_rows @ mean.to(self.unit_rows) * self.stretch
        return closeness * float(
            _stretch(length.square(), count, self.head.spread) / length.clamp(min=1e-12)
        )

    def _context_for(self, classes: tuple[KnownClass, ...]) -> Context | None:
        """The adapter's context for classes of which some are gone, some refined and some added."""
        if self.head.adapter is None:
            return None
        totals, names = {id(one.total) for one in classes}, {one.name for one in classes}
        gone = [
            place
            for place, one in enumerate(self.classes)
            if id(one.total) not in totals and one.name not in names
        ]
        kept = [one for place, one in enumerate(self.classes) if place not in set(gone)]
        refined = [
            place
            for place, (a, b) in enumerate(zip(kept, classes, strict=False))
            if a.total is not b.total
        ]
        in_order = (
            kept
            and len(classes) >= len(kept)
            and all(kept[place].name == classes[place].name for place in refined)
        )
        return (
            self._context_with(gone, refined, classes, len(kept))
            if in_order
            else _context(self.head, classes)
        )

    def _context_with(
        self,
        gone: Sequence[int],
        refined: Sequence[int],
        classes: tuple[KnownClass, ...],
        kept: int,
    ) -> Context | None:
        """The adapter's context without some classes, with others in the places of some, and with those behind the kept ones added."""
        adapter, context = self.head.adapter, self.context
        if adapter is None or context is None:
            return None
        if len(gone) + len(refined) + len(classes) - kept > max(1, REBUILD * len(classes)):
            return _context(self.head, classes)
        for place in reversed(gone):
            context = adapter.remove(context, place)
        for place in refined:
            context = adapter.replace(context, place, _adapter_row(self.head, classes[place]))
        for one in classes[kept:]:
            context = adapter.add(context, _adapter_row(self.head, one))
        return context


def _units(classes: Sequence[KnownClass], head: Head) -> tuple[Tensor, Tensor]:
    """Unit means (N, d) and their stretch (N,), on the head's device."""
    if not classes:
        return torch.empty(0, head.dim, device=head.device), torch.empty(0, device=head.device)
    means = torch.stack([one.mean for one in classes])
    lengths = means.norm(dim=1, keepdim=True).clamp(min=1e-12)
    counts = torch.tensor([one.count for one in classes])
    stretch = _stretch(lengths.squeeze(1).square(), counts, head.spread)
    return (means / lengths).float().to(head.device), stretch.float().to(head.device)


def _stretch(square: Tensor, count: Tensor | int, spread: float) -> Tensor:
    """How much longer the mean of so many images is than the mean of very many: E‖mean‖² = ‖true mean‖² + spread / count."""
    square = square.clamp(min=1e-24)
    return (square / torch.maximum(square - spread / count, square / 4)).sqrt()


@torch.no_grad()
def _context(head: Head, classes: Sequence[KnownClass]) -> Context | None:
    if head.adapter is None or not classes:
        return None
    means = torch.stack([one.mean for one in classes]).float().to(head.device)
    return head.adapter.context(head.to_adapter(means))


def _adapter_row(head: Head, known: KnownClass) -> Tensor:
    return head.to_adapter(known.mean.float().to(head.device))
