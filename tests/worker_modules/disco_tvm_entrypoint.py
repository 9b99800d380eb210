"""An entrypoint as programs for TVM's Disco have them: it registers functions, then serves."""

from __future__ import annotations

import sys

import tvm_ffi

PREFIX = "disco_tests."


@tvm_ffi.register_global_func(PREFIX + "describe")
def describe(text: str) -> str:
    """What this worker was told on its command line, after a text."""
    return f"{text} {' '.join(sys.argv[1:4])}"


@tvm_ffi.register_global_func(PREFIX + "double")
def double(array: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
    """The array itself, twice as large."""
    import numpy as np

    values = np.from_dlpack(array)
    values *= 2
    return array


@tvm_ffi.register_global_func(PREFIX + "fail")
def fail() -> None:
    """Raises."""
    msg = "told to fail"
    raise ValueError(msg)


def main() -> None:
    """Is a worker."""
    worker_id, num_workers, num_groups, reader, writer = map(int, sys.argv[1:])
    serve = tvm_ffi.get_global_func("runtime.disco.WorkerProcess")
    serve(worker_id, num_workers, num_groups, reader, writer)


if __name__ == "__main__":
    main()
