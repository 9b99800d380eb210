"""Files of functions on the workers, as modules and as sources, and sending them there."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from disco_client.bulk_io import progress_bar
from disco_client.checkpointing import is_replaying
from disco_client.core import DModule
from disco_client.errors import ConfigError
from disco_client.wire.values import device_of

if TYPE_CHECKING:
    from io import BufferedReader

    from disco_client.core import DRef, SessionCore
    from disco_client.notebook import TrackedWork

__all__ = ["bring", "digest_of", "load_source", "load_vm_module", "source_of"]

_PART_BYTES = 16 << 20
"""Files are sent in parts of this size, so that no process holds all of one in memory."""

_SHOWN_BYTES = 8 << 20
"""From this size on there is a progress bar."""


def load_vm_module(
    core: SessionCore, path: str | os.PathLike[str], device: object = None
) -> DModule:
    """Loads a module on every worker; see ``Session.load_vm_module``."""
    name = os.fspath(path)
    if not isinstance(name, str):
        msg = f"expected the path of a file as text, got {name!r}"
        raise TypeError(msg)
    where = device_of(device)
    file = Path(name)
    if not file.is_file():
        return _as_module(core, core.call_builtin("runtime.disco.load_vm_module", name, where))
    file = file.absolute()
    digest = bring(core, file)
    return _as_module(
        core, core.call_builtin("runtime.disco._load_content", str(file), digest, where)
    )


def load_source(core: SessionCore, source: str | Path | ModuleType) -> None:
    """Imports a Python file of the program on every worker; see ``Session.load_source``."""
    name, file = source_of(source)
    digest = bring(core, file)
    core.call_builtin("runtime.disco._load_source", str(file), digest, name)


def source_of(source: object) -> tuple[str, Path]:
    """The name under which workers import something, and its file."""
    if isinstance(source, ModuleType):
        found = getattr(source, "__file__", None)
        if not isinstance(found, str) or hasattr(source, "__path__"):
            msg = (
                f"expected a module of one Python file, got {source!r}; packages, and modules"
                " without a file, are to be installed on the workers"
            )
            raise ConfigError(msg)
        file = Path(found)
        name = file.stem if source.__name__ == "__main__" else source.__name__
    elif isinstance(source, (str, Path)):
        file = Path(source)
        name = file.stem
    else:
        msg = f"expected the path of a Python file, or a module, got {source!r}"
        raise TypeError(msg)
    if file.suffix != ".py":
        msg = f"expected a Python file, whose name ends in .py, got {str(file)!r}"
        raise ConfigError(msg)
    if name == "__main__" or name.partition(".")[0] in sys.stdlib_module_names:
        msg = f"workers cannot import {str(file)!r} as {name!r}, a name of Python's own; rename it"
        raise ConfigError(msg)
    return name, file.absolute()


def _as_module(core: SessionCore, ref: DRef) -> DModule:
    return DModule(ref, core.face())


def bring(core: SessionCore, file: Path) -> str:
    """Makes sure that every node has what is in a file; returns its SHA-256."""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
        _provide(core, file, content, digest)
    return digest


def digest_of(file: Path) -> str:
    """The SHA-256 of what is in a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _provide(core: SessionCore, file: Path, content: BufferedReader, digest: str) -> None:
    """Makes sure that every node has a file of this content."""
    name = str(file)
    if is_replaying(core):
        _provide_all(core, name, content, digest)
        return
    nodes: dict[str, int] = {}
    for place in core.welcome.ranks:
        nodes.setdefault(place.node, place.worker)
    asked = list(nodes.values())
    wants = core.call_builtin("runtime.disco._wants_file", name, digest, asked)
    receivers = [worker for worker in asked if core.get(wants, worker)]
    if not receivers:
        return
    size = os.fstat(content.fileno()).st_size
    incoming = core.call_builtin("runtime.disco._begin_file", name, digest, size, receivers)
    total = size * len(receivers)
    with progress_bar(core, "load_module", name, total, _shown(total)) as bar:
        for worker in receivers:
            _send_file(core, content, incoming, worker, bar)
    core.call_builtin("runtime.disco._finish_file", incoming)
    for worker in receivers:
        core.sync(worker)


def _provide_all(core: SessionCore, name: str, content: BufferedReader, digest: str) -> None:
    """The same, also for nodes that may take the place of these later on."""
    size = os.fstat(content.fileno()).st_size
    content.seek(0)
    incoming = core.call_builtin("runtime.disco._begin_file", name, digest, size, [])
    while part := content.read(_PART_BYTES):
        array = np.frombuffer(part, np.uint8)
        core.call_builtin("runtime.disco._append_file", incoming, array, -1)
        core.sync()
    core.call_builtin("runtime.disco._finish_file", incoming)
    core.sync()


def _send_file(
    core: SessionCore, content: BufferedReader, incoming: DRef, worker: int, bar: TrackedWork
) -> None:
    """Sends a file to one worker, part by part."""
    content.seek(0)
    while part := content.read(_PART_BYTES):
        array = np.frombuffer(part, np.uint8)
        core.call_builtin("runtime.disco._append_file", incoming, core.bring(worker, array), worker)
        # Also raises errors at once, and bounds what is in flight.
        core.sync(worker)
        bar.update(len(part))


def _shown(size: int) -> bool | None:
    """Whether so many bytes have a bar: few have none, others as all that takes long."""
    return False if size < _SHOWN_BYTES else None
