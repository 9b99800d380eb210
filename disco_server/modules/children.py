"""How the processes that functions start by multiprocessing import what clients brought.

A file that a client brought is a module of its worker's process, and of no other. A child that is
not forked finds the function that it is to call by the name of its module; where it cannot
import that, it dies, and a pool starts the next one without end. So each worker's path ends with
an archive of such names. It is in memory, which goes with the process, and each of its modules
runs the file that the worker ran.

A rank also makes this module the one that its children import as their program's.
"""

from __future__ import annotations

import io
import os
import sys

from disco_client.arrays.shared_memory import allocate
from disco_client.descriptors import Descriptor

__all__ = ["MAIN", "publish"]

MAIN = __spec__
"""Of this module, for a rank's ``__main__``."""

_OF_MPI = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
"""What makes a process a rank of MPI's, by a descriptor that its children do not have."""

_TEXT = """\
from disco_server.modules.loading import import_in_child
import_in_child(__name__, {path!r}, {digest!r}, {name!r})
"""

_texts: dict[str, str] = {}
_archive: Descriptor | None = None


def publish(module_name: str, path: str, digest: str, name: str) -> None:
    """Lets the children of this process import a module.

    Args:
        module_name: Its name.
        path: Its file, which is there for as long as this process is.
        digest: The SHA-256 of its content.
        name: The name of the file at the client, for tracebacks.

    Raises:
        OSError: There is no room.
    """
    from zipfile import ZipFile

    global _archive
    _texts[module_name] = _TEXT.format(path=path, digest=digest, name=name)
    content = io.BytesIO()
    with ZipFile(content, "w") as archive:
        for each, text in _texts.items():
            archive.writestr(f"{each.replace('.', '/')}.py", text)
    # Another one each time: a process keeps what it has read of one.
    fd = allocate(content.tell(), "disco-sources")
    os.pwrite(fd.fileno(), content.getbuffer(), 0)
    former, _archive = _archive, fd
    replaced = "" if former is None else _entry(former)
    sys.path[:] = [each for each in sys.path if each != replaced] + [_entry(fd)]
    if former is not None:
        former.close()


def _entry(fd: Descriptor) -> str:
    return f"/proc/{os.getpid()}/fd/{fd.fileno()}"


if __name__ == "__mp_main__":
    for variable in _OF_MPI:
        os.environ.pop(variable, None)
