"""``disco doctor``: what it shows, and its exit code, run as a person runs it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from disco_client.version import __version__

NO_CUPY = "raise ModuleNotFoundError('no', name='cupy')"


def doctor(*arguments):
    """Runs it; returns exit code, standard output and standard error."""
    command = [sys.executable, "-m", "disco_server.cli.main", "doctor", *arguments]
    environ = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def bare(machine):
    """A machine without GPUs and without cupy."""
    machine.cupy(NO_CUPY)
    machine.set(CUDA_VISIBLE_DEVICES="")
    return machine


def test_a_machine_for_cpus_is_well(bare):
    """Each check is a row; what GPUs want is missing, with what to do, and that is no fault."""
    code, out, err = doctor()
    assert (code, err) == (0, "")
    assert f"disco {__version__} on {platform.node()}" in out
    rows = {
        cells[2].strip(): cells for line in out.splitlines() if len(cells := line.split("│")) > 4
    }
    for name in ("python", "shared memory", "grpcio", "protobuf", "mpi"):
        assert rows[name][3].strip() == "ok", rows[name]
    assert rows["cupy"][3].strip() == "missing"
    assert rows["nccl"][3].strip() == "-"
    assert "  cupy: pip install 'disco-runtime[server,cuda13]'\n" in out
    assert out.endswith("sessions on CPUs: ready\nsessions on GPUs (cuda): not ready\n")


def test_with_gpu_what_is_missing_is_an_error(bare):
    """The same table, and exit code 1."""
    code, out, err = doctor("--gpu")
    assert (code, err) == (1, "")
    assert "sessions on GPUs (cuda): not ready" in out


def test_the_json_is_one_object_with_stable_keys(bare):
    """Programs find what the table shows, and which checks have to be well."""
    code, out, err = doctor("--json")
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content["version"] == __version__
    assert (content["ok"], content["cpu_ready"], content["gpu_ready"]) == (True, True, False)
    assert content["gpu_kind"] == "cuda"
    keys = {"section", "required", "name", "state", "detail", "hint", "facts"}
    assert {frozenset(each) for each in content["checks"]} == {frozenset(keys)}
    states = {each["name"]: each["state"] for each in content["checks"]}
    assert (states["mpi"], states["cupy"], states["kernels"]) == ("ok", "missing", "not applicable")
    assert not any(each["required"] for each in content["checks"] if each["section"] == "gpu")


def test_gpus_that_work_with_driver_and_cupy_replaced(machine):
    """With --gpu the exit code is 0, and programs find the GPUs."""
    machine.driver()
    machine.cupy()
    code, out, _ = doctor("--gpu", "--json")
    content = json.loads(out)
    assert (code, content["ok"], content["gpu_ready"]) == (0, True, True)
    (gpus,) = [each["facts"]["gpus"] for each in content["checks"] if each["name"] == "gpus"]
    assert [gpu["name"] for gpu in gpus] == ["Stand-in 0", "Stand-in 1"]


def test_what_is_broken_is_an_error_without_gpu_too(machine):
    """With a cupy that crashes: somebody installed it, and it does not work."""
    machine.cupy("import os; os.abort()")
    code, out, err = doctor()
    assert (code, err) == (1, "")
    assert "looking at cupy ended the process with SIGABRT" in out
    assert out.endswith("sessions on CPUs: ready\nsessions on GPUs (cuda): not ready\n")


def test_a_broken_grpc_is_a_finding_and_no_traceback(bare):
    """With a gRPC in front that cannot be imported, the doctor still comes."""
    bare.module("grpc/__init__.py", "raise ImportError('wrong GLIBC')")
    code, out, err = doctor()
    assert (code, err) == (1, "")
    assert "cannot be imported: ImportError: wrong GLIBC" in out
    assert "sessions on CPUs: not ready" in out
