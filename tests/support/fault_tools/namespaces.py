"""Two hosts on one machine: network namespaces with a cable between them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host", "NoNamespaces", "cut", "ip", "joined_hosts"]

_ROOT = Path(__file__).parents[3]


class NoNamespaces(Exception):
    """This machine does not permit them, or lacks what makes them."""


def ip(*arguments: str, check: bool = True) -> str:
    """Runs iproute2; its complaint is the error."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(done.stderr.strip() or f"ip ended with {done.returncode}")
    return done.stdout


@dataclass
class Host:
    """One namespace and its end of the cable."""

    name: str
    cable: str
    address: str

    @property
    def within(self) -> tuple[str, ...]:
        """What stands before a command to run it there."""
        return ("ip", "netns", "exec", self.name)

    def sent(self) -> int:
        """Bytes that went into the cable so far."""
        (link,) = json.loads(ip("-n", self.name, "-s", "-j", "link", "show", "dev", self.cable))
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


@contextlib.contextmanager
def joined_hosts(unique: int) -> Iterator[list[Host]]:
    """Two joined hosts for the length of a block.

    Args:
        unique: Tells them apart from those of others on this machine.

    Raises:
        NoNamespaces: They cannot be made.
    """
    if shutil.which("ip") is None:
        raise NoNamespaces("this machine has no iproute2 to make network namespaces with")
    net = f"10.77.{unique % 250}"
    pair = [
        Host(f"disco-{unique}-{side}", f"dv{unique}{side}", f"{net}.{number}")
        for number, side in ((1, "a"), (2, "b"))
    ]
    try:
        try:
            _join(*pair)
        except (OSError, subprocess.CalledProcessError) as error:
            why = f"this machine does not permit network namespaces: {error}"
            raise NoNamespaces(why) from None
        yield pair
    finally:
        for host in pair:  # the cable goes with its ends
            ip("netns", "del", host.name, check=False)


def _join(first: Host, second: Host) -> None:
    for host in (first, second):
        ip("netns", "add", host.name)
    ip(
        *("link", "add", first.cable, "netns", first.name, "type", "veth"),
        *("peer", "name", second.cable, "netns", second.name),
    )
    for host in (first, second):
        ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.cable)
        for device in (host.cable, "lo"):
            ip("-n", host.name, "link", "set", device, "up")
    subprocess.run([*first.within, "true"], check=True, capture_output=True)


@contextlib.contextmanager
def cut(host: Host) -> Iterator[None]:
    """Pulls a host's end of the cable for the length of a block."""
    ip("-n", host.name, "link", "set", host.cable, "down")
    try:
        yield
    finally:
        ip("-n", host.name, "link", "set", host.cable, "up")
