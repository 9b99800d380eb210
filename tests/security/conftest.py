"""Clusters that are guarded, with certificates and tokens made for these tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import disco_client
from disco_client import Session
from fault_tools.certificates import Pki

if TYPE_CHECKING:
    from conftest import Daemons


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """The authority that the cluster trusts, with a certificate for each role."""
    made = Pki.make(tmp_path_factory.mktemp("pki"))
    made.issue("client/alice")
    made.issue("client/bob")
    return made


@pytest.fixture(scope="session")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """An authority that nobody trusts, and that signs the same names."""
    return Pki.make(tmp_path_factory.mktemp("evil"))


@pytest.fixture(scope="module", params=["frames", "connect-grpc"], autouse=True)
def carrier(request: pytest.FixtureRequest) -> str:
    """What carries the streams: each test runs over frames, and where a controller takes none."""
    return str(request.param)


@pytest.fixture(scope="module")
def shared_daemons(shared_daemons: Daemons, carrier: str) -> Daemons:
    """As everywhere, for each carrier anew."""
    shared_daemons.frames = "on" if carrier == "frames" else "off"
    return shared_daemons


@pytest.fixture
def daemons(daemons: Daemons, carrier: str) -> Daemons:
    """As everywhere, with the carrier of the test."""
    daemons.frames = "on" if carrier == "frames" else "off"
    return daemons


class TokenFile:
    """The tokens of a cluster, and each of them in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "tokens"
        self.tokens: dict[str, str] = {}

    def add(self, role: str, name: str) -> str:
        """Writes one more line; returns the token."""
        token = self.tokens[name] = secrets.token_hex(16)
        with self.path.open("a") as file:
            file.write(f"{role} {name} {token}\n")
        self.path.chmod(0o600)
        self.of(name).write_text(token + "\n")
        self.of(name).chmod(0o600)
        return token

    def of(self, name: str) -> Path:
        """The file that holds nothing but his token."""
        return self.folder / f"{name}.token"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    """A file with two clients, a worker, an observer and an administrator."""
    made = TokenFile(tmp_path_factory.mktemp("tokens"))
    made.path.write_text("# who is let in\n\n")
    people = {"alice": "client", "bob": "client", "pool": "worker", "eye": "observer"}
    for name, role in {**people, "root": "admin"}.items():
        made.add(role, name)
    return made


@pytest.fixture
def own_tokens(tmp_path: Path) -> TokenFile:
    """A file for one test, which adds the lines."""
    return TokenFile(tmp_path)


@pytest.fixture
def connect() -> Iterator[Callable[..., Session]]:
    """Opens sessions that end with the test, whoever has them."""
    opened: list[Session] = []

    def open_one(address: str, **options: Any) -> Session:
        how = {"num_workers": 1, "timeout": 20, "logs": False, **options}
        opened.append(disco_client.connect(address, **how))
        return opened[-1]

    yield open_one
    for session in opened:
        session.shutdown()
