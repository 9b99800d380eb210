"""Storage of TVM's that no compiled module has made."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from disco_client.wire.values import Device, Shape, cpu
from disco_server.modules.base import FileRefused
from disco_server.modules.tvm import find_global
from disco_server.modules.tvm_storage import alloc_storage, clear_storage

FLOAT = np.dtype("float32")


def array_in(storage, shape, dtype=FLOAT):
    return find_global("vm.builtin.alloc_tensor")(storage, 0, Shape(shape), dtype)


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4), (1000, 1000)])
def test_tvm_makes_arrays_in_it(shape, dtype):
    """Of the shape for which it was made, and they are written to as others are."""
    dtype = np.dtype(dtype)
    array = array_in(alloc_storage(Shape(shape), dtype, cpu()), shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    array[...] = 7
    assert (array == 7).all()


def test_an_array_keeps_its_storage(eventually):
    """Also when what was freed is returned to the system."""
    arrays = [array_in(alloc_storage(Shape((1000,)), FLOAT, cpu()), (1000,)) for _ in range(10)]
    for number, array in enumerate(arrays):
        array[:] = number
    clear_storage()
    more = array_in(alloc_storage(Shape((1000,)), FLOAT, cpu()), (1000,))
    more[:] = -1
    assert [float(array.sum()) for array in arrays] == [1000.0 * number for number in range(10)]


def test_threads_make_storage_at_once():
    """Each has its own."""
    sums = []

    def work(number):
        for _ in range(50):
            array = array_in(alloc_storage(Shape((64,)), FLOAT, cpu()), (64,))
            array[:] = number
            sums.append(float(array.sum()) == 64 * number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(sums), all(sums)) == (200, True)


def test_storage_on_a_gpu_is_refused():
    """The message says with what collectives work there."""
    with pytest.raises(FileRefused, match=r"give them arrays of session\.empty"):
        alloc_storage(Shape((2,)), FLOAT, Device("cuda", 0))


def test_tvm_may_be_imported_after_its_runtime_was_loaded():
    """The library with Disco's names, which it loads, was there before they were replaced."""
    program = (
        "from disco_server.modules import tvm as modules\n"
        "from disco_server.rank.functions import registry\n"
        "import disco_server.rank.builtins\n"
        "modules.serve(registry())\n"
        "import tvm\n"
        "print(tvm.get_global_func('runtime.disco.cuda_ipc.custom_allreduce') is not None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
