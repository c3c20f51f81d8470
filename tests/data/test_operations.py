"""Compare operations on batches with Pillow's on one image at a time."""

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fewmore.data import operations
from fewmore.data.operations import FILL, KINDS, apply_operations

GRAY = (FILL, FILL, FILL)


def noise(n: int, side: int = 20, seed: int = 0) -> Tensor:
    """Return images whose values use a part of the range, another one in each channel."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.randint(0, 120, (n, 3, 1, 1), generator=generator)
    high = torch.randint(130, 256, (n, 3, 1, 1), generator=generator)
    values = low + (high - low) * torch.rand(n, 3, side, side, generator=generator) ** 2
    return values.to(torch.uint8)


def to_pillow(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def from_pillow(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def applied(pixels: Tensor, kind: str, strengths: list[float], bilinear: bool = False) -> Tensor:
    kinds = torch.full((len(pixels),), KINDS.index(kind))
    return apply_operations(pixels, kinds, torch.tensor(strengths), bilinear)


# Whole images against Pillow


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=GRAY)


REFERENCES: dict[str, tuple[list[float], Callable[[Image.Image, float], Image.Image]]] = {
    "identity": ([0.0, 7.0], lambda image, _: image),
    "shear-x": ([0.17, -0.29, 0.0], lambda image, s: affine(image, 1, s, 0, 0, 1, 0)),
    "shear-y": ([0.17, -0.29, 0.0], lambda image, s: affine(image, 1, 0, 0, s, 1, 0)),
    "translate-x": (
        [0.45, -0.33, 0.04],
        lambda image, s: affine(image, 1, 0, -int(s * 20), 0, 1, 0),
    ),
    "translate-y": (
        [0.45, -0.33, 0.04],
        lambda image, s: affine(image, 1, 0, 0, 0, 1, -int(s * 20)),
    ),
    "rotate": ([29.7, -13.1, 7.9, 141.0], lambda image, s: image.rotate(s, fillcolor=GRAY)),
    "brightness": ([0.1, 0.6, 1.0, 1.9], lambda i, s: ImageEnhance.Brightness(i).enhance(s)),
    "color": ([0.0, 0.1, 0.6, 1.0, 1.9], lambda i, s: ImageEnhance.Color(i).enhance(s)),
    "contrast": ([0.0, 0.1, 0.6, 1.0, 1.9], lambda i, s: ImageEnhance.Contrast(i).enhance(s)),
    "sharpness": ([0.0, 0.1, 0.6, 1.0, 1.9], lambda i, s: ImageEnhance.Sharpness(i).enhance(s)),
    "posterize": ([4.0, 5.0, 7.0, 8.0], lambda i, s: ImageOps.posterize(i, int(s))),
    "solarize": ([255.0, 170.0, 28.3, 0.0], lambda i, s: ImageOps.solarize(i, s)),  # type: ignore[arg-type]
    "invert": ([0.0], lambda i, _: ImageOps.invert(i)),
    "auto-contrast": ([0.0] * 4, lambda i, _: ImageOps.autocontrast(i)),
    "equalize": ([0.0] * 4, lambda i, _: ImageOps.equalize(i)),
}
# Pillow rounds products of two floats down where we divide whole numbers: one level at most.
TOLERANCE = {"auto-contrast": 1}


def test_every_operation_has_a_reference() -> None:
    assert set(REFERENCES) == set(KINDS)
    assert len(KINDS) == 15


@pytest.mark.parametrize("kind", KINDS)
def test_an_operation_is_that_of_pillow(kind: str) -> None:
    strengths, reference = REFERENCES[kind]
    images = noise(len(strengths))
    results = applied(images, kind, strengths)
    assert results.dtype == torch.uint8
    for image, strength, result in zip(images, strengths, results, strict=True):
        expected = from_pillow(reference(to_pillow(image), strength))
        difference = (result.int() - expected.int()).abs()
        assert int(difference.max()) <= TOLERANCE.get(kind, 0), strength


def interpolated(image: Image.Image, *matrix: float) -> Image.Image:
    kind, sampling = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    return image.transform(image.size, kind, matrix, sampling, fillcolor=(0, 0, 0))


INTERPOLATED: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, _: image,
    "shear-x": lambda image, s: interpolated(image, 1, s, 0, 0, 1, 0),
    "shear-y": lambda image, s: interpolated(image, 1, 0, 0, s, 1, 0),
    "translate-x": lambda image, s: interpolated(image, 1, 0, -int(s * 20), 0, 1, 0),
    "translate-y": lambda image, s: interpolated(image, 1, 0, 0, 0, 1, -int(s * 20)),
    "rotate": lambda image, s: image.rotate(s, Image.Resampling.BILINEAR, fillcolor=(0, 0, 0)),
    "posterize": REFERENCES["posterize"][1],
}


@pytest.mark.parametrize("kind", INTERPOLATED)
def test_an_interpolated_operation_is_that_of_pillow(kind: str) -> None:
    strengths = REFERENCES[kind][0]
    images = noise(len(strengths))
    results = applied(images, kind, strengths, bilinear=True)
    for image, strength, result in zip(images, strengths, results, strict=True):
        expected = from_pillow(INTERPOLATED[kind](to_pillow(image), strength))
        difference = (result.int() - expected.int()).abs()
        assert int(difference.max()) <= 1, strength
        # Pillow's own sums are of more digits, so that few values fall on the other side.
        assert float((difference > 0).float().mean()) < 0.002, strength


@pytest.mark.parametrize("kind", ["auto-contrast", "equalize", "contrast", "sharpness"])
@pytest.mark.parametrize("value", [0, 77, 255])
def test_an_image_of_one_color_stays_as_pillow_leaves_it(kind: str, value: int) -> None:
    image = torch.full((1, 3, 6, 6), value, dtype=torch.uint8)
    (result,) = applied(image, kind, [1.9])
    assert torch.equal(result, from_pillow(REFERENCES[kind][1](to_pillow(image[0]), 1.9)))


def test_equalize_with_few_pixels_and_with_few_values_is_that_of_pillow() -> None:
    for side, values in ((4, 256), (32, 2), (40, 7)):
        generator = torch.Generator().manual_seed(side)
        image = torch.randint(0, values, (1, 3, side, side), generator=generator).to(torch.uint8)
        (result,) = applied(image, "equalize", [0.0])
        assert torch.equal(result, from_pillow(ImageOps.equalize(to_pillow(image[0]))))


@pytest.mark.parametrize("side", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_tiny_images_are_possible(kind: str, side: int) -> None:
    result = applied(noise(2, side), kind, [1.0, 1.0])
    assert result.shape == (2, 3, side, side)


def test_what_comes_from_beyond_the_edges_is_gray() -> None:
    black = torch.zeros(2, 3, 10, 10, dtype=torch.uint8)
    right, left = applied(black, "translate-x", [0.3, -0.3])
    assert right[0, 0].tolist() == [FILL] * 3 + [0] * 7
    assert left[0, 0].tolist() == [0] * 7 + [FILL] * 3


# Batches


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_image_does_not_depend_on_its_batch(seed: int) -> None:
    """Apply random operations in order, in another order, and to each image alone."""
    generator = torch.Generator().manual_seed(seed)
    images = noise(8, 9, seed)
    kinds = torch.randint(len(KINDS), (8,), generator=generator)
    strengths = 8 * torch.rand(8, generator=generator)
    together = apply_operations(images, kinds, strengths)
    order = torch.randperm(8, generator=generator)
    shuffled = apply_operations(images[order], kinds[order], strengths[order])
    assert torch.equal(shuffled, together[order])
    for index in range(8):
        one = slice(index, index + 1)
        alone = apply_operations(images[one], kinds[one], strengths[one])
        assert torch.equal(alone, together[one])


# Color jitter


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
@pytest.mark.parametrize(
    ("name", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_jitter_is_that_of_pillow(
    name: str, enhance: Callable[[Image.Image], ImageEnhance._Enhance], factor: float
) -> None:
    """Pillow rounds grays, means and results to whole numbers: up to two levels."""
    images = noise(3)
    neutral = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
    values = {key: torch.full((3,), value) for key, value in {**neutral, name: factor}.items()}
    for image, result in zip(images, operations.color_jitter(images, **values), strict=True):
        expected = from_pillow(enhance(to_pillow(image)).enhance(factor))
        assert float((result - expected).abs().max()) < 2


def test_hue_is_that_of_colorsys() -> None:
    images = noise(4, 5).float()
    images[0, :, 0, 0] = 80.0  # gray has no hue, and stays
    shifts = [0.0, 0.25, -0.1, 0.5]
    results = operations.shift_hue(images, torch.tensor(shifts))
    for image, shift, result in zip(images, shifts, results, strict=True):
        for before, after in zip(image.flatten(1).T, result.flatten(1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255).tolist())
            expected = colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)
            assert (after / 255).tolist() == pytest.approx(expected, abs=1e-5)


def test_gray_is_that_of_pillow() -> None:
    (image,) = noise(1)
    expected = torch.from_numpy(np.array(to_pillow(image).convert("L")))
    assert torch.equal(operations.grayscale(image[None])[0, 0].round(), expected.float())
