"""Reading the settings of what a session's processes may use: memory, environment, user."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Self, cast

from disco_client.errors import ConfigError
from disco_server.settings import refuse

__all__ = [
    "LEAST_MEMORY",
    "MAX_REGISTERS",
    "Account",
    "machine_memory",
    "passes",
    "read_environment",
    "read_size",
    "read_user",
    "size_text",
]

LEAST_MEMORY: Final = 256 << 20
"""With less, a rank could not even start."""

MAX_REGISTERS: Final = 1 << 20
"""How many registers a session may have unless the node's settings say otherwise."""

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*(?:([kmgt])(?:ib)?)?", re.IGNORECASE)
_MOST_BYTES: Final = 1 << 60
_VARIABLE: Final = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")


def read_size(value: object, where: str) -> int:
    """Reads a size in bytes, such as ``800MiB`` or ``4g``; 0 is none at all."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = -1
    if match is not None:
        size = int(match[1]) * _UNITS[(match[2] or "").lower()]
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if size == 0 or LEAST_MEMORY <= size <= _MOST_BYTES:
        return size
    raise refuse(where, f"a size from {size_text(LEAST_MEMORY)} up, such as 4GiB, or 0", value)


def size_text(nbytes: int) -> str:
    """A size in words, in the largest unit that has no fraction."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} bytes"


def read_environment(value: object, where: str) -> tuple[str, ...]:
    """Reads names and patterns of environment variables, and ``NAME=VALUE``."""
    expected = "names of variables (* and ? allowed) or NAME=VALUE"
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise refuse(where, expected, value)
    read: list[str] = []
    for item in cast("Iterable[object]", items):
        name, _, content = item.partition("=") if isinstance(item, str) else ("", "", "")
        if not _VARIABLE.fullmatch(name.strip()) or "\0" in content:
            raise refuse(where, expected, item)
        read.append(str(item).strip())
    return tuple(dict.fromkeys(read))


def passes(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of some patterns matches the name of a variable."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def read_user(value: object, where: str) -> str | None:
    """Reads the name of a user; None stays None."""
    if value is None or (isinstance(value, str) and re.fullmatch(r"[\w.-]{1,64}\$?", value)):
        return value
    raise refuse(where, "the name of a user of this machine", value)


def machine_memory() -> int:
    """How many bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True)
class Account:
    """The user as whom ranks run.

    Attributes:
        name: Its name.
        uid: Its number.
        gid: Its first group.
        groups: All of its groups, those that may use the machine's GPUs among them.
        home: Its folder.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Path

    @property
    def cache(self) -> Path:
        """Where its processes may keep what is of use later."""
        owned = self.home.is_dir() and self.home.stat().st_uid == self.uid
        base = self.home / ".cache" if owned else Path(tempfile.gettempdir(), f"disco-{self.uid}")
        return base / "disco" / "modules"

    @classmethod
    def find(cls, name: str | None) -> Self | None:
        """Finds the account that ranks run as; None where that is this process's own.

        Raises:
            ConfigError: There is no such user, or this process may not become it.
        """
        if name is None:
            return None
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise refuse("--user", "a user of this machine", name) from None
        if os.geteuid() == entry.pw_uid:
            return None
        if os.geteuid():
            raise ConfigError(
                f"--user: only a daemon that runs as root can run ranks as {name!r}; this one runs "
                f"as user {os.geteuid()}"
            )
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return cls(name, entry.pw_uid, entry.pw_gid, groups, Path(entry.pw_dir))
