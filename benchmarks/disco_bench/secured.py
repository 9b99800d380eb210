"""What encryption costs: the same commands over mutual TLS and in clear."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from disco_bench.bench import WORKERS, Bench, new_cluster, variable
from disco_bench.control import Burst
from disco_bench.sampling import alternate
from disco_bench.table import Limit, Spec
from disco_server.ipc.authority import Authority

if TYPE_CHECKING:
    import disco_client

__all__ = ["SECURED", "measure_secured"]

SECURED = (
    Spec(
        "secured.commands",
        f"commands/s over mutual TLS, 2 daemons x {WORKERS // 2}",
        "1/s",
        "the same in clear",
        Limit("ratio", must=0.7, aim=0.9, least=True),
    ),
)


def measure_secured(bench: Bench) -> None:
    """Compares a cluster whose connections are all encrypted with the one of the other rows."""
    count, rounds = bench.pick(30_000, 2_000), bench.pick(7, 2)
    with bench.session() as plain, _secured_session(bench) as secured:
        pair = alternate(Burst(secured, count), Burst(plain, count), rounds)
    bench.record("secured.commands", pair.measured())


@contextlib.contextmanager
def _secured_session(bench: Bench) -> Generator[disco_client.Session]:
    """A session of a cluster that accepts only clients with a certificate."""
    with tempfile.TemporaryDirectory(prefix="disco-bench-") as folder, contextlib.ExitStack() as of:
        pki = Path(folder)
        authority = Authority.create(days=30)
        authority.pem().write(pki, "ca")
        authority.issue("client", days=30).write(pki, "client")
        # All daemons use it: the controller as a server, worker daemons as clients.
        authority.issue("worker", hosts=("localhost", "127.0.0.1"), days=30).write(pki, "daemon")
        for name, value in _shown(pki, "daemon").items():
            of.enter_context(variable(name, value))
        with variable("DISCO_REQUIRE_CLIENT_CERT", "1"):
            cluster = of.enter_context(new_cluster())
        for name, value in _shown(pki, "client").items():
            of.enter_context(variable(name, value))
        yield of.enter_context(bench.session(cluster=cluster))


def _shown(pki: Path, name: str) -> dict[str, str]:
    return {
        "DISCO_TLS_CA": str(pki / "ca.pem"),
        "DISCO_TLS_CERT": str(pki / f"{name}.pem"),
        "DISCO_TLS_KEY": str(pki / f"{name}.key"),
    }
