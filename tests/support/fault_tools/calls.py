"""Sees the calls by which product code asks the system for something, and makes one fail.

A folder holds a page that the test and the processes it starts share, and a
``sitecustomize.py``, which Python imports in every process that has the folder on its
path. A call is known by its site: the process's role, the file and the function of ours
that stand nearest to it, and what is called. A thread that gRPC starts for us counts too.

Only the standard library and numpy are needed here, because daemons and ranks load this
before anything else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

ROOT = Path(__file__).parents[3]
OFF, RECORD, ARMED, FIRED = range(4)
PAGE_BYTES = 4096
LOST = " without the descriptor"
"""Added to a call that brings descriptors: of this one, it does not."""

_OURS = (f"{ROOT}/disco_client/", f"{ROOT}/disco_server/")
_DEEPEST = 40
_ITSELF = __file__

_HARMLESS = {
    *("os.close", "os.fspath", "os.getpid", "os.sched_yield", "os.strerror", "os.set_blocking"),
    *("os.eventfd_read", "os.eventfd_write", "os.urandom"),
    *("os.kill", "os.killpg", "os.waitpid", "os._exit", "os.WIFSIGNALED", "os.getcwd", "os.umask"),
    *("socket.close", "socket.fileno", "socket.shutdown", "socket.setblocking"),
    *("socket.settimeout", "socket.gettimeout", "socket.detach", "socket.CMSG_SPACE"),
}
"""Calls that ask for nothing: they look at this process, or give something back."""

_ERRORS = {
    **dict.fromkeys(
        ("os.memfd_create", "os.dup", "os.open", "os.pipe", "os.eventfd", "socket.__init__"),
        errno.EMFILE,
    ),
    **dict.fromkeys(("socket.socketpair", "socket.accept"), errno.EMFILE),
    **dict.fromkeys(("socket.send", "socket.sendall"), errno.ENOBUFS),
    "socket.send_fds": errno.ETOOMANYREFS,
}
"""How a call fails; any other for want of memory."""

_SITECUSTOMIZE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("fault_tools_calls", {file!r})
module = sys.modules["fault_tools_calls"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.join({folder!r})
"""


class Calls:
    """What one process does about the calls that it sees.

    Args:
        folder: Has the page.
        role: What sites of this process begin with.
    """

    def __init__(self, folder: Path, role: str) -> None:
        self._role = role
        with (folder / "page").open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)
        log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._log = os.open(folder / f"{role}-{os.getpid()}.sites", log)
        self._write = os.write
        self._seen: set[str] = set()
        self._times = 0
        self._inside = threading.local()
        self._lock = threading.Lock()

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Stands before a function."""

        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._page[0] in (OFF, FIRED) or getattr(self._inside, "call", False):
                return real(*args, **kwargs)
            self._inside.call = True
            try:
                site = self._site(name)
                if site:
                    self.meet(site, name)
                    result = real(*args, **kwargs)
                    return self._descriptors(site, name, result)
            finally:
                self._inside.call = False
            return real(*args, **kwargs)

        return call

    def _site(self, name: str) -> str:
        frame: FrameType | None = sys._getframe(2)
        caller = ""
        for _ in range(_DEEPEST):
            if frame is None:
                break
            file, function = frame.f_code.co_filename, frame.f_code.co_name
            if file.startswith(_OURS):
                short = file.removeprefix(f"{ROOT}/")
                return f"{self._role}: {short} {function}: {name}{caller}"
            if function == "_run" and file.endswith("asyncio/events.py"):
                break  # the loop's own business
            if name == "threading.start" and not caller:
                caller = f" in {function}"
            frame = frame.f_back
        return ""

    def meet(self, site: str, name: str) -> None:
        """Notes a call, or makes it fail.

        Raises:
            OSError, RuntimeError, MemoryError: It was to fail.
        """
        if self._page[0] == RECORD:
            if self._times != self._page[-1]:
                self._times = self._page[-1]
                self._seen.clear()
            if site not in self._seen:
                self._seen.add(site)
                self._write(self._log, f"{self._times} {site}\n".encode())
        elif self._fires(site):
            if name == "threading.start":
                raise RuntimeError("can't start new thread")
            if name == "numpy.empty":
                raise MemoryError("Unable to allocate an array")
            number = _ERRORS.get(name, errno.ENOMEM)
            raise OSError(number, os.strerror(number))

    def _fires(self, site: str) -> bool:
        with self._lock:
            fires = self._page[0] == ARMED and self._page[1:].split(b"\0", 1)[0] == site.encode()
            if fires:
                self._page[0] = FIRED
        return fires

    def _descriptors(self, site: str, name: str, result: Any) -> Any:
        """Loses the descriptors that a message brought, as the kernel does where none is free."""
        if not name.startswith("socket.recvmsg") or not result[1]:
            return result
        data, ancillary, flags, address = result
        fds = [fd for _, _, content in ancillary for fd in memoryview(content).cast("i")]
        lost = data, [], flags | socket.MSG_CTRUNC, address
        if self._page[0] == RECORD:
            self.meet(site + LOST, name)
        elif self._fires(site + LOST):
            for fd in fds:
                os.close(fd)
            return lost
        return result

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Stands before all functions of the modules in question while a block runs."""
        import numpy as np

        places: list[tuple[Any, str, str]] = [
            (os, name, f"os.{name}")
            for name in dir(os)
            if isinstance(getattr(os, name), BuiltinFunctionType)
        ]
        places += [
            (socket, name, f"socket.{name}")
            for name in dir(socket)
            if callable(getattr(socket, name)) and not isinstance(getattr(socket, name), type)
        ]
        places += [
            (socket.socket, name, f"socket.{name}")
            for name in (*dir(socket.socket), "__init__")
            if (name == "__init__" or name[:1] != "_") and callable(getattr(socket.socket, name))
        ]
        places += [(threading.Thread, "start", "threading.start"), (np, "empty", "numpy.empty")]
        places += [(mmap, "mmap", "mmap.mmap")]
        try:
            import fcntl
        except ImportError:
            pass
        else:
            places.append((fcntl, "fcntl", "fcntl.fcntl"))
        places = [place for place in places if place[2] not in _HARMLESS]
        before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in places]
        for owner, name, what in places:
            setattr(owner, name, self.wrap(what, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, had in before:
                if had is None:
                    delattr(owner, name)  # it was the base class's
                else:
                    setattr(owner, name, had)


def join(folder: str) -> None:
    """Watches this process, and what is forked from it, if it is a daemon or a rank."""
    words = " ".join(sys.orig_argv)
    roles = ("rank.process", "rank"), ("rank.fork_server", "rank"), ("cli.worker", "daemon")
    for word, role in roles:
        if word in words:
            watching = Calls(Path(folder), role).watching()
            watching.__enter__()
            _kept.append(watching)


_kept: list[object] = []


def unaccounted() -> int:
    """How many descriptors of arrays' memory this process has that nothing here keeps."""
    kept = sum(
        len(each._kept)
        for each in gc.get_objects()
        if type(each).__name__ in ("SharedPool", "MappedMemory")
    )
    return array_descriptors(os.getpid()) - kept


def array_descriptors(pid: int) -> int:
    """How many descriptors of arrays' memory a process has."""
    found = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(fd.readlink()).startswith("/memfd:disco-array-")
    return found


class Watch:
    """The test's side of the page.

    Args:
        folder: An empty one.

    Attributes:
        folder: On the path of processes that are started, it makes them join.
        client: Sees the calls of this process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "page").write_bytes(bytes(PAGE_BYTES))
        text = _SITECUSTOMIZE.format(file=_ITSELF, folder=str(folder))
        (folder / "sitecustomize.py").write_text(text)
        self.client = Calls(folder, "client")
        self._page = self.client._page

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Lets all processes write down the sites that they meet."""
        self._page[-1] += 1
        self._page[0] = RECORD
        try:
            yield
        finally:
            self._page[0] = OFF

    def recorded(self) -> set[str]:
        """The sites that were met in the last recording."""
        lines = [
            line.partition(" ")
            for file in self.folder.glob("*.sites")
            for line in file.read_text().splitlines()
        ]
        return {site for times, _, site in lines if times == str(self._page[-1])}

    def arm(self, site: str) -> None:
        """Lets the next call from a site fail."""
        self._page[0] = OFF
        raw = site.encode()
        self._page[1 : len(raw) + 2] = raw + b"\0"
        self._page[0] = ARMED

    @property
    def fired(self) -> bool:
        """Whether the call has failed."""
        return self._page[0] == FIRED

    def disarm(self) -> bool:
        """Lets nothing fail any more; whether the call has failed."""
        fired = self.fired
        self._page[0] = OFF
        return fired
