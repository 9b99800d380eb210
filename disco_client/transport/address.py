"""Addresses of daemons: a TCP port or a Unix socket, as people write it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from disco_client.errors import ConfigError

__all__ = ["DEFAULT_ADDRESS", "Address"]

DEFAULT_ADDRESS = "127.0.0.1:7600"
"""The default address of a controller, for itself and for clients."""

_MAX_PORT = 65_535
_MAX_PATH = 100
"""In bytes: Linux takes 107, and the socket for frames has ``.frames`` at the end."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens or is found: a TCP port or a Unix socket.

    Attributes:
        host: A name or an IP address, IPv6 without its brackets; empty for a
            Unix socket.
        port: 0 to 65535; 0 lets the system choose where a daemon listens.
        path: The file of a Unix socket; empty for TCP.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        """The form in which a person writes it."""
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: object, *, where: str = "address", any_port: bool = False) -> Self:
        """Reads ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:/path``.

        Args:
            text: What to read.
            where: The name of the setting, for the error.
            any_port: Whether port 0 (the system chooses) makes sense here.

        Raises:
            ConfigError: It is none of the three forms, or the path is too long for a socket.
        """
        wanted = "HOST:PORT, [IPV6]:PORT or unix:/PATH"
        if not isinstance(text, str):
            raise _refuse(where, wanted, text)
        kind, _, path = text.partition(":")
        if kind == "unix":
            if not path.startswith("/"):
                raise _refuse(where, "an absolute path after unix:", text)
            if (length := len(path.encode("utf-8", "surrogatepass"))) > _MAX_PATH:
                expected = f"a path of at most {_MAX_PATH} bytes for a Unix socket"
                raise ConfigError(f"{where}: expected {expected}, got one of {length}: {path!r}")
            return cls(path=path)
        host, colon, digits = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            try:
                ipaddress.IPv6Address(host)
            except ValueError:
                raise _refuse(where, "an IPv6 address in the brackets", text) from None
        elif ":" in host:
            raise _refuse(where, f"{wanted} (an IPv6 address in brackets)", text)
        if not (colon and host) or re.search(r"[\s/\[\]]", host):
            raise _refuse(where, wanted, text)
        lowest = 0 if any_port else 1
        if not re.fullmatch(r"[0-9]{1,5}", digits) or not lowest <= int(digits) <= _MAX_PORT:
            raise _refuse(where, f"a port from {lowest} to {_MAX_PORT}", text)
        return cls(host=host, port=int(digits))


def _refuse(where: str, expected: str, got: object) -> ConfigError:
    return ConfigError(f"{where}: expected {expected}, got {got!r}")
