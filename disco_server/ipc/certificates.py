"""The certificates of a daemon's ports, whose files may be replaced while it runs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import grpc

from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_client.transport.credentials import check_pair, read_pem, state_of

if TYPE_CHECKING:
    from pathlib import Path

    from disco_server.security import Guard

__all__ = ["CertificateFiles", "listener_secrets"]


_logger = logger_of("disco.tls")

_SOON = timedelta(days=7)


class CertificateFiles:
    """The certificates that a port shows and requires, as their files are now.

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

        Files that are just being replaced may not fit together; then the former ones stay in
        use, and the next connection looks again when more has changed.
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
    """Warns that a certificate has expired, or soon will."""
    from cryptography import x509  # loaded only if TLS is used

    try:
        end = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError as error:
        raise ConfigError(f"tls_cert: {path} holds no certificate: {error}") from None
    left = end - datetime.now(UTC)
    if left < timedelta(0):
        _logger.error("the certificate in %s has expired on %s: nobody will accept it", path, end)
    elif left < _SOON:
        _logger.warning("the certificate in %s expires on %s", path, end)


def listener_secrets(guard: Guard, *, required: bool = False) -> ssl.SSLContext | None:
    """Makes the TLS context of a port without gRPC, from the certificate of a daemon's gRPC port.

    Args:
        guard: How the gRPC port is guarded.
        required: Whether clients must show a certificate. A browser, Prometheus or a kubelet
            has none, so they need not; if `guard` requires one, a certificate that is shown
            identifies its client.

    Returns:
        The context, whose new connections use replaced certificates; None if connections are
        not encrypted.

    Raises:
        ConfigError: A certificate cannot be read, or does not fit its key.
    """
    if not guard.encrypts:
        return None
    files = guard.tls_cert, guard.tls_key, guard.tls_ca
    verify = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    seen, newest = state_of(*files), _make_context(guard, verify)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal seen, newest
        if (state := state_of(*files)) != seen:
            seen = state
            try:
                newest = _make_context(guard, verify)
            except ConfigError as error:
                _logger.warning("the certificates before serve on: %s", error)
        connection.context = newest

    newest.sni_callback = choose
    return newest


def _make_context(guard: Guard, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cast("Path", guard.tls_cert), guard.tls_key)
        if guard.require_client_cert and guard.tls_ca is not None:
            context.load_verify_locations(guard.tls_ca)
            context.verify_mode = verify
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert: {guard.tls_cert} cannot be used: {error}") from None
    return context
