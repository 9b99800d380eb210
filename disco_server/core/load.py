"""What the machine of each node did in the last hour, in a fixed number of bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["KEPT_S", "SAMPLE_S", "GpuLoad", "Load", "LoadHistory"]


SAMPLE_S = 10.0
"""After how many seconds a node sends a sample."""

KEPT_S = 3600.0
"""For how long samples are kept."""

_KEPT = round(KEPT_S / SAMPLE_S)
_MOST_GPUS = 64
_MOST_RATE = 1e15
_SAMPLE = struct.Struct("<dHHffHH")
"""When; shares of cores and memory; bytes received and sent; shares of GPUs and their memory."""

_WHOLE = 10_000
_NONE = 0xFFFF


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """What one GPU did.

    Attributes:
        busy: For which share of the time it computed.
        memory: Which share of its memory is used.
        memory_bytes: How much memory it has.
    """

    busy: float
    memory: float
    memory_bytes: int = 0

    def checked(self) -> GpuLoad:
        """The same with shares from 0 to 1."""
        return GpuLoad(_share(self.busy), _share(self.memory), self.memory_bytes)


@dataclass(frozen=True, slots=True)
class Load:
    """What a machine did since the sample before.

    Attributes:
        cpu, memory: Which share of its cores worked, and of its memory is used.
        received_per_s, sent_per_s: Bytes in a second, over all networks but the loopback.
        cores, memory_bytes: How much it has.
        gpus: What its GPUs did.
    """

    cpu: float
    memory: float
    received_per_s: float = 0.0
    sent_per_s: float = 0.0
    cores: int = 0
    memory_bytes: int = 0
    gpus: tuple[GpuLoad, ...] = ()

    @property
    def gpu(self) -> float | None:
        """For which share of the time its GPUs computed, on average; None where it has none."""
        return _mean([each.busy for each in self.gpus])

    @property
    def gpu_memory(self) -> float | None:
        """Which share of their memory is used, on average; None where it has none."""
        return _mean([each.memory for each in self.gpus])

    def checked(self) -> Load:
        """The same within the limits of each value: a node may send anything."""
        return Load(
            _share(self.cpu),
            _share(self.memory),
            _rate(self.received_per_s),
            _rate(self.sent_per_s),
            self.cores,
            self.memory_bytes,
            tuple(gpu.checked() for gpu in self.gpus[:_MOST_GPUS]),
        )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(value: float) -> float:
    return min(value, 1.0) if value > 0 else 0.0  # 0 also for what is no number


def _rate(value: float) -> float:
    return min(value, _MOST_RATE) if value > 0 else 0.0


class LoadHistory:
    """The samples of the last hour of one node, in 24 bytes each.

    The memory is taken at once, and does not grow.

    Attributes:
        newest: The last sample; None before the first.
    """

    def __init__(self) -> None:
        self._ring = bytearray(_KEPT * _SAMPLE.size)
        self._count = 0
        self.newest: Load | None = None

    @property
    def nbytes(self) -> int:
        """How much memory the samples take."""
        return len(self._ring)

    def add(self, now: float, sample: Load) -> None:
        """Adds a sample, in the place of the oldest one if an hour's are there."""
        load = self.newest = sample.checked()
        _SAMPLE.pack_into(
            self._ring,
            self._count % _KEPT * _SAMPLE.size,
            now,
            round(load.cpu * _WHOLE),
            round(load.memory * _WHOLE),
            load.received_per_s,
            load.sent_per_s,
            _part(load.gpu),
            _part(load.gpu_memory),
        )
        self._count += 1

    def series(
        self, now: float, parts: int, seconds: float = KEPT_S
    ) -> dict[str, list[float | None]]:
        """The averages over equal parts of the time until now.

        Args:
            now: The end of the last part.
            parts: How many there are.
            seconds: How long all of them are together.

        Returns:
            By the names of `Load`'s values a list of them, None where no sample fell into a
            part. Those of GPUs are missing where there are none.
        """
        sums = [[0.0] * len(_NAMES) for _ in range(parts)]
        counts = [[0] * len(_NAMES) for _ in range(parts)]
        for at, values in self._samples():
            part = math.floor(parts - (now - at) * parts / seconds)
            if now - at > seconds or not 0 <= part <= parts:
                continue
            part = min(part, parts - 1)
            for index, value in enumerate(values):
                if value != _NONE or index < _OF_ALL:
                    sums[part][index] += value
                    counts[part][index] += 1
        return {
            name: [
                total[index] / count[index] / scale if count[index] else None
                for total, count in zip(sums, counts, strict=True)
            ]
            for index, (name, scale) in enumerate(_NAMES)
            if index < _OF_ALL or any(count[index] for count in counts)
        }

    def _samples(self) -> Iterator[tuple[float, tuple[float, ...]]]:
        """Oldest first: when, and the values in the order of `_NAMES`."""
        for number in range(max(self._count - _KEPT, 0), self._count):
            at, cpu, memory, received, sent, gpu, gpu_memory = _SAMPLE.unpack_from(
                self._ring, number % _KEPT * _SAMPLE.size
            )
            yield at, (cpu, memory, received, sent, gpu, gpu_memory)


_NAMES = (
    ("cpu", _WHOLE),
    ("memory", _WHOLE),
    ("received_per_s", 1),
    ("sent_per_s", 1),
    ("gpu", _WHOLE),
    ("gpu_memory", _WHOLE),
)
"""The values of a sample, and by what each is divided."""

_OF_ALL = 4
"""How many of them every machine has."""


def _part(share: float | None) -> int:
    return _NONE if share is None else round(share * _WHOLE)
