"""Control groups with a limit, of version 1 or 2, for the processes of one test."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Group", "NotPermitted", "limited"]

_ROOT = Path("/sys/fs/cgroup")
_LIMITS = {
    "memory": (("memory.limit_in_bytes", "memory.max"), str),
    "cpu": (
        ("cpu.cfs_quota_us", "cpu.max"),
        lambda share: (f"{int(share * 100_000)}", f"{int(share * 100_000)} 100000"),
    ),
    "pids": (("pids.max", "pids.max"), str),
}


class NotPermitted(Exception):
    """This machine has no such control groups, or does not let us make them."""


@dataclass
class Group:
    """A control group.

    Attributes:
        procs: The file that lists its processes.
    """

    procs: Path

    @property
    def prefix(self) -> list[str]:
        """What stands before a command that shall run in it."""
        return ["sh", "-c", f'echo 0 > {self.procs} && exec "$@"', "sh"]

    def take(self, *pids: int) -> None:
        """Moves processes into it."""
        for pid in pids:
            self.procs.write_text(str(pid))


@contextlib.contextmanager
def limited(controller: str, limit: float) -> Iterator[Group]:
    """Makes a group with a limit; its processes are to end with the block.

    Args:
        controller: ``memory`` (bytes), ``cpu`` (of one core) or ``pids`` (how many).
        limit: How much.

    Raises:
        NotPermitted: It cannot be made here.
    """
    names, text = _LIMITS[controller]
    first = (_ROOT / controller / names[0]).exists() or (_ROOT / controller / "tasks").exists()
    parent = _ROOT / controller if first else _ROOT
    folder = parent / f"disco-test-{os.getpid()}-{time.monotonic_ns()}"
    value = text(limit)
    values = value if isinstance(value, tuple) else (value, value)
    try:
        folder.mkdir()
    except OSError as error:
        raise NotPermitted(f"no {controller} control group can be made here: {error}") from None
    try:
        try:
            (folder / names[not first]).write_text(values[not first])
        except OSError as error:
            why = f"no limit of {controller} can be set here: {error}"
            raise NotPermitted(why) from None
        yield Group(folder / "cgroup.procs")
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            folder.rmdir()
        if not folder.exists():
            return
        time.sleep(0.02)
