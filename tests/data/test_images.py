"""Check that an ImageSet behaves the same over one tensor and over a ragged buffer."""

import numpy as np
import pytest
import torch

from fewmore.data.images import ImageSet, Ragged, concatenate
from fewmore.errors import DataError

NAMES = ("ant", "bee", "cat")
LABELS = [0, 1, 2, 0, 1, 2]


def arrays(ragged: bool) -> list[np.ndarray]:
    """Make six images of noise."""
    random = np.random.default_rng(0)
    return [
        random.integers(
            0, 256, (3, 4 + (i if ragged else 0), 5 + (i % 2 if ragged else 0)), dtype=np.uint8
        )
        for i in range(6)
    ]


@pytest.fixture(params=[False, True], ids=["tensor", "ragged"])
def pixels(request: pytest.FixtureRequest) -> list[np.ndarray]:
    return arrays(request.param)


@pytest.fixture
def images(pixels: list[np.ndarray]) -> ImageSet:
    same = len({p.shape for p in pixels}) == 1
    storage = np.stack(pixels) if same else Ragged.from_arrays(pixels)
    return ImageSet.from_images(storage, LABELS, NAMES)


def same(images: ImageSet, pixels: list[np.ndarray]) -> bool:
    return len(images) == len(pixels) and all(
        np.array_equal(images.image(i).numpy(), p) for i, p in enumerate(pixels)
    )


def test_images_come_back_as_they_were(images: ImageSet, pixels: list[np.ndarray]) -> None:
    assert same(images, pixels)
    assert images.labels.tolist() == LABELS
    assert images.class_counts().tolist() == [2, 2, 2]


def test_a_set_is_shown_without_its_pixels(images: ImageSet) -> None:
    sizes = "4 × 5 pixels" if images.size else "several sizes"
    assert repr(images) == f"ImageSet(6 images of {sizes}, 3 classes)"


def test_size_is_known_where_all_images_share_it(images: ImageSet) -> None:
    assert images.size == ((4, 5) if isinstance(images.storage, torch.Tensor) else None)


def test_select_keeps_labels_and_copies_nothing(images: ImageSet, pixels: list[np.ndarray]) -> None:
    chosen = images.select(torch.tensor([4, 1, 1]))
    assert same(chosen, [pixels[4], pixels[1], pixels[1]])
    assert chosen.labels.tolist() == [1, 1, 1]
    assert chosen.class_names == NAMES
    assert chosen.storage is images.storage
    assert chosen.class_counts().tolist() == [0, 3, 0]


def test_select_classes_relabels_in_the_order_given(
    images: ImageSet, pixels: list[np.ndarray]
) -> None:
    chosen = images.select_classes([2, 0])
    assert same(chosen, [pixels[0], pixels[2], pixels[3], pixels[5]])
    assert chosen.labels.tolist() == [1, 0, 1, 0]
    assert chosen.class_names == ("cat", "ant")


def test_a_view_of_a_view_finds_its_images(images: ImageSet, pixels: list[np.ndarray]) -> None:
    view = images.select_classes([2, 1]).select(torch.tensor([3, 0])).select_classes([0])
    assert same(view, [pixels[5]])


def test_compact_holds_its_images_and_no_others(images: ImageSet, pixels: list[np.ndarray]) -> None:
    compact = images.select(torch.tensor([5, 2])).compact()
    assert same(compact, [pixels[5], pixels[2]])
    assert len(compact.storage) == 2
    storage = compact.storage
    buffer = storage if isinstance(storage, torch.Tensor) else storage.buffer
    assert buffer.numel() == pixels[5].size + pixels[2].size
    buffer.zero_()
    assert same(images, pixels)


@pytest.mark.parametrize("problem", [torch.OutOfMemoryError, MemoryError])
def test_images_that_do_not_fit_into_memory(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(ImageSet, "_copy_to", full)
    with pytest.raises(DataError, match=r"^6 images of 0\.0 GB do not fit .* of meta: store them"):
        images.to("meta")


def test_the_short_side_is_the_longest_one(images: ImageSet, pixels: list[np.ndarray]) -> None:
    assert images.short_side == max(min(p.shape[1:]) for p in pixels)
    assert images.select(torch.tensor([0])).short_side == images.short_side  # the same storage
    assert images.select(torch.tensor([0])).compact().short_side == min(pixels[0].shape[1:])
    assert ImageSet.from_state(images.state()).short_side == images.short_side


def test_to_the_same_device_is_the_set_itself(images: ImageSet) -> None:
    assert images.to("cpu") is images


def test_state_and_back(images: ImageSet, pixels: list[np.ndarray]) -> None:
    back = ImageSet.from_state(images.select(torch.tensor([3, 1])).state())
    assert same(back, [pixels[3], pixels[1]])
    assert back.labels.tolist() == [0, 1]
    assert back.class_names == NAMES


def test_a_set_may_be_empty(images: ImageSet) -> None:
    for nothing in (images.select_classes([]), images.select(torch.tensor([], dtype=torch.int64))):
        assert len(nothing.compact()) == len(nothing.compact().storage) == 0


@pytest.mark.parametrize("ragged", [(False, False), (True, True), (False, True)])
def test_concatenate_continues_the_labels(ragged: tuple[bool, bool]) -> None:
    first, second = arrays(ragged[0]), arrays(ragged[1])
    one = ImageSet.from_images(Ragged.from_arrays(first), LABELS, NAMES).select_classes([1, 2])
    two = ImageSet.from_images(Ragged.from_arrays(second), LABELS, ("dog", "eel", "fox")).select(
        torch.tensor([5, 0])
    )
    both = concatenate([one, two])
    assert same(both, [first[1], first[2], first[4], first[5], second[5], second[0]])
    assert both.labels.tolist() == [0, 1, 0, 1, 4, 2]
    assert both.class_names == ("bee", "cat", "dog", "eel", "fox")


def test_a_whole_set_of_images_of_several_sizes_has_the_hash_of_a_part_of_another() -> None:
    pixels = arrays(True)
    whole = ImageSet.from_images(Ragged.from_arrays(pixels), LABELS, NAMES)
    more = Ragged.from_arrays([*pixels, *pixels])
    part = ImageSet(more, torch.arange(len(pixels)), whole.labels, NAMES)
    assert whole.content_hash() == part.content_hash()


def test_concatenate_images_of_one_size_is_one_tensor() -> None:
    one = ImageSet.from_images(np.stack(arrays(False)), LABELS, NAMES)
    two = ImageSet.from_images(np.stack(arrays(False)), LABELS, ("dog", "eel", "fox"))
    assert concatenate([one, two]).size == (4, 5)


@pytest.mark.parametrize(
    ("pixels", "labels", "names", "sentence"),
    [
        (np.zeros((2, 3, 4, 4), np.float32), [0, 1], "ab", "uint8"),
        (np.zeros((2, 1, 4, 4), np.uint8), [0, 1], "ab", "shape"),
        (np.zeros((2, 3, 4, 4), np.uint8), [0], "ab", "2 images have 1 labels"),
        (np.zeros((2, 3, 4, 4), np.uint8), [0, 2], "ab", "labels must lie in 0 … 1, not 0 … 2"),
        (np.zeros((2, 3, 4, 4), np.uint8), [0, -1], "ab", "-1"),
        (np.zeros((2, 3, 4, 4), np.uint8), [0, 1], "aa", "more than once: a"),
    ],
)
def test_invalid_images_or_labels_are_refused(
    pixels: np.ndarray, labels: list[int], names: str, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        ImageSet.from_images(pixels, labels, list(names))
