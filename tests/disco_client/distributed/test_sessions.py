"""What a session offers for distributed tensors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from disco_client import ConfigError
from disco_client.distributed import DeviceMesh


def test_meshes_of_the_first_workers(workers):
    """All in one row, so many, or in a grid."""
    assert workers.mesh() == DeviceMesh((4,), range(4))
    assert workers.mesh(3) == DeviceMesh((3,), range(3))
    assert workers.mesh((2, 2), ("dp", "tp")) == DeviceMesh((2, 2), range(4), ("dp", "tp"))
    for shape, text in (((5,), "names worker 4"), ((2, 3), "names worker 4"), ((0,), "at least 1")):
        with pytest.raises(ConfigError, match=text):
            workers.mesh(shape)
    with pytest.raises(ConfigError, match="expected 2 different names"):
        workers.mesh((2, 2), ("dp",))


def test_a_tensor_lies_on_all_workers_by_default(workers):
    """A copy for each; lists become arrays."""
    x = workers.distribute([[1, 2], [3, 4]])
    assert (x.mesh, str(x.placement), x.dtype) == (workers.mesh(), "R", np.dtype("int64"))
    assert [x.shard(worker).tolist() for worker in range(4)] == [[[1, 2], [3, 4]]] * 4


def test_a_session_that_distributes_nothing_loads_nothing_of_it():
    """A program pays for what it uses."""
    program = (
        "import sys, disco_client\n"
        "with disco_client.ThreadedSession(1) as session:\n"
        "    session.sync_all()\n"
        "    assert 'disco_client.distributed.dispatch' not in sys.modules\n"
        "    assert session.mesh().size == 1\n"
        "    assert 'disco_client.distributed.pictures' not in sys.modules\n"
        "    from disco_client.distributed import visualize_sharding\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
