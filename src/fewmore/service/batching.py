"""Images of many requests, gathered into batches.

A few worker threads own the backbone: one a core, each computing on its own core alone, because threads that share one computation
wait for one another whenever anything else wants a core. What is waiting is shared among the workers that are free at that moment: each
takes its share, decodes it, embeds it and hands it on; nothing waits for a batch to fill. Predictions go first, but a quarter of each
batch is kept for lessons.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewmore.classifier.embedding import Embedder, broken_images, fingerprint, square
from fewmore.classifier.estimator import IncrementalClassifier, Prediction
from fewmore.errors import FewmoreError

LESSONS = 4  # one in so many places of a batch is a lesson's, where any waits


class Busy(Exception):
    """More is waiting than should."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Images as they were seen."""

    features: Tensor  # (n, d)
    squares: tuple[Tensor, ...]  # (3, s, s) uint8
    prints: tuple[int, ...]


@dataclass(frozen=True)
class Predicted:
    """Predictions, all by one version of the model."""

    version: int
    predictions: list[Prediction]


@dataclass(eq=False)
class _Job:
    """The images of one request."""

    images: Sequence[bytes]
    titles: Sequence[str]
    top: int | None  # None for a lesson
    future: "asyncio.Future[Predicted | Embedded]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    features: dict[int, Tensor] = field(default_factory=dict)
    squares: dict[int, Tensor] = field(default_factory=dict)
    broken: dict[int, FewmoreError] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def done(self, place: int, pixels: Tensor | None, seen: Tensor | FewmoreError) -> bool:
        """Put one image's result down; whether it was the last."""
        with self.lock:
            if isinstance(seen, FewmoreError):
                self.broken[place] = seen
            else:
                self.features[place] = seen
                if pixels is not None:
                    self.squares[place] = pixels
            return len(self.features) + len(self.broken) == len(self.images)


_Place = tuple[_Job, int]


class Batcher:
    """The workers. `current` gives the classifier of the moment, whose backbone never changes."""

    def __init__(
        self, current: Callable[[], IncrementalClassifier], workers: int, most_waiting: int
    ) -> None:
        self.current, self.most_waiting = current, most_waiting
        self.embedder: Embedder = current().embedder
        on_cpu = self.embedder.device.type == "cpu"
        self.workers = workers if on_cpu else 1
        self.batch = self.embedder.batch  # images, at most
        self.batches = self.images = 0  # counted for the metrics
        self._predictions: deque[_Place] = deque()
        self._lessons: deque[_Place] = deque()
        self._arrived = threading.Condition()
        self._free = 0  # workers that compute nothing
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, name=f"backbone-{i}", daemon=True)
            for i in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return len(self._predictions) + len(self._lessons)

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    async def predict(self, images: Sequence[bytes], titles: Sequence[str], top: int) -> Predicted:
        found = await self._put(_Job(images, titles, top))
        if not isinstance(found, Predicted):
            raise TypeError(found)
        return found

    async def embed(self, images: Sequence[bytes], titles: Sequence[str]) -> Embedded:
        found = await self._put(_Job(images, titles, None))
        if not isinstance(found, Embedded):
            raise TypeError(found)
        return found

    async def _put(self, job: _Job) -> "Predicted | Embedded":
        with self._arrived:
            if self._stopped or self.waiting + len(job.images) > self.most_waiting:
                raise Busy
            queue = self._lessons if job.top is None else self._predictions
            queue.extend((job, place) for place in range(len(job.images)))
            self._arrived.notify(self.workers)
        return await job.future

    def close(self) -> None:
        """Let the workers end; what waits is given up."""
        with self._arrived:
            self._stopped = True
            given_up = {job for job, _ in (*self._predictions, *self._lessons)}
            self._predictions.clear()
            self._lessons.clear()
            self._arrived.notify_all()
        for job in given_up:
            _in_its_loop(job, job.future.cancel)
        for thread in self._threads:
            thread.join(timeout=10)

    # In the workers

    def _work(self) -> None:
        while places := self._take():
            try:
                self._see(places)
            except Exception as error:
                _settle([(job, error) for job in {job for job, _ in places}])

    def _take(self) -> list[_Place]:
        """A free worker's share of what waits, once anything does."""
        with self._arrived:
            self._free += 1
            while not self.waiting and not self._stopped:
                self._arrived.wait()
            share = min(self.batch, -(-self.waiting // self._free))
            self._free -= 1
            lessons = min(
                len(self._lessons), max(share // LESSONS, share - len(self._predictions), 1)
            )
            taken = [self._lessons.popleft() for _ in range(lessons)]
            taken += [
                self._predictions.popleft()
                for _ in range(min(len(self._predictions), share - lessons))
            ]
            return taken

    def _see(self, places: Sequence[_Place]) -> None:
        ready: list[tuple[_Place, Tensor]] = []
        finished: list[_Job] = []
        for job, place in places:
            if job.future.cancelled():
                continue
            try:
                ready.append(
                    (
                        (job, place),
                        square(job.images[place], job.titles[place], self.embedder.transform),
                    )
                )
            except FewmoreError as error:
                if job.done(place, None, error):
                    finished.append(job)
        if ready:
            features = self.embedder.features(torch.stack([pixels for _, pixels in ready]))[0]
            for ((job, place), pixels), row in zip(ready, features, strict=True):
                if job.done(place, pixels if job.top is None else None, row):
                    finished.append(job)
            self.batches += 1
            self.images += len(ready)
        self._finish(finished)

    def _finish(self, jobs: Sequence[_Job]) -> None:
        """Answer the jobs whose last image was seen; all predictions of a moment are scored together."""
        answers: list[_Answer] = []
        asked: list[tuple[_Job, Tensor]] = []
        for job in jobs:
            if job.broken:
                answers.append(
                    (job, broken_images([job.broken[place] for place in sorted(job.broken)]))
                )
                continue
            features = torch.stack([job.features[place] for place in range(len(job.images))])
            if job.top is None:
                pixels = tuple(job.squares[place] for place in range(len(job.images)))
                answers.append(
                    (job, Embedded(features.cpu(), pixels, tuple(map(fingerprint, pixels))))
                )
            else:
                asked.append((job, features))
        _settle([*answers, *self._predicted(asked)])

    def _predicted(self, asked: "Sequence[tuple[_Job, Tensor]]") -> "list[_Answer]":
        if not asked:
            return []
        classifier = self.current()
        try:
            told = iter(
                classifier.predict_features(
                    torch.cat([rows for _, rows in asked]), max(job.top or 1 for job, _ in asked)
                )
            )
        except FewmoreError as error:  # no class is known
            return [(job, error) for job, _ in asked]
        found: list[_Answer] = []
        for job, rows in asked:
            own = [next(told) for _ in rows]
            cut = [
                Prediction(
                    one.names[: job.top], one.confidences[: job.top], one.known, one.familiarity
                )
                for one in own
            ]
            found.append((job, Predicted(classifier.version, cut)))
        return found


_Answer = tuple[_Job, "Predicted | Embedded | Exception"]


def _settle(answers: Sequence[_Answer]) -> None:
    """Hand a batch's answers over together: each waking of the event loop takes the interpreter from a worker."""

    def hand_over() -> None:
        for job, result in answers:
            if job.future.done():  # nobody waits for it any more
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    if answers:
        _in_its_loop(answers[0][0], hand_over)  # all requests are answered by one loop


def _in_its_loop(job: _Job, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        job.future.get_loop().call_soon_threadsafe(call)
