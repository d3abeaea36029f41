"""The server's log: one line a record, as text or as JSON.

    2026-01-31T12:00:00+0000 [INFO] [torsor] request request_id=a1 key=ci model=osm ... error=-
    {"time": "2026-01-31T12:00:00+0000", "level": "INFO", "logger": "torsor", "message": "request",
     "request_id": "a1", "key": "ci", "model": "osm", ..., "error": null}

What a record says while a request is answered carries the request's id.
"""

import json
import logging
import re
import sys
from typing import Any

from serve.gateway.request_log import current_request

DATE = "%Y-%m-%dT%H:%M:%S%z"
PLAIN = re.compile(r"[\w./:@,+-]+", re.ASCII)  # what needs no quotes in a text line


class TextFormatter(logging.Formatter):
    """A record as a line for people: the message, then NAME=VALUE; `-` is nothing."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s [%(levelname)s] [%(name)s] %(message)s", DATE)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, before a traceback."""
        words = [f"{name}={_shown(value)}" for name, value in _fields(record).items()]
        return " ".join([super().formatMessage(record), *words])


class JsonFormatter(logging.Formatter):
    """A record as one JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        page = {
            "time": self.formatTime(record, DATE),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            page["exception"] = self.formatException(record.exc_info)
        return json.dumps(page)


def configure_log(kind: str) -> None:
    """Write the log to stdout as "text" or "json"; as JSON, BentoML's own lines too."""
    formatter = JsonFormatter() if kind == "json" else TextFormatter()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter)
    ours = logging.getLogger("torsor")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)
    if kind == "json":
        for name in ("", "bentoml", "uvicorn.error"):
            for other in logging.getLogger(name).handlers:
                other.setFormatter(formatter)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    call = current_request()
    return fields if fields or call is None else {"request_id": call.request_id}


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    text = str(value)
    return text if PLAIN.fullmatch(text) and text != "-" else json.dumps(text)
