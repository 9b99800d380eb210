"""What workers read of a file whose tensor is divided among them."""

from __future__ import annotations

import numpy as np


def bytes_of_parts(session, file, array, placement):
    """Distributes a file's tensor over four workers, looks at their parts, and counts their bytes.

    Args:
        session: It knows the functions of ``disco_test_shards``.
        file: The tensor in the file.
        array: What that consists of.
        placement: ``S[0]`` or ``S[1]``.

    Returns:
        The bytes that each worker has read, as its kernel counts them.
    """
    count = session.get_global_func("tests.bytes_read")
    before = count()
    x = session.distribute(file, session.mesh(), placement)
    after = count()
    parts = np.split(array, 4, int(placement[2]))
    for worker, expected in enumerate(parts):
        assert np.array_equal(x.shard(worker)[::7, ::99], expected[::7, ::99])
    return [
        after.debug_get_from_remote(worker) - before.debug_get_from_remote(worker)
        for worker in range(4)
    ]
