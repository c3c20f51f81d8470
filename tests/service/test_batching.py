"""Test that images of many requests are gathered into batches."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier.embedding import image_hash
from fewmore.errors import ImageError
from fewmore.service.batching import Batcher
from fewmore.service.limits import Busy

MakeImage = Callable[..., bytes]


@pytest.fixture
def classifier(model: Path) -> IncrementalClassifier:
    return IncrementalClassifier.load(model, "cpu")


@pytest.fixture
def batcher(classifier: IncrementalClassifier) -> Iterator[Batcher]:
    batcher = Batcher(lambda: classifier, 1, 100)
    yield batcher
    batcher.close()


@pytest.fixture
def queue(classifier: IncrementalClassifier) -> Batcher:
    """Return a batcher without workers: only the test takes images out."""
    return Batcher(lambda: classifier, 0, 100)


@pytest.fixture
def held(batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[int]]:
    """Let the backbone wait for an event; return it, and the sizes of the batches."""
    go_on, sizes = threading.Event(), []
    real = batcher.embedder.features

    def features(squares: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(squares))
        assert go_on.wait(20)
        return real(squares, *rest)

    monkeypatch.setattr(batcher.embedder, "features", features)
    return go_on, sizes


def test_waiting_images_are_gathered(
    batcher: Batcher, held: tuple[threading.Event, list[int]], image: MakeImage, classifier: Any
):
    go_on, sizes = held
    images = [image(name, number) for name in ("robin", "wren", "jay") for number in range(7)]

    async def request() -> list[Any]:
        tasks = [
            asyncio.create_task(batcher.predict([one], [""], 1 + number % 3))
            for number, one in enumerate(images)
        ]
        while not sizes or sizes[0] + batcher.waiting < len(images):
            await asyncio.sleep(0.001)
        go_on.set()
        return await asyncio.gather(*tasks)

    found = asyncio.run(request())
    rest = len(images) - sizes[0]  # the first batch is what was there when the worker woke
    assert sizes[1:] == ([16, rest - 16] if rest > 16 else [rest])
    for number, (one, expected) in enumerate(
        zip(found, classifier.predict(images, 3), strict=True)
    ):
        (own,) = one.predictions
        assert own.names == expected.names[: 1 + number % 3]
        assert one.version == 1


def test_a_quarter_of_a_batch_is_for_learning(queue: Batcher):
    queue._to_predict.extend(("predict", place) for place in range(40))  # type: ignore[misc]
    queue._to_learn.extend(("learn", place) for place in range(9))  # type: ignore[misc]
    taken = [[what for what, _ in queue._take()] for _ in range(4)]
    assert [len(batch) for batch in taken] == [16, 16, 16, 1]
    assert [batch.count("learn") for batch in taken] == [4, 4, 1, 0]


def test_waiting_images_are_divided_among_idle_workers(queue: Batcher):
    queue._to_predict.extend(("predict", place) for place in range(28))  # type: ignore[misc]
    queue._idle = 2  # others, which take their share as well
    assert len(queue._take()) == 10
    queue._idle = 1
    assert len(queue._take()) == 9
    queue._idle = 0  # all others compute
    assert len(queue._take()) == 9


def test_embedding_returns_squares_and_content_hashes(
    batcher: Batcher, image: MakeImage, classifier: Any
):
    images = [image("okapi", number) for number in range(20)]
    embedded = asyncio.run(batcher.embed(images, [""] * 20))
    features, hashes = classifier.embedder.embed(images, [""] * 20, hashes=True)
    assert embedded.hashes == hashes == tuple(map(image_hash, embedded.squares))
    assert (embedded.features - features).abs().max() < 1e-4


def test_broken_images_are_named_and_others_go_on(batcher: Batcher, image: MakeImage):
    async def request() -> list[Any]:
        broken = batcher.predict([b"x", image("a"), b"y"], ["first", "second", "third"], 1)
        return await asyncio.gather(
            broken, batcher.predict([image("robin")], [""], 1), return_exceptions=True
        )

    error, fine = asyncio.run(request())
    assert isinstance(error, ImageError)
    assert str(error).startswith("2 images cannot be used: first cannot")
    assert fine.predictions[0].names == ("robin",)


def test_an_exception_fails_a_request_and_not_the_worker(
    batcher: Batcher, image: MakeImage, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(batcher.embedder, "features", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(batcher.predict([image("robin")], [""], 1))
    assert asyncio.run(batcher.predict([image("robin")], [""], 1)).predictions[0].names == (
        "robin",
    )
    assert batcher.alive


def test_after_close_nothing_is_accepted(
    batcher: Batcher, held: tuple[threading.Event, list[int]], image: MakeImage
):
    go_on, sizes = held

    async def request() -> list[Any]:
        tasks = [
            asyncio.create_task(batcher.predict([image("robin", number)], [""], 1))
            for number in range(5)
        ]
        while not sizes or sizes[0] + batcher.waiting < 5:
            await asyncio.sleep(0.001)
        threading.Timer(0.05, go_on.set).start()
        await asyncio.to_thread(batcher.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(request())
    assert all(one.predictions for one in found[: sizes[0]])
    assert all(isinstance(one, asyncio.CancelledError) for one in found[sizes[0] :])
    with pytest.raises(Busy):
        asyncio.run(batcher.predict([image("robin")], [""], 1))
