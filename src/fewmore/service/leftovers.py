"""Remove the temporary files that killed processes left beside a model file."""

import os
import re
from contextlib import suppress
from pathlib import Path

from fewmore.service.thumbnails import thumbnail_folder

# As `fewmore.io.write_bytes` names them.
TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)-\d+")


def remove_leftovers(model: Path) -> None:
    """Remove half-written files of this model. Its lock must be held."""
    for folder in (model.parent, thumbnail_folder(model)):
        with suppress(OSError):
            for path in folder.iterdir():
                found = TEMPORARY.fullmatch(path.name)
                own = found is not None and (folder != model.parent or found["name"] == model.name)
                if found is not None and own and not _runs(int(found["process"])):
                    path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Return whether another process of this number runs."""
    if process == os.getpid():
        return False  # in a container, the process before had this number as well
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
