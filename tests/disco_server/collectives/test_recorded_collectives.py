"""Which collectives a rank is recorded to be in."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disco_client.tracing.ring import FORMS, read_flight
from disco_client.wire.codec import Action
from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.types import MismatchError, ReduceOp
from disco_server.observe.flight import FlightRecorder


@pytest.fixture
def pair():
    """Two ranks with recorders, in threads of their own."""
    world = LocalWorld(2)
    ends = [LocalGroups(worker, world) for worker in range(2)]
    flights = [FlightRecorder() for _ in ends]
    for own, flight in zip(ends, flights, strict=True):
        own.record(flight)

    def both(seq, act):
        """Runs one command on both ranks; what each raised."""
        raised = [None, None]

        def run(worker):
            own, flight = ends[worker], flights[worker]
            flight.begin(seq)
            flight.kinds[seq] = flight.label_of(Action.CALL_PACKED, "test")
            own.position = seq
            try:
                act(own)
            except MismatchError as error:
                raised[worker] = error
            flight.finish(seq)

        threads = [threading.Thread(target=run, args=(worker,)) for worker in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        return raised

    yield both, flights
    world.close()


def collectives(flight):
    return read_flight(*flight.copy()).collectives


SMALL, LARGE = (3,), (1 << 10, 1 << 9)


@pytest.mark.parametrize("shape", [SMALL, LARGE, (0, 4)], ids=str)
def test_an_allreduce_is_one_record_however_it_travels(pair, shape):
    """With its number, its command, what it moves, and the times in order."""
    both, flights = pair
    for seq in (1, 2):
        both(seq, lambda own: own.world.allreduce(np.ones(shape), np.empty(shape), ReduceOp.MAX))
    for flight in flights:
        first, second = collectives(flight)
        assert (first.number, first.seq, second.number, second.seq) == (1, 1, 2, 2)
        assert (second.name, second.dtype) == ("allreduce(max)", "float64")
        assert (second.shape, second.members) == (shape, (0, 1))
        assert second.nbytes == 8 * int(np.prod(shape))
        assert second.entered_ns <= (second.met_ns or second.left_ns) <= second.left_ns


def test_every_operation_is_recorded_and_left(pair):
    """What has no array has no dtype."""
    both, flights = pair
    one, two = np.ones(2, "int32"), np.ones(4, "int32")
    acts = {
        "allgather": lambda own: own.world.allgather(one, two.copy()),
        "broadcast": lambda own: own.world.broadcast(one, one.copy()),
        "scatter": lambda own: own.world.scatter(two, one.copy()),
        "gather": lambda own: own.world.gather(one, two.copy()),
        "reduce_scatter(sum)": lambda own: own.world.reduce_scatter(two, one.copy(), ReduceOp.SUM),
        "all_to_all": lambda own: own.world.all_to_all(two, two.copy()),
        "barrier": lambda own: own.world.barrier(),
        "send_recv": lambda own: (
            own.world.send(one, 1) if own.world.rank == 0 else own.world.recv(one.copy(), 0)
        ),
        "make_teams": lambda own: own.teams.make([(0, 1)]),
    }
    for seq, act in enumerate(acts.values(), 1):
        assert both(seq, act) == [None, None]
    for flight in flights:
        found = {record.name: record for record in collectives(flight)}
        assert set(found) == set(acts)
        assert all(record.left_ns for record in found.values())
        assert (found["barrier"].dtype, found["barrier"].shape) == ("", ())
        assert found["gather"].dtype == "int32"


def test_what_is_refused_was_entered_and_left(pair):
    """The rank goes on, with an error."""
    both, flights = pair

    def different(own):
        size = 3 + own.world.rank
        own.world.allreduce(np.ones(size), np.ones(size), ReduceOp.SUM)

    assert all(isinstance(error, MismatchError) for error in both(1, different))
    for flight in flights:
        (record,) = collectives(flight)
        assert record.left_ns
        assert record.met_ns == 0


def test_more_shapes_than_are_remembered_are_recorded_all_the_same(pair):
    """A program whose arrays grow by one each time."""
    both, flights = pair
    sizes = range(1, FORMS + 40)

    def grow(own):
        for size in sizes:
            own.world.allgather(np.ones(size, "int8"), np.empty(2 * size, "int8"))
        own.world.allgather(np.ones(1, "int8"), np.empty(2, "int8"))

    assert both(1, grow) == [None, None]
    for flight in flights:
        found = collectives(flight)
        # What is older than as many other shapes has lost its own.
        assert [record.shape for record in found[-FORMS + 1 :]] == [
            *((size,) for size in sizes[-FORMS + 2 :]),
            (1,),
        ]
        assert {record.nbytes for record in found[: 40 - 1]} == {0}
