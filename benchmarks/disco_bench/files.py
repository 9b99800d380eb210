"""Arrays in files of other programs: how fast workers read and write them, and how much of them."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from disco_bench.bench import WORKERS
from disco_bench.sampling import alone, alternate, time_call
from disco_bench.table import Limit, Spec
from disco_client.distributed import FileTensor, from_hdf5, from_npy, from_zarr

if TYPE_CHECKING:
    import disco_client
    from disco_bench.bench import Bench
    from disco_client.distributed import DTensor

__all__ = ["FILES", "measure_files"]

_ROWS = 1 << 16
_COLUMNS = 4096
"""With numbers of 8 bytes, 2 GiB."""

_MUST_READ = 1.1

FILES = (
    *(
        row
        for form, word in (("zarr", "Zarr"), ("hdf5", "HDF5"))
        for row in (
            Spec(
                f"files.{form}",
                f"an array of 2 GiB in {word}, read by {WORKERS} workers",
                "B/s",
                "the same array as .npy",
            ),
            Spec(
                f"files.{form}_share",
                f"what a worker reads of that in {word} at most, by its part",
                "count",
                limit=Limit("figure", _MUST_READ),
            ),
            Spec(
                f"files.save_{form}",
                f"2 GiB saved as {word} by {WORKERS} workers",
                "B/s",
                "the same as a checkpoint",
            ),
        )
    ),
)


def measure_files(bench: Bench) -> None:
    """Saves an array in each format, and reads it beside a ``.npy`` file."""
    shape = (bench.pick(_ROWS, _ROWS >> 7), _COLUMNS)
    array = np.random.default_rng(7).random(shape)
    with (
        tempfile.TemporaryDirectory() as name,
        bench.session(WORKERS) as session,
    ):
        folder = Path(name)
        np.save(folder / "a.npy", array)
        x = session.distribute(array, placement="S[0]")
        for form, file in (
            ("zarr", from_zarr(folder / "zarr", "x")),
            ("hdf5", from_hdf5(folder / "hdf5", "x")),
        ):
            library = {"zarr": "zarr", "hdf5": "h5py"}[form]
            if importlib.util.find_spec(library) is None:
                for key in (f"files.{form}", f"files.{form}_share", f"files.save_{form}"):
                    bench.excuse(key, f"{library} is not installed")
                continue
            saves = alternate(
                partial(_save, session, folder / form, x, form),
                partial(_save, session, folder / "disco", x, "disco"),
                bench.pick(2, 1),
                warm_up=0,
            )
            bench.record(f"files.save_{form}", saves.measured())
            reads = alternate(
                partial(_read, session, file, array.nbytes),
                partial(_read, session, from_npy(folder / "a.npy"), array.nbytes),
                bench.pick(3, 1),
            )
            bench.record(f"files.{form}", reads.measured())
            share = _bytes_read(session, file) * WORKERS / array.nbytes
            bench.record(f"files.{form}_share", alone([share]))


def _save(session: disco_client.Session, path: Path, x: DTensor, form: str) -> float:
    nbytes = x.size * x.dtype.itemsize
    save = partial(session.save, path, {"x": x}, format=form, progress=False)
    return nbytes / time_call(save)


def _read(session: disco_client.Session, file: FileTensor, nbytes: int) -> float:
    def read() -> None:
        _held = session.distribute(file, placement="S[0]")
        session.sync_all()

    return nbytes / time_call(read)


def _bytes_read(session: disco_client.Session, file: FileTensor) -> int:
    """What the worker that reads most reads, by the kernel's count."""
    count = session.get_global_func("bench.bytes_read")
    before = count()
    _held = session.distribute(file, placement="S[0]")
    after = count()
    workers = range(session.num_workers)
    return max(
        after.debug_get_from_remote(worker) - before.debug_get_from_remote(worker)
        for worker in workers
    )
