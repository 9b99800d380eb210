"""Certificates of a cluster that a test guards, real ones, made for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from disco_server.ipc.authority import Authority
from fault_tools.proxy import ELSEWHERE

__all__ = ["LOCAL", "Pki"]

LOCAL = ("localhost", "127.0.0.1", *ELSEWHERE)


@dataclass
class Pki:
    """An authority and the files of what it signed, in one folder."""

    folder: Path
    authority: Authority

    @classmethod
    def make(cls, folder: Path, hosts: tuple[str, ...] = LOCAL) -> Pki:
        """Makes an authority, and a certificate for each role."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, Authority.create())
        made.authority.pem().write(folder, "ca")
        made.issue("controller", hosts=hosts)
        made.issue("worker", hosts=hosts)
        for role in ("client", "observer", "admin"):
            made.issue(role)
        return made

    def issue(
        self, identity: str, name: str = "", *, hosts: tuple[str, ...] = (), days: float = 1.0
    ) -> str:
        """Makes a certificate; returns the name of its files."""
        name = name or identity.replace("/", "-")
        self.authority.issue(identity, hosts=hosts, days=days).write(self.folder, name)
        return name

    @property
    def ca(self) -> Path:
        """The certificate of the authority."""
        return self.folder / "ca.pem"

    def files(self, name: str) -> dict[str, Path]:
        """The arguments of connect() for who shows a certificate."""
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        return {"tls_ca": self.ca, "tls_cert": cert, "tls_key": key}

    def flags(self, name: str) -> list[str]:
        """The same for command lines."""
        given = self.files(name).items()
        return [word for key, path in given for word in (f"--{key.replace('_', '-')}", str(path))]

    def variables(self, name: str) -> dict[str, str]:
        """The same for the environment."""
        return {f"DISCO_{key.upper()}": str(path) for key, path in self.files(name).items()}
