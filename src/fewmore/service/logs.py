"""Write the log to stderr: as text for people, or one JSON object a line for programs."""

import json
import logging
from datetime import datetime, timezone
from typing import Literal

LogFormat = Literal["text", "json"]
LOGGERS = ("fewmore", "uvicorn")


class JSONFormatter(logging.Formatter):
    """Write a record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, logger and message, and the traceback where there is one."""
        when = datetime.fromtimestamp(record.created, timezone.utc)
        content = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def configure(log_format: LogFormat) -> None:
    """Send warnings and errors of the service and of uvicorn to stderr."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JSONFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING)
    # A broken form is the client's fault, and the response says so: no need to log it.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
