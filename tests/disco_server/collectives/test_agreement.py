"""What a rank says of its calls; how ranks agree is shown by `test_collectives` and `test_team`."""

from __future__ import annotations

import re

import numpy as np
import pytest

from disco_server.collectives.agreement import Agreement, unstage
from disco_server.collectives.header_exchange import TEXT_BYTES
from disco_server.collectives.types import MismatchError
from disco_server.collectives.validation import Op, check_equal


@pytest.fixture
def agreement():
    """That of a rank, without any channel."""
    made = Agreement(3)
    yield made
    made.close(orderly=True)


def test_alone_only_what_is_sound_may_begin(agreement):
    """Without a channel a sound call begins at once, and a wrong one names this rank."""
    three = np.zeros(3)
    agreement.preflight.position = 8
    agreement.meet(None, check_equal(Op.ALLREDUCE, three, three), three, three)
    wrong = check_equal(Op.BROADCAST, three, three[:2])
    with pytest.raises(MismatchError, match=r"command #8\): the destination") as raised:
        agreement.meet(None, wrong, three, three[:2])
    assert raised.value.ranks == (3,)
    assert re.search(r" has, at test_agreement\.py:\d+ in test_alone", str(raised.value))


def test_the_line_of_a_call_is_told_after_any_text(agreement):
    """Of the innermost function outside of Disco, and however long what is wrong is to tell."""

    def train():
        wrong = check_equal(Op.BARRIER, np.zeros(3), np.zeros(3))._replace(problem="é" * 5000)
        agreement.meet(None, wrong, None, None)

    with pytest.raises(MismatchError, match=r"barrier \(command #-1\): é{100}") as raised:
        train()
    words = str(raised.value)
    line = train.__code__.co_firstlineno + 2
    assert words.endswith(f", at test_agreement.py:{line} in train")
    assert len(words.encode()) <= TEXT_BYTES


def test_contiguous_arrays_stand_for_others(agreement):
    """What was written to the stand-in comes to its place; sound arrays are used themselves."""
    square = np.arange(9.0).reshape(3, 3)
    signature = check_equal(Op.BROADCAST, square, square)
    assert agreement.stage(signature, square, square) == (square, square)

    source, target = agreement.stage(signature, square.T, square.T)
    assert source.flags.c_contiguous
    assert target.flags.c_contiguous
    assert np.array_equal(source, square.T)
    target[:] = 7
    unstage(target, square.T)
    assert (square == 7).all()


def test_nothing_stands_for_what_is_refused(agreement):
    """A wrong call costs no copies."""
    column = np.zeros((3, 2))[:, 0]
    signature = check_equal(Op.BROADCAST, column, column[:2])
    assert signature.problem
    assert agreement.stage(signature, column, column[:2])[0] is column
