"""The same split forward on MPI ranks, without Disco: the yardstick for what Disco adds.

Start as many ranks as the model has shares, by any launcher, with this
package's parent folder on PYTHONPATH, and give each rank as many BLAS threads
as it has cores::

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=examples \
        mpiexec -n 4 python -m embedding.parallel_mpi --repeat 5

Rank 0 reads and tokenizes the sentences; what is timed begins with the first
batch and ends when rank 0 has the last embedding, as in the Disco example.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from embedding.bert import BertSlice
from embedding.settings import ModelError, read_settings
from embedding.tokens import in_order, make_batches, tokenize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedding.numerics import Floats
    from embedding.tokens import Batch

__all__ = ["embed_batches", "main"]

_SENTENCES = Path(__file__).parent.parent / "sentences.txt"


def embed_batches(
    comm: MPI.Intracomm, model: BertSlice, batches: Sequence[Batch] | None
) -> Floats | None:
    """Embeds all batches; every rank of the communicator must call it.

    Args:
        comm: As many ranks as the model has shares.
        model: This rank's share.
        batches: At least one on rank 0; None on the others, which receive them.

    Returns:
        [sentences, H], float32, on rank 0; None on the others.
    """

    def add_up(summand: Floats) -> None:
        comm.Allreduce(MPI.IN_PLACE, summand)

    if batches is not None:
        results: list[tuple[Batch, Floats]] = []
        for batch in batches:
            comm.Bcast(np.array([batch.lengths.size, batch.ids.size], np.int64))
            comm.Bcast(batch.lengths)
            comm.Bcast(batch.ids)
            results.append((batch, model.forward(batch.ids, batch.lengths, add_up)))
        comm.Bcast(np.zeros(2, np.int64))
        return in_order(results)
    while True:
        extents = np.empty(2, np.int64)
        comm.Bcast(extents)
        sentences, tokens = extents.tolist()
        if not sentences:
            return None
        lengths, ids = np.empty(sentences, np.int32), np.empty(tokens, np.int32)
        comm.Bcast(lengths)
        comm.Bcast(ids)
        model.forward(ids, lengths, add_up)


def main() -> int:
    """Embeds the sentences, prints the time's division as JSON, and returns the exit code."""
    options = _parse()
    comm = MPI.COMM_WORLD
    try:
        settings = read_settings(options.model)
        model = BertSlice(settings, comm.rank, comm.size)
    except ModelError as error:
        if comm.rank == 0:
            print(f"parallel_mpi: {error}", file=sys.stderr)
        return 2
    batches = None
    if comm.rank == 0:
        sentences = options.sentences.read_text(encoding="utf-8").splitlines() * options.copies
        batches = list(make_batches(tokenize(settings, sentences), options.batch))
    embeddings = None
    runs: list[dict[str, float]] = []
    for _ in range(options.repeat):
        before = model.times()
        comm.Barrier()
        started = time.perf_counter()
        embeddings = embed_batches(comm, model, batches)
        seconds = time.perf_counter() - started
        spent = tuple(now - then for now, then in zip(model.times(), before, strict=True))
        gathered = comm.gather(spent)
        if gathered is not None:
            compute, collectives = np.mean(gathered, axis=0).tolist()
            runs.append(
                {
                    "seconds": seconds,
                    "compute": compute,
                    "collectives": collectives,
                    "control": seconds - compute - collectives,
                }
            )
    if embeddings is not None:
        best = min(runs, key=lambda run: run["seconds"])
        figures = {"ranks": comm.size, "sentences": len(embeddings), "runs": len(runs), **best}
        print(json.dumps(figures), file=sys.stderr if options.json else sys.stdout)
        if options.json:
            for row in embeddings:
                print(json.dumps([round(float(value), 8) for value in row]))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="parallel_mpi", description="Embeds sentences on MPI ranks and reports the time."
    )
    parser.add_argument("--model", metavar="DIR", help="default: all-MiniLM-L6-v2")
    parser.add_argument("--sentences", type=Path, default=_SENTENCES, help="one a line")
    parser.add_argument("--copies", type=int, default=1, help="how often to take the sentences")
    parser.add_argument("--batch", type=int, default=32, help="sentences of a batch")
    parser.add_argument("--repeat", type=int, default=1, help="runs; the best is reported")
    parser.add_argument("--json", action="store_true", help="print the embeddings too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
