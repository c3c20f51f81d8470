"""Take over the journal in which an earlier version stored changes: once, and nothing is lost."""

import hashlib
import logging
from pathlib import Path

from fewmore.errors import ModelFileError
from fewmore.io import sync_folder, write_bytes
from fewmore.service.database import Database
from fewmore.service.journal import Journal

log = logging.getLogger("fewmore.service")


def journal_path(model: Path) -> Path:
    """Return the journal that an earlier version kept beside a model file."""
    return model.with_name(model.name + ".journal")


def take_over_journal(database: Database, model: Path, remove: bool = True) -> None:
    """Store the journal's changes and responses in the database, then remove the journal.

    After a crash between the two, the database says that it has this journal.
    """
    path = journal_path(model)
    if not path.exists():
        return
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if database.meta("journal") != digest:
        journal = Journal.parse(data)
        whole = [operation for operation in journal.operations if operation is not None]
        if len(whole) < len(journal.operations):
            raise ModelFileError(
                f"{path} is damaged, with whole changes behind that: "
                f"fewmore repair {model.name} saves what can be read"
            )
        if journal.tail and remove:
            kept = path.with_name(path.name + ".damaged")
            write_bytes(kept, data)
            log.warning(
                "%s ends with %s bytes that are no whole change: a crash cut it short, or it is "
                "damaged; it is kept as %s",
                path,
                f"{len(journal.tail):,}",
                kept.name,
            )
        database.take_over(digest, journal.backbone, whole, journal.states, journal.responses)
    if remove:
        path.unlink()
        sync_folder(path.parent)
