"""The stand-in's communicators where oneCCL carries what they do, among processes."""

from __future__ import annotations

import signal

import pytest


def test_real_ids_collectives_and_splits(run_ranks, oneccl):
    """Among four ranks, and among every other one of them."""
    found = run_ranks(4, "sums", **oneccl)

    assert found == [[6, 10, 14, 2], [6, 10, 14, 4], [6, 10, 14, 2], [6, 10, 14, 4]]


@pytest.mark.parametrize("told", ["", "21703"])
def test_what_carries_is_the_library(run_ranks, oneccl, told):
    """Its version is told, unless the environment says another, and its ids are long."""
    (found,) = run_ranks(1, "library", STANDIN_NCCL_VERSION=told, **oneccl)

    assert found == [not told, 4096, ["libccl.so.1", "libccl.so.2"]]


def test_a_rank_that_is_killed_leaves_the_others_waiting(run_ranks, oneccl):
    """No error comes by itself; who gives up goes on, as the stand-in lets it."""
    first, second = run_ranks(2, "watched", STANDIN_NCCL_FAIL="kill:1:3", **oneccl)

    assert first == [2, 4, "error timeout"]
    assert second == -signal.SIGKILL


@pytest.mark.parametrize("plan", ["hang:1:2", "async:1:2"])
def test_what_the_stand_in_adds(run_ranks, oneccl, plan):
    """A rank that hangs, and one that has an error by itself; its peers just wait."""
    first, second = run_ranks(2, "watched", STANDIN_NCCL_FAIL=plan, **oneccl)

    assert first == [2, "error timeout"]
    assert second == [2, "error timeout" if plan.startswith("hang") else "error 6"]
