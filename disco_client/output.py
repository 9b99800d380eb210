"""Texts for people: what workers print, what a session reports, and records of its loggers.

Readers, keepers, senders and event loops have such texts, and none of them may fail or stand
still because of whoever reads the texts: standard error may be missing, closed, full, of an
encoding that lacks a character, or a pipe that nobody reads, and a program's own log sink or
handler may raise. So a `BackgroundWriter` has all of them written by a thread of its own. What
cannot be written is dropped and counted, and the number is written once something can be again.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import queue
import select
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeGuard

from disco_client.forks import leave_in_children
from disco_client.locks import make_lock
from disco_client.text import dropped, for_terminal, harmless, is_terminal
from disco_client.threads import start_thread, starts_none

__all__ = [
    "BackgroundWriter",
    "LogSink",
    "PrintedLines",
    "StandardError",
    "ThreadStreamBase",
    "drop_logs",
    "in_background",
    "logger_of",
    "print_logs",
    "say",
    "write_to",
]

LogSink: TypeAlias = Callable[[int, str, bool, list[str]], None]
"""Takes a worker, its node, whether it wrote to standard error, and the lines."""

_PROMPT_S = 1.0
"""How long a program's thread waits until its text is written, so that texts keep their order
beside those that the program writes itself. While a writer is behind, nobody waits."""

_MOST = 1 << 20
"""How many characters wait in a writer at most."""

_OF_A_TEXT = 64
"""What a text takes of that beyond its characters, about as much as in memory."""

_IDLE_S = 0.2
"""After how long without a text the thread of a writer ends; the next text starts another."""

_FLUSH_S = 1.0
"""How long the end of the interpreter waits for what is not written yet."""

_LOOK_MS = 1_000
"""How often a thread that waits for room looks whether its stream was closed."""

_here = threading.local()


@dataclass(slots=True)
class _WaitingText:
    """A text that waits, and how many lines of each source were dropped before it."""

    write: Callable[[], object]
    lines: int
    size: int
    source: Hashable
    before: Counter[Hashable]
    written: threading.Lock


class BackgroundWriter:
    """Writes texts in a thread of its own, so that its callers neither fail nor stand still.

    Any thread may use it, and a signal handler that interrupts one that does.

    Args:
        name: Of the thread.
        tell: Writes how many lines of a source were dropped.
        prompt_s: How long a caller waits for its text; 0 for not at all.
    """

    def __init__(
        self, name: str, tell: Callable[[Any, int], object], prompt_s: float = _PROMPT_S
    ) -> None:
        self._name, self._tell, self._prompt_s = name, tell, prompt_s
        self._begin()
        leave_in_children(self, BackgroundWriter._begin)

    def _begin(self) -> None:
        """Has no texts and no thread; also in a forked child, where locks may be held."""
        self._texts: queue.SimpleQueue[_WaitingText] = queue.SimpleQueue()
        self._running = threading.Lock()
        self._lock = make_lock("output")
        self._size = 0
        self._behind = False
        self._lost: Counter[Hashable] = Counter()

    def takes_more(self) -> bool:
        """Whether half of its room is free."""
        return self._size < _MOST // 2

    def pass_on(
        self,
        write: Callable[[], object],
        *,
        lines: int = 1,
        size: int = 0,
        source: Hashable = None,
    ) -> None:
        """Has something written, or counts it as dropped where too much waits already.

        Args:
            write: Writes it; may raise and may block.
            lines: How many lines are missing if it is not written.
            size: How many characters it has.
            source: Whose lines they are; None for nobody's.
        """
        size += _OF_A_TEXT
        with self._lock:
            if self._size and self._size + size > _MOST:
                self._lost[source] += lines
                return
            text = self._put(write, lines, size, source)
        self._start()
        if self._prompt_s and not self._behind and not hasattr(_here, "writes"):
            self._behind = not text.written.acquire(timeout=self._prompt_s)

    def _put(
        self, write: Callable[[], object], lines: int, size: int, source: Hashable
    ) -> _WaitingText:
        before, self._lost = self._lost, Counter()
        text = _WaitingText(write, lines, size, source, before, threading.Lock())
        text.written.acquire()
        self._size += size
        self._texts.put(text)
        return text

    def flush(self, seconds: float = _FLUSH_S) -> None:
        """Waits until everything is written that was passed on, at most so many seconds."""
        if self._size:
            with self._lock:
                last = self._put(lambda: None, 0, 0, None)
            self._start()
            last.written.acquire(timeout=seconds)

    # Its thread -----------------------------------------------------------------------------

    def _start(self) -> None:
        # The thread takes the lock itself: whoever starts it may be interrupted before it has.
        if self._running.locked():
            return
        try:
            start_thread(threading.Thread(target=self._serve, name=self._name, daemon=True))
        except RuntimeError as error:
            if not starts_none(error):
                raise  # a signal handler has raised it
            if self._running.acquire(blocking=False):
                self._run(0.0)

    def _serve(self) -> None:
        if self._running.acquire(blocking=False):
            _here.writes = True
            self._run(_IDLE_S)

    def _run(self, idle_s: float) -> None:
        while True:
            try:
                text = self._texts.get(timeout=idle_s)
            except queue.Empty:
                self._running.release()
                if self._texts.empty() or not self._running.acquire(blocking=False):
                    return
            else:
                self._write(text)

    def _write(self, text: _WaitingText) -> None:
        missing = text.before
        try:
            self._tell_of(missing)
            text.write()
            if self._texts.empty():
                with self._lock:
                    missing, self._lost = self._lost, missing
                self._tell_of(missing)
        except BaseException:  # noqa: BLE001  (whatever a stream or a program's sink raises)
            if missing is text.before:
                missing[text.source] += text.lines
        with self._lock:
            self._size -= text.size
            self._lost.update(missing)
        if self._texts.empty():
            self._behind = False
        text.written.release()

    def _tell_of(self, missing: Counter[Hashable]) -> None:
        for source, lines in tuple(missing.items()):
            if lines:
                self._tell(source, lines)
            del missing[source]


# A stream, which the program may replace at any time.


class ThreadStreamBase:
    """A stream in the place of another one, to which it passes on what this package writes.

    Attributes:
        inner: The other one; None where the process has none.
    """

    inner: Any


def write_to(stream: Any, text: str) -> None:
    r"""Writes to a stream; characters that its encoding lacks are written out, as in ``\xe9``.

    In the thread of a `BackgroundWriter` it may block. It holds no lock meanwhile if the stream
    is the usual one of a descriptor: the interpreter could not end.

    Args:
        stream: The stream.
        text: What to write, with the end of the last line.

    Raises:
        OSError: It cannot be written, or, in another thread, not at once.
        ValueError: There is no stream, or it is closed.
    """
    stream = _inner(stream)
    if stream is None:
        raise ValueError("this process has no such stream")
    encoding = getattr(stream, "encoding", None)
    if isinstance(encoding, str):
        data = text.encode(encoding, "backslashreplace")
        if _has_descriptor(stream):
            _write_whole(stream, data)
            return
        text = data.decode(encoding)
    stream.write(text)
    if hasattr(stream, "flush"):
        stream.flush()


def _inner(stream: Any) -> Any:
    while isinstance(stream, ThreadStreamBase):
        stream = stream.inner
    return stream


def _has_descriptor(stream: object) -> TypeGuard[io.TextIOWrapper]:
    """Whether a stream is no more than the text of a descriptor."""
    if type(stream) is not io.TextIOWrapper or not hasattr(select, "poll"):
        return False
    return type(stream.buffer) in (io.BufferedWriter, io.FileIO)


def _write_whole(stream: io.TextIOWrapper, data: bytes) -> None:
    """Writes past the buffers of a stream, in which what cannot be written would stay."""
    _await_room(stream)
    with contextlib.suppress(OSError):  # what the program has written is the program's
        stream.flush()
    rest = memoryview(data)
    while rest:
        _await_room(stream)
        with contextlib.suppress(BlockingIOError):
            rest = rest[os.write(stream.fileno(), rest[: select.PIPE_BUF]) :]


def _await_room(stream: io.TextIOWrapper) -> None:
    """Waits until a pipe takes as much as `select.PIPE_BUF` bytes."""
    patient = hasattr(_here, "writes")
    while True:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)  # the program may close it meanwhile
        if poll.poll(_LOOK_MS if patient else 0):
            return
        if not patient:
            raise BlockingIOError("nobody reads what was written before")


# Standard error and standard output.


def _print(name: str, text: str) -> None:
    stream = getattr(sys, name)
    write_to(stream, text if stream is None else f"{for_terminal(text, stream)}\n")


def _tell_of_lines(source: tuple[int, str] | None, lines: int) -> None:
    if source is None:
        _print("stderr", f"disco: {dropped(lines)}")
    else:
        print_logs(*source, True, [dropped(lines)])


_writers = {
    "stderr": BackgroundWriter("disco-stderr", _tell_of_lines),
    "stdout": BackgroundWriter(
        "disco-stdout", lambda _source, lines: _print("stdout", dropped(lines))
    ),
}


def say(text: str, stream: str = "stderr") -> None:
    """Writes a text for people and a line break; neither fails nor blocks.

    Args:
        text: On a terminal it cannot do more than be coloured.
        stream: ``stderr`` or ``stdout``.
    """
    lines = text.count("\n") + 1
    _writers[stream].pass_on(partial(_print, stream, text), lines=lines, size=len(text))


def drop_logs(worker: int, node: str, stderr: bool, lines: list[str]) -> None:
    """Discards workers' output."""


def print_logs(worker: int, node: str, stderr: bool, lines: list[str]) -> None:
    """Writes workers' output to this process's standard error, each line with its rank.

    On a terminal a line cannot do more than be coloured (see `disco_client.text.harmless`).

    Raises:
        OSError: It cannot be written.
        ValueError: There is no standard error, or it is closed.
    """
    del stderr
    stream = sys.stderr
    if is_terminal(stream):
        lines = [harmless(line, colours=True) for line in lines]
    write_to(stream, "".join(f"[worker {worker} {node}] {line}\n" for line in lines))


def in_background(sink: LogSink) -> LogSink:
    """A sink that has another one called; neither fails nor blocks.

    Args:
        sink: Takes the lines, and how many were dropped since it failed or blocked.
    """
    if sink is drop_logs:
        return sink

    def tell(source: tuple[int, str], lines: int) -> None:
        sink(*source, True, [dropped(lines)])

    writer = _writers["stderr"] if sink is print_logs else BackgroundWriter("disco-log-sink", tell)

    def pass_on(worker: int, node: str, stderr: bool, lines: list[str]) -> None:
        writer.pass_on(
            partial(sink, worker, node, stderr, lines),
            lines=len(lines),
            size=sum(map(len, lines)) + _OF_A_TEXT * len(lines),
            source=(worker, node),
        )

    return pass_on


class PrintedLines:
    """The sink of a session, which tells when lines were handed over.

    Args:
        owner: The session, which this need not know.
        sink: Another one, which is called as by `in_background`.

    Attributes:
        shown: Whether anything is done with lines.
        on_lines: Called with a worker, and with how many lines of it were handed over.
    """

    def __init__(self, owner: object = None, sink: LogSink | None = None) -> None:
        del owner
        self.shown: bool = sink is not None
        self.on_lines: Callable[[int, int], object] = lambda _worker, _count: None
        self._sink = in_background(sink or drop_logs)

    def __call__(self, worker: int, node: str, stderr: bool, lines: list[str]) -> None:
        """Hands lines over."""
        self._sink(worker, node, stderr, lines)
        self.on_lines(worker, len(lines))


class StandardError:
    """Standard error as a file, for libraries that draw on it; neither fails nor blocks."""

    def write(self, text: str) -> int:
        """Writes a text."""
        _writers["stderr"].pass_on(
            lambda: write_to(sys.stderr, text), lines=text.count("\n"), size=len(text)
        )
        return len(text)

    def flush(self) -> None:
        """Does nothing: every text is flushed."""

    def isatty(self) -> bool:
        """Whether it is a terminal; one that is closed is none."""
        try:
            return is_terminal(sys.stderr)
        except Exception:  # noqa: BLE001  (whatever a stream of the program's raises)
            return False

    def fileno(self) -> int:
        """Its descriptor, of which the width of a terminal is read.

        Raises:
            OSError: It has none.
        """
        try:
            return sys.stderr.fileno()
        except (AttributeError, ValueError) as error:
            raise io.UnsupportedOperation("fileno") from error

    @property
    def encoding(self) -> str:
        """Of which characters a drawing may be made."""
        return getattr(sys.stderr, "encoding", None) or "ascii"


# Loggers.


def _tell_of_records(_source: object, lines: int) -> None:
    logging.getLogger(__name__).warning("%s", dropped(lines))


_records = BackgroundWriter("disco-log-records", _tell_of_records)


def _handle(logger: logging.Logger, later: logging.Filterer, record: logging.LogRecord) -> None:
    if not (passed := later.filter(record)):
        return
    record = passed if isinstance(passed, logging.LogRecord) else record
    for each in _handlers_of(logger):
        # A handler holds its lock while it writes, and the interpreter could not end.
        stream = _inner(getattr(each, "stream", None))
        if _has_descriptor(stream):
            with contextlib.suppress(ValueError):  # the handler reports that
                _await_room(stream)
    logger.callHandlers(record)


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    found, at = list(logger.handlers), logger
    while at.propagate and at.parent is not None:
        at = at.parent
        found += at.handlers
    return found or [each for each in (logging.lastResort,) if each is not None]


class _HandOver(logging.Filter):
    """Has the handlers of a program called elsewhere: they may fail, and they may block."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the handlers may be called in this thread, as those of a daemon may be."""
        if any(getattr(each, "never_blocks", False) for each in logging.getLogger().handlers):
            return True
        later = logging.Filterer()
        later.filters = self._logger.filters[self._logger.filters.index(self) + 1 :]
        _records.pass_on(partial(_handle, self._logger, later, record))
        return False


def logger_of(name: str) -> logging.Logger:
    """A logger whose records neither fail nor block, whatever handlers the program has.

    Args:
        name: The logger's.
    """
    logger = logging.getLogger(name)
    if not any(isinstance(each, _HandOver) for each in logger.filters):
        logger.addFilter(_HandOver(logger))
    return logger


def _flush() -> None:
    for writer in (*_writers.values(), _records):
        writer.flush()


atexit.register(_flush)
