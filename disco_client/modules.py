"""Modules of functions on the workers, and bringing their files there."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_client.handles import DModule
from disco_client.wire.values import Device

if TYPE_CHECKING:
    from io import BufferedReader

    from disco_client.handles import DRef
    from disco_client.session import Session
    from disco_client.transport.base import RankPlace

__all__ = ["Modules"]

_PART_BYTES = 16 << 20
"""A file travels in parts of this size, so that nobody holds all of it in memory."""

_SHOWN_BYTES = 8 << 20
"""From this size on there is a progress bar."""


class Modules(ABC):
    """The part of a session that loads modules."""

    @property
    @abstractmethod
    def workers(self) -> tuple[RankPlace, ...]:
        """Where each worker runs."""

    @abstractmethod
    def _call_builtin(self, name: str, *args: object) -> DRef: ...

    @abstractmethod
    def _get(self, ref: DRef, worker: int) -> Any: ...

    @abstractmethod
    def _bring(self, worker: int, array: np.ndarray[Any, Any]) -> DRef: ...

    @abstractmethod
    def _replaying(self) -> object | None: ...

    @abstractmethod
    def sync_worker(self, worker_id: int) -> None:
        """Waits until a worker has executed every command issued before."""

    @abstractmethod
    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before."""

    def load_vm_module(
        self, path: str | os.PathLike[str], device: Device | str | None = None
    ) -> DModule:
        """Loads a module on every worker; ``module["name"]`` is one of its functions.

        A file that is at the client decides what is loaded: each node uses its own
        file of that path where the content is the same, and otherwise gets the
        client's, once, into its cache. This waits until each node has the file; a
        path that is not at the client is one of the workers, and nothing is waited
        for. Loading itself goes on behind the call, as every command does.

        Args:
            path: A library that TVM compiled (``.so``, ``.tar``), a Python file
                (``.py``: its public functions), or a file for which the workers
                have a loader of the entry-point group ``disco.module_loaders``.
            device: Where its functions run; None means each worker's own device.

        Returns:
            The module. What is wrong on a worker is raised by the next call that
            waits, or by this one: :class:`~disco_client.BadFile` for a file that is
            missing or of no known kind, :class:`~disco_client.NotAllowed` for one
            that the worker's settings do not let sessions load,
            :class:`~disco_client.FunctionNotFound` for a missing function.

        Raises:
            ConfigError: A wrong device.
            TypeError: The path is none.
            OSError: The file at the client cannot be read.
            RemoteError: See above.
            SessionError: The session is closed or lost.
        """
        name = os.fspath(path)
        if not isinstance(name, str):
            msg = f"expected the path of a file as text, got {name!r}"
            raise TypeError(msg)
        where = Device.parse(device) if isinstance(device, str) else device
        file = Path(name)
        if not file.is_file():
            return self._as_module(self._call_builtin("runtime.disco.load_vm_module", name, where))
        file = file.absolute()
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            self._provide(file, content, digest)
        return self._as_module(
            self._call_builtin("runtime.disco._load_content", str(file), digest, where)
        )

    def _as_module(self, ref: DRef) -> DModule:
        return DModule(ref, cast("Session", self))

    def _provide(self, file: Path, content: BufferedReader, digest: str) -> None:
        """Makes sure that every node has a file of this content."""
        name = str(file)
        if self._replaying() is not None:
            self._provide_all(name, content, digest)
            return
        nodes: dict[str, int] = {}
        for place in self.workers:
            nodes.setdefault(place.node, place.worker)
        asked = list(nodes.values())
        wants = self._call_builtin("runtime.disco._wants_file", name, digest, asked)
        receivers = [worker for worker in asked if self._get(wants, worker)]
        if not receivers:
            return
        size = os.fstat(content.fileno()).st_size
        incoming = self._call_builtin("runtime.disco._begin_file", name, digest, size, receivers)
        with _progress(size * len(receivers), file.name) as bar:
            for worker in receivers:
                self._send_file(content, incoming, worker, bar)
        self._call_builtin("runtime.disco._finish_file", incoming)
        for worker in receivers:
            self.sync_worker(worker)

    def _provide_all(self, name: str, content: BufferedReader, digest: str) -> None:
        """The same, also for nodes that may take the place of these later on."""
        size = os.fstat(content.fileno()).st_size
        content.seek(0)
        incoming = self._call_builtin("runtime.disco._begin_file", name, digest, size, [])
        while part := content.read(_PART_BYTES):
            array = np.frombuffer(part, np.uint8)
            self._call_builtin("runtime.disco._append_file", incoming, array, -1)
            self.sync_all()
        self._call_builtin("runtime.disco._finish_file", incoming)
        self.sync_all()

    def _send_file(self, content: BufferedReader, incoming: DRef, worker: int, bar: Any) -> None:
        """Sends a file to one worker, part by part."""
        content.seek(0)
        while part := content.read(_PART_BYTES):
            array = np.frombuffer(part, np.uint8)
            self._call_builtin(
                "runtime.disco._append_file", incoming, self._bring(worker, array), worker
            )
            # Also raises at once what is wrong, and bounds what is under way.
            self.sync_worker(worker)
            bar.update(len(part))


def _progress(size: int, name: str) -> Any:
    """A bar on a terminal's standard error, where there is much to send."""
    from tqdm import tqdm

    quiet = True if size < _SHOWN_BYTES else None
    return tqdm(total=size, desc=name, unit="B", unit_scale=True, disable=quiet)
