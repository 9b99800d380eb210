"""How the ports of a daemon are guarded by its settings, and which settings are refused.

A peer that reaches a controller can run code on the machines behind it. So a daemon
listens on its own machine alone, unless connections are encrypted and peers are
authenticated, or a setting explicitly gives that up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from disco_client.errors import ConfigError
from disco_client.transport.credentials import Credentials, is_local
from disco_server.settings import Address

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CERTIFICATE_PREFIX",
    "Guard",
    "check_dial",
    "check_pair_given",
]

CERTIFICATE_PREFIX: Final = "disco://"
"""The beginning of the URI in a certificate that names the role of its holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """How a port is guarded; by default not at all.

    Attributes:
        tls_cert: The daemon's certificate; with `tls_key`, its key, connections are encrypted.
        tls_key: See `tls_cert`.
        tls_ca: The authority that signs the certificates of peers.
        require_client_cert: Whether peers must show one.
        auth_token_file: The tokens that peers may show, one ``ROLE NAME TOKEN`` a line.
        tls_id_prefix: The beginning of the URI in a peer's certificate that names its role.
        insecure: Whether the risk of an unguarded port is accepted.

    Raises:
        ConfigError: The settings do not fit together.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    require_client_cert: bool = False
    auth_token_file: Path | None = None
    tls_id_prefix: str = CERTIFICATE_PREFIX
    insecure: bool = False

    def __post_init__(self) -> None:
        check_pair_given(self.tls_cert, self.tls_key)
        if self.require_client_cert and not self.encrypts:
            raise ConfigError("require_client_cert: expected --tls-cert and --tls-key beside it")
        if self.require_client_cert and self.tls_ca is None:
            raise ConfigError(
                "require_client_cert: expected --tls-ca beside it, the certificate of the"
                " authority that signs those of clients"
            )

    @property
    def encrypts(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_cert is not None

    @property
    def asks(self) -> bool:
        """Whether peers must authenticate."""
        return self.require_client_cert or self.auth_token_file is not None

    def check_listener(self, address: Address, where: str) -> None:
        """Refuses an unencrypted port that other machines can reach; not for commands.

        A client that sends arrays shows the secret of its session, and a viewer of the
        dashboard a token; encryption protects both.

        Args:
            address: The address of the port.
            where: The setting that says so.

        Raises:
            ConfigError: It is such a port.
        """
        if not (self.insecure or self.encrypts or is_local(str(address))):
            raise ConfigError(
                f"{where}: {address} can be reached from other machines; expected --tls-cert and"
                " --tls-key, a loopback address, or --insecure where only trusted machines are on"
                " that network"
            )

    def check_listen(self, address: Address, where: str) -> None:
        """Refuses an unguarded port that other machines can reach.

        Args:
            address: The address of the port.
            where: The setting that says so.

        Raises:
            ConfigError: It is such a port.
        """
        if self.insecure or is_local(str(address)) or (self.encrypts and self.asks):
            return
        missing = [
            *(["--tls-cert and --tls-key"] * (not self.encrypts)),
            *(["--auth-token-file or --require-client-cert"] * (not self.asks)),
        ]
        raise ConfigError(
            f"{where}: {address} can be reached from other machines, and whoever reaches it can"
            f" run code here; expected {', and '.join(missing)}, or a loopback address"
            " (127.0.0.1), or --insecure where only trusted machines are on that network"
        )


def check_pair_given(cert: Path | None, key: Path | None) -> None:
    """Refuses a certificate without its key, and a key without its certificate.

    Raises:
        ConfigError: One of them is missing.
    """
    if (cert is None) != (key is None):
        given, missing = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
        raise ConfigError(f"{missing}: expected it beside {given}")


def check_dial(credentials: Credentials, address: Address, *, insecure: bool) -> None:
    """Refuses to connect to a controller that cannot be verified: it could run code here.

    Args:
        credentials: The credentials for it.
        address: Its address.
        insecure: Whether the risk is accepted.

    Raises:
        ConfigError: It cannot be verified.
    """
    credentials.check_address(str(address))
    if insecure or credentials.encrypts or is_local(str(address)):
        return
    raise ConfigError(
        f"controller: {address} is another machine, and whoever answers there can run code here;"
        " expected --tls-ca, the certificate of the authority that signed the controller's, or"
        " --insecure where only trusted machines are on that network"
    )
