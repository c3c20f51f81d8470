"""Hold what all routes share, from the start of the service to its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from fastapi import FastAPI, Response
from PIL import EpsImagePlugin, Image

from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.service.batching import Batcher
from fewmore.service.changes import ChangeQueue
from fewmore.service.guard import Access
from fewmore.service.idempotency import JSON, IdempotencyKey
from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics
from fewmore.service.operations import Operation, Result
from fewmore.service.schemas import Map
from fewmore.service.store import Store

MERGE_CHECK_SECONDS = 1.0  # between two looks whether the store is idle


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
        self.changes = ChangeQueue(limits.changes_waiting)
        self.batcher: Batcher  # from the start of the lifespan on
        self.ready = False
        self.latest_map: tuple[IncrementalClassifier, Map] | None = None

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Start the workers; at the end, stop them and close the store."""
        with _restricted_pillow(self.limits.pixels):
            self.batcher = Batcher(
                lambda: self.store.current, self.workers, self.limits.images_waiting
            )
            merging = asyncio.create_task(self._merge_when_idle())
            self.ready = True
            try:
                yield
            finally:
                self.ready = False
                merging.cancel()
                self.batcher.close()
                await self.changes.run_internal(self.store.close)
                self.changes.close()

    async def _merge_when_idle(self) -> None:
        while True:
            await asyncio.sleep(MERGE_CHECK_SECONDS)
            await self.changes.run_internal(self.store.merge_when_idle)

    async def change(
        self,
        operation: Operation,
        respond: Callable[[IncrementalClassifier, Result], JSON],
        key: IdempotencyKey | None,
        response: Response,
    ) -> JSON:
        """Apply an operation in turn, or repeat the response that the same request got before."""
        if (earlier := self.repeated(key, response)) is not None:
            return earlier
        return await self.changes.run(partial(self.store.change, operation, respond, key))

    def repeated(self, key: IdempotencyKey | None, response: Response) -> JSON | None:
        """Return the earlier response to the same request, if any, and mark it as a replay."""
        earlier = self.store.response_to(key)
        if earlier is not None:
            response.headers["Idempotent-Replay"] = "true"
        return earlier


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
