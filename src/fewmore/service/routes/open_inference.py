"""Answer the Open Inference Protocol, which clients of KServe and Triton speak."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from starlette.exceptions import HTTPException

from fewmore import __version__
from fewmore.errors import FewmoreError
from fewmore.service import open_inference
from fewmore.service.openapi import inference_errors
from fewmore.service.routes.dependencies import (
    ServiceState,
    check_running,
    client_of,
    image_titles,
    unless_gone,
)
from fewmore.service.state import Service

LENGTH_HEADER = "Inference-Header-Content-Length"
BODY = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}}},
}
ANSWER = {
    "description": "The likeliest classes.",
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/InferResponse"}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    },
}

router = APIRouter(prefix="/v2", tags=["open inference protocol"])

ModelName = Annotated[
    str, Path(max_length=255, description="As GET /api/model says it.", examples=["birds"])
]
ModelVersion = Annotated[
    str, Path(pattern="^[0-9]{1,15}$", description="The current version.", examples=["7"])
]


@router.get("/health/live", responses=inference_errors(400, 429))
async def server_live() -> dict[str, bool]:
    """Report that the process is alive."""
    return {"live": True}


@router.get("/health/ready", responses=inference_errors(400, 429))
async def server_ready(service: ServiceState) -> dict[str, bool]:
    """Report whether predictions can be made."""
    check_running(service)
    return {"live": True, "ready": True}


@router.get("/", include_in_schema=False)
@router.get("", responses=inference_errors(400, 429, private=True))
async def server_metadata() -> dict[str, Any]:
    """Describe the server."""
    return {"name": "fewmore", "version": __version__, "extensions": ["binary_tensor_data"]}


@router.get(
    "/models/{name}/versions/{version}", responses=inference_errors(400, 404, 429, private=True)
)
async def model_version_metadata(
    service: ServiceState, name: ModelName, version: ModelVersion
) -> dict[str, Any]:
    """Describe the current version of the model and its tensors."""
    _check_model(service, name, version)
    return open_inference.describe_model(name, service.store.current.version)


@router.get("/models/{name}", responses=inference_errors(400, 404, 429, private=True))
async def model_metadata(service: ServiceState, name: ModelName) -> dict[str, Any]:
    """Describe the model and its tensors."""
    return await model_version_metadata(service, name, str(service.store.current.version))


@router.get(
    "/models/{name}/versions/{version}/ready",
    responses=inference_errors(400, 404, 429, private=True),
)
async def model_version_ready(
    service: ServiceState, name: ModelName, version: ModelVersion
) -> dict[str, Any]:
    """Report whether predictions can be made by the current version of the model."""
    _check_model(service, name, version)
    check_running(service)
    return {"name": name, "ready": True}


@router.get("/models/{name}/ready", responses=inference_errors(400, 404, 429, private=True))
async def model_ready(service: ServiceState, name: ModelName) -> dict[str, Any]:
    """Report whether predictions can be made by the model."""
    return await model_version_ready(service, name, str(service.store.current.version))


@router.post(
    "/models/{name}/versions/{version}/infer",
    response_class=Response,
    responses={200: ANSWER, **inference_errors(400, 403, 404, 408, 413, 429, private=True)},
    openapi_extra={"requestBody": BODY},
)
async def infer_version(
    service: ServiceState, request: Request, name: ModelName, version: ModelVersion
) -> Response:
    """Predict the classes of images by the current version of the model."""
    _check_model(service, name, version)
    limits = service.limits
    body = await request.body()
    length = request.headers.get(LENGTH_HEADER)
    try:
        inference = await asyncio.to_thread(
            open_inference.read, body, length, limits.images, limits.image_bytes
        )
        titles = image_titles(len(inference.images))
        work = service.batcher.predict(inference.images, titles, inference.top, client_of(request))
        predicted = await unless_gone(request, work)
    except FewmoreError as error:
        raise HTTPException(400, str(error)) from error
    content, head = open_inference.write(inference, name, predicted.version, predicted.predictions)
    if head is None:
        return Response(content, media_type="application/json")
    return Response(content, 200, {LENGTH_HEADER: str(head)}, "application/octet-stream")


@router.post(
    "/models/{name}/infer",
    response_class=Response,
    responses={200: ANSWER, **inference_errors(400, 403, 404, 408, 413, 429, private=True)},
    openapi_extra={"requestBody": BODY},
)
async def infer(service: ServiceState, request: Request, name: ModelName) -> Response:
    """Predict the classes of images: `image` is BYTES, encoded files, or UINT8, pixels.

    Binary data may follow the JSON, whose length is then in `Inference-Header-Content-Length`.
    """
    version = str(service.store.current.version)
    return await infer_version(service, request, name, version)


def _check_model(service: Service, name: str, version: str) -> None:
    own = service.store.name
    if name != own:
        raise HTTPException(404, f"there is no model {name[:100]!r}: this service has {own!r}")
    current = service.store.current.version
    if version != str(current):
        raise HTTPException(404, f"the model has version {current}, and no other can be used")
