"""Define the bodies of requests and responses, with examples for the OpenAPI document."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fewmore.classifier.classes import MAX_NAME_LENGTH

Version = Annotated[
    int,
    Field(ge=1, description="The version of the model; grows with every change."),
]
Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_LENGTH,
        description="A class's name: text, in any script.",
        examples=["okapi"],
    ),
]
Point = Annotated[list[float], Field(min_length=2, max_length=2)]


class Problem(BaseModel):
    """Say what is wrong (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": "Unprocessable Content",
                "status": 422,
                "detail": (
                    "image 1 cannot be read as an image (it is empty, or of no known image "
                    "format): replace it, or leave it out"
                ),
            }
        }
    )


class VersionOut(BaseModel):
    """Say what led to a version."""

    version: Version
    change: str
    when: str = Field(description="UTC.")


class OutdatedProblem(Problem):
    """Say that the model is not the one that a change was made for, and what came between."""

    version: Version
    changes: list[VersionOut]

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": "Precondition Failed",
                "status": 412,
                "detail": "the change was made for version 7, and the model has version 8: …",
                "version": 8,
                "changes": [
                    {"version": 8, "change": "learning of zebra", "when": "2026-11-15T12:00:00Z"}
                ],
            }
        }
    )


# Predictions


class Candidate(BaseModel):
    """Name one class that an image may belong to."""

    name: str
    confidence: float = Field(
        ge=0, le=1, description="The confidences of all known classes add up to 1."
    )


class PredictionOut(BaseModel):
    """Predict the class of one image."""

    known: bool = Field(
        description='False means "none of these"; the closest classes are listed all the same.'
    )
    familiarity: float = Field(description="Similarity to the closest class, at most about 1.")
    classes: list[Candidate] = Field(description="The likeliest first.")


class ImageAddresses(BaseModel):
    """Name images by their URLs."""

    urls: list[Annotated[str, Field(max_length=2000)]] = Field(min_length=1, fail_fast=True)

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"urls": ["https://images.example/unknown.jpg"]}},
    )


class Predictions(BaseModel):
    """Predict the classes of all images of a request."""

    version: Version
    predictions: list[PredictionOut] = Field(description="One for each image, in their order.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 7,
                "predictions": [
                    {
                        "known": True,
                        "familiarity": 0.83,
                        "classes": [
                            {"name": "okapi", "confidence": 0.91},
                            {"name": "zebra", "confidence": 0.05},
                        ],
                    }
                ],
            }
        }
    )


# Classes


class ClassOut(BaseModel):
    """Describe a class."""

    name: str
    images: int = Field(ge=1)
    taught: bool = Field(description="Learned after training.")
    thumbnails: list[str] = Field(description="Paths of some of its images, 96 pixels a side.")


class Classes(BaseModel):
    """List classes."""

    version: Version
    total: int = Field(
        ge=0, description="Classes that match the query, on this page of the list or not."
    )
    classes: list[ClassOut] = Field(description="In the order they were learned.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 7,
                "total": 1,
                "classes": [
                    {
                        "name": "okapi",
                        "images": 5,
                        "taught": True,
                        "thumbnails": ["/api/thumbnails/00c3a1b2c3d4e5f6"],
                    }
                ],
            }
        }
    )


class ImageOut(BaseModel):
    """Describe an image of a class."""

    id: str = Field(description="Its content hash, sixteen hexadecimal digits.")
    thumbnail: str | None = Field(description="The path of a small copy, if one is stored.")
    removable: bool = Field(description="Whether it was taught here, and can be removed alone.")


class ClassImages(BaseModel):
    """List the images of a class."""

    version: Version
    name: str
    images: int = Field(ge=1, description="How many the class has.")
    total: int = Field(ge=0, description="How many of them are known by their content.")
    listed: list[ImageOut]

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 7,
                "name": "okapi",
                "images": 5,
                "total": 5,
                "listed": [
                    {
                        "id": "00c3a1b2c3d4e5f6",
                        "thumbnail": "/api/thumbnails/00c3a1b2c3d4e5f6",
                        "removable": True,
                    }
                ],
            }
        }
    )


class Taught(BaseModel):
    """Report what was taught."""

    version: Version
    name: str = Field(description="As it is stored: without space around it.")
    images: int = Field(ge=1, description="How many the class has now.")
    added: int = Field(ge=0, description="How many of them are new; 0: nothing has changed.")
    warnings: list[str]
    session: int = Field(ge=0, description="The number of this change in the history.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 8,
                "name": "okapi",
                "images": 5,
                "added": 5,
                "warnings": ["okapi is close to zebra: …"],
                "session": 3,
            }
        }
    )


class NewName(BaseModel):
    """Give a class another name."""

    name: Name

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"name": "forest giraffe"}}
    )


class Changed(BaseModel):
    """Report which class was renamed or forgotten, or which an image was removed from."""

    version: Version
    name: str
    images: int = Field(ge=1)

    model_config = ConfigDict(
        json_schema_extra={"example": {"version": 9, "name": "forest giraffe", "images": 5}}
    )


# History


class SessionOut(BaseModel):
    """Describe one change of the history."""

    number: int = Field(ge=0)
    kind: Literal["fit", "learn", "remove", "forget", "rename"]
    classes: list[str] = Field(description="For rename: the old name and the new one. At most 100.")
    more: int = Field(ge=0, description="Classes that are left out here.")
    images: int = Field(ge=0)
    when: str = Field(description="UTC.")
    text: str


class Sessions(BaseModel):
    """List the history."""

    version: Version
    undoable: bool = Field(description="Whether the last change can be undone.")
    total: int = Field(ge=0, description="Changes in all, on this page of the list or not.")
    sessions: list[SessionOut] = Field(
        description="The oldest first, without changes that were undone."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 8,
                "undoable": True,
                "total": 2,
                "sessions": [
                    {
                        "number": 1,
                        "kind": "learn",
                        "classes": ["okapi"],
                        "more": 0,
                        "images": 5,
                        "when": "2026-11-15T12:00:00Z",
                        "text": "learning of okapi",
                    }
                ],
            }
        }
    )


class Undone(BaseModel):
    """Report which change was undone."""

    version: Version
    undone: str

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 9,
                "undone": "undone: the learning of okapi (2026-11-15T12:00:00Z)",
            }
        }
    )


# Model


class LimitsOut(BaseModel):
    """List the limits that a client should know."""

    body_bytes: int
    image_bytes: int
    pixels: int
    images: int
    classes: int
    name_length: int


class ModelOut(BaseModel):
    """Describe the model and the service."""

    version: Version
    name: str
    demo: bool = Field(description="The built-in model of drawn characters.")
    classes: int = Field(ge=0)
    images: int = Field(ge=0)
    sessions: int = Field(ge=0)
    backbone: str
    features: int
    image_size: int
    classifier: str
    accuracy: float | None = Field(description="On images held out in training, from 0 to 1.")
    threshold: float | None = Field(
        description='The familiarity below which the prediction is "none of these".'
    )
    notes: list[str]
    thumbnails: bool = Field(description="Whether thumbnails of taught images are stored.")
    token: Literal["none", "changes", "everything"] = Field(
        description="What a token is needed for."
    )
    limits: LimitsOut


class Place(BaseModel):
    """Place a class on the map."""

    name: str
    taught: bool
    before: Point
    after: Point


class Map(BaseModel):
    """Map all classes to a plane."""

    version: Version
    adapted: bool = Field(
        description="Whether there is an adapter; without one, before and after are the same."
    )
    classes: list[Place]

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 7,
                "adapted": True,
                "classes": [
                    {"name": "okapi", "taught": True, "before": [-0.2, 0.7], "after": [-0.1, 0.8]}
                ],
            }
        }
    )


# Operation


class Health(BaseModel):
    """Report that the process is alive."""

    status: Literal["alive"]


class Ready(BaseModel):
    """Report that predictions and changes can be made."""

    status: Literal["ready"]
    version: Version
