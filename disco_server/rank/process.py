"""The entry point of a rank process.

Started by a worker daemon with two inherited sockets: one to the daemon, the last word
of the command line, and one on which MPI finds its peers (``PMI_FD``). A program that
starts its workers itself adds memory in which it reads this rank's progress. The process
imports what every rank needs, waits until it is assigned a rank of a session, and then
executes commands until the session ends or the daemon goes away. It has one thread and
no gRPC.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from disco_client.clock import LONGEST_S
from disco_client.pb import node_pb2
from disco_client.wire.codec import EnvelopeKind
from disco_client.wire.session_secrets import is_secret
from disco_client.wire.values import Device
from disco_server.collectives.loss import LOST
from disco_server.collectives.mpich_memory import (
    KVS_VARIABLE,
    kvsname,
    nameless_memory,
    shortage,
)
from disco_server.collectives.unique_ids import RendezvousIds
from disco_server.devices.base import DeviceUnavailable
from disco_server.ipc.framing import PROGRESS_VARIABLE, ProgressPage
from disco_server.modules.base import LoadRules
from disco_server.modules.children import MAIN
from disco_server.observe.lifetime import die_with_parent_in
from disco_server.observe.memory_limit import rank_limit
from disco_server.observe.rank_memory import INTERRUPT_SIGNAL
from disco_server.observe.stacks import open_flight
from disco_server.rank.coroutines import close_loop
from disco_server.rank.errors import describe_end
from disco_server.rank.executor import Executor
from disco_server.rank.port import DaemonGone, RankPort
from disco_server.rank.time_limits import GonePast
from disco_server.rank.torch_group import TorchRank
from disco_server.rank.worker import Worker, WorkerDevice, set_current_worker
from disco_server.settings import INIT_TIMEOUT_S

if TYPE_CHECKING:
    from disco_client.wire.codec import EncodedEnvelope
    from disco_server.collectives.process_groups import ProcessGroups
    from disco_server.config import WorkerConfig
    from disco_server.observe.flight import FlightRecorder

__all__ = [
    "VARIABLE",
    "confine",
    "confinement_of",
    "enter_folder",
    "keep_freed_memory",
    "main",
    "run",
    "take_secrets",
]


# What a rank process gives up before it runs anything for a client.
#
# The daemon sets it in one variable of the rank's environment, which the rank deletes. It
# limits itself, rather than being limited between fork and exec: nothing of a client has
# been received by then, and a daemon with threads of gRPC cannot run Python code between the two.


VARIABLE = "DISCO_CONFINEMENT"
_PR_SET_NO_NEW_PRIVS = 38
_PRIVATE = 0o077


def confinement_of(config: WorkerConfig) -> dict[str, str]:
    """The variable for the ranks of a daemon."""
    words = [f"memory={config.max_memory}"] if config.max_memory else []
    if config.core_dumps == "off":
        words.append("core=0")
    if config.user is not None:
        words.append("privileges=0")
    return {VARIABLE: ",".join(words)}


def confine(environ: MutableMapping[str, str]) -> None:
    """Limits this process as its environment says, for good, and deletes that variable.

    Memory is limited by RLIMIT_DATA: what a process allocates for itself counts, what it
    shares with others (arrays in transfer, MPI's memory) and what libraries of GPUs only
    reserve does not. An allocation beyond the limit fails as any other that fails.
    """
    said = environ.pop(VARIABLE, "")
    wanted = dict(word.split("=", 1) for word in said.split(",") if word)
    if "core" in wanted:
        _limit(resource.RLIMIT_CORE, 0)
    if "privileges" in wanted:
        os.umask(_PRIVATE)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if "memory" in wanted:
        _limit(resource.RLIMIT_DATA, int(wanted["memory"]))


def _limit(which: int, amount: int) -> None:
    _, most = resource.getrlimit(which)
    if most != resource.RLIM_INFINITY:
        amount = min(amount, most)
    resource.setrlimit(which, (amount, amount))


def take_secrets(secrets: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Gives this process the secrets that its session brings, and lets it have no core file.

    They are not of the environment with which it started, which files of /proc show. Secrets of
    the same store that the daemon passed on go, since half of each would be of no use. The process
    stays dumpable: MPI copies large arrays from one rank's memory into another's, which Linux
    refuses for one that is not.

    Args:
        secrets: By their names; where there are none, nothing changes.
        environ: The environment of this process.
    """
    if not secrets:
        return
    _limit(resource.RLIMIT_CORE, 0)
    stores = {name.partition("_")[0] for name in secrets}
    for name in [name for name in environ if is_secret(name) and name.partition("_")[0] in stores]:
        del environ[name]
    environ.update(secrets)


def enter_folder(path: str) -> None:
    """Makes a folder the working folder of this process and its temporary files; empty for none."""
    if not path:
        return
    os.chdir(path)
    os.environ["TMPDIR"] = path
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile)["tempdir"] = None  # what it was found to be before


# How a rank's process keeps memory that arrays have freed.


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h, for mallopt(3)
_LARGEST = 32 << 20
"""The most that glibc takes from its heap, and not from the system, for one array."""
_KEPT = 256 << 20
_THEIRS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Lets glibc keep up to 256 MiB of freed memory, for the next arrays.

    By default it returns arrays from 128 KiB on to the system at once, and gets the next
    ones from there, page by page, each of them cleared first: in a model whose layers make
    arrays of a megabyte that took a sixth of the time.

    Returns:
        Whether it does; not where the C library is another one, nor where one of glibc's
        own environment variables says how memory is to be handled.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _THEIRS):
        return False
    options = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _KEPT))
    return all(mallopt(option, value) for option, value in options)


_POLL_S = 0.001
_ID_S = 600.0
"""How long a unique id may take where ranks that open a communicator have no limit."""
_NO_MEMORY = 71
"""The exit status where memory ran out between commands: EX_OSERR of sysexits.h."""


def _open_groups(worker: Worker, ccl: str, local_workers: int) -> ProcessGroups:
    """Opens this rank's process groups; every rank must."""
    from disco_server.collectives.select import open_groups

    return open_groups(
        ccl,
        worker_id=worker.worker_id,
        num_workers=worker.num_workers,
        num_groups=worker.num_groups,
        local_workers=local_workers,
        loss=worker.loss,
    )


def _assigned(
    port: RankPort, session: int, assign: node_pb2.AssignRank, flight: FlightRecorder
) -> Worker:
    port.become(session, assign.worker)
    space = os.environ.pop(KVS_VARIABLE, "") or kvsname(session)

    def open_groups(worker: Worker, ccl: str) -> ProcessGroups:
        # A rank that failed before its first collective would not open it by itself.
        port.send(EnvelopeKind.OPEN_CCL)
        try:
            with nameless_memory(space, first=worker.worker_id == 0):
                return _open_groups(worker, ccl, assign.local_workers)
        finally:
            port.send(EnvelopeKind.CCL_OPENED)

    def end_process() -> None:
        flight.lose_communicator()
        os._exit(LOST)

    place = WorkerDevice(
        Device.parse(assign.device),
        local_rank=assign.local_rank,
        host=assign.host_id or socket.gethostname(),
        end_process=end_process,
        ids=RendezvousIds(port.put_key, port.get_key, lambda: INIT_TIMEOUT_S.value() or _ID_S)
        if port.has_daemon
        else None,
        torch=TorchRank(assign.local_rank, assign.local_workers, assign.data_host),
    )
    place.arrays.attach()
    enter_folder(assign.work_dir)
    os.environ["PMI_RANK"] = str(assign.worker)
    os.environ["PMI_SIZE"] = str(assign.num_workers)
    os.environ["DISCO_WORKER_ID"] = str(assign.worker)
    os.environ["DISCO_NUM_WORKERS"] = str(assign.num_workers)
    return Worker(
        assign.worker,
        assign.num_workers,
        assign.num_groups,
        open_groups=open_groups,
        ccl=assign.ccl,
        node=assign.node,
        place=place,
        with_gpus=assign.with_gpus,
        session_name=assign.session_name,
        allow_modules=tuple(assign.allow_modules),
        allow_functions=tuple(assign.allow_functions),
        max_registers=assign.max_registers,
        allow_read=tuple(assign.allow_read),
        allow_save=tuple(assign.allow_save),
        loading=LoadRules(
            tuple(assign.allow_load),
            Path(assign.module_cache) if assign.module_cache else None,
            assign.module_cache_bytes,
            assign.owner,
        ),
        flight=flight,
    )


def _warn_of_shortage(assign: node_pb2.AssignRank) -> None:
    """Says at the start of a session that it has no room for MPI, which it may never need."""
    uses_mpi = assign.device == "cpu" and assign.ccl in ("", "mpi")
    if uses_mpi and assign.local_rank == 0 and (lack := shortage(assign.local_workers)):
        sys.stderr.write(f"disco: collectives of this session may end it: {lack}\n")
        sys.stderr.flush()


def _next(
    port: RankPort, worker: Worker, executor: Executor, behind: GonePast | None
) -> EncodedEnvelope | None:
    """Waits for the next envelope, and does meanwhile what peers may wait for."""
    while True:
        # Peers may wait for this rank's refusal, which needs calls of `poll`.
        busy = worker.poll()
        left = behind.look(executor.seq) if behind is not None else math.inf
        if port.wait(_POLL_S) if busy else left == math.inf:
            return port.next()
        if not busy and not port.is_silent(min(left, LONGEST_S)):
            return port.next()


def _serve(port: RankPort, flight: FlightRecorder) -> None:
    received = port.next()
    while received is None or received.kind != EnvelopeKind.ASSIGN:
        received = port.next()
    assign = node_pb2.AssignRank.FromString(received.payload)
    take_secrets(assign.secrets, os.environ)
    _warn_of_shortage(assign)
    worker = _assigned(port, received.session, assign, flight)
    worker.audit, worker.guard = port.audit, port.guard
    set_current_worker(worker)
    longest_s = assign.command_limit_s
    executor = Executor(worker, port, longest_s)
    behind = GonePast(worker.cannot_enter, longest_s) if longest_s > 0 else None
    port.send(EnvelopeKind.ASSIGNED)
    try:
        _execute(port, worker, executor, behind)
    finally:
        close_loop()


def _execute(port: RankPort, worker: Worker, executor: Executor, behind: GonePast | None) -> None:
    """Executes commands, and answers questions, until the session ends."""
    while not executor.stopped:
        received = _next(port, worker, executor, behind)
        if received is None:
            executor.settle()
            port.say_progress(executor.seq)
        elif received.kind == EnvelopeKind.BATCH:
            executor.run_batch(received.first_seq, received.payload)
            if worker.arrays.on_host:  # otherwise it is only known to be enqueued
                port.show_progress(executor.seq)
        elif received.kind == EnvelopeKind.OPEN_CCL:
            with contextlib.suppress(Exception):  # the command that needs it reports the error
                worker.meet()
        elif received.kind == EnvelopeKind.ASK_HOLDINGS:
            held = executor.describe_holdings(received.payload)
            port.send(EnvelopeKind.HOLDINGS, held, received.first_seq)
        elif received.kind == EnvelopeKind.END_SESSION:
            return


def _map_page(environ: MutableMapping[str, str]) -> ProgressPage | None:
    text = environ.pop(PROGRESS_VARIABLE, "")
    if not text.isdigit():
        return None
    try:
        return ProgressPage(int(text))
    finally:
        os.close(int(text))


def main() -> NoReturn:
    """Runs the rank that this process was started for; the process ends with it.

    The last word of the command line is the descriptor of its socket.
    """
    run(int(sys.argv[-1]))


def run(fd: int) -> NoReturn:
    """Runs the rank that this process was started for; the process ends with it.

    Args:
        fd: The descriptor of its socket.
    """
    die_with_parent_in(os.environ, signal.SIGKILL)
    confine(os.environ)
    faulthandler.enable()
    flight = open_flight(os.environ)
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules["__main__"].__spec__ = MAIN
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)  # whatever socket.setdefaulttimeout says: an entrypoint has run before
    sock.set_inheritable(False)
    with contextlib.suppress(KeyError, ValueError, OSError):  # there may be no MPI
        os.set_inheritable(int(os.environ["PMI_FD"]), False)
    code = 0
    try:
        port = RankPort(sock, _map_page(os.environ))
        guard = port.guard
        # Before the guard is there for the handlers of functions: this one raises by itself.
        signal.signal(INTERRUPT_SIGNAL, guard.handler(lambda: flight.interrupts))
        guard.wake = partial(signal.pthread_kill, threading.get_ident(), INTERRUPT_SIGNAL)
        guard.install()
        _serve(port, flight)
    except DaemonGone:
        pass
    except MemoryError:
        sys.stderr.write(f"disco: memory ran out{rank_limit()}\n")
        code = _NO_MEMORY
    except DeviceUnavailable as error:
        sys.stderr.write(f"disco: {error}\n")
        code = 1
    except BaseException as error:  # noqa: BLE001  (whatever a called function raised)
        code, how = describe_end(error, flight)
        flight.explain_end(how)
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    # MPI's own finalization waits for peers, which may be gone; the daemon cleans up.
    os._exit(code)


if __name__ == "__main__":
    main()
