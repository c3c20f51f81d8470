"""Show thumbnails of taught images."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Response
from starlette.exceptions import HTTPException

from fewmore.service.openapi import file_response, problems
from fewmore.service.routes.dependencies import ServiceState

CACHE_FOR_EVER = "private, max-age=31536000, immutable"  # the name is a content hash

router = APIRouter(tags=["classes"])


@router.get(
    "/api/thumbnails/{thumbnail}",
    response_class=Response,
    responses={
        200: file_response("image/jpeg", "96 pixels a side."),
        **problems(400, 404, 422, 429, private=True),
    },
)
async def show_thumbnail(
    service: ServiceState,
    thumbnail: Annotated[str, Path(pattern="^[0-9a-f]{16}$", examples=["00c3a1b2c3d4e5f6"])],
) -> Response:
    """Show a small copy of a taught image."""
    content = await asyncio.to_thread(service.store.thumbnails.read, thumbnail)
    if content is None:
        raise HTTPException(
            404, f"there is no thumbnail {thumbnail}: GET /api/classes names those that are there"
        )
    return Response(content, media_type="image/jpeg", headers={"Cache-Control": CACHE_FOR_EVER})
