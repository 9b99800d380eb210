"""What to do, for what is found on a machine."""

from __future__ import annotations

import os

import pytest

from disco_server.devices.driver import KINDS
from disco_server.devices.probe import extra_for, no_driver, no_gpu, no_kernel, pip

CUDA, ROCM = KINDS["cuda"], KINDS["rocm"]


@pytest.fixture
def container(tmp_path):
    """The root of a container's file system."""
    (tmp_path / ".dockerenv").touch()
    (tmp_path / "dev").mkdir()
    return tmp_path


def test_the_extra_is_that_of_the_driver():
    """A driver of CUDA 12 wants cuda12; a newer or unknown one cuda13."""
    assert [extra_for("cuda", major) for major in (0, 12, 13, 14)] == [
        "cuda13",
        "cuda12",
        "cuda13",
        "cuda13",
    ]
    assert pip(extra_for("rocm", 7)) == "pip install 'disco-runtime[server,rocm]'"


def test_without_a_driver_it_depends_on_where_one_is(container, tmp_path_factory):
    """A container is started otherwise; a machine gets a driver."""
    bare = tmp_path_factory.mktemp("bare")
    assert no_driver(CUDA, {}, bare).startswith("install NVIDIA's driver; nvidia-smi")
    assert no_driver(ROCM, {}, bare).startswith("install AMD's driver and ROCm; rocm-smi")
    for environ, root in (
        ({}, container),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, bare),
        ({"container": "podman"}, bare),
    ):
        assert "docker run --gpus all" in no_driver(CUDA, environ, root)
        assert "--device /dev/kfd" in no_driver(ROCM, environ, root)
    (container / "dev/nvidia0").touch()
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in no_driver(CUDA, {}, container)


@pytest.mark.parametrize(
    ("code", "word"),
    [(34, "stub"), (802, "nvidia-fabricmanager"), (803, "kernel module"), (804, "LD_LIBRARY_PATH")],
)
def test_some_errors_of_cuda_have_an_answer_of_their_own(code, word, tmp_path):
    """The numbers are those of CUDA's driver, and mean nothing for HIP."""
    assert word in no_gpu(CUDA, code, {}, tmp_path)
    assert word not in no_gpu(ROCM, code, {}, tmp_path)


def test_a_variable_that_hides_gpus_is_shown(tmp_path):
    """Its value is repeated, because it usually comes from somewhere else."""
    hint = no_gpu(CUDA, 100, {"CUDA_VISIBLE_DEVICES": "7"}, tmp_path)
    assert hint == "see what CUDA_VISIBLE_DEVICES='7' hides, or unset it"


def test_a_device_file_that_may_not_be_opened_is_named(tmp_path, monkeypatch):
    """AMD's are for two groups, which the hint names."""
    for name in ("nvidia0", "nvidiactl", "kfd"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    # Root may open every file, so what the system would say to others is said here.
    monkeypatch.setattr(os, "access", lambda path, mode: path.name == "nvidia0")
    hint = no_gpu(CUDA, 100, {}, tmp_path)
    assert hint == f"this user may not open {tmp_path}/dev/nvidiactl: see its owner and mode"
    assert no_gpu(ROCM, 100, {}, tmp_path).endswith("join the groups render and video")


def test_a_container_without_device_files_was_started_without_gpus(container):
    """With them, the driver's own tool has to tell more."""
    assert "docker run --gpus all" in no_gpu(CUDA, 100, {}, container)
    (container / "dev/nvidia0").touch()
    assert "nvidia-smi" in no_gpu(CUDA, 100, {}, container)


@pytest.mark.parametrize(
    ("kind", "error", "word"),
    [
        (CUDA, "cudaErrorMemoryAllocation: out of memory", "hold the GPU's memory"),
        (CUDA, "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy", "to itself"),
        (CUDA, "nvrtc: error: invalid value for --gpu-architecture (-arch)", "cuda12"),
        (CUDA, "could not open source file", "pip install 'disco-runtime[server,cuda13]'"),
        (ROCM, "hipErrorNoBinaryForGpu", "too old"),
        (ROCM, "no hiprtc", "hiprtc, hipcc and rocblas"),
    ],
)
def test_a_kernel_that_does_not_run_has_several_reasons(kind, error, word):
    """Known marks in the error choose the answer; otherwise the compiler is what is missing."""
    assert word in no_kernel(kind, error, 13)
