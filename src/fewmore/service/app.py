"""Assemble the HTTP service.

    routes/      one router for each group of paths
    state        what the routes share: store, batcher, queue of changes
    store        the classifier, durable           database, operations, idempotency, thumbnails
    repair       what can be read of a damaged database    wal
    batching     images of all requests, in batches for the backbone
    guard        who may send requests, and how large    limits, proxy
    page/        the web page

A prediction is made by one version of the classifier, and says which. A change is applied to a
copy, written to the disk, and then replaces the current classifier.
"""

from collections.abc import Collection
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from fewmore import __version__
from fewmore.service import openapi, problems
from fewmore.service.guard import Access, Guard
from fewmore.service.limits import Limits, cores
from fewmore.service.proxy import WithoutPrefix
from fewmore.service.routes import (
    classes,
    events,
    history,
    model,
    open_inference,
    operation,
    predict,
    thumbnails,
)
from fewmore.service.state import Service
from fewmore.service.store import Store

PAGE = Path(__file__).parent / "page"
GROUPS = (predict, classes, history, model, events, thumbnails, operation, open_inference)
SUMMARY = (
    "Teach an image classifier new classes from a handful of images, "
    "without forgetting the old ones."
)


def create_app(
    store: Store,
    access: Access | None = None,
    limits: Limits | None = None,
    demo: bool = False,
    workers: int | None = None,
    page: Path = PAGE,
) -> FastAPI:
    """Build the app over an open store, which it closes at its end."""
    service = Service(store, access or Access(), limits or Limits(), demo, workers or cores())
    app = FastAPI(
        title="fewmore",
        version=__version__,
        summary=SUMMARY,
        lifespan=service.lifespan,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # the names that clients get
        servers=[{"url": str(url)} for url in service.access.public_urls] or None,
    )
    app.state.service = service
    _include_routes(app)
    openapi.describe(app, service.access)
    problems.add_handlers(app)
    app.add_middleware(
        Guard,
        access=service.access,
        limits=service.limits,
        metrics=service.metrics,
        paths=app.openapi()["paths"],
    )
    if any(url.path for url in service.access.public_urls):
        app.add_middleware(WithoutPrefix, prefixes=[url.path for url in service.access.public_urls])
    if page.is_dir():
        app.router.default = StaticFiles(directory=page, html=True)  # for what no route takes
    return app


def _include_routes(app: FastAPI) -> None:
    for group in GROUPS:
        app.include_router(group.router)


def model_paths() -> Collection[str]:
    """Return the paths of all routes of a model's app, as patterns."""
    app = FastAPI()
    _include_routes(app)
    paths: dict[str, object] = app.openapi()["paths"]
    return paths.keys()
