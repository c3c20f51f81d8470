"""Hold what all routes share, from the start of the service to its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from fastapi import FastAPI, Response
from PIL import EpsImagePlugin, Image

from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.service.batching import Batcher
from fewmore.service.changes import ChangeQueue
from fewmore.service.downloads import Downloads, write_onnx
from fewmore.service.events import Events
from fewmore.service.guard import Access
from fewmore.service.idempotency import JSON
from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics
from fewmore.service.schemas import Map
from fewmore.service.store import Outcome, Store

MAINTENANCE_SECONDS = 1.0  # between two looks at the store


class Service:
    """Hold the store, the batcher, the queue of changes and the settings."""

    def __init__(
        self, store: Store, access: Access, limits: Limits, demo: bool, workers: int
    ) -> None:
        self.store = store
        self.access = access
        self.limits = limits
        self.demo = demo
        self.workers = workers
        self.metrics = Metrics()
        self.events = Events()
        self.downloads = Downloads("model.fewmore", lambda one, path: one.save(path))
        self.exports = Downloads("model.onnx", write_onnx)
        store.most_classes = limits.classes
        self.changes = ChangeQueue(limits.changes_waiting)
        self.batcher: Batcher  # from the start of the lifespan on
        self.ready = False
        self.latest_map: tuple[IncrementalClassifier, Map] | None = None

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Start the workers; at the end, stop them and close the store."""
        with _restricted_pillow(self.limits.pixels):
            self.batcher = Batcher(lambda: self.store.current, self.workers, self.limits)
            maintaining = asyncio.create_task(self._maintain())
            self.ready = True
            try:
                yield
            finally:
                self.ready = False
                maintaining.cancel()
                self.batcher.close()
                await self.changes.run_internal(self.store.close)
                self.changes.close()
                await self.downloads.close()

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_SECONDS)
            before = self.store.current
            await self.changes.run_internal(self.store.maintain)
            if self.store.current is not before:  # opened anew
                await self.exports.close()
                self.events.announce()

    async def change(self, work: Callable[[], Outcome], response: Response) -> JSON:
        """Make a change in turn with others, and tell those who follow."""
        return self.respond(await self.changes.run(work), response)

    def respond(self, outcome: Outcome, response: Response) -> JSON:
        """Return the response; mark one that an earlier request got already."""
        if outcome.replayed:
            response.headers["Idempotent-Replay"] = "true"
        else:
            self.events.announce()
        return outcome.response


@contextmanager
def _restricted_pillow(most_pixels: int) -> Iterator[None]:
    """Let Pillow refuse large images before it decodes them, and PostScript, which is a program."""
    pixels_before = Image.MAX_IMAGE_PIXELS
    ghostscript_before = EpsImagePlugin.gs_binary
    Image.MAX_IMAGE_PIXELS = most_pixels // 2  # Pillow refuses from twice as many on
    EpsImagePlugin.gs_binary = False
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = pixels_before
        EpsImagePlugin.gs_binary = ghostscript_before
