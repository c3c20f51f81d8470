"""List, teach, rename and forget classes; list and remove their images."""

import asyncio
import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Query, Response
from fastapi import Request as HTTPRequest

from fewmore.classifier.classes import MAX_NAME_LENGTH, KnownClass, check_visible, clean_name
from fewmore.classifier.history import class_sessions
from fewmore.service.idempotency import IdempotencyKey, Request
from fewmore.service.openapi import change_problems, problems
from fewmore.service.routes.dependencies import (
    FormName,
    ImageFiles,
    KeyHeader,
    QueryName,
    ServiceState,
    VersionHeader,
    client_of,
    expected_version,
    image_titles,
    read_images,
    unless_gone,
)
from fewmore.service.schemas import (
    Changed,
    Classes,
    ClassImages,
    ClassOut,
    ImageOut,
    NewName,
    Taught,
)
from fewmore.service.thumbnails import hash_of, thumbnail_name

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
    http: HTTPRequest
    response: Response
    tasks: BackgroundTasks
    name: FormName
    images: ImageFiles
    idempotency_key: KeyHeader = None
    if_match: VersionHeader = None


@router.post("/api/classes", responses=change_problems(409))
async def teach_class(request: Annotated[LearnRequest, Depends()]) -> Taught:
    """Teach a new class from a few images. 200: it is on the disk; else nothing has changed."""
    return await _teach(request, new=True)


@router.post("/api/classes/images", responses=change_problems(404, 409))
async def add_images(request: Annotated[LearnRequest, Depends()]) -> Taught:
    """Add images to a known class. Those that it already has are not counted again."""
    return await _teach(request, new=False)


async def _teach(sent: LearnRequest, new: bool) -> Taught:
    """Embed the images in a batch with others, then learn the class in turn with other changes."""
    service, store = sent.service, sent.service.store
    name = clean_name(sent.name)
    if new:
        check_visible(name)
    titles = image_titles(len(sent.images), name)
    images = await read_images(sent.images, titles, service.limits)
    digests = [hashlib.sha256(image).hexdigest() for image in images]
    key = IdempotencyKey.of(sent.idempotency_key, "teach" if new else "add", name, *digests)
    request = Request(key, expected_version(sent.if_match))
    if (earlier := store.before_teaching(name, new, request)) is not None:
        return Taught(**service.respond(earlier, sent.response))
    embedding = service.batcher.embed(images, titles, client_of(sent.http))
    embedded = await unless_gone(sent.http, embedding)
    sent.tasks.add_task(store.thumbnails.write)  # after the response
    work = partial(store.teach, name, embedded, new, request)
    return Taught(**await service.change(work, sent.response))


@router.get("/api/classes/images", responses=problems(400, 404, 409, 422, 429, private=True))
async def list_images(
    service: ServiceState,
    name: QueryName,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> ClassImages:
    """List the images of a class: first those with a thumbnail, then by their ids."""
    store = service.store
    class_set = store.current.model.class_set
    known = class_set.classes[class_set.index(name)]
    removable = await asyncio.to_thread(store.removable, known)
    ids = {thumbnail_name(digest): digest for digest in known.hashes}
    ordered = sorted(ids, key=lambda name: (name not in store.thumbnails, name))
    return ClassImages(
        version=class_set.version,
        name=known.name,
        images=known.count,
        total=len(ordered),
        listed=[
            ImageOut(
                id=image,
                thumbnail=f"/api/thumbnails/{image}" if image in store.thumbnails else None,
                removable=ids[image] in removable and known.count > 1,
            )
            for image in ordered[offset : offset + limit]
        ],
    )


@router.delete("/api/classes/images", responses=change_problems(404, 409))
async def remove_image(
    service: ServiceState,
    response: Response,
    name: QueryName,
    image: Annotated[
        str,
        Query(pattern="^[0-9a-f]{16}$", description="Its id.", examples=["00c3a1b2c3d4e5f6"]),
    ],
    idempotency_key: KeyHeader = None,
    if_match: VersionHeader = None,
) -> Changed:
    """Remove one image from a class, as if it had never been taught."""
    key = IdempotencyKey.of(idempotency_key, "remove", name, image)
    request = Request(key, expected_version(if_match))
    work = partial(service.store.remove_image, name, hash_of(image), request)
    return Changed(**await service.change(work, response))


@router.patch("/api/classes", responses=change_problems(404, 409))
async def rename_class(
    service: ServiceState,
    response: Response,
    name: QueryName,
    new: NewName,
    idempotency_key: KeyHeader = None,
    if_match: VersionHeader = None,
) -> Changed:
    """Give a class another name."""
    check_visible(clean_name(new.name))
    key = IdempotencyKey.of(idempotency_key, "rename", name, new.name)
    request = Request(key, expected_version(if_match))
    work = partial(service.store.rename, name, new.name, request)
    return Changed(**await service.change(work, response))


@router.delete("/api/classes", responses=change_problems(404, 409))
async def forget_class(
    service: ServiceState,
    response: Response,
    name: QueryName,
    idempotency_key: KeyHeader = None,
    if_match: VersionHeader = None,
) -> Changed:
    """Forget a class."""
    key = IdempotencyKey.of(idempotency_key, "forget", name)
    request = Request(key, expected_version(if_match))
    work = partial(service.store.forget, name, request)
    return Changed(**await service.change(work, response))
