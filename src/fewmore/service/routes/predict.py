"""Predict the classes of uploaded images."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException

from fewmore.classifier.results import Prediction
from fewmore.service.openapi import problems
from fewmore.service.routes.dependencies import (
    ImageFiles,
    ServiceState,
    client_of,
    get_service,
    read_images,
    unless_gone,
)
from fewmore.service.schemas import Candidate, ImageAddresses, PredictionOut, Predictions
from fewmore.service.state import Service

Top = Annotated[int, Query(ge=1, le=100, description="How many classes to name.")]

router = APIRouter(tags=["predict"])


@router.post(
    "/api/predict",
    response_model=Predictions,
    responses=problems(400, 403, 408, 409, 413, 422, 429, 503, private=True),
)
async def predict(request: Request, images: ImageFiles, top: Top = 5) -> Response:
    """Predict the likeliest classes of each image, all by one version of the model."""
    service = await get_service(request)
    data = await read_images(images, service.limits)
    predictions = await _predict(service, request, data, top)
    return Response(predictions.model_dump_json(), media_type="application/json")


@router.post(
    "/api/predict/urls", responses=problems(400, 403, 408, 409, 413, 422, 429, private=True)
)
async def predict_urls(
    service: ServiceState, request: Request, images: ImageAddresses, top: Top = 5
) -> Predictions:
    """Predict the likeliest classes of images at URLs, from hosts that the operator allows."""
    if not service.image_urls.origins:
        raise HTTPException(403, "this service fetches no images: its operator allows no host")
    if len(images.urls) > service.limits.images:
        raise HTTPException(422, f"at most {service.limits.images} URLs can be in a request")
    data = await unless_gone(request, service.image_urls.fetch(images.urls))
    return await _predict(service, request, data, top)


async def _predict(
    service: Service, request: Request, images: Sequence[bytes], top: int
) -> Predictions:
    titles = [f"image {number}" for number in range(1, len(images) + 1)]
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
