"""What this machine does: its processor, memory, networks and GPUs.

Read from the system's files and from NVIDIA's management library, which is not CUDA: it makes
no context on a GPU and takes none of its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import Any, Final

from disco_client.clock import monotonic
from disco_client.pb import controller_pb2

__all__ = ["MachineMeter", "MachineSampler"]


_SAMPLE_S: Final = 9.0
"""After how many seconds the next sample is taken, by the heartbeat that follows."""

_NVML: Final = "libnvidia-ml.so.1"
_KIB: Final = 1024


class MachineSampler:
    """Takes a sample now and then in another thread, as a look at a GPU may block."""

    def __init__(self) -> None:
        self._meter: MachineMeter | None = None
        self._taken = float("-inf")
        self._sampling: asyncio.Task[controller_pb2.HostSample] | None = None

    def next(self, now: float) -> controller_pb2.HostSample | None:
        """Returns a new sample if there is one, and starts the next one when it is time.

        Args:
            now: The event loop's time.
        """
        sampling, found = self._sampling, None
        if sampling is not None and sampling.done():
            self._sampling = None
            found = None if sampling.cancelled() or sampling.exception() else sampling.result()
        if self._sampling is None and now - self._taken >= _SAMPLE_S:
            self._taken = now
            self._sampling = asyncio.ensure_future(asyncio.to_thread(self._sample))
        return found

    def _sample(self) -> controller_pb2.HostSample:
        if self._meter is None:
            self._meter = MachineMeter()
            time.sleep(_FIRST_S)  # rates are those between two looks
        return self._meter.sample()


_FIRST_S: Final = 0.5


class MachineMeter:
    """Looks at the machine; rates are those since the look before.

    Args:
        proc: Where the system's files are.
        nvml: The management library of NVIDIA's driver; without it there are no GPUs.
    """

    def __init__(self, proc: Path = Path("/proc"), nvml: str = _NVML) -> None:
        self._proc = proc
        self._gpus = _open_gpus(nvml)
        self._before = self._counters()

    def sample(self) -> controller_pb2.HostSample:
        """A sample; what the system does not tell is 0."""
        before, now = self._before, self._counters()
        self._before = now
        seconds = max(now["at"] - before["at"], 1e-9)
        rates = {key: max(now[key] - before[key], 0.0) for key in now}
        memory = self._memory()
        whole = memory.get("MemTotal", 0)
        used = whole - memory.get("MemAvailable", whole)
        return controller_pb2.HostSample(
            cpu=rates["busy"] / max(rates["busy"] + rates["idle"], 1e-9),
            memory=used / whole if whole else 0.0,
            cores=os.cpu_count() or 0,
            memory_bytes=whole,
            received_per_s=rates["received"] / seconds,
            sent_per_s=rates["sent"] / seconds,
            gpus=self._gpus.samples() if self._gpus is not None else (),
        )

    def _counters(self) -> dict[str, float]:
        found = {"at": monotonic(), "busy": 0.0, "idle": 0.0, "received": 0.0, "sent": 0.0}
        with contextlib.suppress(OSError, ValueError, IndexError):
            # user, nice, system, idle, iowait, irq, softirq, steal
            words = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
            ticks = [int(word) for word in words]
            found["idle"] = ticks[3] + ticks[4]
            found["busy"] = sum(ticks) - found["idle"]
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (self._proc / "net" / "dev").read_text().splitlines()[2:]:
                name, _, rest = line.partition(":")
                if name.strip() != "lo":
                    numbers = rest.split()
                    found["received"] += int(numbers[0])
                    found["sent"] += int(numbers[8])
        return found

    def _memory(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (self._proc / "meminfo").read_text().splitlines()[:8]:
                name, _, rest = line.partition(":")
                found[name] = int(rest.split()[0]) * _KIB
        return found


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _GpuMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Gpus:
    """The GPUs that NVIDIA's management library knows.

    Args:
        library: The library, which is ready.
        handles: One for each GPU.
    """

    def __init__(self, library: Any, handles: list[ctypes.c_void_p]) -> None:
        self._library = library
        self._handles = handles

    def samples(self) -> list[controller_pb2.GpuSample]:
        """What each of them does; one that does not answer is left out."""
        found: list[controller_pb2.GpuSample] = []
        for handle in self._handles:
            busy, memory = _Utilization(), _GpuMemory()
            failed = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
            failed |= self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            if not failed:
                share = memory.used / memory.total if memory.total else 0.0
                found.append(
                    controller_pb2.GpuSample(
                        busy=busy.gpu / 100, memory=share, memory_bytes=memory.total
                    )
                )
        return found


def _open_gpus(name: str) -> _Gpus | None:
    """Opens the management library; None where there is none, or it has no GPU."""
    try:
        library: Any = ctypes.CDLL(name)
    except OSError:
        return None
    count = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    handles: list[ctypes.c_void_p] = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            handles.append(handle)
    return _Gpus(library, handles) if handles else None
