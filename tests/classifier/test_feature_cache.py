"""Features of training images are kept on disk, and what is kept changes no model."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.classifier import feature_cache
from fewmore.classifier.embedding import Batch, Embedder, image_hash
from fewmore.classifier.feature_cache import CachedEmbedder
from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.nn.backbones import build

MakeImages = Callable[..., ImageSet]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a cache folder of one's own, and return that of features."""
    monkeypatch.setattr(feature_cache, "cache_folder", lambda: tmp_path)
    return tmp_path / "features"


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images that a backbone embeds, a number a call."""
    counts: list[int] = []
    features_of = Embedder.features_of

    def count(self: Embedder, batch: Batch) -> torch.Tensor:
        counts.append(len(batch))
        return features_of(self, batch)

    monkeypatch.setattr(Embedder, "features_of", count)
    return counts


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


def test_a_repeated_training_embeds_nothing(
    tiny_images: MakeImages, weights: Path, embedded: list[int], tmp_path: Path
) -> None:
    images = tiny_images(3, 6)
    for name in ("a", "b"):
        embedded.clear()
        IncrementalClassifier("resnet8", weights).fit(images).save(tmp_path / name)
        assert bool(sum(embedded)) == (name == "a")
    one, other = (IncrementalClassifier.load(tmp_path / name) for name in ("a", "b"))
    assert one.predict(images.image(0), 3) == other.predict(images.image(0), 3)


def test_a_stopped_training_goes_on(
    tiny_images: MakeImages, weights: Path, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewmore.classifier.embedding.BATCH_SIZE", {"cpu": 6})
    images = tiny_images(3, 6)

    def stop(stage: str, done: int, total: int) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    classifier = IncrementalClassifier("resnet8", weights, device="cpu", engine="torch")
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(images, progress=stop)
    before = sum(embedded)
    classifier.fit(images)
    assert sum(embedded) - before == before / 2, "the last six of eighteen images"


def squares(count: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(0, images, ())


def test_other_weights_and_transforms_have_features_of_their_own(
    tiny_transform: Transform, embedded: list[int]
) -> None:
    cpu = torch.device("cpu")
    for seed in (0, 1):
        CachedEmbedder(build("resnet8", seed), tiny_transform, cpu).features_of(squares(2))
    assert embedded == [2, 2]
    other = replace(tiny_transform, mean=(0.1, 0.2, 0.3))
    CachedEmbedder(build("resnet8", 1), other, cpu).features_of(squares(2))
    assert embedded == [2, 2, 2]


def test_what_is_kept_is_what_the_backbone_computes(
    tiny_transform: Transform, embedded: list[int]
) -> None:
    """Of images whose content hashes are there already, and of those that have none yet."""
    network, cpu = build("resnet8", 0), torch.device("cpu")
    plain = Embedder(network, tiny_transform, cpu).features_of(squares(3))
    hashed = replace(squares(3), hashes=tuple(map(image_hash, squares(3).images)))
    embedded.clear()
    for batch in (squares(3), hashed):
        embedder = CachedEmbedder(network, tiny_transform, cpu)
        assert torch.equal(embedder.features_of(batch), plain)
    assert embedded == [3]


def test_damaged_records_are_computed_again(
    tiny_transform: Transform, embedded: list[int], folder: Path
) -> None:
    def features() -> torch.Tensor:
        embedder = CachedEmbedder(build("resnet8", 0), tiny_transform, torch.device("cpu"))
        return embedder.features_of(squares(4))

    right = features()
    (file,) = files(folder)
    data = bytearray(file.read_bytes())
    record = len(data) // 4
    data[record + 40] ^= 1
    file.write_bytes(data[:-4])
    for count in ([4, 2], [4, 2]):  # the second one and the last one, once
        assert torch.allclose(features(), right, atol=1e-5)
        assert embedded == count
    assert len(files(folder)) == 2
    file.write_bytes(b"damaged")
    assert torch.allclose(features(), right, atol=1e-5)
    assert embedded == [4, 2, 2]


def test_the_size_is_bounded(
    tiny_transform: Transform, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = 64 * 4 + 16
    monkeypatch.setattr(feature_cache, "MAX_BYTES", 3 * record + 9)
    embedder = CachedEmbedder(build("resnet8", 0), tiny_transform, torch.device("cpu"))
    embedder.features_of(squares(2))
    embedder.features_of(squares(7))
    (file,) = files(folder)
    assert file.stat().st_size == 3 * record, "one training writes no more than is allowed"
    os.utime(file, (0, 0))
    embedder = CachedEmbedder(build("resnet8", 1), tiny_transform, torch.device("cpu"))
    embedder.features_of(squares(2))
    embedder.prune()
    assert files(folder) == [embedder.file], "the older file is gone"
    assert list(folder.iterdir()) == [embedder.folder]


def test_a_full_disk_ends_a_file(
    tiny_transform: Transform, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    embedder = CachedEmbedder(build("resnet8", 0), tiny_transform, torch.device("cpu"))
    embedder.features_of(squares(2))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        embedder.features_of(squares(3))
    embedder.features_of(squares(4))
    (file,) = files(folder)
    assert file.stat().st_size == 2 * (64 * 4 + 16)


def test_a_folder_that_cannot_be_written_is_no_error(
    tiny_transform: Transform, folder: Path
) -> None:
    folder.touch()
    embedder = CachedEmbedder(build("resnet8", 0), tiny_transform, torch.device("cpu"))
    assert embedder.features_of(squares(2)).shape == (2, 64)
