"""The functions behind ``session.load_weights``: headers first, then parts of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from disco_client.wire.arrays import empty_array
from disco_client.wire.values import Shape
from disco_server.rank.errors import ArgumentRefused, ModuleNotAllowed
from disco_server.rank.functions import register_func, resolve
from disco_server.rank.worker import Worker, current_worker
from disco_server.storage.files import (
    FileError,
    Record,
    find_dtype,
    is_count,
    parse_json,
    read_shape,
)
from disco_server.storage.model_files import Checkpoint, Part, open_checkpoint, read_tensor_cache

__all__ = ["ShardLoader"]


Array = np.ndarray[Any, Any]
_PAGE = 2048
"""Rows of the catalog in one reply, whose size is limited."""


@register_func("runtime.disco._weights_open")
def weights_open(path: str) -> Checkpoint:
    """Reads the headers of a model's files."""
    worker = current_worker()
    checkpoint = open_checkpoint(path, worker.allow_read)
    worker.audit("weights opened", path, "")
    return checkpoint


@register_func("runtime.disco._weights_catalog")
def weights_catalog(checkpoint: Checkpoint, first: int) -> dict[str, Any]:
    """What a client must know to plan: one column for each fact, one row a tensor.

    Args:
        checkpoint: The files.
        first: The first row; at most a page of them is returned.
    """
    records = _checked(checkpoint).records[first : first + _PAGE]
    return {
        "fingerprint": checkpoint.fingerprint,
        "total": len(checkpoint.records),
        "names": [record.name for record in records],
        "shapes": [Shape(record.shape) for record in records],
        "dtypes": [record.dtype for record in records],
        "stored": [record.stored for record in records],
        "nbytes": Shape(record.nbytes for record in records),
        "same_as": [record.same_as for record in records],
        "blocks": [Shape(record.block) for record in records],
    }


@register_func("runtime.disco._weights_check")
def weights_check(checkpoint: Checkpoint, fingerprint: str) -> None:
    """Makes sure that this worker's files hold what those of worker 0 hold.

    Raises:
        FileError: They differ.
    """
    if _checked(checkpoint).fingerprint != fingerprint:
        problem = "the names, shapes or dtypes of its tensors are not those on worker 0's node"
        raise FileError(checkpoint.path, problem)


@register_func("runtime.disco._weights_read")
def weights_read(
    checkpoint: Checkpoint,
    wanted: Sequence[Shape],
    layouts: Sequence[Any],
    dtype: str,
    in_blocks: Sequence[int] = (),
) -> list[Array]:
    """Reads this worker's parts of some tensors.

    Args:
        checkpoint: Where they are.
        wanted: For each tensor its position in the catalog; where it is split, then
            the number of its layout.
        layouts: Of each for each worker the axis, and first and last of each piece.
        dtype: What floating-point tensors become; empty for what they are.
        in_blocks: The positions of those that stay in their blocks: their layouts are of the
            bytes.
    """
    worker = current_worker()
    records = _checked(checkpoint).records
    if dtype and find_dtype(dtype) is None:
        msg = f"expected the name of a dtype, got {dtype!r}"
        raise ArgumentRefused(msg)

    def part_of(request: Shape) -> tuple[Record, Part | None]:
        if not request or not 0 <= request[0] < len(records):
            msg = f"expected one of {len(records)} tensors, got {request}"
            raise ArgumentRefused(msg)
        record = records[request[0]]
        if record.block[0] and request[0] in in_blocks:
            record = record.as_bytes()
        if len(request) == 1:
            return record, None
        axis, *flat = _own_entry(layouts, request[1], worker.worker_id)
        extent = record.shape[axis] if 0 <= axis < len(record.shape) else -1
        if len(flat) % 2 or sorted({*flat}) != flat or any(not 0 <= at <= extent for at in flat):
            msg = f"axis {axis} in pieces {flat} does not fit {record.name!r} {record.shape}"
            raise ArgumentRefused(msg)
        return record, (axis, tuple(zip(flat[::2], flat[1::2], strict=True)))

    found = checkpoint.read([part_of(request) for request in wanted], dtype)
    return [worker.arrays.from_host(array) for array in found]


def _own_entry(layouts: Sequence[Any], number: int, worker: int) -> Sequence[int]:
    try:
        axis, *pieces = layouts[number][worker]
    except (IndexError, ValueError):
        msg = f"expected one of {len(layouts)} layouts, with an entry for each worker, got {number}"
        raise ArgumentRefused(msg) from None
    return axis, *pieces


@register_func("runtime.disco._weights_item")
def weights_item(arrays: list[Array], index: int) -> Array:
    """One array of those that were read together."""
    return arrays[index]


def _checked(value: Any) -> Checkpoint:
    if not isinstance(value, Checkpoint):
        msg = f"expected weights that were opened, got {type(value).__name__}"
        raise ArgumentRefused(msg)
    return value


# The original's ShardLoader: weights of a tensor-cache.json, through worker 0, by position.
#
# Worker 0 reads the disk, applies the functions of a parameter's shard info, and
# scatters the result; a parameter without functions is broadcast. For programs that
# were written for the original; ``session.load_weights`` needs neither.


_PRESHARDED = re.compile(r".*_shard-(\d+)-of-(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Step:
    """One function of a chain: called as ``func(in, *numbers, out)``."""

    name: str
    func: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    numbers: tuple[int, ...]


class ShardLoader:
    """One worker's view of a model that is loaded parameter by parameter.

    Args:
        path: Of the tensor-cache.json; the data files are beside it.
        metadata: Its content.
        shard_info: JSON: the chain of functions of each parameter that is split.
            Empty: what the module's ``get_shard_info`` returns, if it has that.
        module: Where functions are looked up before the registered ones; may be
            None.

    Raises:
        FileError: The metadata are malformed.
        ArgumentRefused: The shard info is, or names a parameter that is not there.
        FunctionMissing: There is no function of a name.
    """

    def __init__(self, path: str, metadata: str, shard_info: str, module: Any) -> None:
        worker = current_worker()
        for what, text in (("path", path), ("metadata", metadata), ("shard info", shard_info)):
            if not isinstance(text, str):
                msg = f"expected the {what} as text, got {type(text).__name__}"
                raise ArgumentRefused(msg)
        records = read_tensor_cache(Path(path), metadata)
        self._checkpoint = Checkpoint(Path(path), records, worker.allow_read)
        worker.audit("weights opened", path, "")
        self.index_of = {record.name: index for index, record in enumerate(records)}
        self._module = module
        if not shard_info and module is not None:
            getter = self._find_in_module("get_shard_info")
            shard_info = getter() if getter is not None else ""
        self._chains = self._read_shard_info(shard_info, worker) if shard_info else {}

    @property
    def records(self) -> tuple[Record, ...]:
        """The parameters, in the order of the metadata."""
        return self._checkpoint.records

    # Reading the shard info --------------------------------------------------------

    def _read_shard_info(self, text: str, worker: Worker) -> dict[str, list[_Step]]:
        try:
            content = parse_json("the shard info", text)
        except FileError as error:
            raise ArgumentRefused(str(error)) from None
        chains: dict[str, list[_Step]] = {}
        for name, entries in content.items():
            if name not in self.index_of:
                msg = f"the shard info is of {name!r}, which is not in the metadata"
                raise ArgumentRefused(msg)
            if not isinstance(entries, list):
                msg = f"expected a list of functions for {name!r}, got {entries!r:.80}"
                raise ArgumentRefused(msg)
            steps = [self._read_step(name, entry) for entry in cast("list[Any]", entries)]
            if not steps:
                continue
            shape = steps[-1].shape
            if not shape or shape[0] != worker.num_workers:
                msg = (
                    f"expected {worker.num_workers} parts of {name!r}, one for each worker, on "
                    f"the first axis of what its last function makes, got shape {list(shape)}"
                )
                raise ArgumentRefused(msg)
            chains[name] = steps
        return chains

    def _read_step(self, param: str, entry: Any) -> _Step:
        expected = "a function as [name, [[shape], dtype], numbers...]"
        parts = cast("list[Any]", entry) if isinstance(entry, list) else []
        made = cast("list[Any]", parts[1]) if len(parts) > 1 and isinstance(parts[1], list) else []
        shape = read_shape(made[0]) if made else None
        dtype = find_dtype(made[1]) if len(made) > 1 and isinstance(made[1], str) else None
        numbers = parts[2:]
        good = shape is not None and all(type(number) is int for number in numbers)
        if not good or shape is None or dtype is None or not isinstance(parts[0], str):
            msg = f"expected {expected} for {param!r}, got {entry!r:.120}"
            raise ArgumentRefused(msg)
        func = self._find_in_module(parts[0]) if self._module is not None else None
        if func is None:
            worker = current_worker()
            func = resolve(parts[0], worker.allow_modules, worker.allow_functions)
        return _Step(parts[0], func, shape, dtype, tuple(numbers))

    def _find_in_module(self, name: str) -> Callable[..., Any] | None:
        try:
            return resolve("ffi.ModuleGetFunction", ())(self._module, name, True)
        except ModuleNotAllowed:
            return None

    # Loading ------------------------------------------------------------------------

    def read(self, index: int) -> Array:
        """Reads a parameter from this worker's disk to its device."""
        return _landed(self._read(index))

    def _read(self, index: int) -> Array:
        return self._checkpoint.read([(self.records[index], None)])[0]

    def load(self, index: int) -> Array:
        """Loads a parameter on worker 0 and gives each worker its part, or the whole."""
        record = self.records[index]
        steps = self._chains.get(record.name)
        shape, dtype = record.shape, _dtype_of(record)
        if steps:
            shape, dtype = steps[-1].shape[1:], steps[-1].dtype
        worker = current_worker()
        send = None
        if worker.worker_id == 0:
            send = _apply(self._read(index), steps or [])
        if send is not None and worker.num_workers == 1:
            return _landed(send.reshape(shape))
        out = empty_array(shape, dtype)
        if out.nbytes:
            # As bytes, because a library need not know the dtype to move it.
            source = None if send is None else _bytes_of(send)
            move = worker.world.scatter if steps else worker.world.broadcast
            move(source, _bytes_of(out))
        return _landed(out)

    def position(self, name: str) -> int:
        """The position of the parameter of that name."""
        index = self.index_of.get(name)
        if index is None:
            msg = f"there is no parameter {name!r} among {len(self.records)}"
            raise ArgumentRefused(msg)
        return index


def _landed(array: Array) -> Array:
    """A parameter on this worker's device."""
    return current_worker().arrays.from_host(array)


def _apply(array: Array, steps: Sequence[_Step]) -> Array:
    for step in steps:
        out = np.empty(step.shape, step.dtype)
        step.func(array, *step.numbers, out)
        array = out
    return array


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _dtype_of(record: Record) -> np.dtype[Any]:
    dtype = find_dtype(record.dtype)
    if dtype is None:
        msg = f"no array can have the dtype {record.stored} of {record.name!r}"
        raise ArgumentRefused(msg)
    return dtype


def _position(value: Any, count: int) -> int:
    """Takes a position as the original does: a number, or a shape of one."""
    items = cast("Sequence[Any]", value) if isinstance(value, (tuple, list)) else (value,)
    if len(items) != 1 or not is_count(items[0]) or items[0] >= count:
        msg = f"expected a position below {count}, got {value!r}"
        raise ArgumentRefused(msg)
    return items[0]


def _loader(value: Any) -> ShardLoader:
    if not isinstance(value, ShardLoader):
        msg = f"expected a ShardLoader, got {type(value).__name__}"
        raise ArgumentRefused(msg)
    return value


# Under the original's names -----------------------------------------------------------


@register_func("runtime.disco.ShardLoader")
def shard_loader(path: str, metadata: str, shard_info: str, module: Any = None) -> ShardLoader:
    """Makes a loader."""
    return ShardLoader(path, metadata, shard_info, module)


@register_func("runtime.disco.ShardLoaderLoad")
def load(loader: ShardLoader, index: Any) -> Array:
    """Loads the parameter at a position of the metadata."""
    return _loader(loader).load(_position(index, len(loader.records)))


@register_func("runtime.disco.ShardLoaderLoadAll")
def load_all(loader: ShardLoader) -> list[Array]:
    """Loads ``param_0``, ``param_1`` and so on, in the order of their numbers."""
    count = len(_loader(loader).records)
    indices = [loader.position(f"param_{number}") for number in range(count)]
    return [loader.load(index) for index in indices]


@register_func("runtime.disco.ShardLoaderLoadParamOnWorker0")
def load_param_on_worker0(loader: ShardLoader, number: Any) -> Array:
    """Loads a parameter on worker 0; the others get an uninitialised array of its shape."""
    index = _loader(loader).position(f"param_{_position(number, len(loader.records))}")
    if current_worker().worker_id == 0:
        return loader.read(index)
    record = loader.records[index]
    return current_worker().arrays.empty(record.shape, _dtype_of(record))


@register_func("runtime.disco.ShardLoaderLoadPresharded")
def load_presharded(loader: ShardLoader, index: Any) -> Array:
    """Loads this worker's part of a parameter that was split when it was written."""
    worker = current_worker()
    each = len(_loader(loader).records) // worker.num_workers
    position = worker.worker_id * each + _position(index, each)
    name = loader.records[position].name
    match = _PRESHARDED.fullmatch(name)
    numbers = (int(match[1]), int(match[2])) if match else (0, 0)
    if numbers != (worker.worker_id + 1, worker.num_workers) or worker.num_workers < 2:  # noqa: PLR2004
        msg = (
            f"expected a name that ends in _shard-{worker.worker_id + 1}-of-"
            f"{worker.num_workers} at position {position}, with two workers or more, got {name!r}"
        )
        raise ArgumentRefused(msg)
    return loader.read(position)


@register_func("runtime.disco.ShardLoaderLoadAllPresharded")
def load_all_presharded(loader: ShardLoader) -> list[Array]:
    """Loads this worker's parts of ``param_0``, ``param_1`` and so on."""
    worker = current_worker()
    count = len(_loader(loader).records) // worker.num_workers
    ending = f"_shard-{worker.worker_id + 1}-of-{worker.num_workers}"
    indices = [loader.position(f"param_{number}{ending}") for number in range(count)]
    return [loader.read(index) for index in indices]
