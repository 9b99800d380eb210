"""Controllers under names: address, certificates and token of each, in a file of its owner's.

A context is used as a whole, and only where nobody names a controller: neither the program nor
``DISCO_ADDRESS``. So no token of one cluster is ever sent to another.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from disco_client.errors import ConfigError
from disco_client.transport.address import DEFAULT_ADDRESS, Address
from disco_client.transport.credentials import Credentials

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = ["Context", "Contexts", "contexts_file", "find_controller"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = "DISCO_CONTEXT"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Context:
    """How to reach one controller.

    Attributes:
        address: ``HOST:PORT`` or ``unix:/path``.
        tls_ca: A file; see `Credentials`. Empty for none, as for the others.
        tls_cert: The same.
        tls_key: The same.
        token_file: The same.
        token: The token itself.
        process: Process id and start time of a cluster of this machine that ``disco local
            --detach`` has started; empty for others.
    """

    address: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    token: str = field(default="", repr=False)
    process: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        Address.parse(self.address)

    @property
    def credentials(self) -> dict[str, str]:
        """What there is of them, as `Credentials.read` takes it."""
        names = ("tls_ca", "tls_cert", "tls_key", "token_file", "token")
        return {name: value for name in names if (value := getattr(self, name))}

    @classmethod
    def of(cls, stored: object) -> Self:
        """Reads what the file has of one.

        Raises:
            ConfigError: It has something else there.
        """
        try:
            known: dict[str, Any] = dict(cast("Mapping[str, Any]", stored))
            known["process"] = tuple(map(int, known.get("process", ())))
            made = cls(**known)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"expected a context, got {stored!r}") from error
        if not all(isinstance(value, (str, tuple)) for value in asdict(made).values()):
            raise ConfigError(f"expected a context of texts, got {sorted(known)}")
        return made


def contexts_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The file: as ``DISCO_CONTEXTS`` says, else ``disco/contexts.json`` among the settings."""
    if named := environ.get("DISCO_CONTEXTS"):
        return Path(named)
    base = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path("~/.config").expanduser()
    return folder / "disco" / "contexts.json"


@dataclass(slots=True)
class Contexts:
    """All of them.

    Attributes:
        current: The name of the one in use; empty for none.
        entries: They, by name.
    """

    current: str = ""
    entries: dict[str, Context] = field(default_factory=dict[str, Context])

    @classmethod
    def read(cls, path: Path | None = None) -> Self:
        """Reads the file; none are there where there is none.

        Raises:
            ConfigError: Others than its owner may read it, or its content is something else.
        """
        path = path or contexts_file()
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            msg = f"{path} may hold tokens, and others may read it: chmod 600 {path}"
            raise ConfigError(msg)
        try:
            found = json.loads(content)
            entries = {_checked(name): Context.of(each) for name, each in found["contexts"].items()}
            made = cls(found["current"], entries)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            msg = f"expected the contexts of `disco context` in {path}, which has something else"
            raise ConfigError(msg) from None
        if made.current and made.current not in entries:
            raise ConfigError(f"{path}: its current context {made.current!r} is not in it")
        return made

    def write(self, path: Path | None = None) -> None:
        """Replaces the file by one that only its owner reads.

        Raises:
            ConfigError: It cannot be written.
        """
        path = path or contexts_file()
        entries = {name: _short(context) for name, context in self.entries.items()}
        stored = {"current": self.current, "contexts": entries}
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Only the owner may read a file of mkstemp; the name changes to it at once.
            number, made = tempfile.mkstemp(prefix="contexts-", dir=path.parent)
            os.close(number)
            Path(made).write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
            Path(made).replace(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None

    def add(self, name: str, context: Context) -> None:
        """Adds one or replaces it.

        Raises:
            ConfigError: It cannot have this name.
        """
        self.entries[_checked(name)] = context

    def get(self, name: str) -> Context:
        """Returns the one of this name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self.entries:
            known = ", ".join(self.entries) or "none"
            msg = f"expected a context, got {name!r}; there are: {known}; see disco context add"
            raise ConfigError(msg)
        return self.entries[name]

    def remove(self, name: str) -> Context:
        """Removes one, which is not the current one any more.

        Raises:
            ConfigError: There is none.
        """
        removed = self.get(name)
        del self.entries[name]
        if self.current == name:
            self.current = ""
        return removed


def _checked(name: object) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    msg = f"expected a name of at most 64 letters, digits, '.', '_' and '-', got {name!r}"
    raise ConfigError(msg)


def _short(context: Context) -> dict[str, Any]:
    return {name: value for name, value in asdict(context).items() if value}


def find_controller(
    address: str | None = None,
    *,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    **given: StrPath | None,
) -> tuple[str, Credentials]:
    """Where the controller is, and how to reach it.

    Args:
        address: As the program says; else ``DISCO_ADDRESS``, else the context's, else
            `DEFAULT_ADDRESS`.
        context: A context to use whatever the environment says; else ``DISCO_CONTEXT``, else the
            current one.
        environ: The environment.
        **given: The arguments of `Credentials.read`. What is not given is the context's where
            the address is, else the environment's.

    Raises:
        ConfigError: There is no such context, an address is given beside one, or something of
            the credentials cannot be read.
    """
    if address and context:
        msg = f"expected an address or a context, got {address!r} and {context!r}"
        raise ConfigError(msg)
    address = address or (None if context else environ.get("DISCO_ADDRESS"))
    if not address:
        contexts = Contexts.read(contexts_file(environ))
        name = context or environ.get(_VARIABLE) or contexts.current
        if name:
            found = contexts.get(name)
            asked = {key: value for key, value in given.items() if value is not None}
            known = found.credentials
            if asked.keys() & {"token", "token_file"}:
                known = {k: v for k, v in known.items() if k not in ("token", "token_file")}
            return found.address, Credentials.read(**{**known, **asked}, environ={})  # type: ignore[arg-type]
    return address or DEFAULT_ADDRESS, Credentials.read(**given, environ=environ)  # type: ignore[arg-type]
