"""What the worker logs: a line for people, or a JSON object for programs, to standard error."""

import json
import logging
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["plain", "json"]

# What every record has; the rest was given with extra=.
_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


def set_up_logging(level: str, log_format: str) -> None:
    """Log everything of this level and above. An application may set up its own over it."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _PlainFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _PlainFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002
        return _moment(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD | line.keys()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return f"{{{', '.join(f'{json.dumps(name)}: {_to_json(value)}' for name, value in line.items())}}}"


def _to_json(value: object) -> str:
    try:
        return json.dumps(value, default=repr, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # Whatever an application gives as extra=, the line must not get lost.
        return json.dumps(repr(value))


def _moment(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03}Z"
