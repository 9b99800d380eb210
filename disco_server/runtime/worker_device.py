"""On which device a worker computes, and how its arrays take part in collectives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from disco_client.wire.values import Device
from disco_server.collectives.base import Communicator, CommunicatorLost
from disco_server.collectives.meeting_watch import say
from disco_server.devices.base import Arrays
from disco_server.devices.host import HostArrays
from disco_server.devices.select import open_arrays
from disco_server.runtime.errors import ArgumentRefused
from disco_server.settings import GPU_LIBRARIES

if TYPE_CHECKING:
    from disco_server.collectives.meeting import MeetingCommunicator
    from disco_server.collectives.nccl_watch import NcclWatch

__all__ = ["WorkerDevice"]


class WorkerDevice:
    """The device of one worker, used by the worker's one thread.

    Args:
        device: Where it computes at first.
        local_rank: Its number among the session's workers on its machine.
        host: Tells its machine from others.
        end_process: Ends the process of the worker where a library for GPUs is
            lost; None where the process is not the worker's alone.
        end_session: Ends the session, for this reason, where such a library failed
            while it started, in which peers may stay for ever.

    Attributes:
        arrays: What makes and copies its arrays.

    Raises:
        DeviceUnavailable: There is no such device, or something that it needs.
    """

    def __init__(
        self,
        device: Device,
        *,
        local_rank: int = 0,
        host: str = "",
        end_process: Callable[[], None] | None = None,
        end_session: Callable[[str], None] | None = None,
    ) -> None:
        self._local_rank = local_rank
        self._host = host
        self._end_process = end_process
        self._end_session = end_session
        self._watch: NcclWatch | None = None
        self.arrays: Arrays = HostArrays(device) if device.kind == "cpu" else open_arrays(device)

    @property
    def device(self) -> Device:
        """The device."""
        return self.arrays.device

    @property
    def ccl(self) -> str:
        """The library for arrays of this device; empty on a CPU."""
        kind = self.device.kind
        return next((name for name, made_for in GPU_LIBRARIES.items() if made_for == kind), "")

    def choose(self, ccl: str, device_ids: Sequence[int]) -> None:
        """Moves a worker to the GPU that ``init_ccl`` names for it.

        A worker that has one already stays there, and no other may be named.

        Args:
            ccl: A library for GPUs.
            device_ids: The GPU of each worker of this machine, in the workers' order.

        Raises:
            ArgumentRefused: No GPU is named for this worker, or another than it has.
            DeviceUnavailable: There is no such device, or something that it needs.
        """
        kind, own = GPU_LIBRARIES[ccl], self.device
        if own.kind not in ("cpu", kind):
            msg = f"{ccl!r} moves arrays of {kind} devices, this worker computes on {own}"
            raise ArgumentRefused(msg)
        if not device_ids and own.kind == kind:
            return
        if len(device_ids) <= self._local_rank:
            msg = (
                f"expected the GPU of each worker on this machine, as in init_ccl({ccl!r}, 0, 1),"
                f" got {len(device_ids)} for this one at place {self._local_rank}"
            )
            raise ArgumentRefused(msg)
        wanted = Device(kind, device_ids[self._local_rank])
        if own.kind == kind:
            if wanted != own:
                msg = f"init_ccl names {wanted} for this worker, which computes on {own} already"
                raise ArgumentRefused(msg)
            return
        arrays = open_arrays(wanted)
        arrays.attach()
        self.arrays = arrays

    def start(self, comm: Communicator, ccl: str) -> None:
        """Starts a library for GPUs; every worker does in the same command.

        Raises:
            UnavailableError: A worker has not what it needs; nobody began.
            CommunicatorLost: The library failed while it started.
        """
        # Nothing of this is loaded where there is no GPU.
        from disco_server.collectives.nccl import NcclHooks, start_nccl
        from disco_server.collectives.nccl_watch import Limits

        hooks = NcclHooks(self._lost, say, Limits.read(os.environ))
        try:
            self._watch = start_nccl(
                cast("MeetingCommunicator", comm), self.arrays, ccl, self._host, hooks
            )
        except CommunicatorLost as error:
            # Peers may be in a call that only ends with this process.
            self._lost(str(error))
            if self._end_session is not None:
                self._end_session(str(error))
            raise

    def settle(self) -> None:
        """Waits until the device has done all that was asked of it.

        Raises:
            Exception: Some of it failed.
        """
        self.arrays.synchronize()
        if self._watch is not None:
            self._watch.check()
            self._watch.settled()

    def close(self) -> None:
        """Ends what looks after the device."""
        if self._watch is not None:
            self._watch.close()

    def _lost(self, message: str) -> None:
        say(message)
        if self._end_process is not None:
            self._end_process()
        elif self._watch is not None:
            self._watch.abort()
