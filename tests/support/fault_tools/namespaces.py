"""Hosts on one machine: network namespaces at a bridge, with addresses and names of their own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host", "Names", "Network", "NoNamespaces", "cut", "in_own_mounts", "ip", "network"]

_ROOT = Path(__file__).parents[3]
_NEEDED = ("ip", "nsenter", "unshare")
_NETWORK = 0x40000000  # CLONE_NEWNET, of sched.h
_BRIDGE = "bridge"
_HOSTS = "127.0.0.1       localhost\n"
_GROUPS = "groups"
# Libraries find the devices of the network in /sys, and Slurm the groups of processes.
_ENTER = """
echo "$0" >/proc/sys/kernel/hostname
mount --bind "$1" /etc/hosts
mount --rbind /sys/fs/cgroup "$2"
mount -t sysfs sysfs /sys
mount --move "$2" /sys/fs/cgroup
shift 2
exec "$@"
"""


class NoNamespaces(Exception):
    """This machine does not permit them, or lacks what makes them."""


def in_own_mounts(command: str) -> list[str]:
    """What stands before a command to run it, as the same process, with mounts of its own.

    Args:
        command: Of a shell; makes the mounts.

    Raises:
        NoNamespaces: They cannot be made.
    """
    if lacking := [each for each in ("unshare", "nsenter") if shutil.which(each) is None]:
        raise NoNamespaces(f"no mounts of its own without {', '.join(lacking)}")
    alone = ["unshare", "--mount", "sh", "-c"]
    tried = subprocess.run([*alone, command], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise NoNamespaces(f"this machine lets us mount nothing: {tried.stderr.strip()}")
    return [*alone, f'{command} && exec "$@"', "sh"]


class Names:
    """Names that processes know which are started behind a prefix, beside no others.

    Args:
        file: Where they are kept.
        leading_to: The address of each.

    Attributes:
        prefix: What stands before a command.

    Raises:
        NoNamespaces: This machine does not permit it.
    """

    def __init__(self, file: Path, leading_to: Mapping[str, str]) -> None:
        self._file, self._names = file, list(leading_to)
        file.write_bytes(b"".join(map(_line_of, leading_to, leading_to.values())))
        alone = "mount --bind /dev/null /etc/resolv.conf"
        self.prefix = in_own_mounts(f"mount --bind {file} /etc/hosts && {alone}")

    def move(self, name: str, address: str) -> None:
        """Lets a name lead elsewhere; in place, as processes read the file at any time."""
        line = _line_of(name, address)
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), line, self._names.index(name) * len(line))


def _line_of(name: str, address: str) -> bytes:
    return f"{address:<16}{name:<20}\n".encode()


def ip(*arguments: str, check: bool = True) -> str:
    """Runs iproute2; its complaint is the error."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(done.stderr.strip() or f"ip ended with {done.returncode}")
    return done.stdout


@dataclass(frozen=True)
class Host:
    """One namespace and its cable to the bridge.

    Attributes:
        name: Its host name.
        namespace: What iproute2 calls it.
        cable: Its end of the cable.
        address: Its own.
        known: The file by which it knows the names of all.
    """

    name: str
    namespace: str
    cable: str
    address: str
    known: Path

    @property
    def within(self) -> tuple[str, ...]:
        """What stands before a command to run it there, as the same process.

        Not ``ip netns exec``, which would mount a /sys without the groups of the machine.
        """
        return (
            *("nsenter", f"--net=/var/run/netns/{self.namespace}"),
            *("unshare", "--uts", "--mount", "bash", "-e", "-c", _ENTER),
            *(self.name, str(self.known), str(self.known.with_name(_GROUPS))),
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Lets this thread, and those that it starts, open connections there alone."""
        before, then = Path("/proc/thread-self/ns/net"), Path("/var/run/netns", self.namespace)
        with before.open("rb") as own, then.open("rb") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def sent(self) -> int:
        """Bytes that went into the cable so far."""
        found = ip("-n", self.namespace, "-s", "-j", "link", "show", "dev", self.cable)
        (link,) = json.loads(found)
        return link["stats64"]["tx"]["bytes"]

    def popen(self, *command: str, **env: str) -> subprocess.Popen[str]:
        """Runs a program there, with pipes for all it reads and writes."""
        return subprocess.Popen(
            [*self.within, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, **env},
        )


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns() came with Python 3.12
    if libc.setns(namespace, _NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def _permitted() -> Iterator[None]:
    """Translates what goes wrong where namespaces are made."""
    try:
        yield
    except (OSError, subprocess.CalledProcessError) as error:
        why = f"this machine does not permit network namespaces: {error}"
        raise NoNamespaces(why) from None


class Network:
    """Hosts that come and go, at a bridge in a namespace of its own; see `network`.

    Each that comes has an address that none had before it. Its name is that of an earlier one,
    or a new one; all hosts know the latest address of every name.

    Args:
        unique: Tells it apart from those of others on this machine.
        known: A file for the names, alone in its folder.
    """

    def __init__(self, unique: int, known: Path) -> None:
        self._unique = unique
        self._came = 0
        self._bridge = Host(_BRIDGE, f"disco-{unique}", _BRIDGE, "", known)
        self._hosts: list[Host] = []
        self._known = known
        known.write_text(_HOSTS)
        known.with_name(_GROUPS).mkdir()
        self._lines: dict[str, int] = {}

    def open(self) -> None:
        """Makes the bridge.

        Raises:
            NoNamespaces: It cannot be made.
        """
        with _permitted():
            ip("netns", "add", self._bridge.namespace)
            ip("-n", self._bridge.namespace, "link", "add", "name", _BRIDGE, "type", "bridge")
            ip("-n", self._bridge.namespace, "link", "set", _BRIDGE, "up")
            subprocess.run([*self._bridge.within, "true"], check=True, capture_output=True)

    def join(self, *names: str) -> Host:
        """Adds a host, with a new address.

        Args:
            names: Its host name, and what else it is called.

        Raises:
            NoNamespaces: It cannot be made.
        """
        self._came += 1
        number, unique = self._came, self._unique
        cable, address = f"dv{unique}n{number}", f"10.77.{unique % 250}.{number}"
        host = Host(names[0], f"disco-{unique}-{number}", cable, address, self._known)
        with _permitted():
            ip("netns", "add", host.namespace)
            self._hosts.append(host)
            port, bridge = f"dp{unique}n{number}", self._bridge.namespace
            ip(
                *("link", "add", cable, "netns", host.namespace, "type", "veth"),
                *("peer", "name", port, "netns", bridge),
            )
            ip("-n", bridge, "link", "set", port, "master", _BRIDGE, "up")
            ip("-n", host.namespace, "addr", "add", f"{address}/24", "dev", cable)
            for device in (cable, "lo"):
                ip("-n", host.namespace, "link", "set", device, "up")
        self._note(names, address)
        return host

    def _note(self, names: tuple[str, ...], address: str) -> None:
        """Writes a line, in place of an earlier one of as many bytes: hosts read it at any time."""
        line = f"{address:<16}{' '.join(names)}\n".encode()
        with self._known.open("r+b") as file:
            at = self._lines.setdefault(names[0], self._known.stat().st_size)
            os.pwrite(file.fileno(), line, at)

    def leave(self, host: Host) -> None:
        """Takes a host away, and its cable with it."""
        self._hosts.remove(host)
        ip("netns", "del", host.namespace, check=False)

    def close(self) -> None:
        """Takes all away."""
        for host in list(self._hosts):
            self.leave(host)
        ip("netns", "del", self._bridge.namespace, check=False)


@contextlib.contextmanager
def network(unique: int) -> Iterator[Network]:
    """A network without hosts, for the length of a block.

    Args:
        unique: Tells it apart from those of others on this machine; at most five digits.

    Raises:
        NoNamespaces: It cannot be made.
    """
    if lacking := [each for each in _NEEDED if shutil.which(each) is None]:
        raise NoNamespaces(f"no network namespaces without {', '.join(lacking)}")
    with tempfile.TemporaryDirectory() as folder:
        made = Network(unique, Path(folder) / "hosts")
        try:
            made.open()
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def cut(host: Host) -> Iterator[None]:
    """Pulls a host's end of the cable for the length of a block."""
    ip("-n", host.namespace, "link", "set", host.cable, "down")
    try:
        yield
    finally:
        ip("-n", host.namespace, "link", "set", host.cable, "up")
