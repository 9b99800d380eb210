"""The doors of daemons: gRPC servers whose certificates may be replaced while they run."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import grpc

from disco_client.errors import ConfigError
from disco_client.transport.credentials import check_pair, read_pem, state_of
from disco_server.guarding import Guard

__all__ = [
    "CannotListen",
    "CertificateFiles",
    "add_port",
    "http_secrets",
    "warn_of_open_door",
]

_logger = logging.getLogger("disco.tls")
_SOON = timedelta(days=7)


class CannotListen(ConfigError):
    """An address is in use, or not of this machine."""


class CertificateFiles:
    """The certificates that a door shows and asks for, as their files are now.

    Args:
        guard: Names the files.

    Raises:
        ConfigError: One of them cannot be read, or is not what it should be.
    """

    def __init__(self, guard: Guard) -> None:
        if guard.tls_cert is None or guard.tls_key is None:
            raise ConfigError("expected tls_cert and tls_key, to encrypt connections")
        self._cert, self._key = guard.tls_cert, guard.tls_key
        self._ca = guard.tls_ca if guard.require_client_cert else None
        self._seen = self._state()
        self.first = self._read()

    def _state(self) -> object:
        return state_of(self._cert, self._key, self._ca)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        check_pair(self._cert, self._key)
        cert, key = read_pem(self._cert, "tls_cert"), read_pem(self._key, "tls_key")
        ca = read_pem(self._ca, "tls_ca") if self._ca is not None else None
        _warn_of_end(self._cert, cert)
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Reads them again if they have changed; called by gRPC for each new connection.

        Files that are just being replaced may not fit together; then those before them
        serve on, and the next connection looks again when more has changed.
        """
        state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        try:
            made = self._read()
        except ConfigError as error:
            _logger.warning("the certificates before serve on: %s", error)
            return None
        _logger.info("new connections use the new certificate in %s", self._cert)
        return made


def _warn_of_end(path: Path, pem: bytes) -> None:
    """Says of a certificate that it has expired, or soon will have."""
    from cryptography import x509  # loaded only where somebody uses TLS

    try:
        end = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError as error:
        raise ConfigError(f"tls_cert: {path} holds no certificate: {error}") from None
    left = end - datetime.now(UTC)
    if left < timedelta(0):
        _logger.error("the certificate in %s has expired on %s: nobody will accept it", path, end)
    elif left < _SOON:
        _logger.warning("the certificate in %s expires on %s", path, end)


def add_port(server: grpc.aio.Server, address: str, guard: Guard) -> int:
    """Opens a port of a server.

    Args:
        server: The server, not started yet.
        address: ``HOST:PORT`` or ``unix:/path``.
        guard: How it is guarded.

    Returns:
        The port; 0 where it cannot be listened there.

    Raises:
        ConfigError: A certificate cannot be read.
    """
    try:
        if not guard.encrypts:
            return server.add_insecure_port(address)
        files = CertificateFiles(guard)
        secrets = grpc.dynamic_ssl_server_credentials(
            files.first, cast("Any", files.changed), guard.require_client_cert
        )
        return server.add_secure_port(address, secrets)
    except RuntimeError:
        return 0


def http_secrets(guard: Guard) -> ssl.SSLContext | None:
    """How a daemon's HTTP port is encrypted: with the certificate of its other door, if it has one.

    A browser, Prometheus or a kubelet has no certificate of its own, so none is asked for
    that would be in the way; where `guard` wants one, who shows it is known by it.

    Args:
        guard: How the other door is guarded.

    Returns:
        None where connections are not encrypted. New connections use certificates that
        were replaced.

    Raises:
        ConfigError: A certificate cannot be read, or does not fit its key.
    """
    if not guard.encrypts:
        return None
    files = guard.tls_cert, guard.tls_key, guard.tls_ca
    seen, newest = state_of(*files), _make_context(guard)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal seen, newest
        if (state := state_of(*files)) != seen:
            seen = state
            try:
                newest = _make_context(guard)
            except ConfigError as error:
                _logger.warning("the certificates before serve on: %s", error)
        connection.context = newest

    newest.sni_callback = choose
    return newest


def _make_context(guard: Guard) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cast("Path", guard.tls_cert), guard.tls_key)
        if guard.require_client_cert and guard.tls_ca is not None:
            context.load_verify_locations(guard.tls_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert: {guard.tls_cert} cannot be used: {error}") from None
    return context


def warn_of_open_door(logger: logging.Logger, guard: Guard) -> None:
    """Says at each start that a person takes a risk, where one does."""
    if guard.insecure:
        logger.warning(
            "--insecure: connections may be neither encrypted nor asked who makes them; whoever"
            " reaches this daemon can run code on this cluster"
        )
