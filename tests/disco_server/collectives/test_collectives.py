"""What every communicator does whose ranks meet first: four processes, and four threads."""

from __future__ import annotations

import re

import pytest

BRING = "brought allreduce(sum) of float32[3], destination float32[3]"


def test_reductions_of_every_dtype(any_ranks):
    """Every dtype, operation, group and size class gives what numpy gives, in place too."""
    assert any_ranks.run("reductions", sizes=[7, 5001]) == [[]] * 4


def test_moves_of_every_dtype(any_ranks):
    """Gathering and spreading bring every part to its place, in every way and in place."""
    assert any_ranks.run("moves") == [[]] * 4


def test_shapes_do_not_matter(any_ranks):
    """Only element counts do; strided, scalar, empty and overlapping arrays work."""
    assert any_ranks.run("shapes") == [[]] * 4


def test_halves_are_rounded_once(any_ranks):
    """float16 and bfloat16 are combined in float32."""
    assert any_ranks.run("halves_round_once") == [[]] * 4


def test_integers_wrap_and_their_averages_do_not(any_ranks):
    """Sums wrap; averages are exact and cut toward zero, of every size and with uneven parts."""
    assert any_ranks.run("integers_wrap") == [[]] * 4


@pytest.mark.parametrize(
    ("case", "odd", "words"),
    [
        ("count", [2], "the destination float32[3] needs 4 elements"),
        ("large", [2], "worker 2 brought allreduce(sum) of float32[5000]"),
        ("dtype", [2], "worker 2 brought allreduce(sum) of int32[3]"),
        ("reduction", [2], "worker 2 brought allreduce(max)"),
        ("operation", [2], "worker 2 brought broadcast of float32[3]"),
        ("destination", [2], "the destination float32[2] needs 3 elements"),
        ("read-only", [2], "is read-only"),
        ("nothing", [2], "the source must be an array, not None"),
    ],
)
def test_an_odd_rank_is_refused_everywhere(any_ranks, case, odd, words):
    """All ranks raise the same words, nothing was touched, and the next call works."""
    answers = any_ranks.run("refused", case=case)
    assert answers == [answers[0]] * 4
    named, message, untouched, after = answers[0]
    assert named == odd
    assert words in message
    assert f"workers 0, 1 and 3 {BRING}" in message
    assert untouched
    assert after == [4, 4, 4]


@pytest.mark.parametrize(
    ("case", "odd", "words"),
    [
        ("strings", [0, 1, 2, 3], "dtype <U1 cannot take part"),
        ("parts", [0], "float32[13] does not hold 4 parts like float32[3]"),
        ("order", [0, 1, 2, 3], "complex128 has no order, so no max"),
    ],
)
def test_what_cannot_be_done_is_refused_everywhere(any_ranks, case, odd, words):
    """A call that is wrong by itself reaches all ranks with its reason."""
    answers = any_ranks.run("refused", case=case)
    assert answers == [answers[0]] * 4
    assert answers[0][0] == odd
    assert words in answers[0][1]
    assert answers[0][3] == [4, 4, 4]


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("failing", [[3], [0, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_ranks_that_fail_end_the_collective(any_ranks, failing, idle):
    """Those who wait learn which ranks failed; afterwards all channels work again."""
    answers = any_ranks.run("fails", failing=failing, in_group=False, idle=idle)
    for rank, (outcome, total, part, _) in enumerate(answers):
        want = "failed" if rank in failing else [failing, "allreduce(sum)", True]
        assert outcome == want
        assert total == [6, 6]
        assert part == ([1, 1] if rank < 2 else [5, 5])
    assert not any(answer[3] for answer in answers), "tokens still wait after all have met"


def test_a_failure_in_one_group_leaves_the_other_alone(any_ranks):
    """A collective in a group ends only where a member failed."""
    answers = any_ranks.run("fails", failing=[3], in_group=True, idle=True)
    assert [answer[0] for answer in answers] == [
        [2, 2, 2],
        [2, 2, 2],
        [[3], "allreduce(sum)", True],
        "failed",
    ]


def test_a_caught_abort_is_told_again(any_ranks):
    """A function that tries once more is refused once more, and nothing is left over."""
    assert any_ranks.run("second_try") == [[[3], [3], [3]]] * 3 + [[]]


@pytest.mark.parametrize("seed", range(3))
def test_random_failures_never_hang_anyone(any_ranks, seed):
    """Whoever fails where, all ranks come to the end and equal collectives met."""
    answers = any_ranks.run("random_log", seed=seed, commands=150)
    everyone = [[line for line in answer if "world" in line] for answer in answers]
    assert everyone == [everyone[0]] * 4
    assert len(everyone[0]) > 10
    for group, members in ((0, (0, 1)), (1, (2, 3))):
        first, second = (
            [line for line in answers[member] if f"group {group}" in line] for member in members
        )
        assert first == second


def test_arrays_pass_between_groups(any_ranks):
    """Send and recv move any dtype, small and large, strided too."""
    assert any_ranks.run("transfers") == [[]] * 4


def test_transfers_that_do_not_fit_are_refused(any_ranks):
    """Both ends learn what the other brought, or that it cannot come."""
    first, second, *others = any_ranks.run("wrong_transfers")
    assert others == [[], []]
    assert first[:2] == second[:2]
    assert "destination float64[4]" in first[0]
    assert "send_recv of float64[3]" in first[0]
    assert "worker 0 is not another one of the 4 workers" in first[2]
    assert first[3] == "9 is not the rank of one of 4 members"
    assert re.fullmatch(r"send_recv of command #\d+ cannot happen: worker 1 .*", first[4])


def test_leaving_drains_what_is_pending(any_ranks):
    """Tokens that nobody came for do not disturb the orderly end; see the fixture."""
    assert any_ranks.run("left_pending") == [False, True, False, False]
