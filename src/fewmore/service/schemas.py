"""What goes over the wire, described for the OpenAPI document."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fewmore.classifier.classes import LONGEST_NAME

Version = Annotated[
    int,
    Field(
        ge=1, description="The number of the model that gave this answer; grows with every change."
    ),
]
Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST_NAME,
        description="A class's name: text, in any script.",
        examples=["okapi"],
    ),
]
Point = Annotated[list[float], Field(min_length=2, max_length=2)]


class Problem(BaseModel):
    """What is wrong, in a sentence (RFC 9457)."""

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
                "detail": "image 1 cannot be read as an image (it is empty, or of no known image format): replace it, or leave it out",
            }
        }
    )


# Predictions


class Candidate(BaseModel):
    name: str
    confidence: float = Field(
        ge=0, le=1, description="Over all known classes, confidences add up to 1."
    )


class PredictionOut(BaseModel):
    known: bool = Field(
        description='False is "none of these"; the closest classes are told all the same.'
    )
    familiarity: float = Field(description="Likeness to the most similar class, at most about 1.")
    classes: list[Candidate] = Field(description="The likeliest first.")


class Predictions(BaseModel):
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
    name: str
    images: int = Field(ge=1)
    taught: bool = Field(description="Learnt after training.")
    thumbnails: list[str] = Field(description="Addresses of some of its images, 96 pixels a side.")


class Classes(BaseModel):
    version: Version
    total: int = Field(
        ge=0, description="Classes that fit the query, on this page of the list or not."
    )
    classes: list[ClassOut] = Field(description="In the order they came.")

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


class Taught(BaseModel):
    version: Version
    name: str = Field(description="As it is kept: without space around it.")
    images: int = Field(ge=1, description="That the class has now.")
    added: int = Field(ge=0, description="Those that it did not have; 0: nothing has changed.")
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
    name: Name

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"name": "forest giraffe"}}
    )


class Changed(BaseModel):
    version: Version
    name: str
    images: int = Field(ge=1)

    model_config = ConfigDict(
        json_schema_extra={"example": {"version": 9, "name": "forest giraffe", "images": 5}}
    )


# Sessions


class SessionOut(BaseModel):
    number: int = Field(ge=0)
    kind: Literal["fit", "learn", "forget", "rename"]
    classes: list[str] = Field(description="For rename: the old name and the new one. At most 100.")
    more: int = Field(ge=0, description="Classes that are left out here.")
    images: int = Field(ge=0)
    when: str = Field(description="UTC.")
    text: str


class Sessions(BaseModel):
    version: Version
    undoable: bool = Field(description="Whether the last change can be taken back.")
    sessions: list[SessionOut] = Field(
        description="The oldest first; what was undone is not in it."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "version": 8,
                "undoable": True,
                "sessions": [
                    {
                        "number": 1,
                        "kind": "learn",
                        "classes": ["okapi"],
                        "more": 0,
                        "images": 5,
                        "when": "2026-11-15T12:00:00Z",
                        "text": "learn of okapi",
                    }
                ],
            }
        }
    )


class Undone(BaseModel):
    version: Version
    undone: str

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"version": 9, "undone": "undone: the learn of okapi (2026-11-15T12:00:00Z)"}
        }
    )


# The model


class LimitsOut(BaseModel):
    body_bytes: int
    image_bytes: int
    pixels: int
    images: int
    classes: int
    name_length: int


class ModelOut(BaseModel):
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
    accuracy: float | None = Field(description="On images held out in training, a share of 1.")
    threshold: float | None = Field(
        description='The familiarity below which the answer is "none of these".'
    )
    notes: list[str]
    thumbnails: bool = Field(description="Whether thumbnails of taught images are kept.")
    token: Literal["none", "changes", "everything"] = Field(
        description="What a token is needed for."
    )
    limits: LimitsOut


class Place(BaseModel):
    name: str
    taught: bool
    before: Point
    after: Point


class Map(BaseModel):
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


class Health(BaseModel):
    status: Literal["alive"]


class Ready(BaseModel):
    status: Literal["ready"]
    version: Version
