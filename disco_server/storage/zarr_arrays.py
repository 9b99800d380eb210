"""Zarr arrays of folders, of which each worker reads its own part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
    check_allowed,
    find_dtype,
    parse_json,
)
from disco_server.storage.stores import ObjectPath
from disco_server.storage.tensor_files import (
    LIBRARY_ERRORS,
    TensorFile,
    load_library,
    nearest_names,
)

if TYPE_CHECKING:
    from disco_client.wire.partition import Bounds

__all__ = ["open_zarr"]

_MOST_FOLDERS = 10_000
_MOST_METADATA = 64 << 20


@dataclass(frozen=True, slots=True)
class _ZarrArray(TensorFile):
    """An array of a Zarr hierarchy in a folder."""

    path: Path
    name: str

    def read(self, bounds: Bounds, allowed: Sequence[str]) -> np.ndarray[Any, Any]:
        out = empty_array(shape_within(bounds), dtype_from_name(self.dtype))
        if not out.size:
            return out
        try:
            array = _library(self.path).open_array(self.path, self.name, allowed)
            same = (array.shape, dtype_name(array.dtype)) == (self.shape, self.dtype)
            if same:
                _library(self.path).read_into(array, bounds, out)
        except (FileError, FileNotAllowed):
            raise
        except LIBRARY_ERRORS as error:
            raise FileError(self.path, f"cannot be read: {error}", tensor=self.name) from None
        if not same:
            raise FileError(self.path, "it changed after it was opened", tensor=self.name)
        return out


def _library(root: Path) -> ModuleType:
    """The module that imports zarr."""
    load_library("zarr", "zarr", root)
    from disco_server.storage import zarr_folder

    return zarr_folder


def open_zarr(path: str, name: str, allowed: Sequence[str]) -> TensorFile:
    """Finds an array of Zarr's format 2 or 3 in a folder.

    Args:
        path: The folder of an array, or of a group.
        name: The path of the array in the group; empty where the folder is the array's.
        allowed: What may be read (see `file_allowed`).

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: It is missing or malformed, there is no such array, or one without numbers.
    """
    root = absolute_path(path)
    check_allowed(root, allowed)
    if isinstance(root, ObjectPath):
        raise FileError(root, "Zarr is read from folders: expected a path, this is a URL")
    library = _library(root)
    if not root.is_dir():
        raise FileError(root, "expected the folder of a Zarr array or group, there is none here")
    if ".." in name.split("/") or not _is_array(root / name, allowed):
        has = nearest_names(name, (each for each in _array_names(root, allowed) if each))
        what = f"it has no array {name!r}" if name else "it is no array, name one that it holds"
        raise FileError(root, f"{what}; it has {has}")
    try:
        array = library.open_array(root, name, allowed)
        stored: np.dtype[Any] = array.dtype
    except (FileError, FileNotAllowed):
        raise
    except LIBRARY_ERRORS as error:
        raise FileError(root, f"expected a Zarr array: {error}", tensor=name) from None
    try:
        known = stored.kind in "biufc" and find_dtype(dtype_name(stored)) is not None
    except ConfigError:
        known = False
    if not known:
        raise FileError(root, f"expected numbers, its dtype is {stored}", tensor=name)
    return _ZarrArray(root, tuple(array.shape), dtype_name(stored), name)


def _array_names(root: Path, allowed: Sequence[str]) -> Iterator[str]:
    """The arrays below a folder; the folders of arrays, which hold chunks, are not entered."""
    for folder, inside, _ in islice(os.walk(root), _MOST_FOLDERS):
        where = Path(folder)
        if _is_array(where, allowed):
            inside.clear()
            yield "" if where == root else where.relative_to(root).as_posix()


def _is_array(folder: Path, allowed: Sequence[str]) -> bool:
    if (folder / ".zarray").is_file():
        return True
    metadata = folder / "zarr.json"
    if not metadata.is_file():
        return False
    with DataFile(metadata, allowed) as file:
        content = file.read(min(file.size, _MOST_METADATA))
    return parse_json(metadata, content).get("node_type") == "array"
