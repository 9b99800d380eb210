"""Objects in stores and on web servers, by URL: ranges of their bytes, lists, and new objects.

The package ``obstore`` speaks with S3, Google Cloud Storage, Azure Blob Storage and web servers; it
takes credentials and endpoints from the environment of this process, or from the machine's role.
What fails is an `OSError` with the system's number, as with files, so that one code handles both.
"""

from __future__ import annotations

import errno
import importlib
import re
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

__all__ = ["ObjectBytes", "ObjectFolder", "ObjectPath", "ObjectWriter", "list_objects"]


_PART = 8 << 20
"""Bytes of one request. A store answers several such requests faster than one for all."""

_AT_ONCE = 8
"""Requests under way for one read, and parts under way for one object that is written."""

_MAX_PARTS = 9_000
"""S3 takes 10,000 parts of an object."""

_ANSWER_S = 60.0
"""How long a request may take until all of its answer is there: eight of 8 MiB share a connection
of 1 MiB/s. A time between two reads is not limited, because that counts while a body is sent."""

_AGAIN_S = 90.0
"""For how long a request is sent again that fails, or that a store answers with 5xx or 429: stores
ask for less when they have to grow, and servers are replaced. One that stalls is sent twice."""

_CONNECT_S, _LONGEST_PAUSE_S = 10.0, 5.0
_STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """The URL of an object, or what the names of several begin with; used like a `pathlib.Path`.

    Attributes:
        url: It, in its normal form (see `disco_server.settings.normal_place`).
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{name}")

    @property
    def scheme(self) -> str:
        """The kind of store."""
        return self.url.partition("://")[0]

    @property
    def host(self) -> str:
        """The bucket, the container, or the web server."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """The name in the store; empty for all of it."""
        return self.url.partition("://")[2].partition("/")[2]

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """What follows the last dot of the last part, with the dot."""
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> ObjectPath:
        """All but the last part; of a whole store itself."""
        return ObjectPath(self.url.rpartition("/")[0]) if self.key else self


def _library() -> Any:
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        problem = (
            f"the package obstore cannot be imported on this worker ({error}):"
            " pip install 'disco-runtime[stores]'"
        )
        raise OSError(errno.ENOPKG, problem) from None


@lru_cache(maxsize=64)
def _store(scheme: str, host: str) -> Any:
    """The client of a bucket, which renews its credentials by itself."""
    stores = _library().store
    # Who wants TLS writes https in the address of the endpoint.
    options = {
        "client_options": {
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=_ANSWER_S),
            "allow_http": True,
        },
        "retry_config": {
            "max_retries": 1000,  # the time is what counts
            "retry_timeout": timedelta(seconds=_AGAIN_S),
            # Each pause is one by chance, up to three times the one before.
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=_LONGEST_PAUSE_S),
                "base": 3,
            },
        },
    }
    with _translated():
        if scheme in _STORES:
            return getattr(stores, _STORES[scheme])(host, **options)
        return stores.HTTPStore(f"{scheme}://{host}", **options)


def _key(path: ObjectPath) -> str:
    return unquote(path.key) if path.scheme.startswith("http") else path.key


@contextmanager
def _translated() -> Generator[None]:
    """Turns the library's errors into those of the system."""
    known = _library().exceptions
    try:
        yield
    except (known.NotFoundError, FileNotFoundError):
        raise OSError(errno.ENOENT, "there is no such object") from None
    except known.AlreadyExistsError:
        raise OSError(errno.EEXIST, "there is such an object already") from None
    except known.PreconditionError:
        raise OSError(errno.ESTALE, "it was replaced while it was read") from None
    except (known.PermissionDeniedError, known.UnauthenticatedError) as error:
        raise OSError(errno.EACCES, _brief(error)) from None
    except known.BaseError as error:
        raise _failure(error) from None
    except OSError as error:  # of writers
        raise _failure(error, error.errno or errno.EIO) from None


_SAID = re.compile(r"<(Code|Message)>(.*?)</\1>", re.DOTALL)
_TRIED = re.compile(r" in (\d+\.?\d?)\d*(m?s), after (\d+) retries")
_MAX_BRIEF = 300


def _brief(error: Exception) -> str:
    """What a store said, without what it repeats of a request, which may name a key."""
    text = str(error).partition("\n\nDebug source")[0]
    before, mark, body = text.partition("<")
    said = ", ".join(each for _, each in _SAID.findall(mark + body))
    # What was requested from where is known; behind it stands what happened.
    happened = said or before.rpartition(" - ")[2] or before
    brief = re.sub(r"\s+", " ", happened).rstrip(" :")[:_MAX_BRIEF]
    if not said and (tried := _TRIED.search(before)) is not None:
        brief = f"{brief} (tried {int(tried[3]) + 1} times in {tried[1]} {tried[2]})"
    return brief


def _failure(error: Exception, number: int = errno.EIO) -> OSError:
    # Only what it says for debugging, and not for a writer, tells a timeout from other failures.
    if "kind: Timeout" not in str(error):
        return OSError(number, _brief(error))
    problem = (
        f"it stalled: the server did not take a request and answer it in full within {_ANSWER_S:g}"
        f" s, and neither when it was asked again for up to {_AGAIN_S:g} s"
    )
    return OSError(errno.ETIMEDOUT, problem)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Threads that call the library.

    All are started at once: a thread has the scheduling class of the one that starts it, for good,
    and that of a thread that saves in the background may come later.
    """
    threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="disco-objects")
    together = threading.Barrier(_AT_ONCE + 1)
    try:
        with suppress(RuntimeError):  # the system has no more of them; those that run will do
            for _ in range(_AT_ONCE):
                threads.submit(together.wait)
            together.wait()
    finally:
        together.abort()
    return threads


def _call(name: str, *args: Any, **options: Any) -> Any:
    """Calls a function of the library, and lets an interrupt end the wait for it.

    The library waits without looking for signals, so another thread calls it.

    Raises:
        OSError: It failed.
    """
    with _translated():
        return _threads().submit(getattr(_library(), name), *args, **options).result()


class ObjectBytes:
    """One object, of which ranges are read; all of them are of the object as it was opened.

    Attributes:
        size: Its bytes.

    Raises:
        OSError: There is none, or it may not be read, or the store does not answer.
    """

    def __init__(self, path: ObjectPath) -> None:
        self._store, self._key = _store(path.scheme, path.host), _key(path)
        facts = _call("head", self._store, self._key)
        self.size: int = facts["size"]
        tag = facts["e_tag"] or ""
        # Weak tags are equal to nothing in this comparison.
        self._same: dict[str, Any] = {"if_match": tag} if tag and tag[:2] != "W/" else {}

    def read_pieces(self, pieces: Iterable[tuple[memoryview, int]]) -> Iterator[int]:
        """Fills buffers from offsets, several at once; yields how many bytes came.

        Raises:
            EOFError: The object ends before.
            OSError: The read failed, or the object was replaced.
        """
        cut = list(_cut(pieces))
        if cut:  # one, too, by another thread: see `_call`
            yield from _threads().map(self._read_range, *zip(*cut, strict=True))

    def _read_range(self, out: memoryview, offset: int) -> int:
        if offset + len(out) > self.size:
            there = max(0, self.size - offset)
            msg = f"expected {len(out)} bytes from offset {offset}, the file ends after {there}"
            raise EOFError(f"{msg} of them")
        options = {"range": (offset, offset + len(out)), **self._same}
        with _translated():
            data = memoryview(_library().get(self._store, self._key, options=options).bytes())
        if len(data) != len(out):
            msg = f"expected {len(out)} bytes from offset {offset}, got {len(data)}"
            raise EOFError(msg)
        out[:] = data
        return len(out)

    def close(self) -> None:
        """Ends reading; there is nothing to be given back."""


def _cut(pieces: Iterable[tuple[memoryview, int]]) -> Iterator[tuple[memoryview, int]]:
    for out, offset in pieces:
        for at in range(0, len(out), _PART):
            yield out[at : at + _PART], offset + at


def list_objects(path: ObjectPath) -> list[str]:
    """The names of what lies below a URL: objects, and the next parts of the names of others.

    Raises:
        OSError: That may not be read, or the store has no lists, as web servers.
    """
    if path.scheme not in _STORES:
        raise OSError(errno.ENOTSUP, "web servers have no lists: name a file of it")
    store, key = _store(path.scheme, path.host), _key(path)
    found = _call("list_with_delimiter", store, f"{key}/" if key else None)
    names = [entry["path"] for entry in found["objects"]] + list(found["common_prefixes"])
    return [name.rstrip("/").rpartition("/")[2] for name in names]


class ObjectWriter:
    """A new object, which is there when it is finished.

    Args:
        path: Its URL.
        nbytes: How many bytes it will have.
    """

    def __init__(self, path: ObjectPath, nbytes: int) -> None:
        part = max(_PART, -(-nbytes // _MAX_PARTS))
        store = _store(path.scheme, path.host)
        self._at = 0
        self._finished = False
        with _translated():
            self._writer = _library().open_writer(
                store, _key(path), buffer_size=part, max_concurrency=_AT_ONCE
            )

    def write(self, data: memoryview, offset: int) -> None:
        """Adds bytes.

        Raises:
            OSError: They do not follow those before, or the store refused some of those.
        """
        if offset != self._at:
            problem = f"expected what follows byte {self._at} of it, got what follows {offset}"
            raise OSError(errno.ESPIPE, problem)
        with _translated():
            self._writer.write(data)
        self._at += len(data)

    def finish(self) -> None:
        """Makes the object.

        Raises:
            OSError: The store refused it.
        """
        self._finished = True
        with _translated():
            self._writer.close()

    def close(self) -> None:
        """Ends writing; without `finish` there is no object, and its parts are removed."""
        if not self._finished:
            self._finished = True
            with suppress(OSError), _translated():
                self._writer.__exit__(OSError, OSError(), None)


class ObjectFolder:
    """What the names of a save's objects begin with; has what `LocalFolder` has.

    Args:
        path: The URL.
    """

    def __init__(self, path: ObjectPath) -> None:
        self._path = path
        if path.scheme not in _STORES:
            raise OSError(errno.EROFS, "web servers are only read: expected a folder or a store")
        self._store = _store(path.scheme, path.host)

    def lock(self, _wait_s: float) -> bool:
        """No store has locks: whether this is the only writer is not known."""
        return False

    def room(self) -> None:
        """A store does not say how much may still be written."""

    def names(self) -> list[str]:
        """See `list_objects`."""
        return list_objects(self._path)

    def open_bytes(self, name: str) -> ObjectBytes:
        """An object, to be read."""
        return ObjectBytes(self._path / name)

    def make(self, name: str) -> ObjectFolder:
        """What the names of some objects begin with."""
        return ObjectFolder(self._path / name)

    def create(self, name: str, nbytes: int) -> ObjectWriter:
        """A new object of so many bytes."""
        return ObjectWriter(self._path / name, nbytes)

    def claim(self, name: str) -> None:
        """Makes an empty object."""
        _call("put", self._store, _key(self._path / name), b"")

    def put_new(self, name: str, content: bytes, _claim: str) -> bool:
        """Makes an object where there is none of that name; whether there was none.

        Raises:
            OSError: The store refused it, or whether it did is not known.
        """
        key = _key(self._path / name)
        try:
            _call("put", self._store, key, content, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Removes an object, and all whose names begin with its own and a slash."""
        key = _key(self._path / name)
        with _translated():
            listed = _library().list(self._store, f"{key}/")
            found = [entry["path"] for some in listed for entry in some]
        with suppress(FileNotFoundError):
            _call("delete", self._store, found or key)

    def close(self) -> None:
        """There is nothing to be given back."""
