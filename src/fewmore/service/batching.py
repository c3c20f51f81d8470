"""Gather the images of many requests into batches for the backbone.

Each worker thread computes on one CPU core, because threads that share one computation wait for one
another whenever anything else uses a core. The images that wait are divided among the workers that
are idle at that moment: each decodes and embeds its share. No worker waits for a batch to fill.
Images to predict go first, but a quarter of each batch is reserved for images to learn from.
Clients take turns: one image of each, then the next. Large images wait in a queue of their own, and
one worker at a time decodes one of them, so that others go on. What belongs to a client that has
gone is dropped.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewmore.classifier.embedding import (
    Embedder,
    center_square,
    combine_errors,
    image_hash,
    square_size,
)
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.results import Prediction
from fewmore.data.decode import JPEG, count_pixels
from fewmore.errors import DataError, FewmoreError
from fewmore.service.limits import Busy, Limits

LEARN_SHARE = 4  # one in so many images of a batch is one to learn from, if any wait
LARGE = 10_000_000  # pixels: such an image is decoded alone
LARGE_SHARE = 64  # after so many other images, one large image has its turn
JPEG_HEAD = 16_384  # bytes, in which a JPEG file mostly says its size; they are read at once


@dataclass(frozen=True, eq=False)
class Embedded:
    """Hold the features of a request's images, with their pixels and content hashes."""

    features: Tensor  # (n, d)
    squares: tuple[Tensor, ...]  # (3, s, s) uint8
    hashes: tuple[int, ...]


@dataclass(frozen=True)
class Predicted:
    """Hold predictions that were all made by one version of the model."""

    version: int
    predictions: list[Prediction]


@dataclass(eq=False)
class _Job:
    """Collect the results of one request's images."""

    images: Sequence[bytes]
    titles: Sequence[str]
    top: int | None  # None: only embed
    pixels: Sequence[int] = ()  # of each image
    future: "asyncio.Future[Predicted | Embedded]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    features: dict[int, Tensor] = field(default_factory=dict)
    squares: dict[int, Tensor] = field(default_factory=dict)
    errors: dict[int, FewmoreError] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, index: int, error: FewmoreError) -> bool:
        """Store an image's error; return whether it was the last image."""
        with self.lock:
            self.errors[index] = error
            return self._complete()

    def finish(self, index: int, square: Tensor, features: Tensor) -> bool:
        """Store an image's features; return whether it was the last image."""
        with self.lock:
            self.features[index] = features
            if self.top is None:
                self.squares[index] = square
            return self._complete()

    def _complete(self) -> bool:
        return len(self.features) + len(self.errors) == len(self.images)

    def all_features(self) -> Tensor:
        """Stack the features of all images in their order, (n, d)."""
        return torch.stack([self.features[index] for index in range(len(self.images))])

    def embedded(self) -> Embedded:
        """Collect what a job without predictions returns."""
        squares = tuple(self.squares[index] for index in range(len(self.images)))
        hashes = tuple(map(image_hash, squares))
        return Embedded(self.all_features().cpu(), squares, hashes)


class _Item(NamedTuple):
    """Name an image of a job."""

    job: _Job
    number: int

    @property
    def is_large(self) -> bool:
        return self.job.pixels[self.number] > LARGE


_Result = tuple[_Job, "Predicted | Embedded | Exception"]


class _Turns:
    """Queue the items of many clients; one of each is taken in turn."""

    def __init__(self) -> None:
        self._by_client: dict[str, deque[_Item]] = {}  # the next to have a turn first

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[_Item]:
        return (item for queue in self._by_client.values() for item in queue)

    def extend(self, items: Iterable[_Item], client: str = "") -> None:
        """Append items of a client."""
        if items := deque(items):
            self._by_client.setdefault(client, deque()).extend(items)

    def popleft(self) -> _Item:
        """Take an item of the client whose turn it is."""
        client = next(iter(self._by_client))
        queue = self._by_client.pop(client)
        item = queue.popleft()
        if queue:
            self._by_client[client] = queue
        return item

    def remove(self, job: _Job) -> None:
        """Drop what is left of a job."""
        for client, queue in list(self._by_client.items()):
            if kept := deque(item for item in queue if item.job is not job):
                self._by_client[client] = kept
            else:
                del self._by_client[client]

    def clear(self) -> None:
        """Drop everything."""
        self._by_client.clear()


class Batcher:
    """Run the worker threads.

    `current` returns the classifier of the moment. Its classes may change, its backbone may not.
    """

    def __init__(
        self,
        current: Callable[[], IncrementalClassifier],
        workers: int,
        limits: Limits,
        on_batch: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.current = current
        self.on_batch = on_batch  # called with the seconds that a batch took
        self.limits = limits
        self.embedder: Embedder = current().embedder
        self.workers = workers if self.embedder.device.type == "cpu" else 1
        self.batch_size = self.embedder.core_batch  # images, at most
        self.batches = 0  # counted for the metrics
        self.images = 0
        self._to_predict = _Turns()
        self._to_learn = _Turns()
        self._large = _Turns()  # to predict and to learn
        self._large_busy = False  # whether a worker decodes one of these
        self._since_large = 0  # other images that were taken since the last large one
        self._pixels = 0  # of all jobs that are not done
        self._arrived = threading.Condition()
        self._idle = 0  # workers that wait for images
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, name=f"backbone-{i}", daemon=True)
            for i in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Return the number of images that wait."""
        return len(self._to_predict) + len(self._to_learn) + len(self._large)

    @property
    def alive(self) -> bool:
        """Return whether all workers run."""
        return all(thread.is_alive() for thread in self._threads)

    async def predict(
        self, images: Sequence[bytes], titles: Sequence[str], top: int, client: str = ""
    ) -> Predicted:
        """Predict the likeliest `top` classes of encoded images; errors name them by title."""
        predicted: Predicted = await self._submit(images, titles, top, client)
        return predicted

    async def embed(
        self, images: Sequence[bytes], titles: Sequence[str], client: str = ""
    ) -> Embedded:
        """Compute the features of encoded images to learn from."""
        embedded: Embedded = await self._submit(images, titles, None, client)
        return embedded

    async def _submit(
        self, images: Sequence[bytes], titles: Sequence[str], top: int | None, client: str
    ) -> Any:
        pixels = await self._count_pixels(images)
        if sum(pixels) > self.limits.request_pixels:
            raise DataError(
                f"the images have {sum(pixels):,} pixels in all, and at most "
                f"{self.limits.request_pixels:,} can be at a time: send fewer or smaller ones"
            )
        job = _Job(images, titles, top, pixels)
        self._enqueue(job, client)
        try:
            return await job.future
        finally:
            with self._arrived:
                self._pixels -= sum(pixels)
                if job.future.cancelled():  # the client has gone
                    for queue in (self._to_predict, self._to_learn, self._large):
                        queue.remove(job)

    async def _count_pixels(self, images: Sequence[bytes]) -> list[int]:
        """Count pixels in another thread, unless the first bytes of one JPEG file tell them."""
        side = square_size(self.embedder.transform)
        if len(images) == 1 and images[0].startswith(JPEG):
            pixels = count_pixels(images[0][:JPEG_HEAD], side)
            if pixels:
                return [pixels]
        return await asyncio.to_thread(lambda: [count_pixels(image, side) for image in images])

    def _enqueue(self, job: _Job, client: str) -> None:
        with self._arrived:
            pixels = self._pixels + sum(job.pixels)
            too_many = self.waiting + len(job.images) > self.limits.images_waiting
            if self._stopped or too_many or pixels > self.limits.pixels_waiting:
                raise Busy
            self._pixels = pixels
            queue = self._to_learn if job.top is None else self._to_predict
            items = [_Item(job, number) for number in range(len(job.images))]
            queue.extend((item for item in items if not item.is_large), client)
            self._large.extend((item for item in items if item.is_large), client)
            self._arrived.notify(self.workers)

    def close(self) -> None:
        """Stop the workers, and cancel the jobs that wait."""
        with self._arrived:
            self._stopped = True
            queues = (self._to_predict, self._to_learn, self._large)
            cancelled = {item.job for queue in queues for item in queue}
            for queue in queues:
                queue.clear()
            self._arrived.notify_all()
        for job in cancelled:
            _call_in_loop(job, job.future.cancel)
        for thread in self._threads:
            thread.join(timeout=10)

    # In the worker threads

    def _work(self) -> None:
        while items := self._take():
            try:
                self._process(items)
            except Exception as error:
                _deliver([(job, error) for job in {item.job for item in items}])
            if items[0].is_large:
                with self._arrived:
                    self._large_busy = False
                    self._arrived.notify()

    def _take(self) -> list[_Item]:
        """Wait for images, and take an idle worker's share of them; nothing at the end."""
        with self._arrived:
            self._idle += 1
            while not (self._small or self._can_take_large) and not self._stopped:
                self._arrived.wait()
            idle = self._idle
            self._idle -= 1
            # Another idle worker takes the small ones, there are none, or enough went ahead.
            is_turn = idle > 1 or not self._small or self._since_large >= LARGE_SHARE
            if self._can_take_large and is_turn:
                self._large_busy = True
                self._since_large = 0
                return [self._large.popleft()]
            share = min(self.batch_size, -(-self._small // idle))
            places_to_learn = max(share // LEARN_SHARE, share - len(self._to_predict), 1)
            learn = min(len(self._to_learn), places_to_learn)
            predict = min(len(self._to_predict), share - learn)
            items = [self._to_learn.popleft() for _ in range(learn)]
            items += [self._to_predict.popleft() for _ in range(predict)]
            self._since_large += len(items)
            return items

    @property
    def _small(self) -> int:
        return len(self._to_predict) + len(self._to_learn)

    @property
    def _can_take_large(self) -> bool:
        return bool(len(self._large)) and not self._large_busy

    def _process(self, items: Sequence[_Item]) -> None:
        """Decode and embed a batch, and complete the jobs whose last image is in it."""
        began = time.perf_counter()
        decoded: list[tuple[_Item, Tensor]] = []
        complete: list[_Job] = []
        for item in items:
            job, index = item
            if job.future.cancelled():
                continue
            try:
                square = center_square(
                    job.images[index], job.titles[index], self.embedder.transform
                )
            except FewmoreError as error:
                if job.fail(index, error):
                    complete.append(job)
            else:
                decoded.append((item, square))
        if decoded:
            features = self.embedder.features(torch.stack([square for _, square in decoded]))
            for (item, square), vector in zip(decoded, features, strict=True):
                if item.job.finish(item.number, square, vector):
                    complete.append(item.job)
            self.batches += 1
            self.images += len(decoded)
            self.on_batch(time.perf_counter() - began)
        self._complete(complete)

    def _complete(self, jobs: Sequence[_Job]) -> None:
        """Deliver the results of jobs; all predictions of a moment are scored together."""
        results: list[_Result] = []
        to_predict: list[tuple[_Job, Tensor]] = []
        for job in jobs:
            if job.errors:
                errors = [job.errors[index] for index in sorted(job.errors)]
                results.append((job, combine_errors(errors)))
            elif job.top is None:
                results.append((job, job.embedded()))
            else:
                to_predict.append((job, job.all_features()))
        _deliver([*results, *self._predict(to_predict)])

    def _predict(self, jobs: Sequence[tuple[_Job, Tensor]]) -> list[_Result]:
        if not jobs:
            return []
        classifier = self.current()
        features = torch.cat([rows for _, rows in jobs])
        top = max(job.top or 1 for job, _ in jobs)
        try:
            predictions = iter(classifier.predict_features(features, top))
        except FewmoreError as error:  # no class is known
            return [(job, error) for job, _ in jobs]
        results: list[_Result] = []
        for job, rows in jobs:
            of_job = [_shorten(next(predictions), job.top) for _ in rows]
            results.append((job, Predicted(classifier.version, of_job)))
        return results


def _shorten(prediction: Prediction, top: int | None) -> Prediction:
    """Keep the likeliest `top` classes."""
    return Prediction(
        prediction.names[:top],
        prediction.confidences[:top],
        prediction.known,
        prediction.familiarity,
    )


def _deliver(results: Sequence[_Result]) -> None:
    """Hand over a batch's results in one call: each wake-up of the event loop stops a worker."""

    def set_results() -> None:
        for job, result in results:
            if job.future.done():  # cancelled: nobody waits for it any more
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    if results:
        _call_in_loop(results[0][0], set_results)  # all requests share one event loop


def _call_in_loop(job: _Job, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        job.future.get_loop().call_soon_threadsafe(call)
