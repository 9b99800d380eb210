"""What ``disco doctor`` looks at, check by check."""

from __future__ import annotations

import errno
import os

import pytest

from disco_client.transport.credentials import Credentials
from disco_client.version import __version__
from disco_server.cli import checkup
from disco_server.cli.checkup import (
    gpu_kind,
    look_at_library,
    look_at_memory,
    probe_libraries,
    sections,
)
from disco_server.observe.checks import State


def test_every_library_of_the_commands_is_looked_at():
    """They are those of the distribution and its extra, each with its version."""
    found = {each.name: each for each in probe_libraries()}
    assert {"disco-runtime", "grpcio", "protobuf", "numpy"} <= set(found)
    assert {each.state for each in found.values()} == {State.OK}
    assert found["disco-runtime"].detail == __version__


def test_a_library_that_crashes_is_broken(machine):
    """With a numpy in front that ends the process; the libraries before it were fine."""
    machine.module("numpy/__init__.py", "import os; os.abort()")
    found = {each.name: each for each in probe_libraries()}
    assert found["protobuf"].state is State.OK
    assert found["numpy"].state is State.BROKEN
    assert "pip install 'disco-runtime[server]'" in found["numpy"].hint


def test_a_library_that_is_missing_or_damaged_is_told_apart():
    """The one has no version, the other an error."""
    found = look_at_library("no-such-library", "no_such_library")
    assert (found.state, found.detail) == (State.MISSING, "no-such-library is not installed")
    found = look_at_library("numpy", "numpy.no_such_part")
    assert found.state is State.BROKEN
    assert "cannot be imported: ModuleNotFoundError" in found.detail


def test_shared_memory_is_as_large_as_its_folder(tmp_path):
    """The folder has to be there, and ample."""
    found = look_at_memory()
    assert found.state is State.OK
    assert found.facts.keys() == {"total_bytes", "free_bytes"}
    found = look_at_memory(tmp_path / "nowhere")
    assert found.state is State.MISSING
    assert "tmpfs" in found.hint


def test_little_shared_memory_is_a_hint(tmp_path, monkeypatch):
    """It is enough for small arrays, so it is no fault."""
    monkeypatch.setattr(checkup, "_AMPLE", 1 << 62)
    found = look_at_memory(tmp_path)
    assert found.state is State.OK
    assert "--shm-size=1g" in found.hint


def test_shared_memory_that_may_not_be_written_is_broken(tmp_path, monkeypatch):
    """Root may write anywhere, so what the system says to others is said here."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert look_at_memory(tmp_path).state is State.BROKEN

    def refuse(name):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse)
    found = look_at_memory(tmp_path)
    assert found.detail == "memfd_create fails (Operation not permitted)"
    monkeypatch.delattr(os, "memfd_create")
    assert look_at_memory(tmp_path).detail == "in temporary files"


@pytest.mark.parametrize(
    ("package", "hidden", "kind"),
    [
        ("cupy-cuda12x", "HIP_VISIBLE_DEVICES", "cuda"),
        ("cupy-rocm-7-0", "HIP_VISIBLE_DEVICES", "rocm"),
        ("numpy", "CUDA_VISIBLE_DEVICES", "rocm"),
        ("numpy", "HIP_VISIBLE_DEVICES", "cuda"),
    ],
)
def test_the_kind_of_gpu_is_that_of_cupy_or_of_the_gpus(
    machine, monkeypatch, package, hidden, kind
):
    """What is installed counts before what is visible."""
    machine.distribution(package)
    monkeypatch.syspath_prepend(str(machine.folder))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(hidden, "")
    assert gpu_kind() == kind


def test_the_sections_are_in_their_order():
    """GPUs come last; what other machines and other programs need is not needed on a CPU."""
    listed = sections("cuda", Credentials())
    assert [each.name for each in listed] == [
        *("machine", "libraries", "collectives", "modules", "network", "gpu")
    ]
    assert [each.name for each in listed if not each.required] == ["modules", "network", "gpu"]


def test_a_missing_tvm_names_its_extra(monkeypatch):
    """It is needed for modules of TVM only."""

    def missing(name):
        raise checkup.metadata.PackageNotFoundError(name)

    assert checkup.look_at_tvm().name == "apache-tvm"
    monkeypatch.setattr(checkup.metadata, "version", missing)
    assert "disco-runtime[server,tvm]" in checkup.look_at_tvm().hint
