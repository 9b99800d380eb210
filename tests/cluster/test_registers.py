"""The workers' register files stay as small as what a program holds at a time."""

from __future__ import annotations

from disco_client import DRef
from disco_client.core import _ENDED


def sizes(session):
    """Of each worker: how many registers there are, and how many hold something."""
    file = session.get_global_func("tests.registers")()
    session.sync_all()
    return [file.debug_get_from_remote(worker) for worker in range(session.num_workers)]


def test_ten_thousand_references_leave_no_register_behind(session):
    """After 10 000 commands that made and dropped 10 000 references, all is as it was."""
    echo = session.get_global_func("tests.echo")
    before, known = sizes(session), session.statistics()
    for number in range(10_000):
        echo(number)
    session.sync_all()
    after, then = sizes(session), session.statistics()
    assert then["issued"] - known["issued"] >= 10_000
    assert after == before
    # Which registers the client uses does not grow either, but for what was under way.
    assert then["registers"] <= known["registers"] + 1


def test_a_program_s_live_references_are_the_registers_in_use(session):
    """Each worker holds one value a live reference; dropping them empties the registers."""
    echo = session.get_global_func("tests.echo")
    before = sizes(session)
    kept = [echo(number) for number in range(500)]
    during = sizes(session)
    assert [now - was for (_, now), (_, was) in zip(during, before, strict=True)] == [500] * 4
    assert [kept[number].debug_get_from_remote(3) for number in (0, 499)] == [0, 499]
    del kept
    assert [used for _, used in sizes(session)] == [used for _, used in before]


def test_a_dropped_array_is_gone_from_its_register(session):
    """What the dead reference's register holds afterwards is nothing, on every worker."""
    array = session.empty((1024,), "float64")
    assert array.numpy(3).shape == (1024,)
    register = array.reg_id
    del array
    session.sync_all()
    looks = DRef(register, session)
    try:
        assert [looks.debug_get_from_remote(worker) for worker in range(4)] == [None] * 4
    finally:
        looks._core = _ENDED  # the register is not its own, to be freed once more
