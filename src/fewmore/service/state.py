"""Hold what all routes share, from the start of the service to its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from fastapi import FastAPI, Response
from PIL import Image
from starlette.formparsers import MultiPartParser

from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.service.batching import Batcher
from fewmore.service.changes import ChangeQueue
from fewmore.service.downloads import Downloads, write_onnx
from fewmore.service.events import Events
from fewmore.service.guard import Access
from fewmore.service.idempotency import JSON
from fewmore.service.image_urls import ImageURLs
from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics
from fewmore.service.schemas import Map
from fewmore.service.store import Outcome, Store

MAINTENANCE_SECONDS = 1.0  # between two looks at the store
# Of images that people have. Each further format is one more decoder that may have flaws.
IMAGE_FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "HEIF", "ICO", "JPEG", "JPEG2000", "MPO"),
    *("PNG", "PPM", "TGA", "TIFF", "WEBP"),
)


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
        self.metrics = Metrics(store.current.embedder.device.type)
        self.events = Events()
        self.image_urls = ImageURLs(access.image_origins, limits)
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
        with restricted_pillow(self.limits.pixels), forms_in_memory(self.limits.body_bytes):
            observe = self.metrics.observe_batch
            self.batcher = Batcher(lambda: self.store.current, self.workers, self.limits, observe)
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
                self.image_urls.close()
                await self.downloads.close()
                await self.exports.close()

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_SECONDS)
            before = self.store.current
            await self.changes.run_internal(self.store.maintain)
            if self.store.current is not before:  # opened anew
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
def restricted_pillow(most_pixels: int) -> Iterator[None]:
    """Let Pillow refuse large images before it decodes them, and formats that nobody needs here."""
    Image.init()
    pixels_before, formats_before = Image.MAX_IMAGE_PIXELS, [*Image.ID]
    Image.MAX_IMAGE_PIXELS = most_pixels // 2  # Pillow refuses from twice as many on
    Image.ID[:] = [name for name in Image.ID if name in IMAGE_FORMATS]
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = pixels_before
        # HEIC is registered with the first such image, and never again.
        added = [name for name in Image.ID if name not in formats_before]
        Image.ID[:] = [*formats_before, *added]


@contextmanager
def forms_in_memory(most_bytes: int) -> Iterator[None]:
    """Keep uploads out of temporary files: the guard has the whole body in memory as it is."""
    before = MultiPartParser.spool_max_size
    MultiPartParser.spool_max_size = most_bytes + 1
    try:
        yield
    finally:
        MultiPartParser.spool_max_size = before
