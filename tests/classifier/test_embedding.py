"""Decoding and embedding in a stream."""

import os
import threading
from typing import Any

import numpy as np
import pytest
import torch

from fewmore.classifier.embedding import Embedder, decode_batches, image_hash, map_decoded
from fewmore.classifier.fitting.transform import transform_for
from fewmore.classifier.whitening import Whitening
from fewmore.errors import ImageError
from fewmore.nn.backbones import build


def test_only_a_few_images_are_in_memory():
    """However many there are: those that are decoded ahead, and the current batch."""
    alive = 0
    most = 0
    lock = threading.Lock()

    class Images(list[Any]):
        def __len__(self) -> int:
            return 2000

        def __getitem__(self, index: Any) -> Any:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)
            return np.full((4, 4), index % 256, np.uint8)

    transform = transform_for("resnet8", pretrained=True)
    for batch in decode_batches(Images(), [""] * 2000, transform, 8):
        alive -= len(batch)
    assert alive == 0
    assert most <= 8 * (2 * (os.cpu_count() or 1) + 4)


def test_after_a_broken_image_others_are_only_decoded():
    images = [b"broken", *[np.zeros((4, 4), np.uint8)] * 300, b"broken too"]
    starts = []
    titles = [f"image {number}" for number in range(len(images))]
    transform = transform_for("resnet8", pretrained=True)
    with pytest.raises(ImageError, match=r"2 images cannot be used: image 0 .*; image 301 "):
        for _ in map_decoded(
            lambda batch: starts.append(batch.start), images, titles, transform, 2
        ):
            pass
    assert len(starts) < 100  # those that were on the way


def test_features_of_a_stream_are_whitened_as_those_of_one_batch():
    """A stream is whitened once, at its end."""
    generator = torch.Generator().manual_seed(0)
    whitening = Whitening(
        torch.randn(64, generator=generator),
        0.1 * torch.randn(64, 3, generator=generator),
        classifier=torch.randn(5, 65, generator=generator),
        share=0.2,
    )
    transform = transform_for("resnet8", pretrained=True)
    embedder = Embedder(build("resnet8", 0), transform, torch.device("cpu"), whitening)
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=generator)
    features, hashes = embedder.embed(list(images), [""] * 40, hashes=True)
    assert features.shape == (40, embedder.dim) == (40, 69)
    torch.testing.assert_close(features, embedder.features(images))
    assert hashes == tuple(map(image_hash, images))
    plain = torch.cat([of_batch for _, of_batch in embedder.stream(list(images), [""] * 40)])
    torch.testing.assert_close(embedder.whiten(plain), features)
