"""Modules of functions on the workers, and sending their files there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.checkpointing import is_replaying
from disco_client.core import DModule
from disco_client.wire.values import device_of

if TYPE_CHECKING:
    from io import BufferedReader

    from disco_client.core import DRef, SessionCore

__all__ = ["load_vm_module"]

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
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
        _provide(core, file, content, digest)
    return _as_module(
        core, core.call_builtin("runtime.disco._load_content", str(file), digest, where)
    )


def _as_module(core: SessionCore, ref: DRef) -> DModule:
    return DModule(ref, core.face())


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
    with _progress(size * len(receivers), file.name) as bar:
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
    core: SessionCore, content: BufferedReader, incoming: DRef, worker: int, bar: Any
) -> None:
    """Sends a file to one worker, part by part."""
    content.seek(0)
    while part := content.read(_PART_BYTES):
        array = np.frombuffer(part, np.uint8)
        core.call_builtin("runtime.disco._append_file", incoming, core.bring(worker, array), worker)
        # Also raises errors at once, and bounds what is in flight.
        core.sync(worker)
        bar.update(len(part))


def _progress(size: int, name: str) -> Any:
    """A bar on a terminal's standard error, where there is much to send."""
    from tqdm import tqdm

    quiet = True if size < _SHOWN_BYTES else None
    return tqdm(total=size, desc=name, unit="B", unit_scale=True, disable=quiet)
