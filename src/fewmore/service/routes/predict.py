"""Predict the classes of uploaded images."""

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from fewmore.classifier.results import Prediction
from fewmore.service.openapi import problems
from fewmore.service.routes.dependencies import (
    ImageFiles,
    ServiceState,
    client_of,
    get_service,
    image_titles,
    read_images,
    unless_gone,
)
from fewmore.service.schemas import Candidate, ImageAddresses, PredictionOut, Predictions
from fewmore.service.state import Service

Top = Annotated[int, Query(ge=1, le=100, description="How many classes to name.")]
TOP = 5
PLAIN_QUERY = re.compile(rb"(?:top=([1-9][0-9]?))?")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PlainRoute(APIRoute):
    """Take a plain request apart at once: FastAPI's way costs more than all the rest of it."""

    def get_route_handler(self) -> Handler:
        """Return what handles requests. FastAPI handles those that are not plain, or not right."""
        with_checks = super().get_route_handler()

        async def handle(request: Request) -> Response:
            query = PLAIN_QUERY.fullmatch(request.scope["query_string"])
            files = await _files(request, "images")
            if query is None or not files:
                return await with_checks(request)  # the form is not read again
            try:
                return await _respond(request, files, int(query[1] or TOP))
            finally:
                await request.close()

        return handle


async def _files(request: Request, name: str) -> list[UploadFile]:
    """Return the files of a form that have this name; none if anything else has it."""
    try:
        form = await request.form()
    except HTTPException:
        raise
    except Exception as error:
        raise HTTPException(400, "the form cannot be read") from error
    values = form.getlist(name)
    files = [value for value in values if isinstance(value, UploadFile)]
    return files if len(files) == len(values) else []


router = APIRouter(tags=["predict"])
plain_router = APIRouter(route_class=PlainRoute)


@plain_router.post(
    "/api/predict",
    response_model=Predictions,
    responses=problems(400, 403, 408, 409, 413, 422, 429, 503, private=True),
)
async def predict(request: Request, images: ImageFiles, top: Top = TOP) -> Response:
    """Predict the likeliest classes of each image, all by one version of the model."""
    return await _respond(request, images, top)


router.include_router(plain_router)


@router.post(
    "/api/predict/urls", responses=problems(400, 403, 408, 409, 413, 422, 429, private=True)
)
async def predict_urls(
    service: ServiceState, request: Request, images: ImageAddresses, top: Top = TOP
) -> Predictions:
    """Predict the likeliest classes of images at URLs, from hosts that the operator allows."""
    if not service.image_urls.origins:
        raise HTTPException(403, "this service fetches no images: its operator allows no host")
    if len(images.urls) > service.limits.images:
        raise HTTPException(422, f"at most {service.limits.images} URLs can be in a request")
    data = await unless_gone(request, service.image_urls.fetch(images.urls))
    return await _predict(service, request, data, top)


async def _respond(request: Request, files: Sequence[UploadFile], top: int) -> Response:
    service = await get_service(request)
    images = await read_images(files, image_titles(len(files)), service.limits)
    predictions = await _predict(service, request, images, top)
    return Response(predictions.model_dump_json(), media_type="application/json")


async def _predict(
    service: Service, request: Request, images: Sequence[bytes], top: int
) -> Predictions:
    titles = image_titles(len(images))
    work = service.batcher.predict(images, titles, top, client_of(request))
    predicted = await unless_gone(request, work)
    return Predictions(
        version=predicted.version,
        predictions=[_describe(prediction) for prediction in predicted.predictions],
    )


def _describe(prediction: Prediction) -> PredictionOut:
    candidates = zip(prediction.names, prediction.confidences, strict=True)
    return PredictionOut(
        known=prediction.known,
        familiarity=prediction.familiarity,
        classes=[Candidate(name=name, confidence=confidence) for name, confidence in candidates],
    )
