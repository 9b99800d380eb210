"""What one worker's registers hold, in a form that files can hold too.

Arrays are kept one by one; everything else becomes bytes, in the encoding of commands.
What is neither, a function or a module, is left to the commands that made it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from disco_client.errors import EncodingError
from disco_client.wire.codec import (
    EncodedReply,
    EncodedValue,
    FailureKind,
    decode_failure,
    decode_value,
    encode_failure,
    encode_value,
    type_name,
)
from disco_client.wire.porter import ArrayPorter
from disco_client.wire.values import is_array
from disco_server.collectives.team import Team
from disco_server.devices.base import Arrays, on_device
from disco_server.modules.base import LoadedModule
from disco_server.runtime.context import Worker
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.fitting import is_any_array
from disco_server.runtime.program import Program
from disco_server.runtime.register_file import Poison

__all__ = ["Snapshot", "restore"]

_LEFT, _VALUE, _ARRAY, _POISON = range(4)


class _Collecting(ArrayPorter):
    """Takes the arrays out of values; the same array is taken once."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._places: dict[int, int] = {}
        self.taken: list[Any] = []

    def knows(self, value: object) -> bool:
        """Whether it is an array on a GPU."""
        return on_device(value)

    def content(self, array: Any) -> bytes:
        """The bytes of a small array in C order."""
        host = array if is_array(array) else self._arrays.to_host(array)
        return host.tobytes()

    def offer(self, array: Any) -> int:
        """Keeps an array, and returns its place among those that are kept."""
        place = self._places.get(id(array))
        if place is None:
            place = self._places[id(array)] = len(self.taken)
            self.taken.append(array)
        return place


class _Giving(ArrayPorter):
    """Puts arrays back into values."""

    def __init__(self, arrays: Arrays, given: Sequence[Any]) -> None:
        self._arrays = arrays
        self.given = given

    def arrived(self, array: np.ndarray[Any, Any]) -> Any:
        """Brings a small array to the worker's device."""
        return self._arrays.from_host(array)

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Returns the array of a place."""
        array = self.given[ticket]
        if array.dtype != dtype or array.shape != tuple(shape):
            msg = f"expected {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}"
            raise EncodingError(msg)
        return array


class Snapshot:
    """What some registers held when it was taken, and what was published.

    Args:
        worker: Whose registers.
        numbers: Which ones.
    """

    def __init__(self, worker: Worker, numbers: Iterable[int]) -> None:
        slots = worker.registers.slots
        self._arrays = worker.arrays
        self._numbers = [int(number) for number in numbers]
        self._values = [slots[n] if n < len(slots) else None for n in self._numbers]
        self._published = dict(worker.published)
        self._tensors: list[Any] = []

    def kinds(self) -> dict[str, Any]:
        """What cannot be saved: places to be made again, names too, and what is refused."""
        places = [place for place, value in enumerate(self._values) if not self._can_save(value)]
        names = [name for name, (value, _) in self._published.items() if not self._can_save(value)]
        refused = [
            [f"register {self._numbers[place]}", type_name(self._values[place])]
            for place in places
            if not _can_make(self._values[place])
        ]
        refused += [
            [f"what is published as {name!r}", type_name(self._published[name][0])]
            for name in names
            if not _can_make(self._published[name][0])
        ]
        return {"made": places, "names": names, "refused": refused[:1]}

    def _can_save(self, value: Any) -> bool:
        try:
            self._encode(value, _Collecting(self._arrays))
        except EncodingError:
            return False
        return True

    def _encode(self, value: Any, porter: _Collecting) -> list[Any]:
        if type(value) is Poison:
            reply = EncodedReply()
            encode_failure(reply.failure, value.failure, value.kind)
            return [_POISON, reply.SerializeToString(), int(value.kind)]
        if is_any_array(value) and self._is_plain(value):
            return [_ARRAY, porter.offer(value)]
        encoded = EncodedValue()
        encode_value(encoded, value, porter)
        return [_VALUE, encoded.SerializeToString()]

    def _is_plain(self, array: Any) -> bool:
        # Others become such ones inside a value, or are refused there.
        return bool(array.flags.c_contiguous and array.dtype.isnative) and (
            array.dtype.kind not in "OSU"
        )

    def seal(self, made: Collection[int], names: Collection[str]) -> None:
        """Makes it ready to be written, without what is made again."""
        porter = _Collecting(self._arrays)
        registers = [
            [number, [_LEFT] if number in made else self._encode(value, porter)]
            for number, value in zip(self._numbers, self._values, strict=True)
        ]
        published = [
            [name, self._encode(value, porter), self._encode(facts, porter)]
            for name, (value, facts) in self._published.items()
            if name not in names
        ]
        whole = EncodedValue()
        encode_value(whole, {"registers": registers, "published": published}, porter)
        head = np.frombuffer(whole.SerializeToString(), np.uint8)
        self._tensors = [head, *porter.taken]

    @property
    def tensors(self) -> list[Any]:
        """The arrays to be written; the first says what becomes of the others."""
        if not self._tensors:
            msg = "expected a snapshot that was sealed"
            raise ArgumentRefused(msg)
        return self._tensors


def restore(worker: Worker, tensors: Sequence[Any]) -> None:
    """Puts back what was in registers, and what was published.

    Args:
        worker: The worker.
        tensors: What :attr:`Snapshot.tensors` was; the first one on the host.
    """
    whole = decode_value(EncodedValue.FromString(bytes(tensors[0])))
    porter = _Giving(worker.arrays, tensors[1:])
    for number, entry in whole["registers"]:
        if entry[0] != _LEFT:
            worker.registers.write(number, _decode(entry, porter))
    for name, entry, facts in whole["published"]:
        worker.published[name] = _decode(entry, porter), _decode(facts, porter)


def _decode(entry: list[Any], porter: _Giving) -> Any:
    kind, content = entry[0], entry[1]
    if kind == _ARRAY:
        return porter.given[content]
    if kind == _POISON:
        failure, _ = decode_failure(EncodedReply.FromString(content).failure)
        return Poison(failure, FailureKind(entry[2]))
    return decode_value(EncodedValue.FromString(content), porter)


def _can_make(value: Any) -> bool:
    """Whether commands that made something once make it as well another time."""
    return callable(value) or isinstance(value, LoadedModule | Program | Team)
