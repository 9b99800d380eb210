"""Datasets of HDF5 files, and variables of netCDF-4 files, which are HDF5 files too.

The library h5py reads through a `DataFile`, so that the allow-list holds for every byte. What makes
the HDF5 library open further files by itself (links, external and virtual storage) is refused.
A dataset that lies in one piece is read by its offset, as other files are.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.arrays import empty_array
from disco_client.wire.partition import shape_within
from disco_client.wire.values import dtype_from_name, dtype_name
from disco_server.storage.files import (
    DataFile,
    FileError,
    FileNotAllowed,
    absolute_path,
    find_dtype,
)
from disco_server.storage.folders import Where
from disco_server.storage.model_files import FlatTensor
from disco_server.storage.tensor_files import (
    LIBRARY_ERRORS,
    TensorFile,
    load_library,
    nearest_names,
)

if TYPE_CHECKING:
    from disco_client.wire.partition import Bounds

__all__ = ["dataset_type", "memory_type", "open_hdf5", "open_netcdf", "select"]


_MOST_LINKS = 16
_MOST_NAMES = 1000
_CLASSIC = b"CDF"


class _Stream(io.RawIOBase):
    """A data file as the HDF5 library reads it."""

    def __init__(self, file: DataFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        out = memoryview(buffer).cast("B")
        self._file.read_into(out, self._at)
        self._at += len(out)
        return len(out)


@contextmanager
def _opened(path: Where, name: str, allowed: Sequence[str]) -> Generator[tuple[Any, Any]]:
    """Opens a file; gives the library and the dataset of a name.

    Raises:
        FileNotAllowed: The allow-list does not cover the file.
        FileError: It is none of HDF5, or has no such dataset, or what the block did failed.
    """
    with DataFile(path, allowed) as file:
        library = load_library("h5py", "hdf5", path)
        if file.size >= len(_CLASSIC) and file.read(len(_CLASSIC)) == _CLASSIC:
            problem = "it has the classic netCDF format, and only netCDF-4 can be read"
            raise FileError(path, f"{problem}: nccopy -k nc4 converts it")
        try:
            content = library.File(_Stream(file), "r")
        except (FileError, FileNotAllowed):
            raise
        except LIBRARY_ERRORS as error:
            raise FileError(path, f"expected an HDF5 file: {error}") from None
        with content:
            try:
                yield library, _find(library, content, path, name)
            except (FileError, FileNotAllowed):
                raise
            except LIBRARY_ERRORS as error:
                raise FileError(path, f"cannot be read: {error}", tensor=name) from None


def _find(library: Any, content: Any, path: Where, name: str) -> Any:
    """Follows a path in a file, but not out of the file."""
    here, followed = content, 0
    parts = deque(_parts(name))
    while parts:
        part = parts.popleft()
        link = here.get(part, getlink=True) if isinstance(here, library.Group) else None
        if link is None:
            _refuse_missing(library, content, path, name)
        if isinstance(link, library.SoftLink):
            followed += 1
            if followed > _MOST_LINKS:
                raise FileError(path, f"more than {_MOST_LINKS} links lead to it", tensor=name)
            here = content if link.path.startswith("/") else here
            parts.extendleft(reversed(_parts(link.path)))
        elif isinstance(link, library.HardLink):
            here = here[part]
        else:
            raise FileError(path, "a link to another file is not followed", tensor=name)
    if not isinstance(here, library.Dataset):
        problem = f"it is a {type(here).__name__.lower()}, not a dataset; the file has"
        raise FileError(path, f"{problem} {_names(library, content, name)}", tensor=name)
    _refuse_other_files(here, path, name)
    return here


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _names(library: Any, content: Any, name: str) -> str:
    found: list[str] = []

    def note(each: str, item: Any) -> bool | None:
        if isinstance(item, library.Dataset):
            found.append(each)
        return True if len(found) == _MOST_NAMES else None

    content.visititems(note)
    return nearest_names(name, found)


def _refuse_missing(library: Any, content: Any, path: Where, name: str) -> NoReturn:
    raise FileError(path, f"it has no dataset {name!r}; it has {_names(library, content, name)}")


def _refuse_other_files(dataset: Any, path: Where, name: str) -> None:
    if dataset.external or dataset.is_virtual:
        raise FileError(path, "its numbers lie in other files, which are not read", tensor=name)
    if dataset.shape is None:
        raise FileError(path, "it has no numbers (a null dataspace)", tensor=name)


# Which numbers a dataset has.


def _is_bfloat16(library: Any, kind: Any) -> bool:
    if not isinstance(kind, library.h5t.TypeFloatID) or kind.get_size() != 2:  # noqa: PLR2004
        return False
    return kind.get_fields() == (15, 7, 8, 0, 7) and kind.get_ebias() == 127  # noqa: PLR2004


def dataset_type(library: Any, dtype: np.dtype[Any]) -> Any:
    """The type that a dataset of a dtype has in a file; numpy lacks that of bfloat16."""
    if dtype.name != "bfloat16":
        return library.h5t.py_create(dtype, logical=True)
    kind = library.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def memory_type(library: Any, dtype: np.dtype[Any]) -> Any:
    """The type of a dtype in memory."""
    return dataset_type(library, dtype.newbyteorder("="))


def _stored_dtype(library: Any, dataset: Any, path: Where, name: str) -> np.dtype[Any]:
    if _is_bfloat16(library, dataset.id.get_type()):
        return dtype_from_name("bfloat16")
    # Without what h5py notes beside it, such as the words of an enumeration.
    found = dataset.dtype
    stored = np.dtype(found.str) if found.kind in "iufc" else found
    try:
        known = find_dtype(dtype_name(stored)) is not None and stored.kind in "biufc"
    except ConfigError:
        known = False
    if not known:
        word = "strings" if library.check_string_dtype(found) else str(found)
        raise FileError(path, f"expected numbers, its dtype is {word}", tensor=name)
    return stored


@dataclass(frozen=True, slots=True)
class _Dataset(TensorFile):
    """A dataset in chunks, or of a type that must be converted."""

    name: str

    def read(self, bounds: Bounds, allowed: Sequence[str]) -> np.ndarray[Any, Any]:
        dtype = dtype_from_name(self.dtype)
        out = empty_array(shape_within(bounds), dtype)
        if not out.size:
            return out
        with _opened(self.path, self.name, allowed) as (library, dataset):
            now = dtype_name(_stored_dtype(library, dataset, self.path, self.name))
            if (dataset.shape, now) != (self.shape, self.dtype):
                raise FileError(self.path, "it changed after it was opened", tensor=self.name)
            memory, inside = select(library, dataset, bounds)
            # A dtype that numpy lacks goes by its bits.
            bits = out.view(np.uint16) if self.dtype == "bfloat16" else out
            dataset.id.read(memory, inside, bits, memory_type(library, dtype))
        return out


def select(library: Any, dataset: Any, bounds: Bounds) -> tuple[Any, Any]:
    """The dataspaces of a part, in memory and in the file."""
    if not bounds:
        return library.h5s.ALL, library.h5s.ALL
    extents = shape_within(bounds)
    inside = dataset.id.get_space()
    inside.select_hyperslab(tuple(start for start, _ in bounds), extents)
    return library.h5s.create_simple(extents), inside


def open_hdf5(path: str, name: str, allowed: Sequence[str]) -> TensorFile:
    """Finds a dataset in an HDF5 file.

    Raises:
        FileNotAllowed: The allow-list does not cover the file.
        FileError: It is missing or malformed, has no such dataset, or one without numbers.
    """
    where = absolute_path(path)
    with _opened(where, name, allowed) as (library, dataset):
        return _tensor_of(library, dataset, where, name)


def _tensor_of(library: Any, dataset: Any, path: Where, name: str) -> TensorFile:
    stored = _stored_dtype(library, dataset, path, name)
    shape, dtype = tuple(dataset.shape), dtype_name(stored)
    # Space that was never written has no offset, and consists of fill values.
    offset = dataset.id.get_offset()
    if offset is not None and dataset.id.get_type() == dataset_type(library, stored):
        return FlatTensor(path, shape, dtype, stored, offset)
    return _Dataset(path, shape, dtype, name)


# Variables of netCDF, of which attributes may say that they are packed.


@dataclass(frozen=True, slots=True)
class _Packed(TensorFile):
    """A variable whose numbers are those of the file, times a factor, plus an offset.

    Attributes:
        held: What the file has.
        seen: As which numbers it has them.
        factor: The factor.
        offset: The offset.
        missing: The numbers of the file that stand for a missing one, which NaN replaces.
    """

    held: TensorFile
    seen: np.dtype[Any]
    factor: Any
    offset: Any
    missing: tuple[Any, ...]

    def read(self, bounds: Bounds, allowed: Sequence[str]) -> np.ndarray[Any, Any]:
        raw = self.held.read(bounds, allowed).view(self.seen)
        out = empty_array(raw.shape, dtype_from_name(self.dtype))
        out[...] = raw
        if self.factor is not None:
            out *= self.factor
        if self.offset is not None:
            out += self.offset
        for value in self.missing:
            out[raw == value] = np.nan
        return out


def open_netcdf(path: str, name: str, allowed: Sequence[str]) -> TensorFile:
    """Finds a variable in a netCDF-4 file, whose numbers are unpacked as the CF conventions say.

    Raises:
        FileNotAllowed: The allow-list does not cover the file.
        FileError: It is missing or malformed, has no such variable, or one without numbers.
    """
    where = absolute_path(path)
    with _opened(where, name, allowed) as (library, dataset):
        held = _tensor_of(library, dataset, where, name)
        seen = find_dtype(held.dtype) or np.dtype(held.dtype)
        if _text(dataset.attrs.get("_Unsigned")) == "true" and seen.kind == "i":
            seen = np.dtype(f"u{seen.itemsize}")
        factor = _number(dataset, "scale_factor", where, name)
        offset = _number(dataset, "add_offset", where, name)
        missing = [
            value
            for key in ("_FillValue", "missing_value")
            for value in _values(dataset, key, where, name)
        ]
    packing = [value for value in (factor, offset) if value is not None]
    if not packing and not missing and seen.name == held.dtype:
        return held
    dtype = seen
    if packing or missing:
        # As numpy promotes: numbers of 8 and 16 bits fit float32, and others need float64.
        dtype = np.result_type(seen, np.float32, *(value.dtype for value in packing))
    stand_ins = [_as_stored(value, seen) for value in missing]
    found = tuple(value for value in stand_ins if value is not None)
    return _Packed(where, held.shape, dtype.name, held, seen, factor, offset, found)


def _as_stored(value: Any, seen: np.dtype[Any]) -> Any:
    """A number of an attribute in the dtype of the file's; None where none of these is equal."""
    if seen.kind == "u" and value.dtype == np.dtype(f"i{seen.itemsize}"):
        return value.view(seen)
    if seen.kind == "f":
        return value.astype(seen)
    inside = np.iinfo(seen).min <= value <= np.iinfo(seen).max
    return value.astype(seen) if inside and value == int(value) else None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _values(dataset: Any, key: str, path: Where, name: str) -> list[Any]:
    if key not in dataset.attrs:
        return []
    found = np.asarray(dataset.attrs[key])
    if found.dtype.kind not in "iuf":
        problem = f"expected numbers for its attribute {key}, got {found.dtype}"
        raise FileError(path, problem, tensor=name)
    return list(found.reshape(-1))


def _number(dataset: Any, key: str, path: Where, name: str) -> Any:
    found = _values(dataset, key, path, name)
    if len(found) > 1:
        raise FileError(path, f"expected one number for its attribute {key}", tensor=name)
    return found[0] if found else None
