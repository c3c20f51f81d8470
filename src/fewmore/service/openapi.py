"""Complete the OpenAPI document: errors, files, and what needs the token."""

from typing import Any

from fastapi import FastAPI

from fewmore.service.guard import Access
from fewmore.service.open_inference import InferError, InferRequest, InferResponse
from fewmore.service.problems import INFERENCE_PATH, MEDIA_TYPE
from fewmore.service.schemas import OutdatedProblem, Problem

Responses = dict[int | str, dict[str, Any]]
RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait before the request is sent again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}
REPLAYED = {
    "Idempotent-Replay": {
        "description": "That an earlier request with the same key got this response already.",
        "schema": {"type": "string", "enum": ["true"]},
    }
}


def describe(app: FastAPI, access: Access) -> None:
    """Add what the routes do not describe themselves: how errors look, and the token."""
    document = app.openapi()  # FastAPI keeps this dict and serves it
    for schema in (Problem, OutdatedProblem, InferRequest, InferResponse, InferError):
        template = "#/components/schemas/{model}"
        described = schema.model_json_schema(ref_template=template)
        document["components"]["schemas"] |= {
            **described.pop("$defs", {}),
            schema.__name__: described,
        }
    if access.token is not None:
        document["components"]["securitySchemes"] = {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "Printed when the service starts.",
            }
        }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith(INFERENCE_PATH):
                operation["responses"].pop("422", None)  # `problems` makes it 400
            if access.needs_token(method.upper(), path):
                operation["security"] = [{"token": []}]


def problems(*statuses: int, private: bool = False) -> Responses:
    """Describe error responses; `private` routes also refuse requests without a token."""
    described = {
        "description": "What is wrong.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    every = sorted({*statuses, 500, 503, *([401] if private else [])})
    return {
        status: {**described, "headers": RETRY_AFTER} if status in (429, 503) else described
        for status in every
    }


def change_problems(*statuses: int) -> Responses:
    """Describe the responses of a route that changes the model, beside what it returns."""
    outdated = {
        "description": "The model is not the one that the change was made for.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/OutdatedProblem"}}},
    }
    return {
        **problems(400, 401, 403, 408, 413, 422, 429, *statuses),
        200: {"headers": REPLAYED},
        412: outdated,
    }


def inference_errors(*statuses: int, private: bool = False) -> Responses:
    """Describe error responses of the Open Inference Protocol."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/InferError"}}}
    return {
        status: {**response, "content": content}
        for status, response in problems(*statuses, private=private).items()
    }


def file_response(media_type: str, description: str) -> dict[str, Any]:
    """Describe a response that is a file."""
    schema = {"type": "string", "format": "binary"}
    return {"description": description, "content": {media_type: {"schema": schema}}}


def text_response(description: str, media_type: str = "text/plain") -> dict[str, Any]:
    """Describe a response that is text."""
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}
