"""Compare views of images with references that transform one image at a time."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from fewmore.data import augment
from fewmore.data.augment import ASPECT_RATIO, Transform
from fewmore.data.images import ImageSet, Ragged
from fewmore.data.transform import CutoutColor
from fewmore.errors import ConfigError, DataError

# Normalizes to the pixel values themselves.
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def random_images(shapes: list[tuple[int, int]], seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (3, height, width), dtype=np.uint8) for height, width in shapes]


def one_size(images: list[np.ndarray]) -> ImageSet:
    return ImageSet.from_images(np.stack(images), [0] * len(images), ["it"])


def ragged(images: list[np.ndarray]) -> ImageSet:
    return ImageSet.from_images(Ragged.from_arrays(images), [0] * len(images), ["it"])


def everything(images: ImageSet) -> Tensor:
    return torch.arange(len(images))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def boxes(*rows: tuple[float, float, float, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32).T


# Pad-crop and flip


def crop_with_pillow(pixels: np.ndarray, down: int, right: int, flip: bool) -> Tensor:
    """Crop with Pillow, which is black beyond the edges."""
    height, width = pixels.shape[1:]
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    image = image.crop((right, down, right + width, down + height))
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_pad_crop_is_a_crop_with_black_padding_then_a_flip() -> None:
    pixels = random_images([(9, 9)] * 60)
    images = one_size(pixels)
    random = seeded(1)
    # Some windows see nothing but the black beyond the edge.
    down, right = torch.randint(-10, 11, (2, 60), generator=random)
    flip = torch.rand(60, generator=random) < 0.5
    views = augment.pad_crop(images, everything(images), down, right, flip, 9)
    assert views.dtype == torch.uint8
    for index, view in enumerate(views):
        assert torch.equal(
            view,
            crop_with_pillow(pixels[index], int(down[index]), int(right[index]), bool(flip[index])),
        )


def test_pad_crop_takes_the_images_at_the_indices() -> None:
    pixels = random_images([(5, 5)] * 6)
    images = one_size(pixels).select(torch.tensor([5, 3, 1]))
    still = torch.zeros(4, dtype=torch.int64)
    views = augment.pad_crop(images, torch.tensor([2, 0, 0, 1]), still, still, still.bool(), 5)
    assert [int(v.sum()) for v in views] == [int(pixels[i].sum()) for i in (1, 5, 5, 3)]


def test_pad_crop_moves_by_up_to_pad_in_every_direction() -> None:
    marked = np.zeros((3, 7, 7), np.uint8)
    marked[:, 3, 3] = 255
    images = one_size([marked] * 2000)
    views = augment.train_view(
        images, everything(images), Transform(7, **PLAIN, pad=2, flip=False), seeded(0)
    )
    places = {divmod(int(view[0].argmax()), 7) for view in views}
    assert places == {(y, x) for y in range(1, 6) for x in range(1, 6)}


def test_half_of_the_images_are_mirrored_where_flip_is_on() -> None:
    image = random_images([(6, 6)])[0]
    images = one_size([image] * 2000)
    original = torch.from_numpy(image).float()

    def mirrored(flip: bool) -> int:
        views = augment.train_view(
            images, everything(images), Transform(6, **PLAIN, pad=0, flip=flip), seeded(0)
        )
        same = (views - original).abs().amax((1, 2, 3)) < 1e-3
        flipped = (views - original.flip(2)).abs().amax((1, 2, 3)) < 1e-3
        assert bool((same ^ flipped).all())
        return int(flipped.sum())

    assert 900 < mirrored(True) < 1100
    assert mirrored(False) == 0


@pytest.mark.parametrize(
    ("kind", "shapes", "what"),
    [(one_size, [(8, 9)], r"\(8, 9\)"), (ragged, [(8, 8), (7, 9)], "of several sizes")],
)
def test_images_of_another_size_are_refused(
    kind: Callable[[list[np.ndarray]], ImageSet], shapes: list[tuple[int, int]], what: str
) -> None:
    images = kind(random_images(shapes))
    transform = Transform(8, **PLAIN)
    sentence = rf"takes images of 8×8, and these are {what}: use crop 'resized'"
    with pytest.raises(DataError, match=sentence):
        augment.train_view(images, everything(images), transform, seeded(0))
    with pytest.raises(DataError, match=sentence):
        augment.test_view(images, everything(images), transform)


# Resized crops


def crop_and_interpolate(
    image: np.ndarray, top: int, left: int, height: int, width: int, flip: bool, size: int
) -> Tensor:
    part = torch.from_numpy(image)[None, :, top : top + height, left : left + width].float()
    (view,) = F.interpolate(
        part, (size, size), mode="bilinear", align_corners=False, antialias=False
    )
    return view.flip(2) if flip else view


@pytest.mark.parametrize("kind", [one_size, ragged])
def test_resized_crop_is_a_crop_then_a_bilinear_resize(
    kind: Callable[[list[np.ndarray]], ImageSet],
) -> None:
    shapes = (
        [(20, 31)] * 40
        if kind is one_size
        else [(h, w) for h in (11, 20, 40, 57) for w in (9, 13, 21, 22, 23, 30, 31, 46, 52, 60)]
    )
    pixels = random_images(shapes)
    images = kind(pixels)
    random = np.random.default_rng(2)
    crops = []
    for h, w in shapes:
        height = int(random.integers(1, h + 1))
        width = int(random.integers(1, w + 1))
        top = int(random.integers(0, h - height + 1))
        left = int(random.integers(0, w - width + 1))
        crops.append((top, left, height, width))
    crops[0] = (0, 0, *shapes[0])  # the whole image
    flips = [bool(random.integers(2)) for _ in shapes]
    views = augment.resized_crop(images, everything(images), boxes(*crops), torch.tensor(flips), 16)
    for view, image, box, flip in zip(views, pixels, crops, flips, strict=True):
        assert torch.allclose(view, crop_and_interpolate(image, *box, flip, 16), atol=2e-3)


def test_resized_crop_by_hand() -> None:
    """Resize two pixels to four: at 1/4 and 3/4 between the centers, constant beyond them."""
    images = one_size([np.array([[[0, 100], [0, 100]]] * 3, np.uint8)])
    view = augment.resized_crop(
        images, torch.tensor([0]), boxes((0, 0, 2, 2)), torch.tensor([False]), 4
    )
    assert torch.allclose(view, torch.tensor([0.0, 25.0, 75.0, 100.0]).expand(1, 3, 4, 4))


def test_a_box_of_the_views_own_size_is_copied() -> None:
    images = random_images([(12, 15)])
    view = augment.resized_crop(
        one_size(images), torch.tensor([0]), boxes((3, 4, 8, 8)), torch.tensor([False]), 8
    )
    assert torch.equal(view[0], torch.from_numpy(images[0][:, 3:11, 4:12]).float())


def test_both_storages_give_the_same_views() -> None:
    images = random_images([(24, 18)] * 12)
    transform = Transform(16, **IMAGENET, crop="resized", resize=20)
    indices = torch.tensor([3, 3, 0, 11, 7])
    flat = one_size(images)
    buffered = ragged(images)
    random = (
        augment.train_view(flat, indices, transform, seeded(5)),
        augment.train_view(buffered, indices, transform, seeded(5)),
    )
    assert torch.equal(*random)
    assert torch.equal(
        augment.test_view(flat, indices, transform), augment.test_view(buffered, indices, transform)
    )


@settings(max_examples=80, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8),
    low=st.floats(0.05, 1.0),
    more=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32),
)
def test_boxes_lie_inside_and_keep_to_the_limits(
    shapes: list[tuple[int, int]], low: float, more: float, seed: int
) -> None:
    high = low + more * (1 - low)
    heights, widths = torch.tensor(shapes).T
    for (height, width), box in zip(
        shapes,
        augment.sample_crop_boxes(heights, widths, (low, high), seeded(seed)).T.tolist(),
        strict=True,
    ):
        top, left, h, w = box
        assert all(number == int(number) for number in box)
        assert 1 <= h <= height
        assert 1 <= w <= width
        assert 0 <= top <= height - h
        assert 0 <= left <= width - w
        # A side is rounded to whole pixels, and is never less than one.
        if min(h, w) > 1:
            assert (w + 0.5) / (h - 0.5) >= ASPECT_RATIO[0] - 1e-4
            assert (w - 0.5) / (h + 0.5) <= ASPECT_RATIO[1] + 1e-4
        largest = (
            min(height, round(width / ASPECT_RATIO[0])),
            min(width, round(height * ASPECT_RATIO[1])),
        )
        if (h, w) != largest and min(h, w) > 1:
            assert (h + 0.5) * (w + 0.5) >= low * height * width * (1 - 1e-4)
            assert (h - 0.5) * (w - 0.5) <= high * height * width * (1 + 1e-4)


@pytest.mark.parametrize("shape", [(32, 32), (20, 50), (50, 20)])
def test_a_ratio_of_one_gives_squares(shape: tuple[int, int]) -> None:
    heights, widths = (torch.full((50,), side) for side in shape)
    boxes = augment.sample_crop_boxes(heights, widths, (0.2, 1.0), seeded(0), (1.0, 1.0))
    assert torch.equal(boxes[2], boxes[3])
    assert len(boxes[2].unique()) > 5
    assert int(boxes[2].max()) <= 1 + min(shape)


def test_views_keep_to_the_ratio_of_the_transform(tiny_images: Callable[..., ImageSet]) -> None:
    """Crop whole images: with the usual ratios most of their parts are rectangles."""
    images = tiny_images(2, 4, size=16)
    square = Transform(16, (0.5,) * 3, (0.25,) * 3, "resized", scale=(1, 1), flip=False, resize=16)
    square = replace(square, ratio=(1.0, 1.0))
    indices = torch.arange(8)
    whole = augment.test_view(images, indices, square)
    assert torch.allclose(augment.train_view(images, indices, square, seeded(0)), whole, atol=1e-4)
    usual = replace(square, ratio=ASPECT_RATIO, scale=(0.5, 0.6))
    assert not torch.allclose(augment.train_view(images, indices, usual, seeded(0)), whole)


@pytest.mark.parametrize(
    ("height", "width", "box"), [(10, 200, (0, 94, 10, 13)), (200, 10, (94, 0, 13, 10))]
)
def test_where_no_box_fits_the_largest_central_one_is_taken(
    height: int, width: int, box: tuple[int, ...]
) -> None:
    heights, widths = torch.full((50,), height), torch.full((50,), width)
    # A box of half the area at a permitted aspect ratio is longer than the image.
    sampled = augment.sample_crop_boxes(heights, widths, (0.5, 1.0), seeded(0)).T
    assert all(tuple(row) == box for row in sampled.tolist())


def test_boxes_use_the_whole_range() -> None:
    """Check that areas and logarithms of aspect ratios are uniform, and places reach the edges."""
    side = torch.full((4000,), 1000)
    top, left, h, w = augment.sample_crop_boxes(side, side, (0.1, 0.5), seeded(0))
    share = h * w / 1e6
    aspect = (w / h).log()
    assert float(share.mean()) == pytest.approx(0.3, abs=0.01)
    assert float(share.std()) == pytest.approx(0.4 / math.sqrt(12), abs=0.01)
    assert float(aspect.mean()) == pytest.approx(0, abs=0.01)
    assert float(aspect.std()) == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), abs=0.01)
    for start, length in ((top, h), (left, w)):
        assert float((start / (1000 - length)).mean()) == pytest.approx(0.5, abs=0.03)


# Views of much larger images


def photo(height: int, width: int, kind: str, seed: int) -> np.ndarray:
    """Return an image of noise, or of smooth waves: (3, height, width)."""
    if kind == "noise":
        return random_images([(height, width)], seed)[0]
    y, x = np.mgrid[:height, :width] / 40
    waves = np.stack([np.sin(x + seed) * np.cos(y), np.cos(x - y), np.sin(x + 2 * y)])
    return (127.5 + 127 * waves).round().astype(np.uint8)


def shrink_with_pillow(image: np.ndarray, box: Tensor, flip: bool, size: int) -> Tensor:
    top, left, height, width = map(int, box)
    part = Image.fromarray(image[:, top : top + height, left : left + width].transpose(1, 2, 0))
    part = part.resize((size, size), Image.Resampling.BILINEAR)
    view = torch.from_numpy(np.array(part)).permute(2, 0, 1).float()
    return view.flip(2) if flip else view


@pytest.mark.parametrize("kind", ["noise", "waves"])
def test_training_views_a_little_smaller_than_the_image_are_those_of_pillow(kind: str) -> None:
    """Check the sizes of CUB200, where an image is stored with 256 pixels for a view of 224."""
    pixels = [photo(64, 96, kind, seed) for seed in range(16)]
    images = ragged(pixels)
    transform = Transform(56, **PLAIN, crop="resized", resize=64, scale=(0.5, 1.0))
    views = augment.train_view(images, everything(images), transform, seeded(3))
    random = seeded(3)
    flips = torch.rand(len(images), generator=random) < 0.5
    heights, widths = augment.image_shapes(images, everything(images))
    sampled = augment.sample_crop_boxes(heights, widths, transform.scale, random).T
    assert float(sampled[:, 2:].max()) > 1.3 * 56
    for view, image, box, flip in zip(views, pixels, sampled, flips.tolist(), strict=True):
        assert torch.allclose(view, shrink_with_pillow(image, box, flip, 56), atol=1.01)


@pytest.mark.parametrize("kind", ["noise", "waves"])
def test_training_views_of_large_images_are_those_of_pillow(kind: str) -> None:
    shapes = [(75, 100), (120, 75), (75, 75), (90, 300)]
    pixels = [photo(*shape, kind, seed) for seed, shape in enumerate(shapes)] * 8
    images = ragged(pixels)
    indices = everything(images)
    transform = Transform(21, **PLAIN, crop="resized", resize=23, stored=90)
    views = augment.train_view(images, indices, transform, seeded(3))
    random = seeded(3)
    flips = torch.rand(len(images), generator=random) < 0.5
    heights, widths = augment.image_shapes(images, indices)
    sampled = augment.sample_crop_boxes(heights, widths, transform.scale, random).T
    assert float(sampled[:, 2:].max()) > 3 * 21  # some boxes are much larger than the view,
    assert float(sampled[:, 2:].min()) < 1.3 * 21  # and some hardly
    for view, image, box, flip in zip(views, pixels, sampled, flips.tolist(), strict=True):
        # Pillow rounds to whole levels after each of two passes.
        assert torch.allclose(view, shrink_with_pillow(image, box, flip, 21), atol=1.01)


@pytest.mark.parametrize("kind", ["noise", "waves"])
@pytest.mark.parametrize(("height", "width"), [(92, 92), (75, 100), (140, 64)])
def test_test_views_of_large_images_are_those_of_pillow(kind: str, height: int, width: int) -> None:
    image = photo(height, width, kind, 0)
    transform = Transform(21, **PLAIN, crop="resized", resize=23)
    view = augment.test_view(ragged([image]), torch.tensor([0]), transform)[0]
    scale = 23 / min(height, width)
    left, top = (round((side * scale - 21) / 2) for side in (width, height))
    box = (left / scale, top / scale, (left + 21) / scale, (top + 21) / scale)
    whole = Image.fromarray(image.transpose(1, 2, 0).copy())
    part = whole.resize((21, 21), Image.Resampling.BILINEAR, box=box)
    expected = torch.from_numpy(np.array(part)).permute(2, 0, 1).float()
    inner = (slice(None), slice(2, -2), slice(2, -2))  # Pillow reads nothing beyond the box
    assert torch.allclose(view[inner], expected[inner], atol=1.01)


def test_an_image_has_the_same_view_whatever_images_are_beside_it() -> None:
    small, large = photo(16, 24, "noise", 0), photo(80, 60, "noise", 1)
    transform = Transform(16, **PLAIN, crop="resized", resize=18, scale=(0.3, 1.0))
    together = ragged([small, large])
    first = torch.tensor([0])
    assert augment.filter_window(ragged([small]), 30, 16) is None
    assert augment.filter_window(together, 80, 16) == 80 + 2 * 5 + 2
    for alone, index in ((ragged([small]), first), (ragged([large]), first + 1)):
        for one, other in (
            (
                augment.train_view(alone, first, transform, seeded(4)),
                augment.train_view(together, index, transform, seeded(4)),
            ),
            (
                augment.test_view(alone, first, transform),
                augment.test_view(together, index, transform),
            ),
        ):
            assert torch.allclose(one, other, atol=1e-3)


@pytest.mark.parametrize(
    ("size", "stored", "longest_box"), [(32, 32, 44), (84, 84, 114), (224, 256, 224)]
)
def test_views_that_are_not_smaller_than_their_boxes_are_interpolated(
    size: int, stored: int, longest_box: int
) -> None:
    """Check training views of small images, and test views of images stored at their size."""
    images = one_size([np.zeros((3, stored, stored * 3 // 2), np.uint8)])
    assert augment.filter_window(images, longest_box, size) is None


@pytest.mark.parametrize("kind", [one_size, ragged])
def test_large_images_have_the_same_views_in_both_storages(
    kind: Callable[[list[np.ndarray]], ImageSet],
) -> None:
    images = kind(random_images([(64, 50)] * 3))
    assert images.short_side == 50
    transform = Transform(16, **PLAIN, crop="resized", resize=18)
    flat = one_size(random_images([(64, 50)] * 3))
    rows = torch.tensor([2, 0])
    assert torch.equal(
        augment.train_view(images, rows, transform, seeded(0)),
        augment.train_view(flat, rows, transform, seeded(0)),
    )


# The test view


def test_the_test_view_of_images_that_fit_is_the_images() -> None:
    pixels = random_images([(8, 8)] * 5)
    images = one_size(pixels)
    views = augment.test_view(images, everything(images), Transform(8, **PLAIN, pad=3))
    assert torch.allclose(views, torch.from_numpy(np.stack(pixels)).float(), atol=1e-3)


@pytest.mark.parametrize(
    ("size", "resize", "stored"), [(84, 92, 84), (84, 92, 92), (16, 24, 12), (16, 18, 40)]
)
def test_the_test_view_resizes_the_image_and_takes_its_center(
    size: int, resize: int, stored: int
) -> None:
    pixels = random_images([(stored, stored)] * 3)
    images = one_size(pixels)
    views = augment.test_view(
        images, everything(images), Transform(size, **PLAIN, crop="resized", resize=resize)
    )
    whole = F.interpolate(
        torch.from_numpy(np.stack(pixels)).float(),
        (resize, resize),
        mode="bilinear",
        align_corners=False,
        antialias=stored > resize,
    )
    edge = (resize - size) // 2
    assert torch.allclose(views, whole[:, :, edge : edge + size, edge : edge + size], atol=5e-3)


@pytest.mark.parametrize(("height", "width"), [(100, 140), (140, 100), (50, 77)])
def test_the_test_view_makes_the_short_side_the_given_length(height: int, width: int) -> None:
    image = random_images([(height, width)])[0]
    view = augment.test_view(
        ragged([image]), torch.tensor([0]), Transform(84, **PLAIN, crop="resized", resize=92)
    )
    scale = 92 / min(height, width)
    whole = F.interpolate(
        torch.from_numpy(image)[None].float(),
        scale_factor=scale,
        mode="bilinear",
        align_corners=False,
        antialias=scale < 1,
    )
    top, left = round((height * scale - 84) / 2), round((width * scale - 84) / 2)
    assert torch.allclose(view, whole[:, :, top : top + 84, left : left + 84], atol=1e-2)


def test_the_test_view_is_the_same_every_time_and_alone() -> None:
    images = ragged(random_images([(30, 40), (41, 33), (25, 25)]))
    transform = Transform(16, **IMAGENET, crop="resized", resize=20)
    views = augment.test_view(images, everything(images), transform)
    assert torch.equal(views, augment.test_view(images, everything(images), transform))
    for index in range(3):
        assert torch.equal(
            views[index], augment.test_view(images, torch.tensor([index]), transform)[0]
        )


# Random numbers per image


@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_each_image_has_its_own_random_numbers(crop: str) -> None:
    images = one_size(random_images([(32, 32)]) * 8)
    transform = Transform(32, **IMAGENET, crop=crop)
    views = augment.train_view(images, everything(images), transform, seeded(0))
    different = {view.numpy().tobytes() for view in views}
    assert len(different) >= 7  # two of 162 shifts and flips may coincide
    assert torch.equal(views, augment.train_view(images, everything(images), transform, seeded(0)))
    assert not torch.equal(
        views, augment.train_view(images, everything(images), transform, seeded(1))
    )


def test_the_next_batch_has_other_random_numbers() -> None:
    images = one_size(random_images([(16, 16)] * 8))
    generator = seeded(0)
    first, second = (
        augment.train_view(images, everything(images), Transform(16, **PLAIN), generator)
        for _ in range(2)
    )
    assert not torch.equal(first, second)


# Normalization


def test_normalize_can_be_undone() -> None:
    pixels = torch.from_numpy(np.stack(random_images([(6, 7)] * 4)))
    transform = Transform(6, **IMAGENET)
    numbers = augment.normalize(pixels, transform)
    assert numbers.dtype == torch.float32
    assert numbers.is_contiguous(memory_format=torch.channels_last)
    mean, std = (torch.tensor(values)[:, None, None] for values in (transform.mean, transform.std))
    assert torch.equal(((numbers * std + mean) * 255).round().to(torch.uint8), pixels)
    assert torch.allclose(numbers, (pixels / 255 - mean) / std, atol=1e-5)


# Boxes that overlap others


def test_boxes_lie_on_other_boxes_where_they_can() -> None:
    n = 300
    heights, widths = torch.full((n,), 40), torch.full((n,), 60)
    corner = torch.tensor([[0.0], [0.0], [20.0], [30.0]]).expand(4, n)  # a quarter of the image
    boxes = augment.sample_crop_boxes_on(corner, heights, widths, (0.05, 0.14), seeded(0))
    top, left, height, width = boxes
    assert bool((top + height <= 40).all())
    assert bool((left + width <= 60).all())
    areas = height * width / (40 * 60)
    assert 0.045 < float(areas.min()) < 0.06
    assert 0.13 < float(areas.max()) < 0.145
    enough = 0
    for y, x, h, w in boxes.T.tolist():
        shared = max(0.0, min(y + h, 20) - y) * max(0.0, min(x + w, 30) - x)
        enough += shared >= 0.1 * h * w
    assert enough >= 0.97 * n  # by chance alone it would be about half
    # Where nothing overlaps there is a box all the same.
    nowhere = torch.tensor([[100.0], [100.0], [5.0], [5.0]]).expand(4, n)
    boxes = augment.sample_crop_boxes_on(nowhere, heights, widths, (0.05, 0.14), seeded(0))
    assert bool((boxes[2] > 0).all())
    assert len(boxes.T.unique(dim=0)) > 0.9 * n


def test_a_view_is_of_the_boxes_that_are_given() -> None:
    images = one_size(random_images([(12, 12)] * 3))
    transform = Transform(4, **PLAIN, crop="resized", flip=False)
    boxes = torch.tensor([[0.0, 2, 8], [4, 1, 8], [4, 4, 4], [4, 4, 4]])
    views = augment.train_view(images, everything(images), transform, seeded(0), boxes)
    for number, (top, left) in enumerate([(0, 4), (2, 1), (8, 8)]):
        pixels = images.image(number)[None, :, top : top + 4, left : left + 4].float()
        assert torch.allclose(views[number], augment.normalize(pixels, transform)[0], atol=1e-4)


# Mixed crops, policies, jitter, cutout: test_operations.py and test_policies.py test their parts


def everything_on(size: int = 32) -> Transform:
    return Transform(
        size,
        **IMAGENET,
        crop="mixed",
        policy="randaugment",
        policy_probability=0.8,
        jitter=(0.4, 0.4, 0.4, 0.1),
        grayscale=0.2,
        cutout=8,
    )


def test_views_by_default_are_crop_flip_and_normalization_alone() -> None:
    """No setting that is off draws a random number or changes a bit."""
    images = one_size(random_images([(16, 16)] * 12))
    generator, other = seeded(3), seeded(3)
    views = augment.train_view(images, everything(images), Transform(16, **IMAGENET), generator)
    flip = torch.rand(12, generator=other) < 0.5
    down, right = torch.randint(-4, 5, (2, 12), generator=other)
    pixels = augment.pad_crop(images, everything(images), down, right, flip, 16)
    assert torch.equal(views, augment.normalize(pixels, Transform(16, **IMAGENET)))
    assert torch.equal(generator.get_state(), other.get_state())


def test_a_mixed_crop_is_for_each_image_one_of_the_two() -> None:
    images = one_size(random_images([(8, 8)] * 400))
    mixed = Transform(8, **PLAIN, crop="mixed", pad=0, flip=False, scale=(0.1, 0.3))
    views = augment.train_view(images, everything(images), mixed, seeded(0))
    whole = augment.test_view(images, everything(images), mixed)
    is_whole = (views - whole).abs().amax((1, 2, 3)) < 1e-3  # a pad-crop without padding
    assert 150 < int(is_whole.sum()) < 250
    # A small box that is enlarged has smaller steps between its pixels.
    steps = views.diff(dim=3).abs().mean((1, 2, 3))
    assert float(steps[~is_whole].max()) < float(steps[is_whole].min())


def test_jitter_draws_factors_from_the_whole_range() -> None:
    pixels = torch.full((2000, 3, 2, 2), 100.0)
    bright = augment.random_jitter(pixels, (0.4, 0.0, 0.0, 0.0), seeded(0))[:, 0, 0, 0] / 100
    assert 0.6 <= float(bright.min()) < 0.61
    assert 1.39 < float(bright.max()) <= 1.4001
    assert float(bright.mean()) == pytest.approx(1, abs=0.02)
    # Above 1 the factor still does not become negative.
    dark = augment.random_jitter(pixels, (1.5, 0.0, 0.0, 0.0), seeded(0))[:, 0, 0, 0] / 100
    assert 0 <= float(dark.min()) < 0.01
    assert 2.45 < float(dark.max()) <= 2.5001


def test_hue_is_drawn_in_both_directions() -> None:
    red = torch.tensor([200.0, 0.0, 0.0])[:, None, None].expand(2000, 3, 1, 1)
    turned = augment.random_jitter(red, (0.0, 0.0, 0.0, 0.1), seeded(0))[:, :, 0, 0]
    green, blue = turned[:, 1] / 200, turned[:, 2] / 200
    assert torch.equal((green > 0), (blue == 0))
    assert 0.45 < float((green > 0).float().mean()) < 0.55
    assert 0.59 < float(green.max()) <= 0.6001  # a tenth of the circle is 0.6 of a sixth
    assert 0.59 < float(blue.max()) <= 0.6001


def test_a_share_of_the_views_is_gray() -> None:
    images = one_size(random_images([(6, 6)] * 1000))
    views = augment.train_view(
        images, everything(images), Transform(6, **PLAIN, grayscale=0.2), seeded(0)
    )
    gray = (views - views[:, :1]).abs().amax((1, 2, 3)) < 1e-3
    assert 150 < int(gray.sum()) < 250


def test_a_share_of_the_views_is_jittered() -> None:
    images = one_size(random_images([(6, 6)] * 1000))
    plain = Transform(6, **PLAIN, pad=0, flip=False)
    changed = replace(plain, jitter=(0.4, 0.4, 0.4, 0.1))
    views = augment.train_view(images, everything(images), changed, seeded(0), jittered=0.8)
    same = (views - augment.test_view(images, everything(images), plain)).abs().amax((1, 2, 3))
    assert 150 < int((same < 1e-3).sum()) < 250


@pytest.mark.parametrize("side", [1, 4, 5, 20])
def test_cutout_is_a_square_around_a_random_pixel(side: int) -> None:
    found = augment.random_square(torch.ones(3000, 3, 8, 8), side, seeded(0))
    squares = set()
    for mask in found[:, 0].numpy():
        rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
        assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        squares.add((rows[0], rows[-1] + 1, columns[0], columns[-1] + 1))
    lines = {(max(c - side // 2, 0), min(c - side // 2 + side, 8)) for c in range(8)}
    assert squares == {(*rows, *columns) for rows in lines for columns in lines}


@pytest.mark.parametrize("color", ["mean", "black"])
def test_cutout_comes_last(color: CutoutColor) -> None:
    images = one_size(random_images([(16, 16)] * 6))
    whole = Transform(16, **IMAGENET, policy="randaugment", jitter=(0.4, 0.4, 0.4, 0.1))
    cut = replace(whole, cutout=4, cutout_color=color)
    views, plain = (
        augment.train_view(images, everything(images), transform, seeded(0))
        for transform in (cut, whole)
    )
    assert views.is_contiguous(memory_format=torch.channels_last)
    mean, std = torch.tensor(whole.mean), torch.tensor(whole.std)
    filled = torch.zeros(3) if color == "mean" else -mean / std
    square = (views - filled[:, None, None]).abs().amax(1) < 1e-5
    assert bool((square.flatten(1).sum(1) >= 4).all())  # at least a corner of it
    assert torch.equal(views.masked_fill(square[:, None], 0), plain.masked_fill(square[:, None], 0))


@pytest.mark.parametrize("kind", [one_size, ragged])
def test_everything_together_depends_on_the_generator_alone(
    kind: Callable[[list[np.ndarray]], ImageSet],
) -> None:
    images = kind(random_images([(32, 32)]) * 8)
    transform = everything_on()
    if kind is ragged:
        transform = replace(transform, crop="resized")
    views = augment.train_view(images, everything(images), transform, seeded(0))
    assert views.shape == (8, 3, 32, 32)
    assert views.dtype == torch.float32
    assert views.is_contiguous(memory_format=torch.channels_last)
    assert bool(views.isfinite().all())
    assert len({view.numpy().tobytes() for view in views}) == 8
    assert torch.equal(views, augment.train_view(images, everything(images), transform, seeded(0)))
    assert not torch.equal(
        views, augment.train_view(images, everything(images), transform, seeded(1))
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"crop": "mixed"},
        {"policy": "autoaugment-cifar10"},
        {"policy": "autoaugment-imagenet"},
        {"policy": "randaugment"},
        {"jitter": (0.0, 0.0, 0.0, 0.2)},
        {"grayscale": 0.5},
        {"cutout": 3},
    ],
)
def test_every_augmentation_changes_views(changed: dict[str, object]) -> None:
    images = one_size(random_images([(16, 16)] * 16))
    plain = Transform(16, **IMAGENET, pad=2)
    changed_too = replace(plain, **changed)  # type: ignore[arg-type]
    views = augment.train_view(images, everything(images), plain, seeded(0))
    others = augment.train_view(images, everything(images), changed_too, seeded(0))
    assert not torch.equal(views, others)
    # The test view is never augmented.
    assert torch.equal(
        augment.test_view(images, everything(images), plain),
        augment.test_view(images, everything(images), changed_too),
    )


# Rotation


def test_rotate90_is_torch_rot90() -> None:
    batch = torch.randn(9, 3, 5, 5, generator=seeded(0))
    multiples = torch.tensor([0, 1, 2, 3, 4, 5, -1, 3, 1])
    rotated = augment.rotate90(batch, multiples)
    for view, image, k in zip(rotated, batch, multiples.tolist(), strict=True):
        assert torch.equal(view, torch.rot90(image, k, (1, 2)))


@pytest.mark.parametrize("side", [8, 9])
def test_rotation_by_right_angles_is_rotate90(side: int) -> None:
    batch = torch.randn(5, 3, side, side, generator=seeded(0))
    degrees = torch.tensor([0.0, 90.0, 180.0, 270.0, -90.0])
    expected = augment.rotate90(batch, torch.tensor([0, 1, 2, 3, 3]))
    rotated = augment.rotate(batch, degrees)
    assert torch.allclose(rotated, expected, atol=1e-4)
    assert torch.allclose(rotated[0], batch[0], atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(degrees=st.floats(-720, 720), seed=st.integers(0, 1000))
def test_rotation_leaves_no_black_corners(degrees: float, seed: int) -> None:
    constant = torch.full((1, 3, 12, 12), 0.7)
    assert torch.allclose(augment.rotate(constant, torch.tensor([degrees])), constant, atol=1e-5)
    bright = torch.rand(1, 3, 12, 12, generator=seeded(seed)) + 0.1
    rotated = augment.rotate(bright, torch.tensor([degrees]))
    assert float(rotated.min()) > 0.099
    assert float(rotated.max()) < 1.101


def test_every_image_has_its_own_angle() -> None:
    batch = torch.randn(4, 3, 10, 10, generator=seeded(0))
    degrees = torch.tensor([10.0, 45.0, -30.0, 200.0])
    together = augment.rotate(batch, degrees)
    for index in range(4):
        assert torch.allclose(
            together[index],
            augment.rotate(batch[index : index + 1], degrees[index : index + 1])[0],
            atol=1e-5,
        )


@pytest.mark.parametrize("degrees", [7.0, 45.0, 100.0])
def test_opposite_angles_undo_each_other_in_the_center(degrees: float) -> None:
    """Use a slope: bilinear interpolation keeps it exactly, so only the angle matters."""
    line = torch.arange(21) - 10.0
    slope = (3 * line[:, None] + 2 * line[None, :])[None, None]
    back = augment.rotate(augment.rotate(slope, torch.tensor([degrees])), torch.tensor([-degrees]))
    center = slice(7, 14)
    assert torch.allclose(back[..., center, center], slope[..., center, center], atol=1e-3)
    assert not torch.allclose(
        augment.rotate(slope, torch.tensor([degrees]))[..., center, center],
        slope[..., center, center],
        atol=1,
    )


def test_autocast_does_not_make_rotation_coarser() -> None:
    batch = torch.rand(4, 3, 40, 40, generator=seeded(0))
    degrees = torch.tensor([10.0, 45.0, -30.0, 200.0])
    with torch.autocast("cpu", torch.bfloat16):
        rotated = augment.rotate(batch, degrees)
    assert torch.allclose(rotated.float(), augment.rotate(batch, degrees), atol=1e-5)


def test_rotation_goes_counter_clockwise() -> None:
    """Check that a point on the right moves up."""
    batch = torch.zeros(1, 1, 21, 21)
    batch[..., 10, 14] = 1
    rotated = augment.rotate(batch, torch.tensor([45.0]))[0, 0]
    y, x = divmod(int(rotated.argmax()), 21)
    assert math.hypot(y - (10 - 4 / math.sqrt(2)), x - (10 + 4 / math.sqrt(2))) < 1


# Settings


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"size": 0}, "size must be at least 1, not 0"),
        ({"crop": "center"}, "crop must be 'pad', 'resized' or 'mixed', not 'center'"),
        ({"pad": -1}, "pad must not be negative, and is -1"),
        (
            {"scale": (0.0, 1.0)},
            r"scale must be two shares .* not \(0.0, 1.0\)",
        ),
        ({"scale": (0.8, 0.2)}, "scale must be two shares"),
        ({"scale": (0.5, 1.5)}, "scale must be two shares"),
        ({"ratio": (2.0, 1.0)}, "ratio must be two ratios of width to height"),
        ({"ratio": (0.0, 1.0)}, "ratio must be two ratios of width to height"),
        ({"view_features": "both"}, "view_features must be 'mean' or 'separate', not 'both'"),
        ({"resize": 31}, r"resize \(31\) must not be smaller than size \(32\)"),
        (
            {"resize": 40, "stored": 39},
            r"stored \(39\) must not be smaller than test images \(40\)",
        ),
        ({"std": (1.0, 0.0, 1.0)}, r"std must be positive, not \(1.0, 0.0, 1.0\)"),
        ({"policy": "auto"}, "policy must be 'none', .* or 'randaugment', not 'auto'"),
        ({"policy_probability": 1.2}, "policy_probability must be from 0 to 1, not 1.2"),
        ({"grayscale": -0.1}, "grayscale must be from 0 to 1, not -0.1"),
        ({"randaugment_ops": 0}, "randaugment_ops must be at least 1, not 0"),
        ({"randaugment_magnitude": 31}, "randaugment_magnitude must be from 0 to 30, not 31"),
        ({"jitter": (0.4, -0.1, 0.0, 0.0)}, "jitter must be brightness, .* none negative"),
        ({"jitter": (0.4, 0.0, 0.0, 0.6)}, "jitter must be .* hue at most 0.5, not"),
        ({"cutout": -1}, "cutout must not be negative, and is -1"),
        ({"test_views": ()}, r"test_views must be different ones of plain, .*, not \(\)"),
        ({"test_views": ("flip", "flip")}, "test_views must be different ones"),
        ({"test_views": ("plain", "rot45")}, "test_views must be different ones"),
    ],
)
def test_invalid_settings_are_named(changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^transform: {sentence}"):
        Transform(**{"size": 32, **IMAGENET, **changed})  # type: ignore[arg-type]


def test_all_invalid_settings_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"size must be .*; pad must not"):
        Transform(0, **IMAGENET, pad=-2)
