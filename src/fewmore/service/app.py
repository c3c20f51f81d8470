"""The HTTP service: routes over a store, a batcher and a guard.

    store      what is known, on the disk before it is answered            store.py, journal.py, thumbnails.py
    batcher    images of all requests, gathered for the backbone         batching.py
    guard      who may ask, how much, how long                             guard.py, limits.py

A prediction is by the classifier of one moment and says which. A change is made on a copy, written to the disk, and swapped in.
"""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, File, Form, Header, Path, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from PIL import EpsImagePlugin, Image
from pydantic import WithJsonSchema
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from fewmore import __version__
from fewmore.classifier.classes import LONGEST_NAME, class_sessions, clean_name
from fewmore.classifier.estimator import IncrementalClassifier, Learned
from fewmore.errors import ConfigError, FewmoreError, UnknownName
from fewmore.service.batching import Batcher, Busy
from fewmore.service.guard import Access, Guard
from fewmore.service.limits import Limits, cores
from fewmore.service.metrics import Metrics
from fewmore.service.problems import BUSY, MEDIA_TYPE, problem, status_of
from fewmore.service.projection import plane
from fewmore.service.schemas import (
    Candidate,
    Changed,
    Classes,
    ClassOut,
    Health,
    LimitsOut,
    Map,
    ModelOut,
    NewName,
    Place,
    PredictionOut,
    Predictions,
    Problem,
    Ready,
    SessionOut,
    Sessions,
    Taught,
    Undone,
)
from fewmore.service.store import Answer, Entry, Key, Store

PAGE = FilePath(__file__).parent / "page"
NAMED = 100  # classes that a session's entry names

T = TypeVar("T")
ClassName = Annotated[
    str,
    Query(
        min_length=1, max_length=LONGEST_NAME, description="The class's name.", examples=["okapi"]
    ),
]
FormName = Annotated[
    str,
    Form(
        min_length=1, max_length=LONGEST_NAME, description="The class's name.", examples=["okapi"]
    ),
]
ImageFile = Annotated[
    UploadFile,
    WithJsonSchema(
        {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
    ),
]
ImageFiles = Annotated[
    list[ImageFile], File(min_length=1, description="Image files, of any format and size.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A name for this request. The same request with the same key is answered again, and made once.",
        examples=["0f8fad5b-d9cb-469f-a165-70867728950e"],
    ),
]


def create_app(
    store: Store,
    access: Access | None = None,
    limits: Limits | None = None,
    demo: bool = False,
    workers: int | None = None,
    page: FilePath = PAGE,
) -> FastAPI:
    """The service over an open store, which it closes at its end."""
    made = _Service(store, access or Access(), limits or Limits(), demo, workers or cores())
    app = FastAPI(
        title="fewmore",
        version=__version__,
        summary="Teach an image classifier new classes from a handful of images, without forgetting the old ones.",
        lifespan=made.lifespan,
        docs_url=None,  # they would fetch scripts from elsewhere
        redoc_url=None,
    )
    made.add_routes(app)
    _describe(app.openapi(), made.access)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(FewmoreError, _fewmore_problem)
    app.add_exception_handler(Busy, _busy)
    app.add_middleware(Guard, access=made.access, limits=made.limits, metrics=made.metrics)
    if page.is_dir():
        app.mount("/", StaticFiles(directory=page, html=True), name="page")
    return app


class _Service:
    """What the routes share."""

    def __init__(
        self, store: Store, access: Access, limits: Limits, demo: bool, workers: int
    ) -> None:
        self.store, self.access, self.limits, self.demo, self.workers = (
            store,
            access,
            limits,
            demo,
            workers,
        )
        self.metrics = Metrics()
        self.batcher: Batcher
        self.ready = False
        self._changes = ThreadPoolExecutor(1, "changes")
        self._changes_waiting = 0
        self._map: tuple[IncrementalClassifier, Map] | None = None

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        most_pixels, ghostscript = Image.MAX_IMAGE_PIXELS, EpsImagePlugin.gs_binary
        Image.MAX_IMAGE_PIXELS = (
            self.limits.pixels // 2
        )  # Pillow refuses twice as many, before it decodes them
        EpsImagePlugin.gs_binary = False  # an image may be no program, which PostScript is
        self.batcher = Batcher(lambda: self.store.current, self.workers, self.limits.images_waiting)
        folding = asyncio.create_task(self._fold_when_quiet())
        self.ready = True
        try:
            yield
        finally:
            self.ready = False
            folding.cancel()
            self.batcher.close()
            await asyncio.get_running_loop().run_in_executor(self._changes, self.store.close)
            self._changes.shutdown()
            Image.MAX_IMAGE_PIXELS, EpsImagePlugin.gs_binary = most_pixels, ghostscript

    async def _fold_when_quiet(self) -> None:
        while True:
            await asyncio.sleep(1)
            await asyncio.get_running_loop().run_in_executor(
                self._changes, self.store.fold_when_quiet
            )

    # Images

    async def _bytes(self, uploads: Sequence[UploadFile]) -> list[bytes]:
        if len(uploads) > self.limits.images:
            raise HTTPException(
                422,
                f"{len(uploads)} images were sent, and at most {self.limits.images} can be at a time: send fewer",
            )
        found = []
        for number, upload in enumerate(uploads, 1):
            if (upload.size or 0) > self.limits.image_bytes:
                raise HTTPException(
                    413,
                    f"image {number} has {upload.size:,} bytes, and at most {self.limits.image_bytes:,} can be: make it smaller",
                )
            found.append(await upload.read())
        return found

    # Changes

    async def _change(
        self,
        entry: Entry,
        answer: Callable[[IncrementalClassifier, Learned | str | None], Answer],
        key: Key | None,
    ) -> Answer:
        return await self._in_turn(partial(self.store.change, entry, answer, key))

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Run what changes something, one after the other, away from the loop."""
        if self._changes_waiting >= self.limits.changes_waiting:
            raise Busy
        self._changes_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._changes, work)
        except OSError as error:
            why = error.strerror or error
            raise HTTPException(
                503,
                f"the change could not be written to the disk ({why}), and was not made: make room, then try again",
                BUSY,
            ) from error
        finally:
            self._changes_waiting -= 1

    def _replayed(self, key: Key | None, response: Response) -> Answer | None:
        """The answer that this very request had before, if it had one."""
        found = self.store.remembered(key)
        if found is not None:
            response.headers["Idempotent-Replay"] = "true"
        return found

    async def _teach(
        self,
        route: str,
        name: str,
        uploads: list[UploadFile],
        key: str | None,
        response: Response,
        new: bool,
    ) -> Answer:
        name = clean_name(name)
        images = await self._bytes(uploads)
        asked = _key(key, route, name, *(hashlib.sha256(one).hexdigest() for one in images))
        if (known := self._replayed(asked, response)) is not None:
            return known
        _check_teachable(
            self.store.current, name, new, self.limits.classes
        )  # before the images are looked at
        seen = await self.batcher.embed(
            images, [f"image {number} of {name}" for number in range(1, len(images) + 1)]
        )

        def work() -> Answer:
            if (known := self._replayed(asked, response)) is not None:
                return known
            before = self.store.current
            _check_teachable(before, name, new, self.limits.classes)
            counts = {one.name: one.count for one in before.model.knowledge.classes}

            def answer(made: IncrementalClassifier, learned: Learned | str | None) -> Answer:
                warnings = learned.warnings if isinstance(learned, Learned) else []
                images = made.model.knowledge.classes[made.model.knowledge.found(name)].count
                added = images - counts.get(name, 0)
                return Taught(
                    version=made.version,
                    name=name,
                    images=images,
                    added=added,
                    warnings=warnings,
                    session=len(made.history_) - 1,
                ).model_dump()

            told = self.store.change(
                Entry("learn", (name,), seen.prints, seen.features), answer, asked
            )
            self.store.thumbnails.keep(zip(seen.prints, seen.squares, strict=True))
            return told

        return await self._in_turn(work)

    # Routes

    def add_routes(self, app: FastAPI) -> None:
        @app.post(
            "/api/predict",
            tags=["predict"],
            responses=_problems(400, 403, 408, 409, 413, 422, 429, 503, private=True),
        )
        async def predict(
            images: ImageFiles,
            top: Annotated[int, Query(ge=1, le=100, description="How many classes to name.")] = 5,
        ) -> Predictions:
            """The likeliest classes of each image, all of them by one version of the model."""
            found = await self.batcher.predict(
                await self._bytes(images),
                [f"image {number}" for number in range(1, len(images) + 1)],
                top,
            )
            return Predictions(
                version=found.version,
                predictions=[
                    PredictionOut(
                        known=one.known,
                        familiarity=one.familiarity,
                        classes=[
                            Candidate(name=name, confidence=sure)
                            for name, sure in zip(one.names, one.confidences, strict=True)
                        ],
                    )
                    for one in found.predictions
                ],
            )

        @app.get("/api/classes", tags=["classes"], responses=_problems(400, 422, 429, private=True))
        async def list_classes(
            query: Annotated[
                str,
                Query(max_length=LONGEST_NAME, description="Only classes whose names hold this."),
            ] = "",
            offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
            limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        ) -> Classes:
            """The known classes, in the order they came."""
            current = self.store.current
            sessions, wanted = class_sessions(current.history_), query.casefold()
            fitting = [
                one for one in current.model.knowledge.classes if wanted in one.name.casefold()
            ]
            return Classes(
                version=current.version,
                total=len(fitting),
                classes=[
                    ClassOut(
                        name=one.name,
                        images=one.count,
                        taught=sessions[one.name] > 0,
                        thumbnails=[
                            f"/api/thumbnails/{name}"
                            for name in self.store.thumbnails.of(one.prints)
                        ],
                    )
                    for one in fitting[offset : offset + limit]
                ],
            )

        @app.post("/api/classes", tags=["classes"], responses=_changes(409, 413))
        async def teach(
            response: Response,
            name: FormName,
            images: ImageFiles,
            idempotency_key: IdempotencyKey = None,
        ) -> Taught:
            """Teach a new class from a few images. Answered 200, it is on the disk; otherwise nothing has changed."""
            return Taught(
                **await self._teach("teach", name, images, idempotency_key, response, new=True)
            )

        @app.post("/api/classes/images", tags=["classes"], responses=_changes(404, 409, 413))
        async def add_images(
            response: Response,
            name: FormName,
            images: ImageFiles,
            idempotency_key: IdempotencyKey = None,
        ) -> Taught:
            """Add images to a known class. Those that it has already are not counted again."""
            return Taught(
                **await self._teach("add", name, images, idempotency_key, response, new=False)
            )

        @app.patch("/api/classes", tags=["classes"], responses=_changes(404, 409))
        async def rename(
            response: Response,
            name: ClassName,
            new: NewName,
            idempotency_key: IdempotencyKey = None,
        ) -> Changed:
            """Give a class another name."""
            wanted, key = clean_name(new.name), _key(idempotency_key, "rename", name, new.name)

            def answer(made: IncrementalClassifier, _: object) -> Answer:
                return {
                    "version": made.version,
                    "name": wanted,
                    "images": made.info()["classes"][wanted],
                }

            known = self._replayed(key, response)
            return Changed(
                **(known or await self._change(Entry("rename", (name, wanted)), answer, key))
            )

        @app.delete("/api/classes", tags=["classes"], responses=_changes(404, 409))
        async def forget(
            response: Response, name: ClassName, idempotency_key: IdempotencyKey = None
        ) -> Changed:
            """Forget a class."""
            key = _key(idempotency_key, "forget", name)

            def answer(made: IncrementalClassifier, _: object) -> Answer:
                last = made.history_[-1]
                return {"version": made.version, "name": last.classes[0], "images": last.images}

            known = self._replayed(key, response)
            return Changed(**(known or await self._change(Entry("forget", (name,)), answer, key)))

        @app.get("/api/sessions", tags=["sessions"], responses=_problems(400, 429, private=True))
        async def list_sessions() -> Sessions:
            """How the present state came about."""
            knowledge = self.store.current.model.knowledge
            sessions = [
                SessionOut(
                    number=number,
                    kind=one.kind,  # type: ignore[arg-type]
                    classes=list(one.classes[:NAMED]),
                    more=max(0, len(one.classes) - NAMED),
                    images=one.images,
                    when=one.when,
                    text=str(one),
                )
                for number, one in enumerate(knowledge.history)
            ]
            return Sessions(
                version=knowledge.version, undoable=bool(knowledge.reversals), sessions=sessions
            )

        @app.post("/api/sessions/undo", tags=["sessions"], responses=_changes(409))
        async def undo(response: Response, idempotency_key: IdempotencyKey = None) -> Undone:
            """Take back the last change."""
            key = _key(idempotency_key, "undo")

            def answer(made: IncrementalClassifier, said: Learned | str | None) -> Answer:
                return {"version": made.version, "undone": str(said)}

            known = self._replayed(key, response)
            return Undone(**(known or await self._change(Entry("undo"), answer, key)))

        @app.get("/api/model", tags=["model"], responses=_problems(400, 429, private=True))
        async def model() -> ModelOut:
            """What the model is, and what this service allows."""
            current = self.store.current
            about = current.info()
            limits = {
                name: value
                for name, value in asdict(self.limits).items()
                if name in LimitsOut.model_fields
            }
            return ModelOut(
                version=about["version"],
                name=self.store.path.stem,
                demo=self.demo,
                classes=len(about["classes"]),
                images=about["images"],
                sessions=about["sessions"],
                backbone=about["backbone"],
                features=about["features"],
                image_size=about["image size"],
                classifier=about["classifier"],
                accuracy=current.calibration.accuracy,
                threshold=current.calibration.threshold,
                notes=about["notes"],
                thumbnails=self.store.thumbnails.folder is not None,
                token=self.access.needed_for,  # type: ignore[arg-type]
                limits=LimitsOut(**limits, name_length=LONGEST_NAME),
            )

        @app.get(
            "/api/model/file",
            tags=["model"],
            response_class=FileResponse,
            responses={
                200: _file("application/octet-stream", "A model file."),
                **_problems(400, 429, 503, private=True),
            },
        )
        async def download() -> FileResponse:
            """The model file, as it is at this moment."""
            folder = tempfile.TemporaryDirectory(prefix="fewmore-")
            target = FilePath(folder.name) / "model.fewmore"
            await self._in_turn(partial(self.store.current.save, target))
            name = self.store.path.name
            return FileResponse(
                target,
                media_type="application/octet-stream",
                filename=name,
                background=BackgroundTask(folder.cleanup),
            )

        @app.get("/api/map", tags=["model"], responses=_problems(400, 429, private=True))
        async def map_of_classes() -> Map:
            """The classes' prototypes before and after they adapt to one another, in one plane."""
            current = self.store.current
            if self._map is None or self._map[0] is not current:
                self._map = (current, await asyncio.to_thread(_map, current))
            return self._map[1]

        @app.get(
            "/api/thumbnails/{thumbnail}",
            tags=["classes"],
            response_class=Response,
            responses={
                200: _file("image/jpeg", "96 pixels a side."),
                **_problems(400, 404, 422, 429, private=True),
            },
        )
        async def thumbnail(
            thumbnail: Annotated[
                str, Path(pattern="^[0-9a-f]{16}$", examples=["00c3a1b2c3d4e5f6"])
            ],
        ) -> Response:
            """A taught image, small."""
            found = await asyncio.to_thread(self.store.thumbnails.read, thumbnail)
            if found is None:
                raise HTTPException(
                    404,
                    f"there is no thumbnail {thumbnail}: GET /api/classes names those that are there",
                )
            return Response(
                found,
                media_type="image/jpeg",
                headers={"Cache-Control": "private, max-age=31536000, immutable"},
            )

        @app.get("/health", tags=["operation"], responses=_problems(400, 429))
        async def health() -> Health:
            """Whether the process is alive."""
            return Health(status="alive")

        @app.get("/ready", tags=["operation"], responses=_problems(400, 429, 503))
        async def ready() -> Ready:
            """Whether predictions and changes can be made."""
            if not (self.ready and self.batcher.alive):
                raise HTTPException(503, "the service is starting or ending", BUSY)
            if not self.store.healthy:
                raise HTTPException(
                    503, "changes cannot be written to the disk: see the service's log", BUSY
                )
            return Ready(status="ready", version=self.store.current.version)

        @app.get(
            "/metrics",
            tags=["operation"],
            response_class=PlainTextResponse,
            responses={200: _text("Prometheus' text format."), **_problems(400, 429, private=True)},
        )
        async def metrics() -> PlainTextResponse:
            """Counters and values of the moment, for Prometheus."""
            knowledge = self.store.current.model.knowledge
            gauges = {
                "model_version": ("gauge", "Version of the model.", float(knowledge.version)),
                "classes": ("gauge", "Known classes.", float(len(knowledge.classes))),
                "images_waiting": (
                    "gauge",
                    "Images that wait for the backbone.",
                    float(self.batcher.waiting),
                ),
                "changes_waiting": (
                    "gauge",
                    "Changes that wait for their turn.",
                    float(self._changes_waiting),
                ),
                "images_total": (
                    "counter",
                    "Images that the backbone has seen.",
                    float(self.batcher.images),
                ),
                "batches_total": (
                    "counter",
                    "Batches that they came in.",
                    float(self.batcher.batches),
                ),
                "journal_bytes": (
                    "gauge",
                    "Length of the journal.",
                    float(self.store.journal_bytes),
                ),
            }
            return PlainTextResponse(
                self.metrics.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8"
            )


# Parts


def _check_teachable(classifier: IncrementalClassifier, name: str, new: bool, most: int) -> None:
    known = classifier.classes_
    if new and name in known:
        raise ConfigError(
            f"'{name}' is the name of a class already: add images to that one, or choose another name"
        )
    if new and len(known) >= most:
        raise ConfigError(
            f"{len(known):,} classes are known, and no more can be: forget some first"
        )
    if not new and name not in known:
        raise UnknownName("class", name, known)


def _key(name: str | None, *parts: str) -> Key | None:
    """A request's key, with a digest of what it asks for."""
    if name is None:
        return None
    return Key(
        name,
        hashlib.sha256(
            "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
        ).hexdigest(),
    )


def _map(classifier: IncrementalClassifier) -> Map:
    before, after, adapted = plane(classifier.scorer)
    sessions = class_sessions(classifier.history_)
    return Map(
        version=classifier.version,
        adapted=adapted,
        classes=[
            Place(name=name, taught=sessions[name] > 0, before=first, after=second)
            for name, first, second in zip(
                classifier.classes_, before.tolist(), after.tolist(), strict=True
            )
        ],
    )


# Errors


async def _http_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    detail = {
        404: "there is nothing here: GET /openapi.json lists what there is",
        405: "that cannot be done here: see GET /openapi.json",
    }
    plain = (
        error.detail
        if error.detail not in ("Not Found", "Method Not Allowed")
        else detail[error.status_code]
    )
    return problem(error.status_code, plain, error.headers)


async def _invalid(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found = [
        f"{'.'.join(str(part) for part in one['loc'][1:]) or one['loc'][0]}: {one['msg']}"
        for one in error.errors()[:5]
    ]
    return problem(
        422,
        f"the request is not as it should be ({'; '.join(found)}): GET /openapi.json describes it",
    )


async def _fewmore_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, FewmoreError):
        raise error
    return problem(status_of(error), str(error))


async def _busy(_: Request, error: Exception) -> Response:
    return problem(503, "more is waiting than can be done soon: try again in a second", BUSY)


# For the OpenAPI document


def _describe(document: dict[str, Any], access: Access) -> None:
    """Add what the routes do not say of themselves: how errors look, and what takes the token."""
    document["components"]["schemas"]["Problem"] = Problem.model_json_schema()
    if access.token is None:
        return
    document["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "Printed when the service starts.",
        }
    }
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            if access.guards(method.upper(), path):
                described["security"] = [{"token": []}]


def _problems(*statuses: int, private: bool = False) -> dict[int | str, dict[str, Any]]:
    """Answers of these statuses; `private` ones also refuse where a token is missing."""
    described = {
        "description": "What is wrong.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    return dict.fromkeys(sorted({*statuses, 500, *([401] if private else [])}), described)


def _changes(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return _problems(400, 401, 403, 408, 422, 429, 503, *statuses)


def _file(media_type: str, description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {media_type: {"schema": {"type": "string", "format": "binary"}}},
    }


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}
