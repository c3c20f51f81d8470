"""List, teach, rename and forget classes; list and remove their images."""

import asyncio
import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Query, Request

from fewmore.classifier.classes import MAX_NAME_LENGTH, KnownClass, check_visible, clean_name
from fewmore.classifier.history import class_sessions
from fewmore.service.openapi import change_problems, problems
from fewmore.service.routes.dependencies import (
    FormName,
    ImageFiles,
    NewChange,
    QueryName,
    ServiceState,
    client_of,
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

    change: NewChange
    http: Request
    tasks: BackgroundTasks
    name: FormName
    images: ImageFiles


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
    service, store = sent.change.service, sent.change.service.store
    name = clean_name(sent.name)
    if new:
        check_visible(name)
    titles = image_titles(len(sent.images), name)
    images = await read_images(sent.images, titles, service.limits)
    digests = [hashlib.sha256(image).hexdigest() for image in images]
    request = sent.change.identify("teach" if new else "add", name, *digests)
    if (earlier := store.before_teaching(name, new, request)) is not None:
        return Taught(**service.respond(earlier, sent.change.response))
    embedding = service.batcher.embed(images, titles, client_of(sent.http))
    embedded = await unless_gone(sent.http, embedding)
    sent.tasks.add_task(store.thumbnails.write)  # after the response
    work = partial(store.teach, name, embedded, new, request)
    return Taught(**await sent.change.make(work))


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
    change: NewChange,
    name: QueryName,
    image: Annotated[
        str,
        Query(pattern="^[0-9a-f]{16}$", description="Its id.", examples=["00c3a1b2c3d4e5f6"]),
    ],
) -> Changed:
    """Remove one image from a class, as if it had never been taught."""
    request = change.identify("remove", name, image)
    work = partial(change.service.store.remove_image, name, hash_of(image), request)
    return Changed(**await change.make(work))


@router.patch("/api/classes", responses=change_problems(404, 409))
async def rename_class(change: NewChange, name: QueryName, new: NewName) -> Changed:
    """Give a class another name."""
    check_visible(clean_name(new.name))
    request = change.identify("rename", name, new.name)
    work = partial(change.service.store.rename, name, new.name, request)
    return Changed(**await change.make(work))


@router.delete("/api/classes", responses=change_problems(404, 409))
async def forget_class(change: NewChange, name: QueryName) -> Changed:
    """Forget a class."""
    request = change.identify("forget", name)
    return Changed(**await change.make(partial(change.service.store.forget, name, request)))
