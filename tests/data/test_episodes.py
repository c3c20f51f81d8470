"""Check that episodes repeat no class or image and sample all of them uniformly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from fewmore.data.episodes import EpisodeSampler
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError


def labelled(labels: list[int], classes: int) -> ImageSet:
    """Make images of one pixel with these labels."""
    return ImageSet.from_images(
        torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8),
        labels,
        [str(c) for c in range(classes)],
    )


def shuffled(counts: list[int], seed: int = 0) -> ImageSet:
    """Make classes of these sizes, their images in any order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labelled(
        labels[torch.randperm(len(labels), generator=Generator().manual_seed(seed))].tolist(),
        len(counts),
    )


def distinct(values: Tensor) -> bool:
    """Return True where no value comes twice along the last axis."""
    return bool((values.sort(-1).values.diff(dim=-1) != 0).all())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.data())
def test_classes_and_images_do_not_repeat(counts: list[int], data: st.DataObject) -> None:
    images = shuffled(counts, data.draw(st.integers(0, 1000)))
    ways = data.draw(st.integers(1, len(counts)))
    per_class = data.draw(st.integers(1, min(counts)))
    sampler = EpisodeSampler(images)
    generator = Generator().manual_seed(data.draw(st.integers(0, 1000)))
    sampler.check(ways, per_class)
    classes = sampler.sample_classes(20, ways, generator)
    assert classes.shape == (20, ways)
    assert int(classes.min()) >= 0
    assert int(classes.max()) < len(counts)
    assert distinct(classes)
    sampled = sampler.sample_images(classes, per_class, generator)
    assert sampled.shape == (20, ways, per_class)
    assert distinct(sampled.flatten(1))
    assert torch.equal(images.labels[sampled], classes[:, :, None].expand_as(sampled))


def test_a_class_can_be_sampled_whole() -> None:
    images = shuffled([3, 9, 5])
    sampler = EpisodeSampler(images)
    for number, size in enumerate([3, 9, 5]):
        sampled = sampler.sample_images(
            torch.tensor([number]), size, Generator().manual_seed(number)
        )
        assert (
            sorted(sampled[0].tolist()) == (images.labels == number).nonzero().squeeze(1).tolist()
        )


def test_every_class_is_as_likely_as_any_other_in_every_place() -> None:
    classes = EpisodeSampler(shuffled([2, 3, 4, 5, 6, 7])).sample_classes(
        12_000, 3, Generator().manual_seed(0)
    )
    for place in range(3):
        share = torch.bincount(classes[:, place], minlength=6) / 12_000
        # Four standard deviations are 0.014.
        torch.testing.assert_close(share, torch.full((6,), 1 / 6), rtol=0, atol=0.02)


def test_every_image_of_a_class_is_as_likely_as_any_other_in_every_place() -> None:
    """Check it for a class that is smaller than the largest one."""
    images = shuffled([5, 40])
    sampled = EpisodeSampler(images).sample_images(
        torch.zeros(10_000, 1, dtype=torch.int64), 2, Generator().manual_seed(0)
    )
    own = (images.labels == 0).nonzero().squeeze(1)
    for place in range(2):
        share = torch.bincount(sampled[:, 0, place], minlength=len(images))[own] / 10_000
        torch.testing.assert_close(share, torch.full((5,), 0.2), rtol=0, atol=0.02)


def test_the_generator_decides_and_nothing_else() -> None:
    sampler = EpisodeSampler(shuffled([8] * 6))

    def sample(seed: int) -> tuple[Tensor, Tensor]:
        generator = Generator().manual_seed(seed)
        classes = sampler.sample_classes(5, 3, generator)
        return classes, sampler.sample_images(classes, 4, generator)

    before = torch.get_rng_state()
    classes, images = sample(0)
    same_classes, same_images = sample(0)
    _, other_images = sample(1)
    assert torch.equal(classes, same_classes)
    assert torch.equal(images, same_images)
    assert not torch.equal(images, other_images)
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_of_a_view_are_positions_in_the_view() -> None:
    whole = shuffled([4, 4, 4, 4])
    part = whole.select_classes([3, 1])
    sampled = EpisodeSampler(part).sample_images(
        torch.tensor([0, 1]), 4, Generator().manual_seed(0)
    )
    assert torch.equal(part.labels[sampled], torch.tensor([[0] * 4, [1] * 4]))


@pytest.mark.parametrize(
    ("classes", "images", "sentence"),
    [
        (
            4,
            2,
            "^an episode of 4 classes .* lower the ways$",
        ),
        (
            3,
            6,
            "^an episode takes 6 images a class.* lower shots and queries$",
        ),
        (9, 9, "9 classes was asked for.*; an episode takes 9 images a class"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(classes: int, images: int, sentence: str) -> None:
    sampler = EpisodeSampler(shuffled([5, 7, 9]))
    sampler.check(3, 5)
    with pytest.raises(ConfigError, match=sentence):
        sampler.check(classes, images)


def test_an_empty_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="the smallest base class has 0"):
        EpisodeSampler(labelled([0, 0, 2, 2], 3)).check(2, 1)
