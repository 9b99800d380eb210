"""Log lines for people and for machines, on the standard library's logging.

A daemon calls `setup` once. Code that logs about a session, a rank, a command or
a node binds those to its logger (`bind`), and they appear in every record: at the
end of a text line, as members of a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from disco_client.clock import monotonic
from disco_client.errors import ConfigError
from disco_client.output import BackgroundWriter, logger_of, write_to
from disco_client.telemetry.spans import active_ids
from disco_client.text import dropped, harmless

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "AUDIT_LOGGER",
    "FIELDS",
    "BoundLogger",
    "JsonFormatter",
    "TextFormatter",
    "bind",
    "is_farewell",
    "record",
    "refusals",
    "setup",
    "setup_audit",
    "takes_more",
    "time_text",
]


FIELDS: Final = ("session", "rank", "seq", "node")
"""The fields that daemons bind; they are shown first and in this order."""

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every record has by itself, as opposed to those that were bound."""


def _time_of(record: logging.LogRecord) -> str:
    return time_text(record.created)


def time_text(seconds: float) -> str:
    """A time since 1970 in UTC with milliseconds, as ISO 8601 writes it."""
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What was bound to a record, the fields of `FIELDS` first; None counts as absent."""
    bound = {k: v for k, v in vars(record).items() if k not in _OWN and v is not None}
    first = {name: bound.pop(name) for name in FIELDS if name in bound}
    return first | bound


_TRACE: Final = ("trace_id", "span_id")
"""The fields for machines that join logs with spans."""


class TextFormatter(logging.Formatter):
    """One line a record: time, level, logger, message, then the bound fields.

    A traceback follows on lines of its own, each indented, so that a line
    which starts with a time is always a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record, without a newline at its end."""
        head = f"{_time_of(record)} {record.levelname:<7} {record.name}: "
        line = head + harmless(record.getMessage())
        for name, value in _fields_of(record).items():
            if name in _TRACE:
                continue
            text = harmless(str(value))
            quoted = json.dumps(text, ensure_ascii=False) if re.search(r'[\s"=]|^$', text) else text
            line += f" {name}={quoted}"
        for block in _traces(self, record):
            line += "".join(f"\n    {part}" for part in block.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message and the bound fields.

    Of a record that belongs to a span it has ``trace_id`` and ``span_id`` too.

    It is all ASCII: some readers of lines also break them at Unicode's line
    separators, and a stream's encoding may lack other characters. A traceback
    is the member ``exception``. A bound value that JSON cannot hold is written
    as its text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the JSON object of a record, on one line."""
        entry: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _fields_of(record).items():
            entry.setdefault(name, value)
        if "trace_id" not in entry:
            entry |= active_ids()
        if blocks := _traces(self, record):
            entry["exception"] = "\n".join(blocks)
        return json.dumps(entry, default=str)


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    blocks: list[str] = []
    if record.exc_info:
        blocks.append(formatter.formatException(record.exc_info))
    elif record.exc_text:
        blocks.append(record.exc_text)
    if record.stack_info:
        blocks.append(formatter.formatStack(record.stack_info))
    return blocks


class BoundLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds its fields to every record; `bind` makes one."""

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        """Adds the bound fields to a call's own `extra`, which wins."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def bind(logger: logging.Logger | BoundLogger, **fields: object) -> BoundLogger:
    """Returns a logger whose records carry these fields.

    Args:
        logger: A plain logger, or a bound one, whose fields are kept unless
            they are given anew.
        **fields: Usually some of `FIELDS`; a field that is None is not shown.

    Raises:
        ValueError: A field has a name that every record has already.
    """
    if taken := fields.keys() & _OWN:
        raise ValueError(f"every log record has its own {', '.join(sorted(taken))}")
    if isinstance(logger, BoundLogger):
        before = cast("Mapping[str, object]", logger.extra or {})
        return BoundLogger(logger.logger, {**before, **fields})
    return BoundLogger(logger, fields)


def is_farewell(record: logging.LogRecord) -> bool:
    """Whether a record is gRPC's about a call that a stopping server cuts short.

    It may write one, with a traceback, for a stream that is open at the end, as some are
    whenever a daemon stops.
    """
    if not record.name.startswith("grpc."):
        return False
    cancelled = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return cancelled or "due to server stop" in str(record.msg)


class _Handler(logging.Handler):
    """The handler `setup` installs: an event loop may log, whoever reads the log.

    Args:
        stream: Where to write; None for standard error.
    """

    never_blocks = True

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        self.writer = BackgroundWriter("disco-log", self._tell, prompt_s=0.0)

    def emit(self, record: logging.LogRecord) -> None:
        """Passes on the text of a record, which is made at once: it tells of the active span."""
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001  (a record that cannot be formatted)
            text = f"a record of {record.name} cannot be written: {error!r}"
        self.writer.pass_on(partial(self._write, text), size=len(text), lines=text.count("\n") + 1)

    def _write(self, text: str) -> None:
        write_to(sys.stderr if self._stream is None else self._stream, text + "\n")

    def _tell(self, _source: object, lines: int) -> None:
        said = f"{dropped(lines)}, because nobody read this log or it could not be written"
        level = logging.WARNING
        self._write(self.format(logging.LogRecord("disco", level, "", 0, said, None, None)))

    def flush(self) -> None:
        """Waits a second at most until everything is written."""
        self.writer.flush()


def takes_more() -> bool:
    """Whether the log has room for what ranks print, of which the daemon's own lines need some."""
    handlers = logging.getLogger().handlers
    return all(each.writer.takes_more() for each in handlers if isinstance(each, _Handler))


def setup(level: str = "info", fmt: str = "text", stream: TextIO | None = None) -> logging.Handler:
    """Makes this process log; called again, it replaces what it set up before.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        fmt: ``text`` or ``json``.
        stream: Where to write; by default this process's standard error.

    Returns:
        The handler, already on the root logger.

    Raises:
        ConfigError: The level or the format is none of the above.
    """
    formats = {"text": TextFormatter, "json": JsonFormatter}
    levels = ("debug", "info", "warning", "error")
    if level not in levels:
        raise ConfigError(f"log_level: expected one of {', '.join(levels)}, got {level!r}")
    if fmt not in formats:
        raise ConfigError(f"log_format: expected one of {', '.join(formats)}, got {fmt!r}")
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    handler = _Handler(stream)
    handler.setFormatter(formats[fmt]())
    handler.addFilter(lambda record: not is_farewell(record))
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


# The audit log: which caller did what, from where, and whether it was allowed.
#
# Its lines are records of the logger ``disco.audit``, with the fields below bound. They
# hold names and paths, and never secrets.


AUDIT_LOGGER: Final = "disco.audit"

_logger = logger_of(AUDIT_LOGGER)
_MAX_TEXT: Final = 500
_REFUSALS_A_SECOND: Final = 20


def record(
    event: str,
    *,
    who: str = "",
    peer: str = "",
    what: str = "",
    session: str = "",
    outcome: str = "allowed",
    **more: object,
) -> None:
    """Writes one line to the audit log.

    Args:
        event: What happened, as ``session created``.
        who: The caller.
        peer: The caller's address.
        what: The object: a name, a path.
        session: The session's name.
        outcome: ``allowed``, or why it was refused.
        **more: Other fields, such as the node.
    """
    level = logging.INFO if outcome == "allowed" else logging.WARNING
    given = {"who": who, "peer": peer, "what": what, "session": session, "outcome": outcome}
    fields = {name: text[:_MAX_TEXT] for name, text in given.items() if text}
    _logger.log(level, "%s", event, extra={**more, **fields})


class Refusals:
    """Writes lines about refusals, so many per second at most: they cannot fill the disk."""

    def __init__(self) -> None:
        self._second = 0.0
        self._written = 0
        self._left_out = 0

    def record(self, event: str, **fields: Any) -> None:
        """Writes a line, or counts it."""
        now = monotonic()
        if now - self._second >= 1.0:
            left_out, self._left_out = self._left_out, 0
            self._second, self._written = now, 0
            if left_out:
                record("refused", outcome=f"{left_out} more refusals were not written")
        self._written += 1
        if self._written > _REFUSALS_A_SECOND:
            self._left_out += 1
            return
        record(event, **fields)


refusals: Final = Refusals()


def setup_audit(file: Path | None) -> None:
    """Sends the audit lines to a file of their own, whatever else is logged.

    Args:
        file: The file; it is reopened after it was moved away. None leaves the lines in the
            log.

    Raises:
        ConfigError: It cannot be written.
    """
    if file is None:
        return
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        handler = logging.handlers.WatchedFileHandler(file)
    except OSError as error:
        raise ConfigError(f"audit_log: {file} cannot be written: {error.strerror}") from None
    handler.setFormatter(JsonFormatter())
    _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
