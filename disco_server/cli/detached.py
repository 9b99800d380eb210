"""A cluster of this machine that goes on when the terminal is closed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, SessionError
from disco_client.transport.contexts import Context, Contexts
from disco_client.wire.reports import RankState
from disco_server.observe.processes import process_fields, process_state

__all__ = ["DETACHED", "Detached", "start_detached", "stop_detached"]

DETACHED = "local"
"""The name of its context."""

_START_TIME = 19
"""Which field behind a process's name says when it was started; proc(5), field 22."""

_STOP_S = 30.0
_LOOK_S = 0.05
_LAST_LINES = 5


class Detached(NamedTuple):
    """A cluster that was started.

    Attributes:
        about: What ``disco local --json`` says of it.
        pid: The process that ends it.
        log: The file of its log.
    """

    about: dict[str, Any]
    pid: int
    log: Path


def _log_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(base) if base.startswith("/") else Path("~/.local/state").expanduser()
    return folder / "disco" / "local.log"


def _started_at(pid: int) -> int:
    """When a process was started, which another one with its number was not; 0 if unknown."""
    try:
        return int(process_fields(pid)[_START_TIME])
    except (OSError, IndexError, ValueError):
        return 0


def _runs(context: Context) -> bool:
    """Whether the process of a context's cluster has not ended."""
    pid, started = context.process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's has its number now
        return False
    if process_state(pid) is RankState.ENDED:
        return False
    return not started or _started_at(pid) == started


def start_detached(options: Sequence[str]) -> Detached:
    """Starts a cluster, waits until it is ready, and makes it the current context.

    Args:
        options: Of ``disco local``.

    Raises:
        ConfigError: One runs already, the name of its context is taken, or a file cannot be
            written.
        SessionError: It ended before it was ready.
    """
    contexts = Contexts.read()
    former = contexts.entries.get(DETACHED)
    if former is not None and not former.process:
        msg = f"the context {DETACHED!r} is {former.address}; disco context remove {DETACHED}"
        raise ConfigError(msg)
    if former is not None and _runs(former):
        msg = f"a detached cluster runs already, at {former.address}; disco local --stop stops it"
        raise ConfigError(msg)
    log = _log_file()
    process, said = _spawn(options, log)
    if not said:
        status = process.wait()
        last = " / ".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        msg = f"the cluster ended with status {status} before it was ready: {last}"
        raise SessionError(msg)
    about = json.loads(said)
    contexts.add(
        DETACHED, Context(about["address"], process=(process.pid, _started_at(process.pid)))
    )
    contexts.current = DETACHED
    try:
        contexts.write()
    except ConfigError:
        process.send_signal(signal.SIGTERM)
        raise
    return Detached(about, process.pid, log)


def _spawn(options: Sequence[str], log: Path) -> tuple[subprocess.Popen[str], str]:
    """Starts it; returns what it said when it was ready, or nothing where it ended."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = log.open("w")
    except OSError as error:
        msg = f"{log} cannot be written: {error.strerror}"
        raise ConfigError(msg) from None
    with file:
        process = subprocess.Popen(
            [sys.executable, "-m", "disco_server.cli.main", "local", *options, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,  # a closed terminal does not end it
        )
    assert process.stdout is not None  # noqa: S101  (it was asked for)
    with process.stdout as said:
        try:
            return process, said.readline()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise


def stop_detached() -> str:
    """Stops the cluster and waits for its end; its context is removed.

    Returns:
        The address that it had.

    Raises:
        ConfigError: There is none.
        SessionError: It does not end.
    """
    contexts = Contexts.read()
    found = contexts.entries.get(DETACHED)
    if found is None or not found.process:
        msg = "expected a detached cluster to stop, there is none: disco local --detach starts one"
        raise ConfigError(msg)
    if _runs(found):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.process[0], signal.SIGTERM)
    deadline = monotonic() + _STOP_S
    while _runs(found):
        if monotonic() > deadline:
            msg = f"process {found.process[0]} did not end within {_STOP_S:g} s; see {_log_file()}"
            raise SessionError(msg)
        time.sleep(_LOOK_S)
    contexts = Contexts.read()
    contexts.remove(DETACHED)
    contexts.write()
    return found.address
