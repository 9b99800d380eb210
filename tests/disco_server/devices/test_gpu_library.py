"""What is said where a GPU cannot be used."""

from __future__ import annotations

import sys

import pytest

from disco_client.wire.values import Device
from disco_server.devices.base import DeviceUnavailable
from disco_server.devices.gpu import load_cupy

CUDA, ROCM = Device("cuda", 0), Device("rocm", 0)


def refusal(device):
    with pytest.raises(DeviceUnavailable) as refused:
        load_cupy(device)
    return str(refused.value)


@pytest.mark.parametrize(
    ("device", "extra"),
    [(CUDA, "disco-runtime[server,cuda13]"), (ROCM, "disco-runtime[server,rocm]")],
)
def test_without_cupy_the_extra_is_named(monkeypatch, device, extra):
    """As pip wants it, beside what went wrong."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    said = refusal(device)

    assert said.startswith(f"{device} needs cupy, which cannot be imported (")
    assert f"pip install '{extra}'" in said


def test_a_standin_built_for_the_other_kind_of_gpu(standin, monkeypatch):
    """Both kinds are named, and the extra that brings the right one."""
    assert "rocm:0 needs a cupy built for rocm, the one here is built for cuda" in refusal(ROCM)
    assert "install the extra rocm in an environment of its own" in refusal(ROCM)
    monkeypatch.setattr(standin.cuda.runtime, "is_hip", True)
    assert "cuda:0 needs a cupy built for cuda, the one here is built for rocm" in refusal(CUDA)
    assert "install the extra cuda13 (or cuda12) in an" in refusal(CUDA)
    assert load_cupy(ROCM) is standin


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("STANDIN_GPUS", "0", "CUDA driver version is insufficient"),
        ("CUDA_VISIBLE_DEVICES", "", "no CUDA-capable device is detected"),
    ],
)
def test_a_standin_without_driver_or_device(standin, monkeypatch, variable, value, words):
    """The driver's own words come along, and where to look."""
    monkeypatch.setenv(variable, value)
    said = refusal(CUDA)

    assert said.startswith("cuda:0 cannot be used: cudaError")
    assert words in said
    assert "`disco doctor` lists what is there" in said


def test_a_number_that_the_standin_does_not_have(standin, monkeypatch):
    """What counts is what the process sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")

    assert load_cupy(Device("cuda", 1)) is standin
    assert refusal(Device("cuda", 2)) == (
        "expected one of the 2 GPUs that this process sees, got cuda:2"
    )
