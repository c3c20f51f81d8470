"""Report health, readiness and metrics to those who operate the service."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from fewmore.service.metrics import CONTENT_TYPE, Value
from fewmore.service.openapi import problems, text_response
from fewmore.service.problems import RETRY_SOON
from fewmore.service.routes.dependencies import ServiceState, check_running
from fewmore.service.schemas import Health, Ready
from fewmore.service.state import Service

router = APIRouter(tags=["operation"])


@router.get("/health", responses=problems(400, 429))
async def check_health() -> Health:
    """Report that the process is alive."""
    return Health(status="alive")


@router.get("/ready", responses=problems(400, 429, 503))
async def check_ready(service: ServiceState) -> Ready:
    """Report whether predictions and changes can be made."""
    check_running(service)
    store = service.store
    if store.trouble is not None and not store.read_only:
        detail = f"predictions are made, but no change can be stored: {store.trouble}"
        raise HTTPException(503, detail, RETRY_SOON)
    return Ready(status="ready", version=store.current.version)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={
        200: text_response("Prometheus' text format."),
        **problems(400, 429, private=True),
    },
)
async def read_metrics(service: ServiceState) -> PlainTextResponse:
    """Report counters and current values for Prometheus."""
    return PlainTextResponse(service.metrics.text(_values(service)), media_type=CONTENT_TYPE)


def _values(service: Service) -> list[Value]:
    store = service.store
    class_set = store.current.model.class_set
    batcher = service.batcher
    waiting = service.changes.waiting
    return [
        Value("model_version", "gauge", "Version of the model.", class_set.version),
        Value("classes", "gauge", "Known classes.", len(class_set.classes)),
        Value("images_waiting", "gauge", "Images that wait for the backbone.", batcher.waiting),
        Value("changes_waiting", "gauge", "Changes that wait for their turn.", waiting),
        Value("images_total", "counter", "Images that the backbone has embedded.", batcher.images),
        Value("batches_total", "counter", "Batches that they came in.", batcher.batches),
        Value("pending_bytes", "gauge", "Changes not yet in the model file.", store.pending_bytes),
        Value("merge_failures_total", "counter", "Failed writes of it.", store.merge_failures),
        Value("store_failures_total", "counter", "Changes not stored.", store.failures),
        Value("store_writable", "gauge", "Whether changes can be stored.", store.trouble is None),
        Value("store_damaged", "gauge", "Whether a damaged copy is kept.", bool(store.damaged)),
    ]
