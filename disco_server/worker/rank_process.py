"""The entry point of a rank process.

Started by a worker daemon with two inherited sockets: one to the daemon, and one
on which MPI finds its peers (``PMI_FD``). A program that starts its workers itself
adds memory in which it looks how far this rank is. The process imports what every
rank needs, waits until it is told which rank of which session it is, and then
executes commands until the session ends or the daemon goes away. It has one thread
and no gRPC.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import time
from pathlib import Path

from disco_client.pb import node_pb2
from disco_client.wire.codec import Kind
from disco_client.wire.values import Device
from disco_server.channels.progress import ProgressPage
from disco_server.collectives.base import Communicator
from disco_server.devices.base import DeviceUnavailable
from disco_server.modules.base import LoadRules
from disco_server.observe.flight import FlightRecorder
from disco_server.observe.lifetime import die_with
from disco_server.observe.memory_limit import rank_limit
from disco_server.observe.stacks import open_flight
from disco_server.runtime.context import Worker, set_current_worker
from disco_server.runtime.executor import Executor
from disco_server.runtime.worker_device import WorkerDevice
from disco_server.worker.allocator import keep_freed_memory
from disco_server.worker.confinement import confine, enter_folder
from disco_server.worker.mpich_memory import kvsname, nameless_memory
from disco_server.worker.rank_port import DaemonGone, RankPort

__all__ = ["main"]

_POLL_S = 0.001
_NO_MEMORY = 71
"""The exit status where memory ran out between commands: EX_OSERR of sysexits.h."""

_LOST = 74
"""The exit status where a library for GPUs is lost: EX_IOERR of sysexits.h."""

_CAUSE_FIRST_S = 3.0
"""How long such a rank waits before it ends, and is killed if another's end is reported.

A peer's connections close before its daemon learns of its end, and a dead daemon is
given two seconds to come back. What failed here may be the consequence of either.
"""


def _end_lost() -> None:
    time.sleep(_CAUSE_FIRST_S)
    os._exit(_LOST)


def _open_communicator(worker: Worker, ccl: str, local_workers: int) -> Communicator:
    """Opens the session's communicator; every rank must."""
    from disco_server.collectives.select import open_communicator

    return open_communicator(
        ccl,
        worker_id=worker.worker_id,
        num_workers=worker.num_workers,
        num_groups=worker.num_groups,
        local_workers=local_workers,
    )


def _assigned(
    port: RankPort, session: int, assign: node_pb2.AssignRank, flight: FlightRecorder
) -> Worker:
    port.become(session, assign.worker)

    def open_communicator(worker: Worker, ccl: str) -> Communicator:
        # A rank that failed before its first collective would not come by itself.
        port.send(Kind.OPEN_CCL)
        try:
            with nameless_memory(kvsname(session), first=worker.worker_id == 0):
                return _open_communicator(worker, ccl, assign.local_workers)
        finally:
            port.send(Kind.CCL_OPENED)

    place = WorkerDevice(
        Device.parse(assign.device),
        local_rank=assign.local_rank,
        host=assign.host_id or socket.gethostname(),
        end_process=_end_lost,
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
        open_communicator=open_communicator,
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
        ),
        flight=flight,
    )


def _serve(port: RankPort, flight: FlightRecorder) -> None:
    received = port.next()
    while received is None or received.kind != Kind.ASSIGN:
        received = port.next()
    assign = node_pb2.AssignRank.FromString(received.payload)
    worker = _assigned(port, received.session, assign, flight)
    worker.audit = port.audit
    set_current_worker(worker)
    executor = Executor(worker, port)
    port.send(Kind.ASSIGNED)
    while not executor.stopped:
        # Peers may wait for this rank's refusal; that needs turns of its own.
        while worker.poll() and not port.wait(_POLL_S):
            pass
        received = port.next()
        if received is None:
            executor.settle()
            port.say_progress(executor.seq)
        elif received.kind == Kind.BATCH:
            executor.run_batch(received.first_seq, received.payload)
            if worker.arrays.on_host:  # otherwise it is only known to be on its way
                port.show_progress(executor.seq)
        elif received.kind == Kind.OPEN_CCL:
            with contextlib.suppress(Exception):  # whoever needs it reports the error
                worker.meet()
        elif received.kind == Kind.END_SESSION:
            return


def _map_page(fd: int) -> ProgressPage:
    try:
        return ProgressPage(fd)
    finally:
        os.close(fd)


def main() -> None:
    """Runs one rank; the arguments are descriptors and a pid, see above.

    They are the socket's descriptor, the pid of who started this, and perhaps the
    descriptor of the memory.
    """
    fd, parent, *memory = (int(argument) for argument in sys.argv[1:])
    die_with(parent, signal.SIGKILL)
    confine(os.environ)
    faulthandler.enable()
    flight = open_flight(os.environ)
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    code = 0
    try:
        _serve(RankPort(sock, _map_page(memory[0]) if memory else None), flight)
    except DaemonGone:
        pass
    except MemoryError:
        sys.stderr.write(f"disco: memory ran out{rank_limit()}\n")
        code = _NO_MEMORY
    except DeviceUnavailable as error:
        sys.stderr.write(f"disco: {error}\n")
        code = 1
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    # MPI's own farewell waits for peers, which may be gone; the daemon sweeps up.
    os._exit(code)


if __name__ == "__main__":
    main()
