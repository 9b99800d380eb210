"""Arrays that one process fills while another one reads them."""

from __future__ import annotations

import os

import psutil
import pytest

from disco_client.arrays.shared_memory import allocate
from disco_client.wire.arrays import PIECE_BYTES
from disco_server.ipc.arrays import IncomingArray, Offers, OutgoingArray


def test_an_array_reaches_what_was_told():
    """It never shrinks, and it is settled when all of it is there."""
    array = IncomingArray(None, 10)
    assert [array.reaches(end) for end in (0, 1)] == [True, False]
    array.grow(7)
    array.grow(4)
    assert [array.reaches(end) for end in (7, 8)] == [True, False]
    assert not array.settled
    array.grow(10)
    assert array.reaches(10)
    assert array.settled


def test_an_array_that_fails_is_settled_and_says_why():
    """Also for the part that is there: nobody has a use for that."""
    array = IncomingArray(None, 10, 4)
    array.grow(4, "lost")
    assert array.settled
    with pytest.raises(OSError, match="lost"):
        array.reaches(1)


def test_who_waits_is_told_once():
    """Of the next thing that happens, whichever; then it has to ask again."""
    array, told = IncomingArray(None, 10), []
    array.grow(1)
    array.on_change = lambda: told.append(array.there)
    for there in (2, 3):
        array.grow(there)
    array.on_change = lambda: told.append(array.error)
    array.grow(0, "lost")
    assert told == [2, "lost"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0], [0]),
        ([5, 9], [9]),
        ([PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1], [PIECE_BYTES, PIECE_BYTES + 1]),
        ([PIECE_BYTES + 3, 2 * PIECE_BYTES, 3 * PIECE_BYTES], [PIECE_BYTES + 3, 3 * PIECE_BYTES]),
    ],
    ids=["nothing", "small", "pieces", "uneven"],
)
def test_the_reader_hears_of_whole_pieces_and_the_end(steps, expected):
    """The first time with a descriptor of its own."""
    told = []
    fd = allocate(8)
    array = OutgoingArray(fd, steps[-1], lambda there, given: told.append((there, given)))
    for there in steps:
        array.grow(there)
    assert [there for there, _ in told] == expected
    (_, given), *others = told
    assert os.path.sameopenfile(fd.fileno(), given.fileno())
    assert all(none is None for _, none in others)
    fd.close()
    given.close()


def offer(offers, worker, ticket, nbytes=4, there=4):
    array = IncomingArray(allocate(nbytes), nbytes, there)
    offers.add(worker, ticket, array)
    return array


def test_an_offer_is_taken_once():
    """Whoever asks first gets it; afterwards, and under other names, there is none."""
    offers = Offers()
    array = offer(offers, 1, 7)
    for wrong in ((0, 7), (1, 8)):
        with pytest.raises(KeyError):
            offers.take(*wrong)
    assert offers.take(1, 7) is array
    with pytest.raises(KeyError):
        offers.take(1, 7)
    array.fd.close()


def test_an_offer_grows_also_when_it_was_taken():
    """What is told of others, or after its end, is nothing to it."""
    offers = Offers()
    array = offer(offers, 1, 7, nbytes=10, there=2)
    offers.grow(1, 7, 3, "")
    assert offers.take(1, 7).there == 3
    for worker, ticket in ((0, 7), (1, 8)):
        offers.grow(worker, ticket, 9, "lost")
    offers.grow(1, 7, 10, "")
    offers.grow(1, 7, 10, "too late")
    assert (array.there, array.error) == (10, "")
    array.fd.close()


def test_a_rank_that_ends_breaks_its_arrays_off():
    """Those of others go on, and what is whole stays whole."""
    offers = Offers()
    lost = offer(offers, 1, 1, there=2)
    whole = offer(offers, 1, 2)
    other = offer(offers, 2, 1, there=2)
    offers.break_off("worker 1 ended", 1)
    assert [array.error for array in (lost, whole, other)] == ["worker 1 ended", "", ""]
    offers.close()


def test_offers_nobody_took_are_let_go():
    """Their memory goes back when the session ends, and nobody waits on; twice is no error."""
    before = psutil.Process().num_fds()
    offers = Offers()
    arrays = [offer(offers, 0, ticket, there=ticket) for ticket in (3, 4)]
    offers.close()
    offers.close()
    assert [array.error for array in arrays] == ["the session ended", ""]
    assert psutil.Process().num_fds() <= before
