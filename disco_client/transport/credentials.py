"""A program's credentials for a controller, and how it verifies the controller.

Files are read again for each new connection, so that they may be replaced at any time.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from disco_client.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    import grpc

__all__ = ["NO_CREDENTIALS", "Credentials", "FilesState", "is_local", "read_pem", "state_of"]

FilesState = tuple[tuple[int, int, int] | None, ...]
"""Tells whether files have changed: the inode, size and time of each."""

_MAX_TOKEN_FILE = 1 << 20


def is_local(address: str) -> bool:
    """Whether only this machine can be reached at an address, or reach it.

    Args:
        address: ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:/path``.
    """
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def state_of(*paths: Path | None) -> FilesState:
    """The present state of files; None for one that does not exist."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            stat = path.stat() if path is not None else None
        except OSError:
            stat = None
        found.append(None if stat is None else (stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def read_pem(path: Path, what: str) -> bytes:
    """Reads a file of a certificate or key.

    Args:
        path: The file.
        what: The setting that names it, for the error.

    Raises:
        ConfigError: It cannot be read, or is none; its content is not shown.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{what}: expected a PEM file, {path} is none")
    return content


def check_pair(cert: Path, key: Path) -> None:
    """Refuses a certificate and a key that do not belong together.

    Raises:
        ConfigError: They do not, or are no certificate and key.
    """
    import ssl  # needed only with TLS

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"expected a certificate and its key without a password in {cert} and {key}: {error}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to reach a controller with access control.

    Attributes:
        ca: The authorities that may sign the controller's certificate; None for no TLS.
        cert: The own certificate, where the controller wants one.
        key: Its key.
        token: The own token.
        token_file: A file that holds it instead.
        role: Which token of a file is taken that holds several, as the controller's does.

    Raises:
        ConfigError: They do not belong together, or a file cannot be read.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    role: str = "client"

    @classmethod
    def read(
        cls,
        *,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Takes what was given, and the rest from the environment.

        Args:
            tls_ca: See the attributes; else ``DISCO_TLS_CA``.
            tls_cert: The same; else ``DISCO_TLS_CERT``.
            tls_key: The same; else ``DISCO_TLS_KEY``.
            token: The same; else, unless there is a file, ``DISCO_TOKEN``.
            token_file: The same; else, unless there is a token, ``DISCO_TOKEN_FILE``.
            environ: The environment.

        Raises:
            ConfigError: As the class does.
        """
        if token is None and token_file is None:
            token, token_file = environ.get("DISCO_TOKEN"), environ.get("DISCO_TOKEN_FILE")
        made = cls(
            ca=_path(tls_ca, "tls_ca") or _path(environ.get("DISCO_TLS_CA"), "DISCO_TLS_CA"),
            cert=_path(tls_cert, "tls_cert")
            or _path(environ.get("DISCO_TLS_CERT"), "DISCO_TLS_CERT"),
            key=_path(tls_key, "tls_key") or _path(environ.get("DISCO_TLS_KEY"), "DISCO_TLS_KEY"),
            token=_text(token),
            token_file=_path(token_file, "token_file"),
        )
        made.check()
        return made

    def check(self) -> None:
        """Refuses what does not belong together.

        Raises:
            ConfigError: It does not, or a file cannot be read.
        """
        if (self.cert is None) != (self.key is None):
            given, missing = ("tls_cert", "tls_key") if self.cert else ("tls_key", "tls_cert")
            raise ConfigError(
                f"expected tls_cert and tls_key together, got {given} alone"
                f"; {missing} (DISCO_{missing.upper()}) is missing"
            )
        if self.cert is not None and self.ca is None:
            raise ConfigError(
                "expected tls_ca (DISCO_TLS_CA) beside tls_cert: the certificate of the authority"
                " that signed the controller's"
            )
        if self.token and self.token_file is not None:
            raise ConfigError("expected a token or a file that holds it, got both")
        self.secrets()
        self.bearer()

    @property
    def encrypts(self) -> bool:
        """Whether connections are encrypted."""
        return self.ca is not None

    def state(self) -> FilesState:
        """Changes when the certificates of new connections would be others."""
        return state_of(self.ca, self.cert, self.key)

    def secrets(self) -> grpc.ChannelCredentials | None:
        """What a new channel needs; None for one that is not encrypted.

        Raises:
            ConfigError: A file cannot be read, or is not what it should be.
        """
        if self.ca is None:
            return None
        import grpc  # settings are read without it

        ca = read_pem(self.ca, "tls_ca")
        if self.cert is None or self.key is None:
            return grpc.ssl_channel_credentials(ca)
        cert, key = read_pem(self.cert, "tls_cert"), read_pem(self.key, "tls_key")
        check_pair(self.cert, self.key)
        return grpc.ssl_channel_credentials(ca, key, cert)

    def context(self) -> ssl.SSLContext | None:
        """What a new connection without gRPC needs; None for one that is not encrypted.

        Raises:
            ConfigError: A file cannot be read, or is not what it should be.
        """
        if self.ca is None:
            return None
        import ssl  # needed only with TLS

        read_pem(self.ca, "tls_ca")
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None and self.key is not None:
            check_pair(self.cert, self.key)
            context.load_cert_chain(self.cert, self.key)
        return context

    def bearer(self) -> tuple[tuple[str, str], ...]:
        """The metadata that authenticates a call.

        Raises:
            ConfigError: The file of the token cannot be read, or holds none.
        """
        token = self.plain_token()
        return (("authorization", f"Bearer {token}"),) if token else ()

    def plain_token(self) -> str:
        """The own token; empty for none.

        Raises:
            ConfigError: Its file cannot be read, or holds none.
        """
        if self.token or self.token_file is None:
            return self.token
        return _read_token(self.token_file, self.role)

    def check_address(self, address: str) -> None:
        """Refuses to send a token over a connection that others could read.

        Raises:
            ConfigError: The connection would leave this machine, and is not encrypted.
        """
        if self.token or self.token_file:
            self.check_private(address, "a token is")

    def check_private(self, address: str, what: str) -> None:
        """Refuses to send something over a connection that others could read.

        Args:
            address: Where it leads.
            what: What is sent, with its verb, for the error.

        Raises:
            ConfigError: The connection would leave this machine, and is not encrypted.
        """
        if self.encrypts or is_local(address):
            return
        raise ConfigError(
            f"{what} sent over TLS or on this machine only, and {address} is neither; give"
            " tls_ca (DISCO_TLS_CA): the certificate of the authority that signed the controller's"
        )


NO_CREDENTIALS = Credentials()


def _path(given: object, where: str) -> Path | None:
    if given is None or given == "":
        return None
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{where}: expected the path of a file, got {type(given).__name__}")
    try:
        return Path(os.fspath(given)).expanduser()
    except RuntimeError as error:  # ~name, and there is no such user
        raise ConfigError(f"{where}: {os.fspath(given)!r}: {error}") from None


def _text(token: object) -> str:
    if token is None:
        return ""
    # Neither message shows it: errors are logged.
    if not isinstance(token, str):
        raise ConfigError(f"token: expected a text, got {type(token).__name__}")
    if not token.strip().isascii() or not token.strip().isprintable() or " " in token.strip():
        raise ConfigError("token: expected printable ASCII characters without spaces")
    return token.strip()


def _read_token(path: Path, role: str) -> str:
    """Reads the token of a file: alone, or the last word of a line ``ROLE NAME TOKEN``."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TOKEN_FILE).decode()
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the token file {path} is no text") from None
    lines = [line.split() for line in content.splitlines()]
    held = [words for words in lines if words and not words[0].startswith("#")]
    if len(held) > 1:
        held = [words for words in held if words[0] == role][:1]
    if not held:
        raise ConfigError(
            f"the token file {path}: expected a token, or several and one of a {role}"
        )
    return _text(held[0][-1])
