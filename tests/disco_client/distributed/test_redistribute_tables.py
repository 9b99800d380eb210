"""What differs from worker to worker, in tables."""

from __future__ import annotations

from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.redistribute import (
    line_extents,
    local_shapes,
    per_worker,
)

MESH = DeviceMesh((2, 2), [3, 0, 1, 5])


def info(placement, shape=(5, 7)):
    return DTensorStructInfo(TensorStructInfo(shape, "float32"), MESH, placement)


def test_entries_go_to_the_workers_of_the_mesh():
    """In the order of its list; others get None."""
    assert per_worker(MESH, 7, ["a", "b", "c", "d"]) == ["b", "c", None, "a", None, "d", None]


def test_the_shapes_of_parts():
    """Uneven ones, and those of a second cut."""
    shapes = [tuple(shape) for shape in local_shapes(info("S[0], S[1]"))]
    assert shapes == [(3, 4), (3, 3), (2, 4), (2, 3)]
    assert [tuple(shape) for shape in local_shapes(info("S[0], S[0]", (3,)))] == [
        *((1,), (1,), (1,), (0,)),
    ]


def test_the_extents_along_a_line():
    """The same for all workers of the line."""
    rows = [tuple(each) for each in line_extents(info("S[0], S[1]"), 0, 0)]
    columns = [tuple(each) for each in line_extents(info("S[0], S[1]"), 1, 1)]
    assert rows == [(3, 2)] * 4
    assert columns == [(4, 3)] * 4
    nested = [tuple(each) for each in line_extents(info("S[0], S[0]"), 1, 0)]
    assert nested == [(2, 1), (2, 1), (1, 1), (1, 1)]
