"""Compiles a tensor-parallel perceptron with TVM and runs it on the workers of a session.

Each of N workers has 1/N of the inner columns, and the compiled function itself adds
the workers' partial results up, by whatever carries the session's collectives::

    disco local --nodes 2 --slots 2 -- python examples/tvm_sharded_mlp.py --workers 4 --check

Exit codes: 0, or 1 where a cluster failed or the check did, or 2 where the arguments
were refused or TVM is missing.
"""

# TVM brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportArgumentType=false

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import disco_client
from disco_client import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disco_client import DRef, Session

    Floats = np.ndarray[Any, np.dtype[np.float32]]

_MOST_ERROR = 1e-4


class Refused(Exception):
    """The example cannot run with these arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    try:
        return _run(options)
    except Refused as error:
        return _complain(str(error), 2)
    except errors.DiscoError as error:
        return _complain(_explain(error), 1)


def _run(options: argparse.Namespace) -> int:
    workers: int = options.workers
    if workers < 1 or options.inner % workers:
        raise Refused(
            f"{workers} workers cannot share {options.inner} inner columns. "
            "Use a number that divides them."
        )
    generator = np.random.default_rng(options.seed)
    shape = (options.batch, options.width, options.inner)
    x = _normal(generator, options.batch, options.width)
    first = _normal(generator, options.width, options.inner)
    second = _normal(generator, options.inner, options.width)
    with tempfile.TemporaryDirectory() as folder:
        clock = time.perf_counter
        started = clock()
        library = compile_shard(shape, workers, Path(folder))
        print(f"compiled      {library.stat().st_size} bytes for llvm in {clock() - started:.1f} s")
        with disco_client.connect(
            options.address, num_workers=workers, name="tvm_sharded_mlp", timeout=options.timeout
        ) as session:
            result = _forward(session, library, (x, first, second), options.repeat)
    begin = " ".join(f"{value:.4f}" for value in result[0, :4])
    print(f"result        {result.shape}, first row begins {begin}")
    return _check(result, x, first, second) if options.check else 0


def _forward(
    session: Session, library: Path, arrays: tuple[Floats, Floats, Floats], repeat: int
) -> Floats:
    """Runs the compiled module on all workers and returns worker 0's result."""
    clock = time.perf_counter
    started = clock()
    module = session.load_vm_module(library)
    session.sync_all()
    print(f"loaded        on {session.num_workers} workers in {(clock() - started) * 1e3:.0f} ms")
    x, first, second = arrays
    workers = session.num_workers
    everywhere = session.broadcast(x)
    columns = session.scatter(np.stack(np.split(first, workers, axis=1)))
    rows = session.scatter(np.stack(np.split(second, workers, axis=0)))
    mlp = module["mlp"]
    result: DRef = mlp(everywhere, columns, rows)
    session.sync_all()
    started = clock()
    for _ in range(repeat):
        result = mlp(everywhere, columns, rows)  # returns at once
    session.sync_all()
    each = (clock() - started) / repeat
    print(f"ran           {repeat} times, {each * 1e3:.2f} ms each, allreduce included")
    return result.numpy()


def compile_shard(shape: tuple[int, int, int], shards: int, folder: Path) -> Path:
    """Compiles one worker's share of the perceptron for this machine's CPU.

    Args:
        shape: Rows of the input, its columns, and the inner columns.
        shards: Into how many shares the inner columns are cut.
        folder: Where to put the library.

    Returns:
        The library, whose function ``mlp(x, first, second)`` takes an input of
        ``(batch, width)`` float32, and the share's slices of the two weights.

    Raises:
        Refused: TVM is not installed.
    """
    try:
        # Takes a second, and is needed only here: workers load the runtime alone.
        import tvm
        from tvm import relax
        from tvm.script import relax as R  # noqa: N812  (as TVM's own programs call it)
    except ImportError:
        raise Refused("This needs TVM: pip install 'disco-runtime[server,tvm]'.") from None
    batch, width, inner = shape
    build: Any = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((batch, width), "float32"))
    first = relax.Var("first", R.Tensor((width, inner // shards), "float32"))
    second = relax.Var("second", R.Tensor((inner // shards, width), "float32"))
    with build.function("mlp", [x, first, second]):
        hidden = build.emit(R.nn.relu(R.matmul(x, first)))
        partial = build.emit(R.matmul(hidden, second))
        build.emit_func_output(build.emit(R.ccl.allreduce(partial, "sum", in_group=False)))
    library = folder / "mlp.so"
    tvm.compile(build.get(), target="llvm").export_library(str(library))
    return library


def _check(result: Floats, x: Floats, first: Floats, second: Floats) -> int:
    """Compares with the whole perceptron in numpy, and returns the exit code."""
    whole = np.maximum(x @ first, 0) @ second
    error = float(np.abs(result - whole).max() / np.abs(whole).max())
    good = error <= _MOST_ERROR
    print(
        f"check         {'passed' if good else 'FAILED'}: the largest difference from the "
        f"unsharded one is {error:.1e} of its largest value",
        file=sys.stderr,
    )
    return 0 if good else 1


def _normal(generator: np.random.Generator, *shape: int) -> Floats:
    return (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _explain(error: errors.DiscoError) -> str:
    """Makes one sentence and a hint of an error."""
    first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
    hints: dict[type[errors.DiscoError], str] = {
        errors.ConnectionFailed: (
            "Start a cluster around this command with "
            "'disco local --nodes 2 --slots 2 -- python examples/tvm_sharded_mlp.py'."
        ),
        errors.NoSlots: "Use fewer --workers, or start more worker daemons.",
        errors.NotAllowed: "Start the worker daemons with --allow-load uploads.",
        errors.BadFile: "The workers need TVM's runtime: pip install 'disco-runtime[server,tvm]'.",
    }
    hint = next((text for kind, text in hints.items() if isinstance(error, kind)), "")
    return f"{first}. {hint}".rstrip()


def _complain(message: str, code: int) -> int:
    print(f"tvm_sharded_mlp: {message}", file=sys.stderr)
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tvm_sharded_mlp", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="(default: 4)")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the controller (default: DISCO_ADDRESS, else 127.0.0.1:7600)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the controller and for workers (default: 30)",
    )
    for name, default, text in (
        ("batch", 64, "rows of the input"),
        ("width", 256, "columns of the input and of the result"),
        ("inner", 1024, "inner columns, which the workers share"),
        ("repeat", 20, "how often to run it"),
        ("seed", 1, "of the random numbers"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    parser.add_argument(
        "--check", action="store_true", help="compare with the unsharded perceptron in numpy"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
