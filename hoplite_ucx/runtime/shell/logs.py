"""How an agent's or a directory's process logs: from which level on, where to, as text or as JSON lines.

Every line names the process and its node. A line about an object has its ref: `extra=about(ref)` puts it there. A file
that is moved away, as by logrotate, is opened anew.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hoplite_ucx.settings.errors import ConfigurationError

if TYPE_CHECKING:
    from hoplite_ucx.runtime.settings import LogSettings

__all__ = ["about", "begin_logging"]

_log = logging.getLogger("hoplite")
_MOST_REFS = 8


def about(*refs: bytes) -> dict[str, Any]:
    """The `extra` of a line about these objects."""
    return {"refs": [ref.hex() for ref in refs[:_MOST_REFS]]}


def begin_logging(settings: LogSettings, process: str, node: str) -> None:
    """For the rest of this process's life. Raises a `ConfigurationError` if the file cannot be written."""
    handler: logging.Handler
    if settings.file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            handler = logging.handlers.WatchedFileHandler(settings.file, encoding="utf-8")
        except OSError as error:
            remedy = "name a file that this user may write, or leave it out"
            raise ConfigurationError(settings.file, "log.file", f"cannot be written: {error}", remedy) from error
    handler.setFormatter((_Lines if settings.format == "json" else _Text)(process, node))
    for old in list(_log.handlers):
        _log.removeHandler(old)
    _log.addHandler(handler)
    _log.setLevel(settings.level.upper())
    _log.propagate = False


class _Text(logging.Formatter):
    def __init__(self, process: str, node: str) -> None:
        super().__init__()
        self._who = f"{process} {node}" if node else process

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        missing = [ref for ref in getattr(record, "refs", ()) if ref not in message]
        named = f" (ref {', '.join(missing)})" if missing else ""
        when = _moment(record).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        line = f"{when} {record.levelname.lower()} {self._who}: {_one_line(message)}{named}"
        return f"{line}\n{_trace(record)}" if record.exc_info else line


class _Lines(logging.Formatter):
    def __init__(self, process: str, node: str) -> None:
        super().__init__()
        self._facts = {"process": process, "node": node, "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _moment(record).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._facts,
            "message": record.getMessage(),
        }
        if refs := getattr(record, "refs", ()):
            line["ref"] = refs[0]
            line["refs"] = refs
        if record.exc_info:
            line["exception"] = _trace(record)
        return json.dumps(line)


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _trace(record: logging.LogRecord) -> str:
    assert record.exc_info is not None
    return "".join(traceback.format_exception(*record.exc_info)).rstrip()


def _one_line(text: str) -> str:
    """What others sent may be in it."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
