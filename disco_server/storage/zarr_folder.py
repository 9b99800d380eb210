"""Zarr arrays in folders; the library zarr reads and writes its keys through a store of ours.

Importing this module needs zarr, so it is imported when a Zarr array is met. Every key is a file
that the allow-list is asked for, so that links in the folder lead nowhere else. A codec can run
code on the bytes of a chunk, as ``pickle`` does, so only the codecs of a list are used.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_server.storage.checkpoint_write import refused_writes
from disco_server.storage.files import DataFile, FileError, check_allowed
from disco_server.storage.folders import write_whole

if TYPE_CHECKING:
    from disco_client.wire.partition import Bounds

__all__ = ["FolderStore", "create_arrays", "is_zarr", "open_array", "read_into"]


_zarr: Any = importlib.import_module("zarr")
_interface: Any = importlib.import_module("zarr.abc.store")
_buffers: Any = importlib.import_module("zarr.core.buffer.cpu")

_ROOTS = ("zarr.json", ".zarray", ".zgroup")
"""The files of which a node of a Zarr hierarchy has one."""

_CODECS = frozenset(
    (
        *("bytes", "endian", "transpose", "sharding_indexed", "crc32c", "vlen-utf8", "vlen-bytes"),
        *("blosc", "zstd", "gzip", "zlib", "lz4", "bz2", "lzma", "zfpy", "pcodec"),
        *("delta", "fixedscaleoffset", "quantize", "bitround", "shuffle", "astype", "packbits"),
        *("crc32", "adler32", "fletcher32", "jenkins_lookup3", "vlen-array"),
    )
)
"""What may decode chunks: codecs that make numbers from bytes, and nothing else."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderStore(_interface.Store):
    """The keys of a Zarr hierarchy as files of a folder that the allow-list covers.

    Args:
        root: The folder.
        allowed: Where that is allowed (see `file_allowed`).
        write: Whether it is written, too; otherwise it is only read.
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = False

    def __init__(self, root: Path, allowed: Sequence[str], *, write: bool = False) -> None:
        _interface.Store.__init__(self, read_only=not write)
        self._root = root
        self._allowed = tuple(allowed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FolderStore) and (self._root, self._allowed, self.read_only) == (
            other._root,
            other._allowed,
            other.read_only,
        )

    def __hash__(self) -> int:
        return hash((self._root, self._allowed))

    def _path(self, key: str) -> Path:
        path = self._root / key
        check_allowed(path, self._allowed, write=not self.read_only)
        return path

    def _is_there(self, path: Path) -> bool:
        # Only what is not there is a chunk of fill values; what cannot be reached is an error.
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def _read(self, key: str, asked: Any) -> bytes | None:
        path = self._path(key)
        if not self._is_there(path):
            return None
        with DataFile(path, self._allowed) as file:
            start, stop = _range(asked, file.size)
            return file.read(max(0, stop - start), start)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """The value of a key, or a part of it; None where there is none."""
        content = await asyncio.to_thread(self._read, key, byte_range)
        return None if content is None else prototype.buffer.from_bytes(content)

    async def get_partial_values(
        self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]
    ) -> Sequence[Any]:
        """Parts of the values of several keys."""
        wanted = (self.get(key, prototype, part) for key, part in key_ranges)
        return list(await asyncio.gather(*wanted))

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        return self._is_there(self._path(key))

    def _write(self, key: str, content: bytes) -> None:
        path = self._path(key)
        with refused_writes(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, _NEW, 0o666)
            try:
                write_whole(fd, memoryview(content), 0)
                os.fsync(fd)
            finally:
                os.close(fd)

    async def set(self, key: str, value: Any) -> None:
        """Writes the value of a key, which is durable then."""
        self._check_writable()
        await asyncio.to_thread(self._write, key, value.to_bytes())

    async def delete(self, key: str) -> None:
        """Removes a key."""
        self._check_writable()
        path = self._path(key)
        with refused_writes(path):
            path.unlink(missing_ok=True)

    def list(self) -> AsyncIterator[str]:
        """Not supported, which nothing needs that names its arrays."""
        raise NotImplementedError

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Not supported either."""
        raise NotImplementedError

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Not supported either."""
        raise NotImplementedError


def _range(asked: Any, size: int) -> tuple[int, int]:
    if isinstance(asked, _interface.RangeByteRequest):
        return asked.start, min(asked.end, size)
    if isinstance(asked, _interface.OffsetByteRequest):
        return asked.offset, size
    if isinstance(asked, _interface.SuffixByteRequest):
        return max(0, size - asked.suffix), size
    return 0, size


def is_zarr(folder: Path) -> bool:
    """Whether a folder is a node of a Zarr hierarchy."""
    return any((folder / name).is_file() for name in _ROOTS)


def open_array(root: Path, name: str, allowed: Sequence[str], *, write: bool = False) -> Any:
    """Opens an array of a folder.

    Raises:
        FileNotAllowed: The allow-list does not cover its files.
        FileError: It has a codec that is not in the list.
    """
    store = FolderStore(root, allowed, write=write)
    array: Any = _zarr.open_array(store=store, path=name, mode="r+" if write else "r")
    unknown = sorted(set(_codec_names(array.metadata.to_dict())) - _CODECS)
    if unknown:
        raise FileError(root, f"its codec {unknown[0]!r} is none that may be used", tensor=name)
    return array


def read_into(array: Any, bounds: Bounds, out: np.ndarray[Any, Any]) -> None:
    """Reads a part of an array into another one of its shape."""
    place = tuple(slice(*each) for each in bounds)
    if out.shape and array.dtype == out.dtype:
        # Without an array of the part in between, of which there may be no room for two.
        array.get_basic_selection(place, out=_buffers.NDBuffer.from_numpy_array(out))
    else:
        out[...] = array[place]


def _codec_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The names of all codecs in an array's metadata, of which some hold further ones."""
    for key in ("codecs", "index_codecs", "filters", "compressor"):
        held: Any = metadata.get(key) or ()
        for codec in cast("Iterable[Any]", (held,) if isinstance(held, Mapping) else held):
            said = cast("Mapping[str, Any]", codec)
            yield str(said.get("name", said.get("id"))).removeprefix("numcodecs.")
            yield from _codec_names(cast("Mapping[str, Any]", said.get("configuration") or {}))


def create_arrays(
    root: Path, allowed: Sequence[str], arrays: Iterable[tuple[str, Any, Any, Any]]
) -> None:
    """Makes a hierarchy of arrays without chunks.

    Args:
        root: Its folder.
        allowed: Where that is allowed.
        arrays: Name, shape, dtype and the shape of chunks of each.
    """
    store = FolderStore(root, allowed, write=True)
    made = {""}
    _zarr.create_group(store=store)
    for name, shape, dtype, chunks in arrays:
        parts = name.split("/")
        for end in range(1, len(parts)):
            group = "/".join(parts[:end])
            if group not in made:
                made.add(group)
                _zarr.create_group(store=store, path=group)
        # A chunk of zeros is written too: one that is missing was lost. Numbers are not compressed,
        # since those of tensors hardly can be, and it takes three times as long.
        options: Any = {"write_empty_chunks": True}
        _zarr.create_array(
            store=store,
            name=name,
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            compressors=None,
            config=options,
        )
