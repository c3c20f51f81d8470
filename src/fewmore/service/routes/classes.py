"""List, teach, rename and forget classes."""

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from fewmore.classifier.classes import MAX_NAME_LENGTH, KnownClass, clean_name
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.history import class_sessions
from fewmore.classifier.results import LearnResult
from fewmore.errors import StateError, UnknownName
from fewmore.service.idempotency import JSON, IdempotencyKey
from fewmore.service.openapi import change_problems, problems
from fewmore.service.operations import Operation, Result
from fewmore.service.routes.dependencies import (
    FormName,
    ImageFiles,
    KeyHeader,
    QueryName,
    ServiceState,
    read_images,
)
from fewmore.service.schemas import Changed, Classes, ClassOut, NewName, Taught

router = APIRouter(tags=["classes"])


@router.get("/api/classes", responses=problems(400, 422, 429, private=True))
async def list_classes(
    service: ServiceState,
    query: Annotated[
        str,
        Query(max_length=MAX_NAME_LENGTH, description="Only classes whose names contain this."),
    ] = "",
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Classes:
    """List the known classes in the order they were learned."""
    current = service.store.current
    sessions = class_sessions(current.history_)
    text = query.casefold()
    matching = [known for known in current.model.class_set.classes if text in known.name.casefold()]

    def describe(known: KnownClass) -> ClassOut:
        thumbnails = service.store.thumbnails.names(known.hashes)
        return ClassOut(
            name=known.name,
            images=known.count,
            taught=sessions[known.name] > 0,
            thumbnails=[f"/api/thumbnails/{thumbnail}" for thumbnail in thumbnails],
        )

    return Classes(
        version=current.version,
        total=len(matching),
        classes=[describe(known) for known in matching[offset : offset + limit]],
    )


@dataclass(frozen=True)
class LearnRequest:
    """Collect what the two routes that teach receive."""

    service: ServiceState
    response: Response
    name: FormName
    images: ImageFiles
    idempotency_key: KeyHeader = None


@router.post("/api/classes", responses=change_problems(409, 413))
async def teach(request: Annotated[LearnRequest, Depends()]) -> Taught:
    """Teach a new class from a few images. 200: it is on the disk; else nothing has changed."""
    return await _learn(request, new=True)


@router.post("/api/classes/images", responses=change_problems(404, 409, 413))
async def add_images(request: Annotated[LearnRequest, Depends()]) -> Taught:
    """Add images to a known class. Those that it already has are not counted again."""
    return await _learn(request, new=False)


async def _learn(request: LearnRequest, new: bool) -> Taught:
    """Embed the images in a batch with others, then learn the class in turn with other changes."""
    service = request.service
    store = service.store
    most_classes = service.limits.classes
    name = clean_name(request.name)
    images = await read_images(request.images, service.limits)
    digests = [hashlib.sha256(image).hexdigest() for image in images]
    route = "teach" if new else "add"
    key = IdempotencyKey.of(request.idempotency_key, route, name, *digests)
    if (earlier := service.repeated(key, request.response)) is not None:
        return Taught(**earlier)
    _check_name(store.current, name, new, most_classes)  # before the costly part
    titles = [f"image {number} of {name}" for number in range(1, len(images) + 1)]
    embedded = await service.batcher.embed(images, titles)
    operation = Operation("learn", (name,), embedded.hashes, embedded.features)

    def learn() -> JSON:
        if (earlier := service.repeated(key, request.response)) is not None:
            return earlier
        before = store.current
        _check_name(before, name, new, most_classes)  # again: others may have changed it meanwhile
        taught = store.change(operation, partial(_taught, name, before), key)
        store.thumbnails.add(zip(embedded.hashes, embedded.squares, strict=True))
        return taught

    return Taught(**await service.changes.run(learn))


def _check_name(classifier: IncrementalClassifier, name: str, new: bool, most_classes: int) -> None:
    """Refuse to teach a new class that is known, or to add images to one that is not."""
    known = classifier.names
    if new and name in known:
        raise StateError(
            f"'{name}' is the name of a class already: add images to that one, "
            "or choose another name"
        )
    if new and len(known) >= most_classes:
        raise StateError(f"{len(known):,} classes are known, and no more can be: forget some first")
    if not new and name not in known:
        raise UnknownName("class", name, known)


def _taught(
    name: str, before: IncrementalClassifier, changed: IncrementalClassifier, result: Result
) -> JSON:
    images = _image_count(changed, name)
    return Taught(
        version=changed.version,
        name=name,
        images=images,
        added=images - _image_count(before, name),
        warnings=result.warnings if isinstance(result, LearnResult) else [],
        session=len(changed.history_) - 1,
    ).model_dump()


def _image_count(classifier: IncrementalClassifier, name: str) -> int:
    classes = classifier.model.class_set.classes
    return next((known.count for known in classes if known.name == name), 0)


@router.patch("/api/classes", responses=change_problems(404, 409))
async def rename(
    service: ServiceState,
    response: Response,
    name: QueryName,
    new: NewName,
    idempotency_key: KeyHeader = None,
) -> Changed:
    """Give a class another name."""
    new_name = clean_name(new.name)
    key = IdempotencyKey.of(idempotency_key, "rename", name, new.name)

    def respond(changed: IncrementalClassifier, _: Result) -> JSON:
        images = _image_count(changed, new_name)
        return {"version": changed.version, "name": new_name, "images": images}

    operation = Operation("rename", (name, new_name))
    return Changed(**await service.change(operation, respond, key, response))


@router.delete("/api/classes", responses=change_problems(404, 409))
async def forget(
    service: ServiceState,
    response: Response,
    name: QueryName,
    idempotency_key: KeyHeader = None,
) -> Changed:
    """Forget a class."""
    key = IdempotencyKey.of(idempotency_key, "forget", name)

    def respond(changed: IncrementalClassifier, _: Result) -> JSON:
        last = changed.history_[-1]
        return {"version": changed.version, "name": last.classes[0], "images": last.images}

    return Changed(**await service.change(Operation("forget", (name,)), respond, key, response))
