"""A GPU of the stand-in for the tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest

from disco_client.wire.values import Device
from disco_server.devices.gpu import GpuArrays


@pytest.fixture
def gpu(standin: Any) -> GpuArrays:
    """The arrays of the second of four GPUs, for this thread."""
    arrays = GpuArrays(Device("cuda", 1))
    arrays.attach()
    return arrays
