"""What is found for work on GPUs, by real child processes.

Where a test's name says that something is replaced or broken, the library is: see the
fixture `machine`. Everything that looks at it is the real thing.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from disco_server.devices.driver import KINDS, Driver, DriverError
from disco_server.devices.probe import Probe, probe_gpus
from disco_server.observe.checks import State

OK, MISSING, BROKEN, SKIPPED = State.OK, State.MISSING, State.BROKEN, State.NOT_APPLICABLE


def look(kind="cuda", **options):
    return {found.name: found for found in probe_gpus(kind, **options)}


def states(found):
    return [each.state for each in found.values()]


@pytest.fixture
def ready(machine):
    """Two GPUs, with driver and cupy replaced, and nothing wrong."""
    machine.driver()
    machine.cupy()
    return machine


def test_this_machine_is_looked_at_without_loading_anything_here():
    """Every check answers, each problem has a hint, and this process has loaded no cupy."""
    program = (
        "import sys\nfrom disco_server.devices.probe import probe_gpus\n"
        "for kind in ('cuda', 'rocm'):\n"
        "    for found in probe_gpus(kind):\n"
        "        print(found.name, found.state.value, bool(found.hint), sep='|')\n"
        "print('cupy' in sys.modules, 'libcuda' in open('/proc/self/maps').read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    *checks, loaded = done.stdout.splitlines()
    assert [check.split("|")[0] for check in checks] == [
        *("driver", "gpus", "cupy", "kernels", "nccl"),
        *("driver", "gpus", "cupy", "kernels", "rccl"),
    ]
    for check in checks:
        _, state, hinted = check.split("|")
        assert (hinted == "True") == (state in ("missing", "broken"))
    assert loaded == "False False"


def test_a_machine_without_anything_is_told_what_to_install(machine):
    """The driver and cupy are missing; what depends on them was not looked at."""
    if look()["driver"].state is OK:
        pytest.skip("this machine has a driver")
    machine.module("cupy/__init__.py", "raise ModuleNotFoundError('no', name='cupy')")
    found = look()
    assert states(found) == [MISSING, SKIPPED, MISSING, SKIPPED, SKIPPED]
    assert found["driver"].detail == "there is no NVIDIA driver (libcuda.so.1 is not found)"
    assert found["cupy"].hint == "pip install 'disco-runtime[server,cuda13]'"


def test_all_is_well_with_driver_and_cupy_replaced(ready):
    """Names, memory and versions are told, to people and to programs."""
    found = look()
    assert states(found) == [OK] * 5
    assert found["driver"].facts["version"] == "13.0"
    assert found["gpus"].detail == "cuda:0 Stand-in 0, 80 GiB; cuda:1 Stand-in 1, 80 GiB"
    assert found["gpus"].facts["gpus"][1] == {
        "index": 1,
        "name": "Stand-in 1",
        "memory_bytes": 80 << 30,
        "capability": "9.0",
    }
    assert found["cupy"].detail == "14.2.0, built for CUDA 13.2"
    assert found["kernels"].detail == "compiled here, run on each of 2 GPUs"
    assert found["nccl"].facts == {"version": "2.32.3", "built_with": "2.27.7"}


def test_only_the_wanted_gpus_are_tried_with_driver_and_cupy_replaced(ready):
    """A number beyond those that are seen is missing, with what there is."""
    found = look(devices=[1])
    assert found["kernels"].detail == "compiled here, run on the GPU"
    found = look(devices=[0, 5])
    assert found["kernels"].state is MISSING
    assert "there is no cuda:5 among the 2 GPUs" in found["kernels"].detail
    assert found["kernels"].hint == "choose from cuda:0 to cuda:1"


def test_a_driver_that_sees_no_gpu_with_the_driver_replaced(ready, monkeypatch):
    """It is missing whether the driver says so as an error or as a number."""
    monkeypatch.setenv("STAND_IN_INIT", "100")
    ready.set(CUDA_VISIBLE_DEVICES="9")
    found = look()
    assert states(found) == [OK, MISSING, OK, SKIPPED, OK]
    assert "CUDA_ERROR_NO_DEVICE (100)" in found["gpus"].detail
    assert "CUDA_VISIBLE_DEVICES='9'" in found["gpus"].hint
    assert found["kernels"].detail == "the compiler 13.2 is there; there is no GPU to try it on"
    monkeypatch.delenv("STAND_IN_INIT")
    ready.set(STAND_IN_GPUS=0)
    assert look()["gpus"].detail == "the driver sees no GPU"


def test_a_driver_that_does_not_start_with_the_driver_replaced(ready):
    """The driver's error is repeated, and the hint is the one for that error."""
    ready.set(STAND_IN_INIT=802)
    found = look()
    assert found["gpus"].state is BROKEN
    assert found["gpus"].detail == "the driver does not start: cuInit says error 802"
    assert "fabricmanager" in found["gpus"].hint


def test_a_driver_that_crashes_with_the_driver_replaced(ready):
    """The caller lives, and knows at which check the child ended."""
    ready.set(STAND_IN_CRASH=1)
    found = look()
    assert states(found) == [OK, BROKEN, SKIPPED, SKIPPED, SKIPPED]
    assert found["gpus"].detail.startswith("looking at gpus ended the process with SIGSEGV")
    assert "nvidia-smi" in found["gpus"].hint


def test_a_driver_that_hangs_with_the_driver_replaced(ready):
    """It counts as stuck after the timeout, and the child is gone."""
    ready.set(STAND_IN_HANG=1)
    begun = time.monotonic()
    found = look(timeout=5.0)
    assert time.monotonic() - begun < 20
    assert found["gpus"].state is BROKEN
    assert "did not come back within 5 s" in found["gpus"].detail


def test_a_driver_that_does_not_answer_with_the_driver_replaced():
    """A driver without its version is broken, and is asked nothing more."""

    class Mute(Driver):
        def __init__(self, kind):
            pass

        def version(self):
            raise DriverError("cuDriverGetVersion", 999, "error 999")

    probe = Probe(KINDS["cuda"], open_driver=Mute)
    assert probe.driver().detail == "the driver does not answer: cuDriverGetVersion says error 999"
    assert probe.gpus().state is SKIPPED


def test_the_release_of_the_kernel_module_is_told_with_the_driver_replaced(tmp_path):
    """It is the number that people know, beside the CUDA that it speaks."""

    class Speaking(Driver):
        def __init__(self, kind):
            pass

        def version(self):
            return (12, 8)

    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n"
    (folder / "version").write_text(text)
    found = Probe(KINDS["cuda"], root=tmp_path, open_driver=Speaking).driver()
    assert found.detail == "release 570.124.06, speaks CUDA up to 12.8"
    assert found.facts["release"] == "570.124.06"


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import os; os._exit(3)", "status 3"),
    ],
)
def test_a_cupy_that_crashes_on_import_is_broken(machine, init, said):
    """The checks before it stand, and the hint says how to see it and what to install."""
    machine.cupy(init)
    found = look()
    assert found["cupy"].state is BROKEN
    assert said in found["cupy"].detail
    assert "python -c 'import cupy'" in found["cupy"].hint
    assert "disco-runtime[server,cuda13]" in found["cupy"].hint
    assert found["nccl"].state is SKIPPED


def test_a_cupy_that_hangs_on_import_is_broken(machine):
    """The timeout is the caller's."""
    machine.cupy("import time; time.sleep(60)")
    found = look(timeout=5.0)
    assert "looking at cupy did not come back within 5 s" in found["cupy"].detail


BANNER = """
raise ImportError('''
================================================================
Failed to import CuPy.

Original error:
  ImportError: libcudart.so.13: cannot open shared object file: No such file or directory
================================================================
''')
"""


@pytest.mark.parametrize(
    ("init", "said"),
    [
        (BANNER, "libcudart.so.13: cannot open"),
        ("import no_such_part", "No module named 'no_such_part'"),
        ("raise RuntimeError('half installed')", "RuntimeError: half installed"),
    ],
)
def test_a_cupy_that_raises_on_import_is_broken(machine, init, said):
    """One line of its own error is shown, out of the banner that cupy frames it with."""
    machine.cupy(init)
    found = look()["cupy"]
    assert (found.state, found.detail.splitlines()) == (BROKEN, [found.detail])
    assert said in found.detail


def test_a_driver_older_than_cupy_with_driver_and_cupy_replaced(ready):
    """The hint is a newer driver, or the extra for the one that is there."""
    ready.set(STAND_IN_CUDA=12080)
    found = look()["cupy"]
    assert found.state is BROKEN
    assert found.detail == (
        "cupy 14.2.0 is built for CUDA 13.2, and the driver only speaks CUDA up to 12.8"
    )
    assert found.hint.endswith("pip install 'disco-runtime[server,cuda12]'")


def test_two_cupys_with_cupy_replaced(ready):
    """Two distributions write the same files, so neither is whole."""
    ready.distribution("cupy-cuda12x")
    ready.distribution("cupy-cuda13x")
    found = look()["cupy"]
    assert found.detail == "cupy-cuda12x and cupy-cuda13x overwrite each other's files"
    assert "fresh environment" in found.hint


def test_a_cupy_of_the_other_kind_with_cupy_replaced(ready):
    """For ROCm a cupy that is built for CUDA does not do."""
    found = look("rocm")["cupy"]
    assert found.detail == "cupy 14.2.0 is built for CUDA, not for ROCm"
    assert "disco-runtime[server,rocm]" in found.hint


def test_an_old_cupy_with_cupy_replaced(ready):
    """What was not tried is refused."""
    text = (ready.folder / "cupy/__init__.py").read_text()
    ready.module("cupy/__init__.py", text.replace('"14.2.0"', '"13.6.0"'))
    assert look()["cupy"].detail == "cupy 13.6.0 is too old, 14 is needed"


def test_a_kernel_that_does_not_run_with_cupy_replaced(ready):
    """The first GPU on which it fails is named, with how many more."""
    ready.set(STAND_IN_FAULT="out of memory allocating 512 bytes")
    found = look()["kernels"]
    assert found.state is BROKEN
    assert found.detail == (
        "no kernel runs on cuda:0 (and 1 more GPUs):"
        " RuntimeError: out of memory allocating 512 bytes"
    )
    assert "hold the GPU's memory" in found.hint
    assert found.facts == {"devices": []}


def test_a_wrong_result_with_cupy_replaced(ready):
    """A kernel that runs and computes something else is as bad as none."""
    text = (ready.folder / "cupy/__init__.py").read_text()
    ready.module("cupy/__init__.py", text.replace("numpy.matmul", "numpy.add"))
    assert "the result is wrong" in look(devices=[1])["kernels"].detail


def test_a_missing_compiler_with_cupy_replaced(machine):
    """Also without a GPU it can be seen that nothing could be compiled."""
    machine.cupy()
    text = (machine.folder / "cupy/cuda/__init__.py").read_text()
    why = 'Failure finding "libnvrtc.so.13 or libnvrtc.so.12": No such file: libnvrtc.so.13'
    changed = text.replace("lambda: (13, 2)", f"lambda: exec({f'raise OSError({why!r})'!r})")
    machine.module("cupy/cuda/__init__.py", changed)
    machine.set(CUDA_VISIBLE_DEVICES="")
    found = look()["kernels"]
    assert found.state is MISSING
    assert found.detail == "cupy's compiler cannot be loaded (libnvrtc.so.13 is not found)"
    assert "disco-runtime[server,cuda13]" in found.hint


def test_a_missing_nccl_with_cupy_replaced(machine):
    """What cupy gives as its reason, in its warning, is the reason."""
    machine.cupy()
    reason = "ImportError (libnccl.so.2: cannot open shared object file: No such file)"
    text = (
        f"import warnings\navailable = False\nwarnings.warn('''no\\n\\nReason: {reason}\\n\\n''')"
    )
    machine.module("cupy/cuda/nccl.py", text)
    found = look()["nccl"]
    assert (found.state, found.detail) == (
        MISSING,
        "NCCL cannot be loaded (libnccl.so.2 is not found)",
    )
    machine.module("cupy/cuda/nccl.py", "available = False")
    assert look()["nccl"].detail == "NCCL cannot be loaded (cupy does not find it)"


def test_rocm_with_cupy_replaced(machine):
    """The versions have HIP's form, and the library is RCCL."""
    machine.cupy()
    text = (machine.folder / "cupy/cuda/__init__.py").read_text()
    changed = text.replace("is_hip = False", "is_hip = True").replace("13020", "70051831")
    machine.module("cupy/cuda/__init__.py", changed)
    found = look("rocm")
    assert found["cupy"].detail == "14.2.0, built for ROCm 7.0"
    assert found["rccl"].state is OK
    machine.module("cupy/cuda/nccl.py", "available = False")
    assert look("rocm")["rccl"].hint == "install ROCm's package rccl"
