"""Watches the operations of one rank in NCCL.

NCCL does not report that a peer or the network failed: the operation just never
completes, and a thread that waits for the device waits for ever. Only querying the
communicator's asynchronous error shows it. So a thread queries it while an operation
is under way, and reports what failed; it also reports what takes long. No call is made
on a communicator while another thread is in one, because cupy's binding does not
guard its handle.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from disco_client.clock import monotonic
from disco_server.settings import NCCL_TIMEOUT_S, SLOW_S

if TYPE_CHECKING:
    from disco_server.collectives.loss import Loss
    from disco_server.collectives.nccl_library import NcclLibrary
    from disco_server.devices.gpu import GpuArrays

__all__ = ["NcclWatch", "TimeLimits"]

_LOOK_S = 0.25
_IN_PROGRESS = 7  # ncclInProgress
_ABORT_S = 2.0
"""How long aborting waits for a call that another thread is in."""


class TimeLimits(NamedTuple):
    """How long operations may take, in seconds.

    Attributes:
        slow: After this a slow operation is reported; 0 for never.
        stuck: After this one counts as failed; 0 for never.
    """

    slow: float = SLOW_S.default
    stuck: float = NCCL_TIMEOUT_S.default

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> TimeLimits:
        """Reads DISCO_SLOW_S and DISCO_NCCL_TIMEOUT_S.

        Raises:
            ConfigError: One of them is no number of seconds.
        """
        return cls(SLOW_S.value(environ), NCCL_TIMEOUT_S.value(environ))


@dataclass
class _Flight:
    """An operation under way.

    Attributes:
        name: Which.
        seq: The command.
        event: Recorded behind it.
        since: When it was enqueued, on the monotonic clock.
        told: Whether it was reported to take long.
    """

    name: str
    seq: int
    event: Any
    since: float
    told: bool = False


class NcclWatch:
    """One rank's watch.

    Args:
        library: The library.
        arrays: The rank's device.
        worker_id: The rank.
        position: Returns the command that runs.
        loss: Is notified of what failed: on the watch's thread, or on the rank's if an
            operation could not even be enqueued.
        on_slow: Called once for each operation that takes long.
        limits: How long that is.
    """

    def __init__(
        self,
        library: NcclLibrary,
        arrays: GpuArrays,
        worker_id: int,
        *,
        position: Callable[[], int],
        loss: Loss,
        on_slow: Callable[[str], None],
        limits: TimeLimits,
    ) -> None:
        self._library, self._arrays, self._worker_id = library, arrays, worker_id
        self._position, self._loss, self._on_slow = position, loss, on_slow
        self._limits = limits
        self._comms: list[Any] = []
        self._flights: deque[_Flight] = deque()
        self._landing = threading.Lock()
        self._idle: list[Any] = []
        self._calls = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"nccl-watch-{worker_id}", daemon=True
        )

    def add(self, comm: Any) -> None:
        """Watches a communicator from now on."""
        self._comms.append(comm)
        if not self._thread.is_alive():
            self._thread.start()

    @contextlib.contextmanager
    def launching(self, name: str) -> Generator[None]:
        """Wraps all that one operation enqueues on the device, on the rank's thread.

        The ranks have agreed to begin, so one that cannot leaves its peers in an
        operation that never ends: whatever goes wrong here loses the communicator.

        Raises:
            CommunicatorLost: The library or the device refused it, or the communicator
                was lost before.
        """
        with self._losing(name), self._calls:
            yield
            event = self._idle.pop() if self._idle else self._new_event()
            event.record(self._arrays.comm)
            self._flights.append(_Flight(name, self._position(), event, monotonic()))
        self._wake.set()

    def wait(self, name: str) -> None:
        """Waits until the device has done what was enqueued, for a call that needs that.

        The ranks have agreed on the call, as in `launching`. No lock is held meanwhile, so
        that what never ends is noticed and aborted.

        Args:
            name: The call.

        Raises:
            CommunicatorLost: What was enqueued failed, or the communicator was lost before.
        """
        with self._losing(name):
            self._arrays.comm.synchronize()
        self.settled()

    @contextlib.contextmanager
    def _losing(self, name: str) -> Generator[None]:
        """Wraps what peers wait for: whatever goes wrong in it loses the communicator."""
        self._loss.check()
        try:
            yield
        except Exception as error:  # noqa: BLE001  (whatever it is, peers wait)
            self._lose(name, self._position(), self._explain(error))
            self._loss.check()

    def settled(self) -> None:
        """Notes that the device has done all that was enqueued; for the rank's thread.

        A later failure there does not concern those operations.

        Raises:
            CommunicatorLost: A communicator is lost, so received data is invalid.
        """
        self._loss.check()
        with self._landing:
            while self._flights:
                self._idle.append(self._flights.popleft().event)

    def close(self) -> None:
        """Ends the watch; the communicators are left to the end of the process."""
        self._closed = True
        self._wake.set()

    def abort(self) -> None:
        """Ends what is under way, so that waits for the device return.

        Nothing happens if another thread stays in a call; then only the end of the
        process helps.
        """
        if not self._calls.acquire(timeout=_ABORT_S):
            return
        try:
            for comm in self._comms:
                with contextlib.suppress(Exception):
                    comm.abort()
        finally:
            self._calls.release()

    def _new_event(self) -> Any:
        return self._arrays.xp.cuda.Event(disable_timing=True)

    def _explain(self, error: Exception) -> str:
        if isinstance(error, self._library.error):
            return self._library.explain(error)
        return f"{type(error).__name__}: {error}"

    def _lose(self, name: str, seq: int, why: str) -> None:
        library = f"{self._library.name.upper()} {self._library.version_text()}"
        self._loss.lose(f"{name} of command #{seq}", library, why)

    # The watch's own thread ---------------------------------------------------------

    def _run(self) -> None:
        self._arrays.bind()
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            while self._flights and not self._closed:
                if not self._look():
                    return
                time.sleep(_LOOK_S)

    def _look(self) -> bool:
        """Looks once; whether to go on."""
        try:
            self._forget_done()
            why = self._ask() if self._flights else ""
            if why:
                # What failed may be an operation that was enqueued after the first look.
                self._forget_done()
        except Exception as error:  # noqa: BLE001  (the device itself has failed)
            why = self._explain(error)
        with self._landing:
            oldest = self._flights[0] if self._flights else None
        if oldest is None:
            return True  # an error without an operation will be reported with the next one
        waited = monotonic() - oldest.since
        if not why and 0 < self._limits.stuck <= waited:
            why = f"it was not done after {waited:.0f} s (DISCO_NCCL_TIMEOUT_S)"
        if why:
            self._lose(oldest.name, oldest.seq, why)
            return False
        if not oldest.told and 0 < self._limits.slow <= waited:
            oldest.told = True
            self._on_slow(
                f"worker {self._worker_id}: {oldest.name} of command #{oldest.seq} has been under"
                f" way on the GPU for {waited:.0f} s; all ranks have entered it"
            )
        return True

    def _forget_done(self) -> None:
        with self._landing:
            while self._flights and self._flights[0].event.done:
                self._idle.append(self._flights.popleft().event)

    def _ask(self) -> str:
        """Queries every communicator's asynchronous error; returns its text."""
        # A rank in a call is not waited for: the next look queries again.
        if not self._calls.acquire(blocking=False):
            return ""
        try:
            for comm in self._comms:
                comm.check_async_error()
        except KeyError as error:
            # What this cupy has no name for; one of them is no error.
            return "" if error.args == (_IN_PROGRESS,) else f"its error number {error}"
        except Exception as error:  # noqa: BLE001  (a watch must not end silently)
            return self._explain(error)
        finally:
            self._calls.release()
        return ""
