"""Score features against the known classes, and follow changes of the classes incrementally.

A score is 16 times the cosine of an image's features and a class mean, or what the adapter makes
of the two. The mean of few images is longer than that of many, because noise adds to its norm, and
cosines to it are smaller for that: they are corrected, or classes of five images would lose to
classes of fifty. In files of earlier versions, the adapter of a wide backbone works on a projection
of the features.

q: queries   N: classes   d: features   r: dimensions that the adapter works in
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.classes import KnownClass
from fewmore.nn.adapter import Adapter
from fewmore.nn.adapter_updates import add_class, remove_class, replace_class
from fewmore.nn.closed_form import Context
from fewmore.nn.prototypes import GrowingBuffer
from fewmore.nn.similarity import TEMPERATURE

REBUILD_SHARE = 0.25  # a context of which a larger share changes at once is rebuilt


@dataclass(frozen=True, eq=False)
class Head:
    """Hold the trained parts of scoring, which stay the same whatever is learnt later."""

    device: torch.device
    dim: int  # features of an image
    variance: float = 0.0  # within classes: mean squared distance of features from their class mean
    adapter: Adapter | None = None
    projection: Tensor | None = None  # (d, r)

    def to_adapter(self, features: Tensor) -> Tensor:
        """Project features to the dimensions that the adapter works in."""
        return features if self.projection is None else features @ self.projection


@dataclass(frozen=True, eq=False)
class Scorer:
    """Score features against all known classes.

    Immutable: a change of the classes gives another scorer, which shares with this one what did
    not change.
    """

    head: Head
    classes: tuple[KnownClass, ...]
    prototypes: GrowingBuffer  # unit class means, (N, d)
    norm_correction: Tensor  # (N,): norm of a mean over that of the mean of very many images
    context: Context | None  # the adapter's

    @classmethod
    def build(cls, head: Head, classes: Sequence[KnownClass]) -> "Scorer":
        """Build a scorer from scratch."""
        units, correction = _unit_means(classes, head)
        context = _build_context(head, classes)
        return cls(head, tuple(classes), GrowingBuffer(units), correction, context)

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def unit_prototypes(self) -> Tensor:
        """Return the class means at unit length, (N, d) float32."""
        return self.prototypes.filled

    def with_classes(self, classes: tuple[KnownClass, ...]) -> "Scorer":
        """Return a scorer of other classes, reusing what both have in common."""
        if not self.classes or not classes:
            return Scorer.build(self.head, classes)
        known = len(self.classes)
        if classes[:known] == self.classes:  # compared by identity: only new ones at the end
            units, correction = _unit_means(classes[known:], self.head)
            return Scorer(
                self.head,
                classes,
                self.prototypes.grown(units),
                torch.cat([self.norm_correction, correction]),
                self._updated_context((), (), classes, known),
            )
        positions = {id(one.feature_sum): place for place, one in enumerate(self.classes)}
        reused = [positions.get(id(one.feature_sum), -1) for one in classes]
        changed = [place for place, old in enumerate(reused) if old < 0]
        prototypes = self.unit_prototypes[reused]
        correction = self.norm_correction[reused]
        prototypes[changed], correction[changed] = _unit_means(
            [classes[place] for place in changed], self.head
        )
        context = self._context_for(classes)
        return Scorer(self.head, classes, GrowingBuffer(prototypes), correction, context)

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Return the logits of features, (q, N): 16 times corrected cosines, or the adapter's."""
        if self.head.adapter is not None and self.context is not None:
            return self.head.adapter.scores(self.head.to_adapter(features), self.context)
        return TEMPERATURE * self.similarity(features)

    @torch.no_grad()
    def similarity(self, features: Tensor) -> Tensor:
        """Return the cosine to each class mean, (q, N), corrected for how few images it is of."""
        return F.normalize(features, dim=1) @ self.unit_prototypes.T * self.norm_correction

    def familiarity(self, features: Tensor) -> Tensor:
        """Return the similarity to the closest class, (q,)."""
        return self.similarity(features).amax(1)

    def closeness(self, mean: Tensor, count: int) -> Tensor:
        """Return the cosine of a mean of `count` images with each class mean, (N,), corrected."""
        norm = mean.norm()
        closeness = self.unit_prototypes @ mean.to(self.unit_prototypes) * self.norm_correction
        correction = norm_correction(norm.square(), count, self.head.variance)
        return closeness * float(correction / norm.clamp(min=1e-12))

    def _context_for(self, classes: tuple[KnownClass, ...]) -> Context | None:
        """Return the adapter's context after some classes were removed, refined and added."""
        if self.head.adapter is None:
            return None
        sums = {id(one.feature_sum) for one in classes}
        names = {one.name for one in classes}
        removed = [
            place
            for place, one in enumerate(self.classes)
            if id(one.feature_sum) not in sums and one.name not in names
        ]
        kept = [one for place, one in enumerate(self.classes) if place not in set(removed)]
        refined = [
            place
            for place, (old, new) in enumerate(zip(kept, classes, strict=False))
            if old.feature_sum is not new.feature_sum
        ]
        is_in_order = (
            kept
            and len(classes) >= len(kept)
            and all(kept[place].name == classes[place].name for place in refined)
        )
        if not is_in_order:
            return _build_context(self.head, classes)
        return self._updated_context(removed, refined, classes, len(kept))

    def _updated_context(
        self,
        removed: Sequence[int],
        refined: Sequence[int],
        classes: tuple[KnownClass, ...],
        kept: int,
    ) -> Context | None:
        """Return the context without removed classes, with refined ones, and with added ones.

        `removed` are positions in the old classes, `refined` positions in the new ones; classes
        from position `kept` on are added.
        """
        adapter = self.head.adapter
        context = self.context
        if adapter is None or context is None:
            return None
        changes = len(removed) + len(refined) + len(classes) - kept
        if changes > max(1, REBUILD_SHARE * len(classes)):
            return _build_context(self.head, classes)
        for place in reversed(removed):
            context = remove_class(adapter, context, place)
        for place in refined:
            prototype = _adapter_input(self.head, classes[place])
            context = replace_class(adapter, context, place, prototype)
        for known in classes[kept:]:
            context = add_class(adapter, context, _adapter_input(self.head, known))
        return context


def _unit_means(classes: Sequence[KnownClass], head: Head) -> tuple[Tensor, Tensor]:
    """Return unit class means (N, d) and their norm corrections (N,), on the head's device."""
    if not classes:
        return torch.empty(0, head.dim, device=head.device), torch.empty(0, device=head.device)
    means = torch.stack([known.mean for known in classes])
    norms = means.norm(dim=1, keepdim=True).clamp(min=1e-12)
    counts = torch.tensor([known.count for known in classes])
    correction = norm_correction(norms.squeeze(1).square(), counts, head.variance)
    return (means / norms).float().to(head.device), correction.float().to(head.device)


def norm_correction(squared_norm: Tensor, count: Tensor | int, variance: Tensor | float) -> Tensor:
    """Return how much longer the mean of `count` images is than the mean of very many.

    E‖mean‖² = ‖true mean‖² + variance / count.
    """
    squared_norm = squared_norm.clamp(min=1e-24)
    true = torch.maximum(squared_norm - variance / count, squared_norm / 4)
    return (squared_norm / true).sqrt()


@torch.no_grad()
def _build_context(head: Head, classes: Sequence[KnownClass]) -> Context | None:
    if head.adapter is None or not classes:
        return None
    means = torch.stack([known.mean for known in classes]).float().to(head.device)
    return head.adapter.context(head.to_adapter(means))


def _adapter_input(head: Head, known: KnownClass) -> Tensor:
    return head.to_adapter(known.mean.float().to(head.device))
