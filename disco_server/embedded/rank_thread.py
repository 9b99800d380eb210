"""One worker as a thread of the client's process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from disco_client.errors import WorkerLost, worker_lost
from disco_client.transport.base import Events, OutgoingBatch
from disco_client.wire.codec import Kind
from disco_client.wire.flight_cuts import Since
from disco_client.wire.inspection import RankReport, RankState
from disco_client.wire.porter import ArrayPorter
from disco_server.embedded.loans import Loans
from disco_server.embedded.output import RankOutput
from disco_server.observe.inspect import report_cut, report_memory
from disco_server.runtime.context import Worker, set_current_worker
from disco_server.runtime.executor import Executor

__all__ = ["RankThread"]

_POLL_S = 0.001

_Given: TypeAlias = "OutgoingBatch | threading.Lock | Kind | None"
OnDeath = Callable[[WorkerLost], None]


class _Ended(BaseException):
    """Raised inside a worker thread whose session is over."""


class RankThread(ArrayPorter):
    """Runs one rank; what it is given are objects, and so is what it answers.

    Args:
        worker: The rank.
        events: Where answers and output go.
        on_death: Told when the thread ended by itself, which ends the session.
    """

    def __init__(self, worker: Worker, events: Events, on_death: OnDeath) -> None:
        self._worker = worker
        self._events = events
        self._on_death = on_death
        self._inbox: SimpleQueue[_Given] = SimpleQueue()
        self._output = RankOutput(self._emit)
        self._ending = False
        self.loans = Loans()
        self._thread = threading.Thread(
            target=self._run, name=f"{worker.session_name}-rank-{worker.worker_id}", daemon=True
        )

    def start(self) -> None:
        """Begins to execute."""
        self._thread.start()

    def give(self, given: _Given) -> None:
        """Adds commands to execute, or what to do after those before.

        Args:
            given: Commands; a lock to free; Kind.OPEN_CCL, to open the communicator
                because a peer did; or None, which lets the rank leave.
        """
        self._inbox.put(given)

    # The rank's own thread ----------------------------------------------------------

    def _run(self) -> None:
        set_current_worker(self._worker)
        self._output.attach()
        try:
            self._serve()
        except _Ended:
            pass
        except BaseException as error:  # noqa: BLE001  (whatever a called function raised)
            self._die(error)
        finally:
            self._output.close()
            self._worker.close()
            set_current_worker(None)
            self.free_gates()

    def _serve(self) -> None:
        executor = Executor(self._worker, self)
        while not self._ending and not executor.stopped:
            given = self._next()
            if given is None:
                return
            if isinstance(given, OutgoingBatch):
                executor.run_decoded(given)
            elif given is Kind.OPEN_CCL:
                with contextlib.suppress(Exception):  # whoever needs it reports the error
                    self._worker.meet()
            elif not isinstance(given, Kind):
                executor.settle()
                self._events.acknowledge(self._worker.worker_id, executor.seq)
                given.release()

    def _next(self) -> _Given:
        # Peers may wait for this rank's refusal; that needs turns of its own.
        while self._worker.poll():
            try:
                return self._inbox.get(timeout=_POLL_S)
            except Empty:
                pass
        return self._inbox.get()

    def _die(self, error: BaseException) -> None:
        self._output.close()
        worker, name = self._worker.worker_id, self._worker.session_name
        status = 1
        how = f"raised {type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            code = error.code
            status = code if isinstance(code, int) else int(code is not None)
            how = f"called sys.exit with {code!r}"
        self._on_death(
            worker_lost(
                f"worker {worker} {how}; session {name!r} is over",
                worker=worker,
                node=self._worker.node,
                exit_status=status,
                output=self._output.last_lines,
            )
        )

    def _emit(self, is_error: bool, lines: list[str]) -> None:
        self._events.log(self._worker.worker_id, self._worker.node, is_error, lines)

    def report(self, *, stacks: bool, flights: bool) -> RankReport:
        """Says what it does; for any thread."""
        worker, ident, stack, note = self._worker, self._thread.ident, "", ""
        alive = self._thread.is_alive()
        if stacks and alive:
            frame = sys._current_frames().get(ident or 0)  # noqa: SLF001  (there is no other way)
            lines: list[str] = []
            while frame is not None:  # as faulthandler writes it
                code = frame.f_code
                lines.append(
                    f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'
                )
                frame = frame.f_back
            stack = "\n".join(lines)
        elif stacks:
            note = "the thread has ended"
        report = report_memory(
            worker.worker_id, worker.node, os.getpid(), *worker.flight.copy(), flights=flights
        )
        state = RankState.RUNNING if alive else RankState.ENDED
        return replace(report, state=state, stack=stack, note=note)

    def cut(self, since: Sequence[Since]) -> RankReport:
        """What is new in its records; for any thread."""
        worker = self._worker
        return report_cut(
            worker.worker_id,
            worker.node,
            os.getpid(),
            worker.flight.read,
            since,
            ended=not self._thread.is_alive(),
        )

    def free_gates(self) -> None:
        """Frees the locks that wait in vain; the rank is gone, or about to be."""
        with contextlib.suppress(Empty):
            while True:
                given = self._inbox.get_nowait()
                if given is not None and not isinstance(given, (OutgoingBatch, Kind)):
                    given.release()

    # What the executor asks of its outlet ---------------------------------------------

    @property
    def porter(self) -> ArrayPorter:
        """Carries the arrays that are too large for a command."""
        return self

    @property
    def live(self) -> Callable[[int, Any], None]:
        """Answers with objects."""
        return self._answer

    def _answer(self, seq: int, value: Any) -> None:
        self._events.live(self._worker.worker_id, seq, value)

    def reply(self, raw: bytes) -> None:
        """Passes on what is encoded all the same: acknowledgements and failures."""
        self._events.reply(self._worker.worker_id, raw)

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Waits for an uploaded array and returns it, an array of its own.

        Raises:
            OSError: It will not come.
        """
        return self.loans.get(ticket).take().view(dtype).reshape(tuple(shape))

    def collect_into(self, ticket: int, out: np.ndarray[Any, Any]) -> None:
        """Waits for an uploaded array and copies it to where it is wanted.

        Raises:
            OSError: It will not come.
            ValueError: It is of another size.
        """
        self.loans.get(ticket).copy_into(out.reshape(-1).view(np.uint8))

    def discard(self, ticket: int) -> None:
        """Lets go of an uploaded array that no command will collect."""
        self.loans.discard(ticket)

    # The end ----------------------------------------------------------------------------

    def join(self, timeout: float) -> bool:
        """Waits until the rank has left; whether it has."""
        if self._thread.ident is None or self._thread is threading.current_thread():
            return True
        self._thread.join(max(timeout, 0.0))
        return not self._thread.is_alive()

    def end(self) -> None:
        """Makes the rank leave as soon as it runs Python code again."""
        self._ending = True
        self.loans.close()
        self._inbox.put(None)
        ident = self._thread.ident
        if ident is not None and self._thread.is_alive() and ident != threading.get_ident():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(ident), ctypes.py_object(_Ended)
            )
