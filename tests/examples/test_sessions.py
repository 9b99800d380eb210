"""Which workers a device may be asked of."""

from __future__ import annotations

import pytest

from cluster.sessions import DeviceRefused, refuse_slots
from disco_client.transport.base import RankPlace


def places(*devices):
    return [RankPlace(worker, "node-0", 1, device) for worker, device in enumerate(devices)]


@pytest.mark.parametrize(
    ("device", "devices"), [("cpu", ("cpu", "cpu")), ("cuda", ("cuda:1", "cuda:0"))]
)
def test_workers_of_the_device_pass(device, devices):
    """Only the kind of device counts, whatever its number."""
    refuse_slots(device, places(*devices))


def test_cpus_are_no_gpus():
    """The refusal names a worker, and says how to get workers on GPUs."""
    with pytest.raises(DeviceRefused, match=r"worker 1 on node-0 has cpu.*--devices cuda"):
        refuse_slots("cuda", places("cuda:0", "cpu"))


def test_gpus_are_no_cpus():
    """A cluster of GPUs is not used by accident; the refusal names the option."""
    with pytest.raises(DeviceRefused, match=r"has rocm:0. Add --device rocm\."):
        refuse_slots("cpu", places("rocm:0"))
