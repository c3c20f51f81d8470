"""Describe the model, download its file and map its classes."""

import asyncio
import logging
from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from fewmore.classifier.classes import MAX_NAME_LENGTH
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.history import class_sessions
from fewmore.errors import ExportError, ModelFileError
from fewmore.service.downloads import Downloads
from fewmore.service.limits import Limits
from fewmore.service.openapi import file_response, problems
from fewmore.service.problems import RETRY_SOON
from fewmore.service.projection import project
from fewmore.service.routes.dependencies import ServiceState
from fewmore.service.schemas import LimitsOut, Map, ModelOut, Place
from fewmore.service.state import Service

log = logging.getLogger("fewmore.service")

router = APIRouter(tags=["model"])


@router.get("/api/model", responses=problems(400, 429, private=True))
async def describe_model(service: ServiceState) -> ModelOut:
    """Describe the model, and what this service allows."""
    current = service.store.current
    info = current.info()
    return ModelOut(
        version=info["version"],
        name=service.store.name,
        demo=service.demo,
        classes=len(info["classes"]),
        images=info["images"],
        sessions=sum(change["kind"] in ("fit", "learn") for change in info["history"]),
        backbone=info["backbone"],
        features=info["features"],
        image_size=info["image size"],
        classifier=info["classifier"],
        accuracy=current.calibration.accuracy,
        threshold=current.calibration.threshold,
        notes=info["notes"],
        thumbnails=service.store.thumbnails.folder is not None,
        token=service.access.token_scope,
        limits=_describe_limits(service.limits),
    )


def _describe_limits(limits: Limits) -> LimitsOut:
    public = {
        name: value for name, value in asdict(limits).items() if name in LimitsOut.model_fields
    }
    return LimitsOut(**public, name_length=MAX_NAME_LENGTH)


@router.get(
    "/api/model/file",
    response_class=FileResponse,
    responses={
        200: file_response("application/octet-stream", "A model file."),
        **problems(400, 429, 503, private=True),
    },
)
async def download_model(service: ServiceState) -> FileResponse:
    """Download the model file, as it is at this moment."""
    return await _send(service, service.downloads, f"{service.store.name}.fewmore")


@router.get(
    "/api/model/onnx",
    response_class=FileResponse,
    responses={
        200: file_response("application/octet-stream", "An ONNX file."),
        **problems(400, 409, 422, 429, 503, private=True),
    },
)
async def export_onnx(service: ServiceState) -> FileResponse:
    """Export the model to one ONNX file: an image of any size in, the name of its class out.

    It is checked with onnxruntime, which takes some seconds. 409: `fewmore[export]` is missing;
    422: this model cannot be exported.
    """
    return await _send(service, service.exports, f"{service.store.name}.onnx")


async def _send(service: Service, files: Downloads, name: str) -> FileResponse:
    try:
        copy = await files.copy_of(service.store.current)
    except (OSError, ModelFileError, ExportError) as error:
        if isinstance(error, ExportError) and not isinstance(error.__cause__, OSError):
            raise  # it says what cannot be exported, not which file cannot be written
        detail = "no copy of the model can be written at the moment: the service's log says why"
        log.warning("a copy of the model cannot be written: %s", error)
        raise HTTPException(503, detail, RETRY_SOON) from error
    return FileResponse(
        copy.path,
        media_type="application/octet-stream",
        filename=name,
        background=BackgroundTask(copy.release),
    )


@router.get("/api/map", responses=problems(400, 429, private=True))
async def map_classes(service: ServiceState) -> Map:
    """Map the classes' prototypes to a plane, before and after they adapt to one another."""
    current = service.store.current
    latest = service.latest_map
    if latest is None or latest[0] is not current:
        latest = (current, await asyncio.to_thread(_draw_map, current))
        service.latest_map = latest
    return latest[1]


def _draw_map(classifier: IncrementalClassifier) -> Map:
    before, after, adapted = project(classifier.scorer)
    sessions = class_sessions(classifier.history_)
    points = zip(classifier.names, before.tolist(), after.tolist(), strict=True)
    return Map(
        version=classifier.version,
        adapted=adapted,
        classes=[
            Place(name=name, taught=sessions[name] > 0, before=first, after=second)
            for name, first, second in points
        ],
    )
