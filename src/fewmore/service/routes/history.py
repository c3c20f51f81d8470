"""List the history of changes, and undo the last one. The API calls its steps sessions."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from fewmore.classifier.history import Change
from fewmore.service.openapi import change_problems, problems
from fewmore.service.routes.dependencies import NewChange, ServiceState
from fewmore.service.schemas import SessionOut, Sessions, Undone

MOST_NAMES = 100  # classes that one step of the history names

router = APIRouter(tags=["sessions"])


@router.get("/api/sessions", responses=problems(400, 422, 429, private=True))
async def list_sessions(
    service: ServiceState,
    before: Annotated[
        int, Query(ge=0, le=2**53, description="Only changes with smaller numbers than this.")
    ] = 2**53,
    limit: Annotated[int, Query(ge=1, le=1000, description="The latest ones, so many.")] = 100,
) -> Sessions:
    """List the changes that led to the current state: the latest, or those before a number."""
    class_set = service.store.current.model.class_set
    end = min(before, len(class_set.history))
    start = max(0, end - limit)
    return Sessions(
        version=class_set.version,
        undoable=bool(class_set.undo_steps),
        total=len(class_set.history),
        sessions=[
            _describe(start + number, change)
            for number, change in enumerate(class_set.history[start:end])
        ],
    )


def _describe(number: int, change: Change) -> SessionOut:
    return SessionOut(
        number=number,
        kind=change.kind,  # type: ignore[arg-type]
        classes=list(change.classes[:MOST_NAMES]),
        more=max(0, len(change.classes) - MOST_NAMES),
        images=change.images,
        when=change.when,
        text=str(change),
    )


@router.post("/api/sessions/undo", responses=change_problems(409))
async def undo_change(change: NewChange) -> Undone:
    """Undo the last change. With If-Match, only if that is the one that led to this version."""
    work = partial(change.service.store.undo, change.identify("undo"))
    return Undone(**await change.make(work))
