"""The same split model on MPI ranks, without Disco: the yardstick for what Disco adds.

Start as many ranks as the model is to have shares, by any launcher, with this package's parent
folder on PYTHONPATH, and give each rank as many BLAS threads as it has cores::

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=examples mpiexec -n 2 python -m llm.parallel_mpi

Rank 0 reads the model and broadcasts it, and each rank keeps its part. A token is timed from the
one before it, so the prompt is not. Every rank finds each token, so that none has to be sent.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from llm.blocks import FORMATS, NUMBERS
from llm.compiling import compiler
from llm.config import ModelError, find_model, open_checkpoint
from llm.layers import BLOCK, Share
from llm.plain import read_weights
from llm.shares import TooManyWorkers, cut_of, divide

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from llm.config import Checkpoint
    from llm.layers import Array
    from llm.shares import Range, Shares

__all__ = ["PROMPT", "Decoder", "main", "share_of"]

PROMPT = (504, 2242, 282, 260, 905, 314)
"""The tokens of a few words; which ones does not matter to the time."""


class Decoder:
    """Greedy decoding of one sequence with one rank's share of a model.

    Args:
        comm: As many ranks as the model has shares.
        share: This rank's.

    Attributes:
        collectives: The seconds that were spent in them.
    """

    def __init__(self, comm: MPI.Intracomm, share: Share) -> None:
        self._comm, self._share = comm, share
        self._newest = np.zeros(1, np.int64)
        self.collectives = 0.0

    def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """Continues a prompt; every rank must call it.

        Returns:
            One token, and `count` more; and the seconds that those took.
        """
        blocks = -(-(len(prompt) + count + 1) // BLOCK)
        cache = self._share.make_cache(blocks)
        tables = np.arange(blocks, dtype=np.int32)[None]
        found = [self._step(cache, np.array(prompt, np.int32), 0, tables)]
        newest = np.array([-1], np.int32)
        self.collectives, began = 0.0, time.perf_counter()
        positions = range(len(prompt), len(prompt) + count)
        found += [self._step(cache, newest, position, tables) for position in positions]
        return found, time.perf_counter() - began

    def _step(self, cache: Array, ids: Array, start: int, tables: Array) -> int:
        share = self._share
        spans = np.array([(0, start, len(ids), True, 0, False)], np.int64)
        batch = share.begin(self._newest, ids, spans, tables, np.array([(0.0, 1.0)]))
        x = self._add_up(share.embed(batch))
        for layer in range(len(share.layers)):
            share.add(x, self._add_up(share.attend(cache, batch, x, layer)), layer, "after_norm")
            more = self._add_up(share.feed_forward(x, layer))
            share.add(x, more, layer, "inner_after_norm")
        return int(share.find_next(self._newest, batch, x, self._gather, self._from_first)[0])

    def _add_up(self, summand: Array) -> Array:
        began = time.perf_counter()
        self._comm.Allreduce(MPI.IN_PLACE, summand)
        self.collectives += time.perf_counter() - began
        return summand

    def _gather(self, mine: Array) -> Array:
        began = time.perf_counter()
        everyones = np.empty((self._comm.size, *mine.shape), mine.dtype)
        self._comm.Allgather(mine, everyones)
        self.collectives += time.perf_counter() - began
        return everyones

    def _from_first(self, mine: Array) -> Array:
        self._comm.Bcast(mine)
        return mine


def share_of(comm: MPI.Intracomm, checkpoint: Checkpoint, compute: str = "numpy") -> Share:
    """This rank's share of a model, which rank 0 reads for all of them.

    Args:
        comm: As many ranks as the model has shares.
        checkpoint: The model.
        compute: ``numpy`` or ``numba``; see `llm.model.Model`.

    Raises:
        ModelError: A tensor is not there.
        TooManyWorkers: There are more ranks than query heads.
    """
    config = checkpoint.config
    shares = divide(config, comm.size)
    formats = _find_formats(checkpoint, shares) if compute == "numba" else {}
    read = read_weights(checkpoint, formats) if comm.rank == 0 else {}
    facts = comm.bcast({name: (array.shape, array.dtype) for name, array in read.items()})
    own: dict[str, Array] = {}
    for name, (shape, dtype) in facts.items():
        # A copy, because what was read may lie in the file.
        whole = np.array(read.pop(name), dtype) if read else np.empty(shape, dtype)
        comm.Bcast(whole)
        if (cut := cut_of(config, shares, name)) is not None:
            axis, ranges = cut
            nbytes = FORMATS[formats[name]][1] if axis == 1 and name in formats else 0
            at = [_in_bytes(piece, nbytes) for piece in _pieces(ranges[comm.rank])]
            whole = whole.take([index for piece in at for index in range(*piece)], axis)
        own[name] = whole
    return Share(dataclasses.asdict(config), dataclasses.asdict(shares), comm.rank, own, formats)


def _find_formats(checkpoint: Checkpoint, shares: Shares) -> dict[str, str]:
    """The tensors whose blocks no rank would have a part of, with the formats of these."""
    found: dict[str, str] = {}
    for ours, theirs in checkpoint.names.items():
        axis, ranges = cut_of(checkpoint.config, shares, ours) or (0, [])
        bounds = [at for each in ranges for piece in _pieces(each) for at in piece]
        whole = axis == 0 or not any(at % NUMBERS for at in bounds)
        if whole and checkpoint.formats.get(theirs) in FORMATS:
            found[ours] = checkpoint.formats[theirs]
    return found


def _pieces(mine: Range | list[Range]) -> list[Range]:
    return mine if isinstance(mine, list) else [mine]


def _in_bytes(piece: Range, nbytes: int) -> Range:
    """A range of numbers as one of bytes, where blocks have so many; as it is for 0."""
    first, end = piece
    return (first // NUMBERS * nbytes, end // NUMBERS * nbytes) if nbytes else piece


def main() -> int:
    """Decodes, prints the time's division as JSON, and returns the exit code."""
    options = _parse()
    comm = MPI.COMM_WORLD
    try:
        checkpoint = open_checkpoint(find_model(options.model))
        decoder = Decoder(comm, share_of(comm, checkpoint, options.compute))
    except (ModelError, TooManyWorkers) as error:
        print(f"parallel_mpi: {error}", file=sys.stderr)
        comm.Abort(2)
    decoder.decode(PROMPT, 1)  # compiles what is compiled
    runs: list[dict[str, Any]] = []
    for _ in range(options.repeat):
        comm.Barrier()
        found, seconds = decoder.decode(PROMPT, options.tokens)
        gathered = comm.gather(decoder.collectives)
        if gathered is not None:
            each, collectives = seconds / options.tokens, np.mean(gathered) / options.tokens
            runs.append(
                {
                    "found": found,
                    "seconds": each,
                    "compute": each - collectives,
                    "collectives": collectives,
                }
            )
    if runs:
        best = min(runs, key=lambda run: run["seconds"])
        print(json.dumps({"ranks": comm.size, "tokens": options.tokens, **best}))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="parallel_mpi", description="Decodes on MPI ranks and reports the seconds of a token."
    )
    parser.add_argument("--model", metavar="PATH", help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--tokens", type=int, default=48, help="how many are timed")
    parser.add_argument(
        "--compute",
        choices=("numpy", "numba"),
        default="numba" if compiler() else "numpy",
        help="what multiplies; default: %(default)s",
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs; the best is reported")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
