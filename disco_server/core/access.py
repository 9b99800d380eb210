"""Access control of a controller: tokens, certificates, roles and the table of methods.

No I/O: the caller has read the file and the certificate. Everything that is not allowed
here is refused.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from disco_client.errors import ConfigError
from disco_client.text import hidden_in

__all__ = [
    "EVERYBODY",
    "METHODS",
    "Identity",
    "Role",
    "Tokens",
    "accepted",
    "certificate_identity",
    "read_tokens",
]

_MIN_TOKEN: Final = 16
_MAX_TOKEN: Final = 1024
_TOKEN = re.compile(r"[!-~]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


class Role(enum.Enum):
    """What a peer is to the cluster."""

    CLIENT = "client"
    WORKER = "worker"
    OBSERVER = "observer"
    ADMIN = "admin"
    ANYBODY = "anybody"
    """The role without authentication: as on a Unix socket that only one user can open."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a caller.

    Attributes:
        role: The role.
        name: The name within the role; may be empty.
        how: What it was established by: ``token``, ``certificate`` or nothing.
        workers: Of a worker's token, the names of all workers in the file of tokens.
    """

    role: Role
    name: str = ""
    how: str = ""
    workers: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def principal(self) -> str:
        """The owner recorded for what this caller makes; empty without authentication."""
        return f"{self.how}:{self.name}" if self.how else ""

    def __str__(self) -> str:
        """For messages and the audit log."""
        return f"{self.role.value} {self.name}".rstrip()

    def owns(self, principal: str) -> bool:
        """Whether this identity may use a session of that owner."""
        if self.owns_all:
            return True
        return self.role is Role.CLIENT and hmac.compare_digest(
            self.principal.encode(), principal.encode()
        )

    @property
    def owns_all(self) -> bool:
        """Whether this identity may use the sessions of every owner."""
        return self.role in (Role.ADMIN, Role.ANYBODY)

    def may_carry(self, principal: str) -> bool:
        """Whether this identity may transfer arrays of that owner's session, given its key."""
        return self.role is Role.WORKER or self.owns(principal)

    def refuses_node(self, node: str) -> str | None:
        """Why this identity may not register a node of that name; None where it may.

        A certificate's name is its node's. That of a token may stand for several nodes, but no
        name that has a token of its own is another one's.
        """
        if self.how == "certificate" and self.name not in ("", node):
            return f"the certificate that came is that of node {self.name!r}, and not of {node!r}"
        if node != self.name and node in self.workers:
            return f"the token that came is that of {self.name!r}; {node!r} has one of its own"
        return None

    @property
    def sees_places(self) -> bool:
        """Whether lists show this identity where the ranks of other owners' sessions run."""
        return self.owns_all or self.role is Role.OBSERVER


EVERYBODY: Final = Identity(Role.ANYBODY)

_USERS = frozenset({Role.CLIENT, Role.ADMIN})
_WORKERS = frozenset({Role.WORKER})
_READERS = frozenset({Role.CLIENT, Role.OBSERVER, Role.ADMIN})
_ALL = frozenset({Role.CLIENT, Role.WORKER, Role.OBSERVER, Role.ADMIN})

METHODS: Final[Mapping[str, frozenset[Role] | None]] = {
    "/disco.v1.SessionService/Open": _USERS,
    "/disco.v1.SessionService/Admit": _USERS,
    "/disco.v1.SessionService/List": _READERS,
    "/disco.v1.SessionService/Close": _USERS,
    "/disco.v1.SessionService/Interrupt": _USERS,
    "/disco.v1.SessionService/Drain": frozenset({Role.ADMIN}),
    "/disco.v1.SessionService/Inspect": _USERS,
    "/disco.v1.SessionService/Overview": _READERS,
    "/disco.v1.SessionService/Logs": _USERS,
    "/disco.v1.ArrayService/Upload": _USERS,
    "/disco.v1.ArrayService/Download": _USERS,
    "/disco.v1.NodeService/Register": _WORKERS,
    "/disco.v1.NodeService/Admit": _WORKERS,
    "/disco.v1.NodeService/Fetch": _WORKERS,
    "/disco.v1.NodeService/Push": _WORKERS,
    # Health probes have no token; they learn only that the controller serves.
    "/grpc.health.v1.Health/Check": None,
    "/grpc.health.v1.Health/List": None,
    # It lasts as long as its caller likes.
    "/grpc.health.v1.Health/Watch": _ALL,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ALL,
}
"""The roles that may call each method; None for every caller. Other methods are refused."""


# Tokens ---------------------------------------------------------------------------


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a controller accepts; only their digests are kept."""

    entries: tuple[tuple[bytes, Identity], ...] = field(default=(), repr=False)

    def find(self, token: str) -> Identity | None:
        """The identity of a token, found in a time that does not depend on the token."""
        given, found = _digest(token), None
        for digest, identity in self.entries:
            if hmac.compare_digest(digest, given):
                found = identity
        return found


def read_tokens(text: str, where: str) -> tuple[tuple[str, Identity], ...]:
    """Reads the content of a token file: one ``ROLE NAME TOKEN`` a line.

    Args:
        text: The content; empty lines and those that begin with # do not count.
        where: What the file is called, for the error, which contains no token.

    Raises:
        ConfigError: A line is not of this form, or a token occurs twice.
    """
    roles = [role.value for role in Role if role is not Role.ANYBODY]
    found: list[tuple[str, Identity]] = []
    known: dict[str, Role] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        at = f"{where}, line {number}"
        if len(words) != 3:  # noqa: PLR2004  (those that the message names)
            raise ConfigError(f"{at}: expected ROLE NAME TOKEN, got {len(words)} words")
        role, name, token = words
        if role not in roles:
            raise ConfigError(f"{at}: expected a role of {', '.join(roles)}, got another word")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{at}: expected a name of letters, digits and . _ @ -")
        if not _MIN_TOKEN <= len(token) <= _MAX_TOKEN or not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{at}: expected a token of {_MIN_TOKEN} to {_MAX_TOKEN} ASCII characters,"
                f" got one of {len(token)}; `openssl rand -hex 32` makes one"
            )
        identity = Identity(Role(role), name, "token")
        if known.setdefault(name, identity.role) is not identity.role:
            raise ConfigError(f"{at}: {name!r} has another role in a line before")
        if any(hmac.compare_digest(token, other) for other, _ in found):
            raise ConfigError(f"{at}: the same token stands in a line before")
        found.append((token, identity))
    if not found:
        raise ConfigError(f"{where}: expected lines of ROLE NAME TOKEN, found none")
    return tuple(found)


def accepted(entries: Iterable[tuple[str, Identity]]) -> Tokens:
    """What a controller keeps of a token file."""
    entries = tuple(entries)
    workers = frozenset(who.name for _, who in entries if who.role is Role.WORKER)
    return Tokens(
        tuple(
            (_digest(token), replace(who, workers=workers) if who.role is Role.WORKER else who)
            for token, who in entries
        )
    )


# Certificates -----------------------------------------------------------------------


def certificate_identity(names: Iterable[str], prefix: str) -> Identity | None:
    """The identity of a certificate: its first URI that has a role and a readable name.

    Args:
        names: The URIs among its alternative names.
        prefix: What such a URI begins with; it ends with a slash.
    """
    for name in names:
        if not name.startswith(prefix):
            continue
        word, _, rest = name.removeprefix(prefix).partition("/")
        known = word in ("client", "worker", "observer", "admin")
        if known and hidden_in(rest, "a name") is None:  # it is shown to others
            return Identity(Role(word), rest, "certificate")
    return None
