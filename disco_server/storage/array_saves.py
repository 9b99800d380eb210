"""One worker's part in saving tensors as a store of arrays: Zarr, HDF5 or netCDF.

The steps, of which each is done on all workers before the next begins on any:

1. The leader makes the store beside its place, with all its arrays (`add`, `start`).
2. Each worker writes what no other one shares a chunk with. Zarr has chunks in files of their own,
   so all write at once; of an HDF5 file there is no such part (`write`).
3. One worker after the other writes the rest (`write_shared`).
4. The leader renames the store to its place (`commit`).

`close` before the last step leaves what was at the place as it was. Where the store is
made, and how it gets to its place, is in `store_place`.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from disco_client.wire.array_stores import check_dtype, check_names, whole_chunks
from disco_client.wire.values import dtype_name
from disco_server.storage.checkpoint_write import refused_writes
from disco_server.storage.files import FileError, FileNotAllowed, absolute_path, check_allowed
from disco_server.storage.folders import sync_folder
from disco_server.storage.hdf5 import dataset_type, memory_type, select
from disco_server.storage.store_place import StorePlace
from disco_server.storage.stores import ObjectPath
from disco_server.storage.tensor_files import LIBRARY_ERRORS, load_library

if TYPE_CHECKING:
    from disco_client.wire.partition import Bounds

__all__ = ["ArraySave", "SavedArray", "begin_save"]


Array = np.ndarray[Any, Any]
_TOKEN = re.compile("[0-9a-f]{16}")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_SHARED = "a store needs a folder that all workers share, such as one of a network file system"


@dataclass(frozen=True, slots=True)
class SavedArray:
    """An array that is to be saved.

    Attributes:
        name: Its path in the store.
        shape: Its extents.
        dtype: Its dtype.
        chunks: The extents of a chunk, where the format has chunks.
        part: What this worker writes of it; None for nothing.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    part: Bounds | None


class ArraySave(ABC):
    """One worker's side of a save.

    Args:
        path: Where the store is to be, as clients send it.
        allowed: Where sessions may save (see `file_allowed`).
        token: What names the store until it is complete, the same for all workers.
        leads: Whether this worker makes the store and puts it in its place.

    Raises:
        FileNotAllowed: The allow-list does not cover the place.
        FileError: Something else is there, or the format's library is not installed.
    """

    form: str
    in_folder = False
    """Whether a store is a folder; else it is a file."""

    def __init__(self, path: str, allowed: Sequence[str], token: str, *, leads: bool) -> None:
        where = absolute_path(path)
        if isinstance(where, ObjectPath):
            problem = f"format {self.form!r} is saved in folders: expected a path, this is a URL"
            raise FileError(where, problem)
        check_allowed(where, allowed, write=True)
        self.path = Path(os.path.realpath(where))
        # What replaces it is made beside it, and so in a folder that is allowed too.
        check_allowed(self.path.parent, allowed, write=True)
        self._place = StorePlace(self.path, token)
        self._beside = self._place.beside
        self._allowed = allowed
        self._leads = leads
        self.arrays: list[SavedArray] = []
        if leads and os.path.lexists(self.path) and not self._can_replace():
            problem = f"what is here is not of format {self.form!r}; remove it or save elsewhere"
            raise FileError(self.path, problem)

    def add(self, arrays: Iterable[SavedArray]) -> None:
        """Adds arrays that are to be saved.

        Raises:
            ConfigError: The format does not have the dtype.
        """
        for array in arrays:
            check_dtype(self.form, array.name, dtype_name(array.dtype))
            self.arrays.append(array)

    def start(self) -> None:
        """Makes the store, if this worker leads.

        Raises:
            ConfigError: The names cannot be those of a store.
            FileError: It cannot be made.
        """
        check_names(self.form, (array.name for array in self.arrays))
        if self._leads:
            with self._writing(""), refused_writes(self.path.parent):
                self._place.make(folder=self.in_folder)
                self._create()

    def write(self, number: int, array: Array) -> None:
        """Writes what of an array's part no other worker shares a chunk with.

        Raises:
            FileError: It cannot be written.
        """
        if self.arrays[number].part is not None:
            with self._writing(self.arrays[number].name):
                self._write(self.arrays[number], array, shared=False)

    def write_shared(self, number: int, array: Array) -> None:
        """Writes the rest of an array's part, while no other worker writes.

        Raises:
            FileError: It cannot be written.
        """
        if self.arrays[number].part is not None:
            with self._writing(self.arrays[number].name):
                self._write(self.arrays[number], array, shared=True)

    def commit(self) -> None:
        """Puts the store in its place, if this worker leads.

        Raises:
            FileError: That failed; what was there before stays.
        """
        if self._leads:
            with refused_writes(self.path):
                self._sync()
                self._place.put()

    def close(self) -> None:
        """Ends the save; without `commit`, what was written is removed. Idempotent."""
        self._place.close()

    @contextmanager
    def _writing(self, name: str) -> Generator[None]:
        """Turns errors of a format's library into errors that name the store and the array."""
        if name and not self._beside.exists():
            problem = f"worker 0 made {self._beside.name} here, which this worker does not see"
            raise FileError(self.path.parent, f"{problem}: {_SHARED}")
        try:
            yield
        except (FileError, FileNotAllowed):
            raise
        except LIBRARY_ERRORS as error:
            raise FileError(self.path, f"cannot be written: {error}", tensor=name) from None

    @abstractmethod
    def _can_replace(self) -> bool:
        """Whether what is at the place is of this format."""

    @abstractmethod
    def _create(self) -> None:
        """Makes the arrays in the empty store, without numbers."""

    @abstractmethod
    def _write(self, array: SavedArray, content: Array, *, shared: bool) -> None:
        """Writes a part, or what of it other parts share a chunk with."""

    @abstractmethod
    def _sync(self) -> None:
        """Makes durable what this worker made."""


class _Zarr(ArraySave):
    """A Zarr group of format 3 in a folder."""

    form = "zarr"
    in_folder = True

    def __init__(self, path: str, allowed: Sequence[str], token: str, *, leads: bool) -> None:
        load_library("zarr", "zarr", path)
        super().__init__(path, allowed, token, leads=leads)

    def _can_replace(self) -> bool:
        from disco_server.storage import zarr_folder

        return zarr_folder.is_zarr(self.path)

    def _create(self) -> None:
        from disco_server.storage import zarr_folder

        facts = [(each.name, each.shape, each.dtype, each.chunks) for each in self.arrays]
        zarr_folder.create_arrays(self._beside, self._allowed, facts)

    def _write(self, array: SavedArray, content: Array, *, shared: bool) -> None:
        from disco_server.storage import zarr_folder

        part = array.part or ()
        own = whole_chunks(part, array.chunks, array.shape)
        boxes = _around(part, own) if shared else [own] if own is not None else []
        if not content.size or not boxes:
            return
        opened = zarr_folder.open_array(self._beside, array.name, self._allowed, write=True)
        for box in boxes:
            inside = tuple(
                slice(start - first, stop - first)
                for (start, stop), (first, _) in zip(box, part, strict=True)
            )
            opened[tuple(slice(*each) for each in box)] = content[inside]

    def _sync(self) -> None:
        for folder, _, _ in os.walk(self._beside):
            sync_folder(Path(folder))


def _around(part: Bounds, own: Bounds | None) -> list[Bounds]:
    """The boxes of a part around a box in it."""
    if own is None:
        return [part]
    boxes: list[Bounds] = []
    for axis, ((start, stop), (first, last)) in enumerate(zip(part, own, strict=True)):
        boxes += [
            (*own[:axis], piece, *part[axis + 1 :])
            for piece in ((start, first), (last, stop))
            if piece[0] < piece[1]
        ]
    return boxes


class _Hdf5(ArraySave):
    """An HDF5 file, of whose datasets each lies in one piece."""

    form = "hdf5"
    extra = "hdf5"

    def __init__(self, path: str, allowed: Sequence[str], token: str, *, leads: bool) -> None:
        self._library = load_library("h5py", self.extra, path)
        super().__init__(path, allowed, token, leads=leads)

    def _can_replace(self) -> bool:
        if not self.path.is_file():
            return False
        with self.path.open("rb") as file:
            return file.read(len(_HDF5)) == _HDF5

    def _create(self) -> None:
        with self._open() as file:
            self._create_in(file)

    def _open(self) -> BinaryIO:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(self._beside, flags), "r+b")

    def _create_in(self, file: Any) -> None:
        with self._library.File(file, "w") as content:
            for array in self.arrays:
                group, _, name = array.name.rpartition("/")
                where = content.require_group(group) if group else content
                space = self._library.h5s.create_simple(array.shape)
                if not array.shape:
                    space = self._library.h5s.create(self._library.h5s.SCALAR)
                kind = dataset_type(self._library, array.dtype)
                self._library.h5d.create(where.id, name.encode(), kind, space)

    def _write(self, array: SavedArray, content: Array, *, shared: bool) -> None:
        if not shared or not content.size:
            return
        with self._open() as file:
            with self._library.File(file, "r+") as opened:
                dataset = opened[array.name]
                memory, inside = select(self._library, dataset, array.part or ())
                bits = content.view(np.uint16) if content.dtype.name == "bfloat16" else content
                kind = memory_type(self._library, content.dtype)
                dataset.id.write(memory, inside, bits, kind)
            file.flush()
            os.fsync(file.fileno())

    def _sync(self) -> None:
        with self._open() as file:
            os.fsync(file.fileno())


class _Netcdf(_Hdf5):
    """A netCDF-4 file; the dimensions of its variables have names of their own."""

    form = "netcdf"
    extra = "netcdf"

    def __init__(self, path: str, allowed: Sequence[str], token: str, *, leads: bool) -> None:
        self._netcdf = load_library("h5netcdf", "netcdf", path)
        super().__init__(path, allowed, token, leads=leads)

    def _create_in(self, file: Any) -> None:
        with self._netcdf.File(file, "w") as content:
            for array in self.arrays:
                group, _, name = array.name.rpartition("/")
                where = content
                for part in group.split("/") if group else ():
                    where = where.groups[part] if part in where.groups else where.create_group(part)
                names = [f"{name}_{axis}" for axis in range(len(array.shape))]
                for each, extent in zip(names, array.shape, strict=True):
                    where.dimensions[each] = extent
                where.create_variable(name, tuple(names), array.dtype)


_FORMATS: dict[str, type[ArraySave]] = {each.form: each for each in (_Zarr, _Hdf5, _Netcdf)}


def begin_save(
    form: str, path: str, allowed: Sequence[str], token: str, *, leads: bool
) -> ArraySave | None:
    """Begins to save a store; see `ArraySave`. None where there is no such format or token."""
    if form not in _FORMATS or not _TOKEN.fullmatch(token):
        return None
    return _FORMATS[form](path, allowed, token, leads=leads)
