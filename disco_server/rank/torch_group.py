"""A process group of torch.distributed on the ranks of a session.

The ranks of torch are those of the session. They find each other by a store of torch, a
server that rank 0 runs in its process, at the data address of its node alone. Its address goes
to the other ranks by an allgather, in which all of them compare whether they can begin.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from disco_client.text import name_workers
from disco_server.collectives.types import UnavailableError
from disco_server.rank.torch_watch import TorchWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from disco_client.wire.values import Device
    from disco_server.collectives.process_groups import ProcessGroups
    from disco_server.observe.flight import FlightRecorder
    from disco_server.rank.signals import CallGuard

__all__ = ["TorchRank", "data_address", "interface_of", "process_group", "torch_environment"]


_TOLD_BYTES = 1024
"""How many bytes each rank tells the others before the store or a group is made."""

_MOST_TEXT = 600
_LOOPBACK = "127.0.0.1"


class _TorchPlace(Protocol):
    """Where a rank computes."""

    @property
    def torch(self) -> TorchRank | None:
        """What it keeps for torch; None for a thread."""
        ...

    def lost(self, message: str) -> None:
        """Ends the process."""
        ...


class _TorchWorker(Protocol):
    """What is needed of a `Worker`."""

    worker_id: int
    num_workers: int
    session_name: str
    flight: FlightRecorder

    @property
    def place(self) -> _TorchPlace:
        """Where it computes."""
        ...

    @property
    def device(self) -> Device:
        """Its default device."""
        ...

    @property
    def guard(self) -> CallGuard:
        """Entered for work that no interrupt breaks off."""
        ...

    def meet(self) -> ProcessGroups:
        """The process groups of Disco."""
        ...


class TorchRank:
    """What the process of one rank keeps for torch, and what it knows of its place.

    Args:
        local_rank: Its number among the session's ranks on its machine.
        local_workers: How many they are.
        data_host: The address of its machine that other machines connect to; may be empty.

    Attributes:
        environment: What torch needs to find the others; empty before it is made.
        store: The server on rank 0, a client of it elsewhere; None before.
        groups: How many groups were made.
        watch: Sees to it that no rank waits for ever in a group; None before there is one.
    """

    def __init__(self, local_rank: int, local_workers: int, data_host: str = "") -> None:
        self.local_rank = local_rank
        self.local_workers = local_workers
        self.data_host = data_host
        self.environment: Mapping[str, str] = {}
        self.store: Any = None
        self.groups = 0
        self.watch: TorchWatch | None = None


def torch_environment(worker: _TorchWorker) -> dict[str, str]:
    """What torchrun would put into the environment of this rank; it is not put there.

    The first call makes the store that all process groups of the session meet in, and every
    rank of the session has to make it in the same command. Later calls return the same.

    Args:
        worker: This rank.

    Returns:
        The variables with their values; with them ``init_process_group`` needs no arguments
        but the backend.

    Raises:
        UnavailableError: The ranks are threads, torch is missing on one, or there is no address
            that all of them reach.
        AbortedError: Another rank cannot come.
    """
    state = _state_of(worker)
    if not state.environment:
        _open_store(worker, state)
    return dict(state.environment)


def process_group(worker: _TorchWorker, backend: str | None = None) -> Any:
    """The process group of torch whose ranks are those of the session; see `Worker.torch_group`.

    Args:
        worker: This rank.
        backend: As for ``init_process_group``; None for what fits the rank's device.

    Raises:
        UnavailableError: There can be none, or the ranks want different backends.
        AbortedError: Another rank cannot come.
    """
    state = _state_of(worker)
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    environment = torch_environment(worker)
    on_gpu = worker.device.kind != "cpu"
    wanted = backend or ("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    told = _tell_all(worker, {"backend": wanted[:_MOST_TEXT], "groups": state.groups})
    _check_backends([each["backend"] for each in told])
    # What an earlier group has written must not be read by this one, on no rank.
    state.groups = max(each["groups"] for each in told) + 1
    os.environ.update(environment)
    with worker.guard:  # torch does not undo a part of it
        dist = import_module("torch.distributed")
        if on_gpu:
            import_module("torch.cuda").set_device(worker.device.index)
        dist.init_process_group(
            wanted,
            store=dist.PrefixStore(f"disco/{state.groups}", state.store),
            rank=worker.worker_id,
            world_size=worker.num_workers,
        )
        if state.watch is None:
            place = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            end = partial(_end, worker)
            state.watch = TorchWatch(worker.worker_id, worker.guard, _connect(*place), end)
    return dist.group.WORLD


def _end(worker: _TorchWorker, why: str) -> None:
    """Ends this rank, whose wait in torch has no other end."""
    worker.flight.explain_end(why)
    worker.place.lost(f"worker {worker.worker_id} {why}")


def _check_backends(wanted: Sequence[str]) -> None:
    """Raises the same on all ranks where they want different backends."""
    if len(set(wanted)) > 1:
        parties = {
            each: [rank for rank, other in enumerate(wanted) if other == each] for each in wanted
        }
        said = ", ".join(f"{each!r} on {name_workers(who)}" for each, who in parties.items())
        msg = (
            f"expected the same backend on all workers, got {said}: name it, as in"
            " worker.torch_group('gloo')"
        )
        raise UnavailableError(msg)


def _state_of(worker: _TorchWorker) -> TorchRank:
    state = worker.place.torch
    if state is None:
        msg = (
            "torch has one process group in a process, and the workers of this session are threads"
            " of one: open a session whose workers are processes, by disco_client.connect() or as"
            " a ProcessSession"
        )
        raise UnavailableError(msg)
    return state


def _open_store(worker: _TorchWorker, state: TorchRank) -> None:
    """Makes the store on rank 0, and finds it on the others."""
    mine: dict[str, Any] = {}
    store: Any = None
    host, problem = data_address(
        state.data_host, one_machine=state.local_workers == worker.num_workers
    )
    try:
        with worker.guard:  # a module whose import was broken off cannot be imported again
            dist = import_module("torch.distributed")
            if not problem and worker.worker_id == 0:
                store, port = _serve(dist, host)
                mine = {"host": host, "port": port}
    except ImportError as error:
        problem = f"torch cannot be imported ({error}); install it there: pip install torch"
    except (OSError, RuntimeError) as error:
        problem = f"the store cannot listen at {host}: {error}"
    told = _tell_all(worker, {**mine, "problem": problem[:_MOST_TEXT]})
    _check(told)
    host, port = told[0]["host"], int(told[0]["port"])
    if store is None:
        store = _connect(host, port)
    state.store = store
    state.environment = _variables(worker, state, host, port)


def _serve(dist: Any, host: str) -> tuple[Any, int]:
    """Makes a store that listens at one address of this machine; returns it and its port."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(found[0], socket.SOCK_STREAM) as sock:
        sock.bind(found[4])
        sock.listen()
        port = sock.getsockname()[1]
        # By itself it would listen at all addresses. It closes the descriptor when it ends.
        fd = sock.detach()
    try:
        store = dist.TCPStore(
            host, port, is_master=True, master_listen_fd=fd, wait_for_workers=False
        )
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise
    return store, port


def _connect(host: str, port: int) -> Any:
    """Makes a client of the store of rank 0.

    Raises:
        UnavailableError: It cannot be reached.
    """
    dist: Any = import_module("torch.distributed")
    try:
        return dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    except RuntimeError as error:
        msg = (
            f"the store of worker 0 cannot be reached at {host}, port {port}: {error}; let this"
            " machine connect to all ports there, or start the disco-worker of worker 0 with"
            " --array-listen and an address that it can connect to"
        )
        raise UnavailableError(msg) from None


def _tell_all(worker: _TorchWorker, mine: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Exchanges a little between all ranks, in their order."""
    text = json.dumps(mine).encode()
    row = np.frombuffer(text.ljust(_TOLD_BYTES, b" ")[:_TOLD_BYTES], np.uint8)
    rows = np.empty((worker.num_workers, _TOLD_BYTES), np.uint8)
    worker.meet().world.allgather(row, rows)
    return [json.loads(each.tobytes()) for each in rows]


def _check(told: Sequence[Mapping[str, Any]]) -> None:
    """Raises the same on all ranks where one of them cannot begin."""
    parties: dict[str, list[int]] = {}
    for worker, each in enumerate(told):
        if each["problem"]:
            parties.setdefault(each["problem"], []).append(worker)
    if parties:
        why = "; ".join(f"{name_workers(who)}: {what}" for what, who in parties.items())
        raise UnavailableError(f"torch has no process group on these workers: {why}")


def _variables(worker: _TorchWorker, state: TorchRank, host: str, port: int) -> dict[str, str]:
    own, _ = data_address(state.data_host, one_machine=state.local_workers == worker.num_workers)
    out = {
        "RANK": str(worker.worker_id),
        "WORLD_SIZE": str(worker.num_workers),
        "LOCAL_RANK": str(state.local_rank),
        "LOCAL_WORLD_SIZE": str(state.local_workers),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": worker.session_name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1",
    }
    # Gloo would resolve the name of the machine, which may be an address that others do not reach.
    name = os.environ.get("GLOO_SOCKET_IFNAME") or interface_of(own)
    return {**out, "GLOO_SOCKET_IFNAME": name} if name else out


# Addresses of this machine ---------------------------------------------------------------


def data_address(data_host: str, *, one_machine: bool) -> tuple[str, str]:
    """The address at which torch is reached on this machine.

    Args:
        data_host: The address that the daemon has told; empty for none.
        one_machine: Whether all ranks of the session are on this machine.

    Returns:
        The address, and why there is none: one of them is empty.
    """
    if one_machine:
        return _LOOPBACK, ""
    if not data_host:
        msg = (
            "their machine has no address that the other machines of the session reach; start"
            " disco-worker there with --array-listen HOST:0, HOST being such an address"
        )
        return "", msg
    return data_host, ""


def interface_of(host: str) -> str:
    """The network interface that has an address.

    Args:
        host: A name or an IP address of this machine.

    Returns:
        The interface's name; empty where none is found.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0]
        wanted = ipaddress.ip_address(str(found).partition("%")[0])
    except (OSError, ValueError):
        return ""
    for name, address in _addresses():
        if address == wanted or (address.is_loopback and wanted.is_loopback):
            return name
    return ""


_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("256s")
_IPV6 = Path("/proc/net/if_inet6")


def _addresses() -> list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """The interfaces of this machine, each with its first IPv4 address and its IPv6 ones."""
    found: list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                asked = _IFREQ.pack(name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                found.append((name, ipaddress.IPv4Address(answer[20:24])))
    with contextlib.suppress(OSError):
        for line in _IPV6.read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            found.append((name, ipaddress.IPv6Address(int(digits, 16))))
    return found
