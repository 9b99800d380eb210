"""A certificate authority for one cluster: makes the certificates of its daemons and clients."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from disco_client.errors import ConfigError
from disco_server.security import CERTIFICATE_PREFIX

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Authority", "Issued", "write_private"]

_SKEW = timedelta(minutes=5)
"""How long before its issue a certificate is valid: clocks differ."""


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read; an existing file is replaced atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)


@dataclass(frozen=True, slots=True, repr=False)
class Issued:
    """A certificate and its key, both as PEM."""

    cert: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Writes ``NAME.pem`` and ``NAME.key``; returns their paths."""
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        write_private(key, self.key)
        write_private(cert, self.cert)
        return cert, key


class Authority:
    """Signs certificates; made by :meth:`create` or :meth:`load`.

    Args:
        cert: Its own certificate.
        key: Its key.
    """

    def __init__(self, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._cert = cert
        self._key = key

    @classmethod
    def create(cls, *, days: float = 365.0) -> Self:
        """Makes a new authority, valid for some days."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("Disco cluster CA")
        signs = x509.KeyUsage(
            key_cert_sign=True, crl_sign=True, **dict.fromkeys(_OTHER_USES, False)
        )
        builder = (
            _begun(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(signs, critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, cert: Path, key: Path) -> Self:
        """Reads an authority that was written before.

        Raises:
            ConfigError: The files cannot be read, or are not an authority's.
        """
        try:
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
            made = x509.load_pem_x509_certificate(cert.read_bytes())
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{cert} and {key}: expected PEM files, got: {error}") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{key}: expected the key that `disco certs init` made")
        return cls(made, loaded)

    def pem(self) -> Issued:
        """Its own certificate, which is public, and its key, which must stay secret."""
        return Issued(self._cert.public_bytes(serialization.Encoding.PEM), _key_pem(self._key))

    def issue(
        self,
        identity: str,
        *,
        hosts: Sequence[str] = (),
        days: float = 365.0,
        prefix: str = CERTIFICATE_PREFIX,
    ) -> Issued:
        """Makes a certificate.

        Args:
            identity: Its holder: ``controller``, ``worker/NAME``, ``client/NAME`` and so on.
            hosts: The names and addresses of the server that uses it; none for a client.
            days: How long it is valid; a negative number makes one that has expired.
            prefix: What stands before the identity in its URI.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"{prefix}{identity}")
        ]
        for host in dict.fromkeys(hosts):
            try:
                alternatives.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                alternatives.append(x509.DNSName(host))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        signs = x509.KeyUsage(
            key_cert_sign=False,
            crl_sign=False,
            **{**dict.fromkeys(_OTHER_USES, False), "digital_signature": True},
        )
        cert = (
            _begun(_named(identity), self._cert.subject, key, days)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(signs, critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return Issued(cert.public_bytes(serialization.Encoding.PEM), _key_pem(key))


_OTHER_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "encipher_only",
    "decipher_only",
)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    end = datetime.now(UTC) + timedelta(days=days)
    begin = min(datetime.now(UTC), end) - _SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
