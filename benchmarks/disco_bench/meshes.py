"""Weights from the workers that train to those that generate, beside the way through the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from disco_bench.bench import Bench, new_cluster
from disco_bench.sampling import alternate, time_call
from disco_bench.table import Limit, Measured, Spec
from disco_client.distributed import DeviceMesh

if TYPE_CHECKING:
    import disco_client
    from disco_client.distributed import DTensor

__all__ = ["MESHES", "measure_meshes"]

_TENSORS, _NBYTES = 16, 16 << 20
_TRAIN, _GENERATE = DeviceMesh((2,), [0, 1]), DeviceMesh((2,), [2, 3])
_CLIENT = "fetched and distributed by the client"

MESHES = (
    Spec(
        "meshes.far",
        "256 MiB of weights from 2 workers to 2 others, client over gRPC",
        "s",
        _CLIENT,
        Limit("ratio", must=0.2, aim=0.1),
    ),
    Spec("meshes.here", "the same, client with shared memory", "s", _CLIENT),
    Spec(
        "meshes.bytes",
        "bytes that workers received for it",
        "B",
        "the least that has to be sent",
        Limit("ratio", must=1.05, aim=1.0),
    ),
)


class _Weights(NamedTuple):
    """The parameters of a model on two meshes.

    Attributes:
        trained: Copies for each that trains.
        used: Parts, by columns, for those that generate.
    """

    trained: dict[str, DTensor]
    used: dict[str, DTensor]


def measure_meshes(bench: Bench) -> None:
    """Compares ``session.assign`` with a fetch and a distribution of each tensor."""
    # As for clients on other machines; the ones here would share memory.
    with new_cluster(array_listen="127.0.0.1:0") as far, bench.session(cluster=far) as session:
        _measure(bench, session, "meshes.far")
    with bench.session() as session:
        weights = _measure(bench, session, "meshes.here")
        before = _received(session)
        session.assign(weights.used, weights.trained, progress=False)
        received = _received(session) - before
        plans = [w.plan(_GENERATE, "S[1]") for w in weights.trained.values()]
        bench.record("meshes.bytes", Measured(received, sum(plan.bound for plan in plans)))


def _measure(bench: Bench, session: disco_client.Session, key: str) -> _Weights:
    weights = _make(session, bench.pick(_NBYTES, 1 << 16))

    def by_client() -> None:
        for weight in weights.trained.values():
            session.distribute(weight.numpy(), _GENERATE, "S[1]")
        session.sync_all()

    pair = alternate(
        lambda: time_call(lambda: session.assign(weights.used, weights.trained, progress=False)),
        lambda: time_call(by_client),
        bench.pick(7, 2),
    )
    for name, weight in weights.used.items():
        assert np.array_equal(weight.numpy(), weights.trained[name].numpy()), name
    bench.record(key, pair.measured(f"{_TENSORS} tensors"))
    return weights


def _make(session: disco_client.Session, nbytes: int) -> _Weights:
    shape = (1024, nbytes // 4096)
    trained: dict[str, DTensor] = {}
    used: dict[str, DTensor] = {}
    for number in range(_TENSORS):
        array = np.full(shape, number, "float32")
        array[:, 0] = np.arange(1024)
        trained[f"w{number}"] = session.distribute(array, _TRAIN, "R")
        used[f"w{number}"] = session.distribute(np.zeros(shape, "float32"), _GENERATE, "S[1]")
    session.sync_all()
    return _Weights(trained, used)


def _received(session: disco_client.Session) -> int:
    counts = session.get_global_func("runtime.disco._received_bytes")().get_all()
    return sum(counts)
