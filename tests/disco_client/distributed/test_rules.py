"""Rules that people add."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disco_client import ConfigError, FunctionNotFound
from disco_client.distributed import Local, Pattern, register_rule
from disco_client.distributed.ops import rule_for


@register_rule("test.sort")
def sort_rule(x, *, axis):
    """What needs one axis whole, by a function that the workers know by its dotted name."""
    letters = tuple("" if place == axis else f"a{place}" for place in range(x.ndim))
    return Local("numpy.sort", Pattern((letters,), letters), x, {"axis": axis})


@register_rule("test.missing")
def missing_rule(x):
    """A function that is nowhere."""
    return replace(sort_rule(x, axis=0), name="numpy.no_such_function", options={})


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]"])
def test_a_rule_of_ones_own_computes(workers, placement):
    """Along the axes that it leaves split, nothing moves."""
    array = np.random.default_rng(0).integers(-9, 9, (6, 5))
    x = workers.distribute(array, workers.mesh(), placement)
    result = workers.apply("test.sort", x, axis=1)
    np.testing.assert_array_equal(result.numpy(), np.sort(array, axis=1))
    if placement == "S[0]":
        assert str(result.placement) == "S[0]"
        assert "nothing moved" in result.explain()


def test_a_rule_whose_function_is_nowhere(workers):
    """Is an error of the result, which names it."""
    x = workers.distribute(np.ones(3), workers.mesh(), "R")
    with pytest.raises(FunctionNotFound, match="no_such_function"):
        workers.apply("test.missing", x).numpy()


def test_a_function_without_a_rule_says_how_to_go_on():
    """By the name it was asked for."""
    with pytest.raises(ConfigError, match=r"numpy\.sort.*redistribute\('R'\).*register_rule"):
        rule_for("numpy.sort")
