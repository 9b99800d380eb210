"""What moves arrays beside the commands, where nothing does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from disco_client.errors import EncodingError
from disco_client.wire.values import ArrayPorter


class Keeper(ArrayPorter):
    """Holds what it is offered, as porters of sessions do."""

    def __init__(self):
        self.held = {}

    def offer(self, array):
        self.held[len(self.held) + 1] = array.copy()
        return len(self.held)

    def collect(self, ticket, dtype, shape):
        return self.held[ticket].view(dtype).reshape(shape)


def test_small_arrays_go_inside_commands():
    """In C order, and what comes stays what it is."""
    host, porter = np.arange(6, dtype=np.int16).reshape(2, 3), ArrayPorter()

    assert porter.content(host.T) == np.ascontiguousarray(host.T).tobytes()
    assert porter.arrived(host) is host


def test_no_other_kind_of_array_is_known():
    """That takes somebody who has a device."""
    assert not ArrayPorter().knows(np.zeros(3))
    assert not ArrayPorter().knows(None)


def test_large_arrays_are_refused_both_ways():
    """With what was wanted."""
    porter = ArrayPorter()
    with pytest.raises(EncodingError, match="an array of 800 bytes cannot travel inside a value"):
        porter.offer(np.zeros(100))
    with pytest.raises(EncodingError, match="an array of 5 bytes cannot travel"):
        porter.offer_pieces(5, [memoryview(b"abc"), memoryview(b"de")])
    wanted = r"no array can be collected here \(ticket 7, float32, \(2, 3\)\)"
    with pytest.raises(EncodingError, match=wanted):
        porter.collect(7, np.dtype(np.float32), [2, 3])
    with pytest.raises(EncodingError, match="ticket 7"), porter.lend(7, np.dtype("f4"), (2,)):
        pytest.fail("nothing can be lent")


@pytest.mark.parametrize("cuts", [(), (3,), (1, 4, 9)])
def test_pieces_are_one_offer(cuts):
    """However they were cut, whoever knows only whole arrays gets one."""
    host, porter = np.arange(3, dtype=np.int32), Keeper()
    bounds = [0, *cuts, host.nbytes]
    view = memoryview(host.tobytes())
    pieces = (view[a:b] for a, b in pairwise(bounds))
    ticket = porter.offer_pieces(host.nbytes, pieces)

    assert porter.collect(ticket, host.dtype, (3,)).tolist() == [0, 1, 2]


def test_whoever_collects_can_fill_and_lend():
    """Both are there without further work."""
    porter = Keeper()
    ticket = porter.offer(np.arange(6.0))
    out = np.zeros((2, 3))
    porter.collect_into(ticket, out)
    with porter.lend(ticket, np.dtype(float), (3, 2)) as lent:
        seen = lent.tolist()

    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert seen == [[0, 1], [2, 3], [4, 5]]
