"""Host arrays to worker 0 and back, both ways there are, beside one raw gRPC stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from disco_bench.bench import Bench, new_cluster
from disco_bench.grpc_yardstick import RawGrpc, raw_grpc
from disco_bench.sampling import alternate, time_call
from disco_bench.table import Limit, Spec

if TYPE_CHECKING:
    import disco_client

__all__ = ["ARRAYS", "measure_arrays"]

NBYTES = 64 << 20
_RAW = "raw grpcio stream, 1 MiB chunks"
_GRPC = Limit("ratio", must=0.8, aim=0.9, least=True)
_SHARED = Limit("ratio", must=1.0, aim=1.5, least=True)

ARRAYS = (
    Spec("arrays.up", "host array of 64 MiB to worker 0, gRPC", "B/s", _RAW, _GRPC),
    Spec("arrays.down", "the same back", "B/s", _RAW, _GRPC),
    Spec("arrays.here.up", "the same to worker 0, shared memory", "B/s", _RAW, _SHARED),
    Spec("arrays.here.down", "the same back", "B/s", _RAW, _SHARED),
)


def measure_arrays(bench: Bench) -> None:
    """Compares the speed of host arrays with that of bytes on a raw stream."""
    with raw_grpc() as raw:
        # As for clients on other machines; the ones here would share memory.
        with new_cluster(array_listen="127.0.0.1:0") as far, bench.session(cluster=far) as session:
            _measure(bench, session, raw, "arrays")
        with bench.session() as session:
            _measure(bench, session, raw, "arrays.here")


def _measure(bench: Bench, session: disco_client.Session, raw: RawGrpc, key: str) -> None:
    rounds, nbytes = bench.pick(9, 2), bench.pick(NBYTES, 4 << 20)
    host = np.arange(nbytes // 4, dtype=np.int32)
    back = np.empty_like(host)
    data = host.data.cast("B")
    remote = session.empty(host.shape, host.dtype)
    session.sync_all()

    def up() -> None:
        session.copy_to_worker_0(host, remote)
        session.sync_worker_0()

    def down() -> None:
        session.copy_from_worker_0(back, remote)

    pair = alternate(
        lambda: nbytes / time_call(up),
        lambda: nbytes / time_call(lambda: raw.upload(data)),
        rounds,
    )
    bench.record(f"{key}.up", pair.measured("until worker 0 has it in its register"))
    pair = alternate(
        lambda: nbytes / time_call(down),
        lambda: nbytes / time_call(lambda: raw.download(nbytes)),
        rounds,
    )
    assert np.array_equal(host, back)
    bench.record(f"{key}.down", pair.measured())
