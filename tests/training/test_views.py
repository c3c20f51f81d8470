"""Test several views of an image, and rotated copies with labels of their own."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fewmore.data.augment import Transform, train_view
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.training.embed import make_test_view
from fewmore.training.views import color_copies, rotation_copies, several_views, unrotated


@pytest.mark.parametrize("count", [1, 2, 4])
def test_rotations_are_those_of_numpy_image_by_image(count: int) -> None:
    view = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([2, 0, 1, 1, 2])
    rotated, new_labels = rotation_copies(view, labels, count)
    assert len(rotated) == len(new_labels) == 5 * count
    for k in range(count):
        for i in range(5):
            expected = view[i].numpy()
            for _ in range(k * 4 // count):
                expected = np.rot90(expected, axes=(1, 2))  # by 90°
            place = k * 5 + i
            np.testing.assert_array_equal(rotated[place].numpy(), expected)
            assert int(new_labels[place]) == int(labels[i]) * count + k


def test_twelve_variants_are_rotations_in_three_orders_of_the_colors() -> None:
    view = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([2, 0, 1, 1, 2])
    copies, new_labels = color_copies(*rotation_copies(view, labels, 4), 3)
    assert copies.shape == (60, 3, 6, 6)
    assert copies.is_contiguous(memory_format=torch.channels_last)
    found = {}
    for copy, label, image in zip(copies, new_labels.tolist(), [*range(5)] * 12, strict=True):
        assert label // 12 == labels[image]
        found[image, label % 12] = copy
    orders = ((0, 1, 2), (1, 2, 0), (2, 0, 1))  # red, green, blue are 0, 1, 2
    names = ("", "gbr", "brg")
    for image in range(5):
        for rotation in range(4):
            rotated = torch.rot90(view[image], rotation, (1, 2))
            for order, (channels, color) in enumerate(zip(orders, names, strict=True)):
                expected = rotated[list(channels)]
                assert torch.equal(found[image, 3 * rotation + order], expected)
                turn = f"rot{90 * rotation}" if rotation else ""
                name = "-".join(part for part in (turn, color) if part) or "plain"
                assert torch.equal(make_test_view(view[image : image + 1], name)[0], expected)
    assert color_copies(view, labels, 1)[0] is view
    with pytest.raises(ConfigError, match="1 or 3 orders of an image's colors, and not 2"):
        color_copies(view, labels, 2)


def test_a_rotated_and_mirrored_test_view_is_rotated_first() -> None:
    view = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = np.flip(np.rot90(view.numpy(), axes=(2, 3)), axis=3)
    np.testing.assert_array_equal(make_test_view(view, "rot90-flip").numpy(), expected)


def test_rotated_copies_are_channels_last() -> None:
    view = torch.randn(4, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    rotated, _ = rotation_copies(view, torch.arange(4), 4)
    assert rotated.is_contiguous(memory_format=torch.channels_last)


def test_a_number_of_rotations_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="1, 2 or 4 rotations of an image, and not 3"):
        rotation_copies(torch.zeros(1, 3, 2, 2), torch.zeros(1, dtype=torch.int64), 3)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_unrotated_prototypes_are_those_of_the_label_of_rotation_0(count: int) -> None:
    classes = torch.arange(3)
    _, labels = rotation_copies(torch.zeros(3, 3, 2, 2), classes, count)
    prototypes = torch.arange(3 * count)[:, None]  # prototype j is j
    assert torch.equal(unrotated(prototypes, count)[:, 0], labels[:3])


def test_each_image_comes_in_several_random_views(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images()
    indices = torch.tensor([3, 17, 8])
    view, labels = several_views(
        images, indices, tiny_transform, torch.Generator().manual_seed(0), 3
    )
    assert view.shape == (9, 3, 8, 8)
    assert torch.equal(labels, images.labels[indices].repeat(3))
    expected = train_view(
        images, indices.repeat(3), tiny_transform, torch.Generator().manual_seed(0)
    )
    assert torch.equal(view, expected)
    assert not torch.equal(view[:3], view[3:6])


def test_one_view_is_the_view_of_training(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images()
    indices = torch.tensor([3, 17, 8])
    one, other = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    view, _ = several_views(images, indices, tiny_transform, one, 1)
    assert torch.equal(view, train_view(images, indices, tiny_transform, other))
    assert torch.equal(one.get_state(), other.get_state())
