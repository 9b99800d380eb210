"""A rank that is alone copies; teams of one worker are in `test_team`."""

from __future__ import annotations

import numpy as np
import pytest

from disco_server.collectives.group import LoneBackend
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import Family


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_sources_may_overlap_their_destinations(shift):
    """In place nothing changes, elsewhere what was there arrives."""
    line = np.arange(12.0)
    LoneBackend().allreduce(line[:6], line[shift : shift + 6], ReduceOp.AVG, Family.FLOAT)
    assert line[shift : shift + 6].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("shift", [0, 2])
def test_arrays_of_the_standin_are_copied_too(standin, shift):
    """Behind what was computed on their stream, and also where they overlap."""
    line = standin.arange(8, dtype="float32") + 1
    backend = LoneBackend()
    backend.scatter(line[:6], line[shift : shift + 6])
    backend.gather(line, line)
    want = [1, 2, 1, 2, 3, 4, 5, 6] if shift else [1, 2, 3, 4, 5, 6, 7, 8]
    assert line.get().tolist() == want


def test_a_root_alone_may_lack_an_array():
    """There is nothing to copy then."""
    LoneBackend().gather(np.zeros(2), None)
