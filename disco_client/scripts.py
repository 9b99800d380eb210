"""A script that was written for torchrun, run on every rank of a session."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from disco_client.awaited_lines import AwaitedLines
from disco_client.core import core_of
from disco_client.errors import ConfigError, DiscoError
from disco_client.imports_beside import imports_beside
from disco_client.modules import bring
from disco_client.output import in_background, print_logs
from disco_client.waiting import Deadline

if TYPE_CHECKING:
    from disco_client.core import DRef, SessionCore
    from disco_client.futures import RefFuture
    from disco_client.session import Session

__all__ = ["run_script"]

_OTHERS_S = 2.0
"""How long the script may run on the other ranks when it has failed on one."""

_OUTPUT_S = 5.0
"""How long the output of ranks is awaited after the script has ended on them."""


@dataclass(frozen=True, slots=True)
class _ScriptEnd:
    """How a script has ended on a rank.

    Attributes:
        worker: The rank.
        status: The exit code.
        lines: How many lines it has printed.
        text: What Python would have printed at its end, or "".
    """

    worker: int
    status: int
    lines: int
    text: str


def run_script(session: Session, script: Path, arguments: Sequence[str]) -> int:
    """Runs a script on every rank, as torchrun does, and shows how it ends.

    Brings the script, and the modules and packages beside it that it imports, to the workers.
    When it has failed on a rank, the others have two seconds to end as well; then this returns,
    and it may still run there until the session ends.

    Args:
        session: The session, of processes. Nothing else may use it meanwhile.
        script: The file.
        arguments: What follows the script in ``sys.argv``.

    Returns:
        The exit code: 0, or that of the rank on which it failed first.

    Raises:
        ConfigError: The name of the file does not end in ``.py``, or a module beside it cannot be
            brought.
        OSError: A file cannot be read.
        NotAllowed: A worker's settings do not let sessions load what clients bring.
        CclError: A worker lacks torch, or the ranks cannot reach each other.
        RemoteError: The command was interrupted.
        SessionError: The session is closed or lost.
        KeyboardInterrupt: Ctrl-C, which the ranks have been told of.
    """
    if script.suffix != ".py":
        msg = f"expected a Python file, whose name ends in .py, got {str(script)!r}"
        raise ConfigError(msg)
    core, file = core_of(session), script.absolute()
    core.check_may_wait("await asyncio.to_thread(run_script, session, script, arguments)")
    for each in imports_beside(script):
        session.include(each)
    digest = bring(core, file)
    with AwaitedLines(core) as printed:
        run = core.call_builtin(
            "runtime.disco._run_script", str(file), digest, str(script), [*arguments]
        )
        ends: list[_ScriptEnd] = []
        try:
            _await_ends(run, core.num_workers, ends)
        except KeyboardInterrupt:
            _interrupt(session, printed)
            raise
        except DiscoError:
            _tell(core, ends)
            raise
        printed.wait({each.worker: each.lines for each in ends}, _OUTPUT_S)
    return _tell(core, ends)


def _await_ends(run: DRef, num_workers: int, ends: list[_ScriptEnd]) -> None:
    """Waits until the script has ended on all ranks, or failed on one.

    Args:
        run: The command.
        num_workers: How many ranks there are.
        ends: Gets the end on each of them, in the order in which they come.
    """
    done: SimpleQueue[tuple[int, RefFuture]] = SimpleQueue()
    for worker in range(num_workers):
        run.future(worker).when_done(partial(_put, done, worker))
    deadline: Deadline | None = None
    while len(ends) < num_workers:
        try:
            left = None if deadline is None else deadline.remaining()
            worker, future = done.get(timeout=left)
        except queue.Empty:
            return
        ends.append(_ScriptEnd(worker, *future.result()))
        if ends[-1].status and deadline is None:
            # They may wait for it in a library. Of a rank that was lost, the session learns soon.
            deadline = Deadline(_OTHERS_S)


def _put(done: SimpleQueue[tuple[int, RefFuture]], worker: int, future: RefFuture) -> None:
    done.put((worker, future))


def _interrupt(session: Session, printed: AwaitedLines) -> None:
    """Ends the script on all ranks that are not inside of a library, and shows their last lines."""
    core = core_of(session)
    # In a scope of its own, because this one knows what was interrupted.
    with contextlib.suppress(DiscoError), session.scope():
        if not session.interrupt(grace=_OTHERS_S):
            lines = core.call_builtin("runtime.disco._printed_by_cell").get_all(_OTHERS_S)
            printed.wait(dict(enumerate(lines)), _OUTPUT_S)


def _tell(core: SessionCore, ends: Sequence[_ScriptEnd]) -> int:
    """Shows what is to be printed at the end on each rank; the exit code."""
    nodes = {place.worker: place.node for place in core.welcome.ranks}
    show = in_background(print_logs)
    for each in ends:
        if each.text:
            show(each.worker, nodes[each.worker], True, each.text.splitlines())
    return next((each.status for each in ends if each.status), 0)
