"""Limits of a session: each is an error that names its setting, and the session goes on."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from disco_client import connect, errors
from disco_client.transport.channel import target


@pytest.fixture(scope="module")
def session(shared_daemons):
    """A session on a node with small limits."""
    controller = shared_daemons.controller()
    small = ("--max-registers", "1024", "--max-array-mib", "1")
    shared_daemons.worker(controller.address, "--slots", "1", *small)
    with connect(controller.address, num_workers=1, logs=False) as opened:
        yield opened


def test_references_beyond_the_limit_are_refused(session):
    """BadArgument with the setting; what was dropped makes room again."""
    add = session.get_global_func("numpy.add")
    held = [add(n, 1) for n in range(1100)]
    with pytest.raises(errors.BadArgument, match=r"less than 1024 references .* --max-registers"):
        session.sync_all()
    assert held[500].debug_get_from_remote(0) == 501
    del held
    assert add(1, 1).debug_get_from_remote(0) == 2


def test_results_of_a_program_count_as_references(session):
    """A run whose results have no registers fails as one command does."""
    add = session.get_global_func("numpy.add")
    held = [add(n, 1) for n in range(900)]
    with session.capture() as program:
        program.output(*(add(n, 2) for n in range(300)))
    results = program()
    with pytest.raises(errors.BadArgument, match="--max-registers"):
        session.sync_all()
    del held, results
    assert add(1, 1).debug_get_from_remote(0) == 2


def test_an_array_beyond_the_limit_is_refused(session):
    """By its announced size, before there is memory for it; a smaller one arrives."""
    fits, large = np.ones(1 << 17), np.ones((1 << 17) + 1)

    def send(array):
        made = session.empty(array.shape, "float64")
        made.debug_copy_from(0, array)
        return made.debug_get_from_remote(0)

    assert send(fits).sum() == 1 << 17
    with pytest.raises(
        (errors.DiscoError, OSError),
        match=r"at most 1048576 bytes, got one of 1048584; .*--max-array-mib",
    ):
        send(large)
    session.sync_all()
    assert send(fits).sum() == 1 << 17


def test_values_nest_no_deeper_than_both_ends_agreed(session):
    """Refused at the client already, in words."""
    nested = []
    for _ in range(40):
        nested = [nested]
    with pytest.raises(errors.EncodingError, match="may nest 32 deep"):
        session.get_global_func("numpy.add")(nested, 1)
    session.sync_all()


def test_words_of_a_request_have_a_longest(shared_daemons, session):
    """A refusal does not repeat a megabyte of what it refuses."""
    address = shared_daemons.started[0].address
    with pytest.raises(errors.DiscoError) as refused:
        connect(address, num_workers=1, name="x" * 100_000)
    assert len(str(refused.value)) < 1000
    with grpc.insecure_channel(target(address)) as channel:
        inspect = channel.unary_unary("/disco.v1.SessionService/Inspect")
        with pytest.raises(grpc.RpcError) as raised:
            inspect(b"\x0a\xa0\x8d\x06" + b"x" * 100_000, timeout=20)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert len(raised.value.details()) < 1000
