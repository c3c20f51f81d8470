"""Serve every model file of a folder behind one address.

    /api/models                  the models
    /api/models/NAME             one of them: what /api/model is for a single model
    /api/models/NAME/predict     and so on, for all that lies below /api
    /v2/models/NAME/infer        the Open Inference Protocol
    /models/NAME/                its page

Each model has an app of its own, loaded with its first request. Models with the same backbone share
it. Where loaded models are larger than the limit, those that were idle longest are closed: their
changes go into their files, and others may change those. Requests are checked before anything is
loaded.
"""

import asyncio
import html
import logging
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from fewmore import __version__
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.errors import ConfigError, FewmoreError
from fewmore.service import problems
from fewmore.service.app import PAGE, create_app, model_paths
from fewmore.service.guard import DATA_PATHS, DATA_PREFIXES, OPEN_PATHS, Access, Guard
from fewmore.service.limits import Limits, cores
from fewmore.service.metrics import CONTENT_TYPE, Metrics, Value
from fewmore.service.problems import RETRY_SOON, problem
from fewmore.service.proxy import WithoutPrefix
from fewmore.service.schemas import Health
from fewmore.service.state import Service, forms_in_memory, restricted_pillow
from fewmore.service.store import Store

SUFFIX = ".fewmore"
NAME = "fewmore.model"  # in a request's scope: the model that it is for
GIVEN_PATH = "fewmore.path"  # in a request's scope: its path as it came
MODEL_PATH = re.compile(r"(?P<kind>/api|/v2|)/models/(?P<name>[^/]+)(?P<rest>/.*)?", re.DOTALL)

ROOM_SECONDS = 5.0  # to wait for a model that can be closed

log = logging.getLogger("fewmore.service")

Ask = Callable[[str, Scope, Receive, Send], Awaitable[None]]  # lets a model respond


class ModelEntry(BaseModel):
    """Describe a model of the folder."""

    name: str
    bytes: int  # of its file
    loaded: bool


class ModelList(BaseModel):
    """List the models of the folder by name."""

    models: list[ModelEntry]


class NoRoom(FewmoreError):
    """Report that all loaded models are in use and leave no room for another one."""


class Backbones:
    """Load classifiers; those with the same backbone have one in memory."""

    def __init__(self) -> None:
        self._known: list[IncrementalClassifier] = []  # one for each backbone
        self._loading = threading.Lock()

    def load(self, path: Path, device: str) -> IncrementalClassifier:
        """Read a classifier from its model file."""
        classifier = IncrementalClassifier.load(path, device)
        with self._loading:
            if not any(classifier.share_backbone(known) for known in self._known):
                self._known.append(classifier)
        return classifier

    def keep(self, used: list[IncrementalClassifier]) -> None:
        """Forget the backbones that none of these classifiers has."""
        ids = {id(one.model.weights) for one in used}
        with self._loading:
            self._known = [one for one in self._known if id(one.model.weights) in ids]


@dataclass(eq=False)
class Loaded:
    """Hold the app of a model that is loaded."""

    app: FastAPI
    ending: AsyncExitStack  # ends the app and closes its store
    requests: int = 0  # under way

    @property
    def classifier(self) -> IncrementalClassifier:
        """Return the classifier as it is at the moment."""
        service: Service = self.app.state.service
        return service.store.current


@dataclass(frozen=True)
class StoreOptions:
    """Hold how the stores of all models are opened."""

    thumbnails: bool = True
    read_only: bool = False
    device: str = "auto"


class Models:
    """Load the models of a folder when they are needed, and close those that nobody uses."""

    def __init__(
        self,
        folder: Path,
        access: Access,
        limits: Limits,
        workers: int | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        self.folder = folder.expanduser()
        self.access = access
        self.limits = limits
        self.workers = workers or cores()
        self.options = options or StoreOptions()
        self.loads = 0
        self.backbones = Backbones()
        self._loaded: dict[str, Loaded] = {}  # the one that was used least recently first
        self._changing = asyncio.Lock()  # held while a model is loaded or closed
        self._released = asyncio.Event()  # set when a request has ended
        if not self.folder.is_dir():
            raise ConfigError(f"--models {folder} is no folder: give the folder of model files")
        if not self.paths():
            raise ConfigError(
                f"there is no model file (NAME{SUFFIX}) in {folder}: make one with "
                f"`fewmore train PHOTOS -o {folder / f'birds{SUFFIX}'}`"
            )

    def paths(self) -> dict[str, Path]:
        """Return the model files that the folder has now, by the names of their models."""
        files = sorted(self.folder.glob(f"*{SUFFIX}"))
        return {file.stem: file for file in files if file.is_file()}

    def __contains__(self, name: str) -> bool:
        """Return whether the folder has a model of this name now."""
        file = f"{name}{SUFFIX}"
        # On Windows, a name can be a path to elsewhere.
        return Path(file).name == file and os.path.isfile(self.folder / file)

    def is_loaded(self, name: str) -> bool:
        """Return whether a model is loaded."""
        return name in self._loaded

    def entries(self) -> list[ModelEntry]:
        """Describe all models of the folder."""
        return [
            ModelEntry(name=name, bytes=path.stat().st_size, loaded=name in self._loaded)
            for name, path in self.paths().items()
        ]

    @property
    def loaded(self) -> int:
        """Return how many models are loaded."""
        return len(self._loaded)

    @property
    def loaded_bytes(self) -> int:
        """Return the size of all loaded models; a backbone that several share counts once."""
        models = [loaded.classifier.model for loaded in self._loaded.values()]
        backbones = {id(model.weights): model.sizes()["backbone"] for model in models}
        others = sum(sum(model.sizes().values()) - model.sizes()["backbone"] for model in models)
        return others + sum(backbones.values())

    async def ask(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app of a model respond to a request."""
        async with AsyncExitStack() as stack:
            try:
                app = await stack.enter_async_context(self.using(name))
            except NoRoom as error:
                refusal = problem(503, str(error), RETRY_SOON)
            except FewmoreError as error:
                log.error("%s", error)  # it names paths, which are nobody else's business
                refusal = unusable()
            else:
                await app(scope, receive, send)
                return
        await refusal(scope, receive, send)

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[FastAPI]:
        """Give the app of a model, which stays loaded meanwhile."""
        loaded = await self._acquire(name)
        try:
            yield loaded.app
        finally:
            self._release(loaded)

    def _release(self, loaded: Loaded) -> None:
        loaded.requests -= 1
        self._released.set()

    def _abandon(self, acquired: asyncio.Future[Loaded]) -> None:
        """Release a model that was acquired for a request that has gone."""
        if not acquired.cancelled() and acquired.exception() is None:
            self._release(acquired.result())

    async def _acquire(self, name: str) -> Loaded:
        until = time.monotonic() + ROOM_SECONDS
        if name in self._loaded:
            return self._take(name)
        await self._changing.acquire()
        gone = asyncio.Event()
        acquiring = asyncio.ensure_future(self._make_room_and_load(name, until, gone))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:  # what has begun to load goes on: it has the model's lock
            gone.set()
            self._released.set()  # who waits for room looks again
            acquiring.add_done_callback(self._abandon)
            raise

    async def _make_room_and_load(self, name: str, until: float, gone: asyncio.Event) -> Loaded:
        """Load a model unless another request did, then let others load and close.

        A request that has gone by the time there is room loads nothing.
        """
        try:
            if name not in self._loaded:
                await self._wait_for_room(until, gone)
                self._loaded[name] = await self._load(name)
            loaded = self._take(name)
            await self._close_idle()
            return loaded
        finally:
            self._changing.release()

    def _take(self, name: str) -> Loaded:
        """Count a request for a loaded model, which is the one that was used last from now on."""
        loaded = self._loaded[name] = self._loaded.pop(name)
        loaded.requests += 1
        return loaded

    async def _load(self, name: str) -> Loaded:
        app = await asyncio.to_thread(self._open, name)  # others are served meanwhile
        ending = AsyncExitStack()
        await ending.enter_async_context(app.router.lifespan_context(app))
        self.loads += 1
        log.info("loaded %s", name)
        return Loaded(app, ending)

    def _open(self, name: str) -> FastAPI:
        """Open the store of a model, and build its app."""
        path, options = self.folder / f"{name}{SUFFIX}", self.options
        settings = (options.thumbnails, options.read_only, options.device)
        store = Store(path, *settings, load=self.backbones.load)
        app = create_app(store, self.access, self.limits, workers=self.workers)
        roots = [str(url) for url in self.access.public_urls] or ["/"]
        servers = [{"url": f"{root}models/{quote(name)}"} for root in roots]
        (app.openapi_schema or {})["servers"] = servers
        return app

    async def _close_idle(self) -> None:
        """Close models that nobody uses while all together are larger than the limit."""
        while self.loaded_bytes > self.limits.model_bytes:
            idle = next((name for name, one in self._loaded.items() if not one.requests), None)
            if idle is None:
                return
            await self._close(idle)

    async def _wait_for_room(self, until: float, gone: asyncio.Event) -> None:
        """Wait until the loaded models are within the limit; then one more may be beyond it."""
        while True:
            self._released.clear()
            await self._close_idle()
            if gone.is_set():
                raise NoRoom("the request has gone")
            if self.loaded_bytes <= self.limits.model_bytes:
                return
            try:
                await asyncio.wait_for(self._released.wait(), until - time.monotonic())
            except asyncio.TimeoutError:
                message = "all models that are loaded are in use: try again in a second"
                raise NoRoom(message) from None

    async def _close(self, name: str) -> None:
        await self._loaded.pop(name).ending.aclose()
        self.backbones.keep([loaded.classifier for loaded in self._loaded.values()])
        log.info("closed %s", name)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Close all models at the end of the service."""
        # Each app does the same, and undoes it when it is closed: this stays to the end.
        with restricted_pillow(self.limits.pixels), forms_in_memory(self.limits.body_bytes):
            try:
                yield
            finally:
                async with self._changing:
                    for name in list(self._loaded):
                        await self._close(name)


def unusable() -> Response:
    """Say that a model cannot be loaded."""
    detail = "this model cannot be used at the moment: the service's log says why"
    return problem(503, detail, RETRY_SOON)


class ManyModels:
    """Send each request to the app of its model: an ASGI app."""

    def __init__(self, models: Models, ask: Ask | None = None, page: Path = PAGE) -> None:
        self.models = models
        self._ask = ask or models.ask
        metrics = Metrics()
        self._listing = _listing_app(models, metrics)
        self._page = StaticFiles(directory=page, html=True)
        known_paths = {*self._listing.openapi()["paths"], *model_paths()}
        self._guard = Guard(self._send_on, models.access, models.limits, metrics, known_paths)
        prefixes = [url.path for url in models.access.public_urls]
        self._app = WithoutPrefix(self._find_model, prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _find_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the model that a request is for, and the path that the model's own app knows."""
        name, path = find_model(scope.get("path", ""))
        if name is not None:
            # In place: the server looks into its own scope at the end of the service.
            scope[NAME], scope[GIVEN_PATH] = name, scope["path"]
            scope["path"], scope["raw_path"] = path, quote(path).encode()
        await self._guard(scope, receive, send)

    async def _send_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request on that the guard has let through."""
        name, path = scope.get(NAME), scope.get("path", "")
        if name is None:
            await self._listing(scope, receive, send)
        elif name not in self.models:
            await problem(404, "there is no such model: GET /api/models lists what there is")(
                scope, receive, send
            )
        elif scope[GIVEN_PATH] == f"/models/{name}":
            await RedirectResponse(f"{quote(name)}/", 308)(scope, receive, send)
        elif path in OPEN_PATHS and not self.models.is_loaded(name):
            await self._listing(scope, receive, send)  # who has no token makes nothing load
        elif path in (*OPEN_PATHS, *DATA_PATHS) or path.startswith(DATA_PREFIXES):
            await self._ask(name, scope, receive, send)
        else:
            await self._page(scope, receive, send)


def find_model(path: str) -> tuple[str | None, str]:
    """Return the model that a path is for, if any, and the path that the model's own app knows."""
    found = MODEL_PATH.fullmatch(path)
    if found is None:
        return None, path
    kind, name, rest = found["kind"], found["name"], found["rest"] or ""
    if kind == "/v2":
        return name, path  # the protocol's paths name the model themselves
    if kind == "/api":
        return name, f"/api{rest}" if rest.strip("/") else "/api/model"
    return name, rest or "/"


def _listing_app(models: Models, metrics: Metrics) -> FastAPI:
    """Build the app for all that is not about a single model."""
    app = FastAPI(
        title="fewmore",
        version=__version__,
        summary="Many image classifiers; /models/NAME/openapi.json describes each.",
        lifespan=models.lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    problems.add_handlers(app)

    @app.get("/api/models")
    async def list_models() -> ModelList:
        """List the models of the folder."""
        return ModelList(models=models.entries())

    @app.get("/health")
    async def check_health() -> Health:
        """Report that the process is alive."""
        return Health(status="alive")

    @app.get("/ready")
    async def check_ready() -> dict[str, str]:
        """Report that models can be asked for; each has a /ready of its own."""
        return {"status": "ready"}

    @app.get("/v2/health/live")
    async def server_live() -> dict[str, bool]:
        """Report that the process is alive, to a client of the Open Inference Protocol."""
        return {"live": True}

    @app.get("/v2/health/ready")
    async def server_ready() -> dict[str, bool]:
        """Report that models can be asked for, to a client of the Open Inference Protocol."""
        return {"live": True, "ready": True}

    @app.get("/metrics")
    async def read_metrics() -> PlainTextResponse:
        """Report counters and current values of all models together, for Prometheus."""
        values = [
            Value("models", "gauge", "Models in the folder.", len(models.paths())),
            Value("models_loaded", "gauge", "Models in memory.", models.loaded),
            Value("models_loaded_bytes", "gauge", "Their size.", models.loaded_bytes),
            Value("model_loads_total", "counter", "Models that were loaded.", models.loads),
        ]
        return PlainTextResponse(metrics.text(values), media_type=CONTENT_TYPE)

    @app.get("/", include_in_schema=False)
    async def show_models() -> HTMLResponse:
        """Show links to the pages of all models, unless their names need the token."""
        links = (
            f'<li><a href="models/{quote(name)}/">{html.escape(name)}</a></li>'
            for name in models.paths()
        )
        # A browser cannot send the token with the request for a page.
        is_private = models.access.token_scope == "everything"
        hint = "<p>The page of a model is at models/NAME/, and asks for the token.</p>"
        content = hint if is_private else f"<ul>{''.join(links)}</ul>"
        head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>fewmore</title>'
        return HTMLResponse(f"{head}<h1>Models</h1>{content}</html>")

    return app
