"""Test that images of many requests are gathered into batches."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier.embedding import image_hash, square_size
from fewmore.data.decode import count_pixels
from fewmore.errors import ImageError
from fewmore.service import batching
from fewmore.service.batching import Batcher
from fewmore.service.limits import Busy, Limits

MakeImage = Callable[..., bytes]


@pytest.fixture
def classifier(model: Path) -> IncrementalClassifier:
    return IncrementalClassifier.load(model, "cpu")


@pytest.fixture
def batcher(classifier: IncrementalClassifier) -> Iterator[Batcher]:
    batcher = Batcher(lambda: classifier, 1, Limits(images_waiting=100))
    yield batcher
    batcher.close()


@pytest.fixture
def queue(classifier: IncrementalClassifier) -> Batcher:
    """Return a batcher without workers: only the test takes images out."""
    return Batcher(lambda: classifier, 0, Limits(images_waiting=100))


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
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        while not batcher._stopped:
            await asyncio.sleep(0.001)
        go_on.set()
        await closing
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(request())
    # Images are decoded in threads: the first request need not be in the first batch.
    done = [one for one in found if not isinstance(one, asyncio.CancelledError)]
    assert len(done) == sizes[0]
    assert all(one.predictions for one in done)
    with pytest.raises(Busy):
        asyncio.run(batcher.predict([image("robin")], [""], 1))


# Fairness


def job(pixels: int, count: int = 1) -> Any:
    return SimpleNamespace(images=[b""] * count, pixels=[pixels] * count, top=1)


def test_clients_take_turns(queue: Batcher):
    queue.batch_size = 4
    many, one = job(10, 6), job(10)
    queue._enqueue(many, "greedy")
    queue._enqueue(one, "modest")
    assert [item[0] for item in queue._take()] == [many, one, many, many]


def test_large_images_leave_room_for_others(queue: Batcher):
    large, small = job(20_000_000, 2), job(10)
    queue._enqueue(large, "a")
    queue._enqueue(small, "b")
    assert queue.waiting == 3
    assert queue._take() == [(small, 0)]  # the only worker: the small one goes first
    assert queue._take() == [(large, 0)]
    queue._enqueue(small, "b")
    assert queue._take() == [(small, 0)]  # though a large one waits: another is being decoded
    queue._large_busy = False
    before = 0
    for _ in range(batching.LARGE_SHARE):
        queue._enqueue(small, "b")
        queue._enqueue(small, "c")
        if (taken := queue._take()) == [(large, 1)]:
            break
        before += len(taken)
    assert before == batching.LARGE_SHARE  # it is not put off for ever


def jpeg(**options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((600, 400), 50).convert("RGB").save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("options", "at_once"),
    [
        ({}, True),
        ({"progressive": True}, True),
        ({"comment": b"x" * 60_000}, False),
    ],
)
def test_pixels_are_counted_from_the_first_bytes_or_from_the_file(
    queue: Batcher, options: dict[str, Any], at_once: bool, monkeypatch: pytest.MonkeyPatch
):
    in_threads = []

    async def to_thread(call: Any) -> Any:
        in_threads.append(call)
        return call()

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    data = jpeg(**options)
    pixels = count_pixels(data, square_size(queue.embedder.transform))
    assert 0 < pixels <= 600 * 400
    assert asyncio.run(queue._count_pixels([data])) == [pixels]
    assert bool(in_threads) != at_once
    assert asyncio.run(queue._count_pixels([data, b"no image"])) == [pixels, 0]


def test_pixels_that_wait_are_limited(queue: Batcher):
    queue._enqueue(job(100_000_000), "a")
    queue._enqueue(job(100_000_000), "b")
    with pytest.raises(Busy):
        queue._enqueue(job(1), "c")


def test_the_work_of_a_client_that_left_is_dropped(
    batcher: Batcher, held: tuple[threading.Event, list[int]], image: MakeImage
):
    go_on, sizes = held

    async def request() -> Any:
        first = asyncio.create_task(batcher.predict([image("robin")], [""], 1))
        while not sizes:
            await asyncio.sleep(0.001)
        left = asyncio.create_task(batcher.predict([image("wren")] * 20, [""] * 20, 1))
        while batcher.waiting < 20:
            await asyncio.sleep(0.001)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert batcher.waiting == 0
        go_on.set()
        await first

    asyncio.run(request())
    assert sizes == [1]
    assert batcher._pixels == 0


def test_pixels_are_counted_as_far_as_they_are_decoded():
    def encoded(kind: str, mode: str = "L", **options: Any) -> bytes:
        buffer = io.BytesIO()
        Image.new(mode, (800, 400)).save(buffer, kind, **options)
        return buffer.getvalue()

    assert count_pixels(encoded("PNG"), 20) == 320_000
    assert count_pixels(encoded("PNG", "I;16"), 20) == 320_000
    assert count_pixels(encoded("JPEG"), 20) == 100 * 50  # an eighth of each side
    assert count_pixels(encoded("JPEG", progressive=True), 20) == 320_000
    assert count_pixels(b"no image", 20) == 0
