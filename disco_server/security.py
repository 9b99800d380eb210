"""How the doors of a daemon are guarded, as settings say it, and what is refused.

Who reaches a controller can run code on the machines behind it. So a daemon listens on
its own machine alone, unless connections are encrypted and whoever comes is asked who
he is, or a person says that this is not wanted.
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
"""What the URI of a certificate begins with that says who shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """How a door is guarded; by default not at all.

    Attributes:
        tls_cert: The daemon's certificate; with `tls_key`, its key, connections are encrypted.
        tls_key: See `tls_cert`.
        tls_ca: Who may sign the certificates of peers.
        require_client_cert: Whether peers must show one.
        auth_token_file: The tokens that peers may show, one ``ROLE NAME TOKEN`` a line.
        tls_id_prefix: What a URI in a peer's certificate begins with that says its role.
        insecure: Whether a person takes the risk of an open door.

    Raises:
        ConfigError: They do not belong together.
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
        """Whether peers are asked who they are."""
        return self.require_client_cert or self.auth_token_file is not None

    def check_listener(self, address: Address, where: str) -> None:
        """Refuses a door that other machines could listen in at; not for commands.

        Whoever brings arrays is asked for the secret of a session, and whoever looks at a
        page for his token; encryption keeps both.

        Args:
            address: Where it is.
            where: The setting that says so.

        Raises:
            ConfigError: They could.
        """
        if not (self.insecure or self.encrypts or is_local(str(address))):
            raise ConfigError(
                f"{where}: {address} can be reached from other machines; expected --tls-cert and"
                " --tls-key, a loopback address, or --insecure where only trusted machines are on"
                " that network"
            )

    def check_listen(self, address: Address, where: str) -> None:
        """Refuses a door that stands open for other machines.

        Args:
            address: Where it is.
            where: The setting that says so.

        Raises:
            ConfigError: It does.
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
    """Refuses to let a controller that could be anybody run code here.

    Args:
        credentials: With what it is dialled.
        address: Where it is.
        insecure: Whether a person takes the risk.

    Raises:
        ConfigError: It could be.
    """
    credentials.check_address(str(address))
    if insecure or credentials.encrypts or is_local(str(address)):
        return
    raise ConfigError(
        f"controller: {address} is another machine, and whoever answers there can run code here;"
        " expected --tls-ca, the certificate of the authority that signed the controller's, or"
        " --insecure where only trusted machines are on that network"
    )
