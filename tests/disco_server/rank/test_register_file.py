"""What a rank's registers hold, and what a poisoned one does to whoever reads it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.errors import RemoteFailure
from disco_client.wire.codec import FailureKind
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.registers import Poison, Poisoned, RegisterFile
from disco_server.settings import MAX_REGISTERS

POISON = Poison(RemoteFailure(worker=2, seq=7, message="broken"), FailureKind.EXCEPTION)

numbers = st.integers(1, 300)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), numbers, st.integers() | st.just(POISON)),
        st.tuples(st.just("release"), st.lists(numbers, max_size=3)),
    )
)


@settings(deadline=None)
@given(steps)
def test_it_behaves_like_a_map_that_forgets_what_is_released(program):
    """However it grew: each register holds what was last written, or nothing."""
    file, model = RegisterFile(), {}
    for step in program:
        if step[0] == "write":
            file.write(step[1], step[2])
            model[step[1]] = step[2]
        else:
            file.release(step[1])
            for register in step[1]:
                model.pop(register, None)
    for register in range(1, 310):
        if model.get(register) is POISON:
            with pytest.raises(Poisoned) as read:
                file.read(register)
            assert read.value.poison is POISON
        else:
            assert file.read(register) == model.get(register)
    assert file.statistics()[1] == len(model)


def test_a_register_beyond_any_program_is_refused_and_nothing_grows():
    """One wrong number must not cost a rank all of its memory."""
    file = RegisterFile()
    before = file.statistics()
    with pytest.raises(ArgumentRefused, match=r"less than 1048576 references .*--max-reg"):
        file.write(MAX_REGISTERS, 1)
    assert file.read((1 << 32) - 1) is None
    file.release([(1 << 32) - 1])
    assert file.statistics() == before


def test_it_grows_with_the_numbers_and_not_with_their_use():
    """Registers that are used again and again cost nothing more."""
    file = RegisterFile()
    file.write(1000, "far")
    size, _ = file.statistics()
    assert 1000 < size < 1200
    for _ in range(5000):
        file.write(1000, "again")
        file.release([1000])
    assert file.statistics() == (size, 0)


def test_holding_means_the_very_object():
    """Two equal values are two, and the contents of poisoned or unknown registers are none."""
    file = RegisterFile()
    one, other = [1], [1]
    file.write(3, one)
    assert file.holds(3, one)
    assert not file.holds(3, other)
    assert not file.holds(100_000, None)
    file.write(3, POISON)
    assert not file.holds(3, one)


def test_a_good_value_heals_a_poisoned_register():
    """Poison is content like any other where it is replaced."""
    file = RegisterFile()
    file.write(3, POISON)
    file.write(3, "well")
    assert file.read(3) == "well"
