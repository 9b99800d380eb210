"""Host arrays to worker 0 and back, beside one raw gRPC stream."""

from __future__ import annotations

import numpy as np

from disco_bench.bench import Bench
from disco_bench.grpc_yardstick import raw_grpc
from disco_bench.sampling import alternate, time_call
from disco_bench.table import Limit, Spec

__all__ = ["ARRAYS", "measure_arrays"]

NBYTES = 64 << 20
_LIMIT = Limit("ratio", must=0.5, aim=0.9, least=True)
_RAW = "raw grpcio stream, 1 MiB chunks"

ARRAYS = (
    Spec("arrays.up", "host array of 64 MiB to worker 0", "B/s", _RAW, _LIMIT),
    Spec("arrays.down", "the same back", "B/s", _RAW, _LIMIT),
)


def measure_arrays(bench: Bench) -> None:
    """Compares the speed of host arrays with that of bytes on a raw stream."""
    rounds, nbytes = bench.pick(9, 2), bench.pick(NBYTES, 4 << 20)
    host = np.arange(nbytes // 4, dtype=np.int32)
    back = np.empty_like(host)
    data = host.data.cast("B")
    with raw_grpc() as raw, bench.session() as session:
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
        bench.record("arrays.up", pair.measured("until worker 0 has it in its register"))
        pair = alternate(
            lambda: nbytes / time_call(down),
            lambda: nbytes / time_call(lambda: raw.download(nbytes)),
            rounds,
        )
        assert np.array_equal(host, back)
        bench.record("arrays.down", pair.measured())
