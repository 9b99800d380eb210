"""A unique id of NVIDIA's own NCCL, which makes one without a GPU, on its way through a cluster."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from disco_client import connect

GPUS = "disco_test_gpus"
NCCL = "nccl/lib/libnccl.so.2"


@pytest.fixture
def library():
    """The file of NCCL; skips the test where no wheel of it is installed."""
    spec = find_spec("nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for file in (Path(folder, NCCL) for folder in folders):
        if file.exists():
            return str(file)
    pytest.skip("NCCL is not installed here; pip install --no-deps nvidia-nccl-cu12 does that")


def test_an_id_of_nccl_reaches_every_worker_through_the_rendezvous(daemons, library):
    """Byte for byte, on workers of two nodes, whose sessions have no GPU; each use has its own."""
    controller = daemons.controller()
    for name in ("one", "two"):
        daemons.worker(controller.address, "--name", name, "--slots", "2", "--allow-module", GPUS)
    with connect(controller.address, num_workers=4) as session:
        session.import_python_module(GPUS)
        share = session.get_global_func("gpus.share_nccl_id")
        first, second = (share(library, f"test-{number}") for number in (1, 2))
        ids = [first.debug_get_from_remote(worker) for worker in range(4)]
        assert len(ids[0]) == 128
        assert any(ids[0])
        assert ids == [ids[0]] * 4
        assert second.debug_get_from_remote(3) != ids[0]
