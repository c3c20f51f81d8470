"""Predict the classes of uploaded images."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from fewmore.classifier.results import Prediction
from fewmore.service.openapi import problems
from fewmore.service.routes.dependencies import (
    ImageFiles,
    ServiceState,
    client_of,
    read_images,
    unless_gone,
)
from fewmore.service.schemas import Candidate, PredictionOut, Predictions

router = APIRouter(tags=["predict"])


@router.post(
    "/api/predict", responses=problems(400, 403, 408, 409, 413, 422, 429, 503, private=True)
)
async def predict(
    service: ServiceState,
    request: Request,
    images: ImageFiles,
    top: Annotated[int, Query(ge=1, le=100, description="How many classes to name.")] = 5,
) -> Predictions:
    """Predict the likeliest classes of each image, all by one version of the model."""
    titles = [f"image {number}" for number in range(1, len(images) + 1)]
    data = await read_images(images, service.limits)
    work = service.batcher.predict(data, titles, top, client_of(request))
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
