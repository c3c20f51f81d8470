"""Test which images are kept as exemplars, and how many."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, NotFittedError
from fewmore.methods.exemplars import ExemplarConfig, Exemplars, herd
from fewmore.nn.backbones import build
from fewmore.training.embed import embed


def check_herding(features: Tensor, chosen: list[int]) -> None:
    """Check that each choice is the best by the paper's rule, up to ties."""
    features = F.normalize(features, dim=1)
    for step in range(1, len(chosen) + 1):
        total, free = (
            features[chosen[: step - 1]].sum(0),
            [i for i in range(len(features)) if i not in chosen[: step - 1]],
        )
        gaps = {i: float((features.mean(0) - (total + features[i]) / step).norm()) for i in free}
        assert gaps[chosen[step - 1]] <= min(gaps.values()) + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 6), st.integers(0, 999))
def test_every_class_is_herded(counts: list[int], per_class: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    features = torch.randn(len(labels), 5, generator=generator, dtype=torch.float64)
    chosen = herd(features, labels, len(counts), per_class)
    assert labels[chosen].tolist() == [
        label for label, count in enumerate(counts) for _ in range(min(count, per_class))
    ]
    for label in range(len(counts)):
        own = (labels == label).nonzero().squeeze(1).tolist()
        check_herding(features[own], [own.index(i) for i in chosen.tolist() if i in own])


def test_the_first_exemplar_is_the_nearest_to_the_mean_in_direction() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.2]])
    assert herd(features, torch.zeros(3, dtype=torch.int64), 1, 1).tolist() == [2]


def kept(images: ImageSet, per_class: int, seed: int = 0) -> Exemplars:
    exemplars = Exemplars(ExemplarConfig(per_class))
    exemplars.add(
        images, torch.randn(len(images), 8, generator=torch.Generator().manual_seed(seed))
    )
    return exemplars


def test_a_class_keeps_as_many_as_it_may_or_all_it_has(
    tiny_images: Callable[..., ImageSet],
) -> None:
    images = tiny_images(3, 6).select(torch.tensor([0, 1, *range(6, 18)]))
    exemplars = kept(images, 4)
    assert exemplars.images.class_counts().tolist() == [2, 4, 4]
    assert len(exemplars) == len(exemplars.images.storage) == 10, "no other image is held"
    assert exemplars.images.storage.dtype == torch.uint8


def test_sessions_are_numbered_on(tiny_images: Callable[..., ImageSet]) -> None:
    images = tiny_images(6, 5)
    exemplars = kept(images.select_classes(range(4)), 3)
    session = images.select_classes([4, 5])
    joined = exemplars.joined_by(session)
    assert joined.class_counts().tolist() == [3, 3, 3, 3, 5, 5]
    assert len(exemplars) == 12, "what is joined is not kept"
    exemplars.add(session, torch.randn(10, 8))
    assert exemplars.images.class_names == images.class_names
    for i in range(len(exemplars)):
        own = images.select((images.labels == exemplars.images.labels[i]).nonzero().squeeze(1))
        assert any(torch.equal(exemplars.images.image(i), own.image(k)) for k in range(5))


def test_balanced_is_the_best_of_each(tiny_images: Callable[..., ImageSet]) -> None:
    images = tiny_images(3, 6).select(torch.tensor([0, 1, *range(6, 18)]))
    exemplars = kept(images, 5)
    balanced = exemplars.balanced()
    assert balanced.class_counts().tolist() == [2, 2, 2]
    kept_images = exemplars.images
    for label, first in enumerate((0, 2, 7)):
        assert torch.equal(balanced.image(2 * label), kept_images.image(first))
        assert torch.equal(balanced.image(2 * label + 1), kept_images.image(first + 1))


def test_means_are_of_directions(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    backbone = build("resnet8").eval()
    exemplars = kept(tiny_images(3, 6), 4)
    means = exemplars.means(backbone, tiny_transform)
    directions = F.normalize(embed(backbone, exemplars.images, tiny_transform), dim=1)
    expected = torch.stack([directions[4 * label : 4 * label + 4].mean(0) for label in range(3)])
    torch.testing.assert_close(means.prototypes.detach(), expected)
    assert means.similarity == "cosine"


def test_a_state_gives_the_same_back(tiny_images: Callable[..., ImageSet]) -> None:
    exemplars, copy = kept(tiny_images(3, 6), 2), Exemplars(ExemplarConfig(2))
    copy.restore(exemplars.state(), torch.device("cpu"))
    assert torch.equal(copy.images.storage, exemplars.images.storage)
    assert torch.equal(copy.images.labels, exemplars.images.labels)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        Exemplars(ExemplarConfig()).images  # noqa: B018
    assert len(Exemplars(ExemplarConfig())) == 0
    with pytest.raises(ConfigError, match="per_class must be at least 1, not 0"):
        ExemplarConfig(0)
