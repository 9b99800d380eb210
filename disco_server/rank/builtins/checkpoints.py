"""The functions behind ``session.save`` and ``session.load``.

Arguments that differ from worker to worker are tables with an entry for each: the bounds of
its part of a tensor, first and last of each axis one after the other, or None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_client.errors import EncodingError
from disco_client.wire.codec import (
    Action,
    EncodedReply,
    EncodedValue,
    FailureKind,
    decode_failure,
    decode_value,
    encode_failure,
    encode_value,
    type_name,
)
from disco_client.wire.dlpack import on_host
from disco_client.wire.values import (
    ArrayPorter,
    Shape,
    dtype_from_name,
    dtype_name,
    extents_of,
    is_array,
)
from disco_server.collectives.group import ProcessGroup
from disco_server.devices.base import Arrays, on_device
from disco_server.devices.foreign import is_foreign, library_of, native, of_library
from disco_server.modules.base import LoadedModule
from disco_server.rank.builtins.streams import GeneratorStream
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import register_func
from disco_server.rank.objects import (
    BoundMethod,
    has_state,
    load_object,
    member_of,
    save_object,
)
from disco_server.rank.program import CompiledProgram
from disco_server.rank.registers import Poison, is_any_array
from disco_server.rank.worker import Worker, current_worker
from disco_server.storage.background_save import BackgroundSave
from disco_server.storage.checkpoint_read import GENERATION, Entry, StoredCheckpoint
from disco_server.storage.checkpoint_write import Save, remove_checkpoint
from disco_server.storage.files import FileError, absolute_path

if TYPE_CHECKING:
    from disco_client.wire.partition import Bounds

__all__ = ["Snapshot", "read_bounds", "restore"]


Array = np.ndarray[Any, Any]
_PAGE = 1024
"""Tensors in one reply, whose size is limited."""


def read_bounds(table: Sequence[Any], worker: int, shape: Sequence[int]) -> Bounds | None:
    """Takes a worker's bounds from a table.

    Raises:
        ArgumentRefused: They are no part of the shape.
    """
    flat = table[worker]
    if flat is None:
        return None
    bounds = tuple(zip(flat[::2], flat[1::2], strict=False))
    inside = all(a <= b <= extent for (a, b), extent in zip(bounds, shape, strict=False))
    if len(flat) != 2 * len(shape) or not inside:
        msg = f"expected the bounds of a part of {list(shape)}, got {flat}"
        raise ArgumentRefused(msg)
    return bounds


# Saving ------------------------------------------------------------------------------


@register_func("runtime.disco._save_ready")
def save_ready(arrays: Sequence[Any]) -> int:
    """Succeeds where all of these exist; it is not executed where one is poisoned."""
    return len(arrays)


@register_func("runtime.disco._save_begin")
def save_begin(path: str, generation: str, background: bool = False) -> Save:
    """Begins a save; worker 0 makes the folder.

    Args:
        path: The checkpoint's folder.
        generation: The name of the new generation.
        background: Whether parts are copied aside, and written while the worker goes on.
    """
    if not GENERATION.fullmatch(generation):
        msg = f"expected the name of a generation, got {generation!r}"
        raise ArgumentRefused(msg)
    worker = current_worker()
    kind = BackgroundSave if background else Save
    number = worker.worker_id
    save = kind(path, worker.allow_save, generation, number, leads=number == 0)
    worker.audit("checkpoint saved", path, "")
    return save


@register_func("runtime.disco._save_describe")
def save_describe(save: Save, rows: Sequence[dict[str, Any]]) -> None:
    """Adds tensors.

    Args:
        save: The save.
        rows: Name, shape, dtype, layout, and parts: a table.
    """
    _checked(save).add([_entry(row) for row in rows])


@register_func("runtime.disco._save_start")
def save_start(save: Save) -> None:
    """Makes this worker's file."""
    _checked(save).start()


@register_func("runtime.disco._save_write")
def save_write(save: Save, numbers: Sequence[int], arrays: Sequence[Any]) -> None:
    """Writes this worker's parts of some tensors.

    Args:
        save: The save.
        numbers: The numbers of the tensors; over all calls those of large elements come first,
            which is their order in a file.
        arrays: What this worker has of them.
    """
    arrays_of = current_worker().arrays
    for number, array in zip(numbers, arrays, strict=True):
        if not _checked(save).has(number):
            continue
        entry = save.entries[number]
        held = native(array)
        held = held if arrays_of.holds(held) else np.asarray(held)
        if dtype_name(held.dtype) != dtype_name(entry.dtype):
            msg = f"expected {entry.name!r} as {entry.dtype}, got {held.dtype}"
            raise ArgumentRefused(msg)
        if arrays_of.holds(held):
            save.write(number, arrays_of.read_pieces(held))
        else:
            save.write(number, [memoryview(held.tobytes())])


@register_func("runtime.disco._save_finish")
def save_finish(save: Save) -> None:
    """Makes this worker's file durable; in the background, begins to write it."""
    _checked(save).finish()


@register_func("runtime.disco._save_commit")
def save_commit(save: Save) -> None:
    """Makes what was saved the checkpoint."""
    _checked(save).commit()


@register_func("runtime.disco._save_close")
def save_close(save: Save) -> None:
    """Ends a save; one that was not committed leaves nothing."""
    _checked(save).close()


def _checked(save: Any) -> Save:
    if not isinstance(save, Save):
        msg = f"expected a save that was begun, got {type(save).__name__}"
        raise ArgumentRefused(msg)
    return save


def _entry(row: dict[str, Any]) -> Entry:
    shape, table = extents_of(row["shape"]), row["parts"]
    parts = [(worker, read_bounds(table, worker, shape)) for worker in range(len(table))]
    return Entry(
        row["name"],
        shape,
        dtype_from_name(row["dtype"]),
        cast("dict[str, Any]", row["layout"]),
        tuple((worker, bounds) for worker, bounds in parts if bounds is not None),
    )


# Loading -----------------------------------------------------------------------------


@register_func("runtime.disco._load_open")
def load_open(path: str) -> StoredCheckpoint:
    """Reads the index of a checkpoint."""
    worker = current_worker()
    stored = StoredCheckpoint(path, worker.allow_read)
    worker.audit("checkpoint opened", path, "")
    return stored


@register_func("runtime.disco._load_catalog")
def load_catalog(stored: StoredCheckpoint, first: int) -> dict[str, Any]:
    """What a client must know to choose the layout of every tensor.

    Args:
        stored: The checkpoint.
        first: The first tensor; at most a page of them is returned.
    """
    entries = _opened(stored).entries[first : first + _PAGE]
    return {
        "fingerprint": stored.fingerprint,
        "total": len(stored.entries),
        "rows": [
            {
                "name": entry.name,
                "shape": Shape(entry.shape),
                "dtype": dtype_name(entry.dtype),
                **_layout_of(stored, entry),
            }
            for entry in entries
        ],
    }


@register_func("runtime.disco._load_check")
def load_check(stored: StoredCheckpoint, fingerprint: str) -> None:
    """Makes sure that this worker sees the checkpoint that worker 0 sees.

    Raises:
        FileError: It sees another one.
    """
    if _opened(stored).fingerprint != fingerprint:
        problem = "it is not the checkpoint that worker 0 sees: was it replaced, or is the folder"
        raise FileError(stored.path, f"{problem} not one that all workers share?")


@register_func("runtime.disco._load_read")
def load_read(stored: StoredCheckpoint, wanted: Sequence[Any]) -> list[Array | None]:
    """Reads this worker's parts of some tensors.

    Args:
        stored: The checkpoint.
        wanted: The number of each, and a table.
    """
    worker, entries = current_worker(), _opened(stored).entries

    def bounds_of(number: int, table: Sequence[Any]) -> tuple[int, Bounds | None]:
        if not 0 <= number < len(entries):
            msg = f"expected one of {len(entries)} tensors, got {number}"
            raise ArgumentRefused(msg)
        return number, read_bounds(table, worker.worker_id, entries[number].shape)

    asked = [bounds_of(number, table) for number, table in wanted]
    found = iter(stored.read([(n, bounds) for n, bounds in asked if bounds is not None]))
    return [None if bounds is None else worker.arrays.from_host(next(found)) for _, bounds in asked]


def _opened(stored: Any) -> StoredCheckpoint:
    if not isinstance(stored, StoredCheckpoint):
        msg = f"expected a checkpoint that was opened, got {type(stored).__name__}"
        raise ArgumentRefused(msg)
    return stored


def _layout_of(stored: StoredCheckpoint, entry: Entry) -> dict[str, Any]:
    """The layout at the save: shape, names and workers of the mesh, and the placement."""
    mesh, placement = entry.layout.get("mesh"), entry.layout.get("placement")
    fields = cast("dict[str, Any]", mesh) if isinstance(mesh, dict) else {}
    try:
        return {
            "mesh": extents_of(fields["shape"]),
            "workers": extents_of(fields["workers"]),
            "names": [str(name) for name in fields["names"]],
            "placement": str(placement),
        }
    except (KeyError, TypeError, ValueError):
        problem = f"expected mesh and placement in its layout, got {entry.layout!r:.120}"
        raise FileError(stored.path, problem, tensor=entry.name) from None


# What one worker's registers hold, in a form that files can hold too.
#
# Arrays are kept one by one; everything else becomes bytes, in the encoding of commands.
# An object says what it consists of, if its class can; methods are those of saved objects. What
# is none of this, a function or a module, is made again by the commands that made it.


_LEFT, _VALUE, _ARRAY, _POISON, _OBJECT, _METHOD = range(6)


class _Collecting(ArrayPorter):
    """Takes the arrays out of values; the same array is taken once."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._places: dict[int, int] = {}
        self.taken: list[Any] = []

    def knows(self, value: object) -> bool:
        """Whether it is an array on a GPU."""
        return on_device(value)

    def from_device(self, value: Any) -> Any:
        """Returns an array of another library on a GPU as cupy's, or None."""
        return None if on_host(value) else native(value)

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
        """Copies a small array to the worker's device."""
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
        self._patterns = worker.allow_modules
        self._states: dict[int, tuple[str, dict[str, Any]]] = {}
        self._places: dict[int, int] = {}
        self._objects: list[list[Any]] = []
        self._tensors: list[Any] = []

    def kinds(self) -> dict[str, Any]:
        """What cannot be saved: places to be made again, names too, and what is refused.

        Of the last there is the first, by its place or its name, with its type.
        """
        places = [place for place, value in enumerate(self._values) if not self._can_save(value)]
        names = [name for name, (value, _) in self._published.items() if not self._can_save(value)]
        refused: list[list[Any]] = [
            [place, type_name(self._values[place])]
            for place in places
            if not _can_make(self._values[place])
        ]
        refused += [
            [name, type_name(self._published[name][0])]
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
        if isinstance(value, BoundMethod):
            return [_METHOD, self._place_of(value.held, porter), value.member]
        if has_state(value):
            return [_OBJECT, self._place_of(value, porter)]
        return self._encode_plain(value, porter)

    def _encode_plain(self, value: Any, porter: _Collecting) -> list[Any]:
        array = native(value)
        if is_any_array(array) and self._is_plain(array):
            return [_ARRAY, porter.offer(array), list(_find_libraries(value))]
        encoded = EncodedValue()
        encode_value(encoded, array, porter)  # refuses what is nested without an end
        return [_VALUE, encoded.SerializeToString(), list(_find_libraries(value))]

    def _place_of(self, held: object, porter: _Collecting) -> int:
        """The place of an object among those to be saved; each is asked once, and saved once."""
        key = id(held)
        if key not in self._states:
            self._states[key] = save_object(held, self._patterns)
        if key not in self._places:
            name, state = self._states[key]
            try:
                content = {part: self._encode_plain(state[part], porter) for part in state}
            except EncodingError as error:
                msg = f"cannot save what __disco_state__ of an object of {name} returned: {error}"
                raise ArgumentRefused(msg) from None
            self._places[key] = len(self._objects)
            self._objects.append([name, content])
        return self._places[key]

    def _is_plain(self, array: Any) -> bool:
        # Others become such ones inside a value, or are refused there.
        dtype = array.dtype
        known = dtype.kind not in "OSU" and dtype.names is None
        return bool(array.flags.c_contiguous and dtype.isnative) and known

    def seal(self, made: Collection[int], names: Collection[str]) -> None:
        """Makes it ready to be written, without what the log makes again."""
        porter = _Collecting(self._arrays)
        self._places, self._objects = {}, []  # those of `kinds` were encoded one by one
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
        entries = {"registers": registers, "published": published, "objects": self._objects}
        encode_value(whole, entries, porter)
        head = np.frombuffer(whole.SerializeToString(), np.uint8)
        self._tensors = [head, *porter.taken]

    @property
    def tensors(self) -> list[Any]:
        """The arrays to be written; the first describes the others."""
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
    patterns, held = worker.allow_modules, list[Any]()
    for name, content in whole.get("objects", ()):
        state = {part: _decode(entry, porter) for part, entry in content.items()}
        held.append(load_object(name, state, patterns))

    def decode(entry: list[Any]) -> Any:
        if entry[0] == _OBJECT:
            return held[entry[1]]
        if entry[0] == _METHOD:
            return member_of(held[entry[1]], entry[2], patterns)
        return _decode(entry, porter)

    for number, entry in whole["registers"]:
        if entry[0] != _LEFT:
            value = decode(entry)
            worker.registers.write(number, value)
            if isinstance(value, BoundMethod):
                label = worker.flight.label_of(Action.CALL_PACKED, value.name)
                worker.registers.labels[number] = label
    for name, entry, facts in whole["published"]:
        worker.published[name] = decode(entry), decode(facts)


def _decode(entry: list[Any], porter: _Giving) -> Any:
    kind, content, more = entry
    if kind == _POISON:
        failure, _ = decode_failure(EncodedReply.FromString(content).failure)
        return Poison(failure, FailureKind(more))
    if kind == _ARRAY:
        value = porter.given[content]
    else:
        value = decode_value(EncodedValue.FromString(content), porter)
    for library, *path in more:
        value = _give_back(value, library, path)
    return value


# Arrays of other libraries are saved as numpy's, with the libraries' names beside them.


def _find_libraries(value: Any, *path: Any) -> Iterator[list[Any]]:
    """The libraries of the arrays in a value, each with the indices and keys that lead there."""
    if is_foreign(value):
        yield [library_of(value), *path]
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            yield from _find_libraries(item, *path, index)
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            yield from _find_libraries(item, *path, key)


def _give_back(value: Any, library: str, path: Sequence[Any]) -> Any:
    """Replaces an array in a value by its library's; returns the value."""
    if not path:
        return of_library(library, value)
    value[path[0]] = _give_back(value[path[0]], library, path[1:])
    return value


def _can_make(value: Any) -> bool:
    """Whether the commands that made a value can make it again."""
    if isinstance(value, GeneratorStream):  # made again, it would begin at the first item
        return False
    return callable(value) or isinstance(value, LoadedModule | CompiledProgram | ProcessGroup)


# The functions behind ``session.checkpoint``; its files are those of ``session.save``.


@register_func("runtime.disco._snapshot_take")
def snapshot_take(numbers: np.ndarray[Any, Any]) -> Snapshot:
    """Takes a snapshot of some registers."""
    return Snapshot(current_worker(), _host(numbers))


@register_func("runtime.disco._snapshot_kinds")
def snapshot_kinds(taken: Snapshot) -> dict[str, Any]:
    """Returns what of it cannot be saved."""
    return _checked_snapshot(taken).kinds()


@register_func("runtime.disco._snapshot_seal")
def snapshot_seal(taken: Snapshot, made: np.ndarray[Any, Any], names: Sequence[str]) -> None:
    """Leaves out what is made again, on some worker."""
    _checked_snapshot(taken).seal({int(number) for number in _host(made)}, set(names))


@register_func("runtime.disco._snapshot_facts")
def snapshot_facts(taken: Snapshot) -> list[Any]:
    """Shape and dtype of each array that this worker will write."""
    return [
        [Shape(each.shape), dtype_name(each.dtype)] for each in _checked_snapshot(taken).tensors
    ]


@register_func("runtime.disco._snapshot_write")
def snapshot_write(save: Save, taken: Snapshot, starts: Sequence[int]) -> None:
    """Writes this worker's arrays.

    Args:
        save: A save that was started.
        taken: The snapshot.
        starts: For each worker the number of its first array in the save.
    """
    worker = current_worker()
    if not isinstance(save, Save):
        msg = f"expected a save that was begun, got {type(save).__name__}"
        raise ArgumentRefused(msg)
    tensors = enumerate(_checked_snapshot(taken).tensors, starts[worker.worker_id])
    for number, array in sorted(tensors, key=lambda each: -each[1].dtype.itemsize):
        if save.has(number):
            if worker.arrays.holds(array):
                save.write(number, worker.arrays.read_pieces(array))
            else:
                save.write(number, [memoryview(array.tobytes())])


@register_func("runtime.disco._snapshot_check")
def snapshot_check(path: str) -> str:
    """Makes sure that a checkpoint can be read; returns its fingerprint."""
    return StoredCheckpoint(path, current_worker().allow_read).fingerprint


@register_func("runtime.disco._snapshot_restore")
def snapshot_restore(path: str, fingerprint: str) -> None:
    """Restores this worker's registers from a checkpoint.

    Raises:
        FileError: It is another checkpoint, or a file of it is not as it was.
    """
    worker = current_worker()
    stored = StoredCheckpoint(path, worker.allow_read)
    worker.audit("checkpoint opened", path, "")
    if stored.fingerprint != fingerprint:
        raise FileError(stored.path, "expected the checkpoint of this session, it was replaced")
    mine = f"{worker.worker_id}/"
    tensors: list[Any] = []
    for number, entry in enumerate(stored.entries):
        if entry.name.startswith(mine):
            bounds = tuple((0, extent) for extent in entry.shape)
            (array,) = stored.read([(number, bounds)])
            tensors.append(worker.arrays.from_host(array) if tensors else array)
    restore(worker, tensors)


@register_func("runtime.disco._snapshot_remove")
def snapshot_remove(path: str) -> None:
    """Removes a checkpoint that is not needed any more; worker 0 does."""
    worker = current_worker()
    if not worker.worker_id:
        remove_checkpoint(absolute_path(path), worker.allow_save)


def _host(array: Any) -> np.ndarray[Any, Any]:
    arrays = current_worker().arrays
    return arrays.to_host(array) if not arrays.on_host and arrays.holds(array) else array


def _checked_snapshot(taken: Any) -> Snapshot:
    if not isinstance(taken, Snapshot):
        msg = f"expected a snapshot, got {type(taken).__name__}"
        raise ArgumentRefused(msg)
    return taken
