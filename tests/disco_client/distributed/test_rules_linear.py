"""Rules of products: how axes go together, and what is refused."""

from __future__ import annotations

import pytest

from disco_client import ConfigError
from disco_client.distributed import TensorStructInfo
from disco_client.distributed.ops import rule_for


def tensor(*shape, dtype="float32"):
    return TensorStructInfo(shape, dtype)


@pytest.mark.parametrize(
    ("one", "other", "shape", "output"),
    [
        ((3, 4), (4, 5), (3, 5), ("m", "n")),
        ((4,), (4, 5), (5,), ("n",)),
        ((3, 4), (4,), (3,), ("m",)),
        ((4,), (4,), (), ()),
        ((2, 1, 3, 4), (6, 4, 5), (2, 6, 3, 5), ("b0", "b1", "m", "n")),
    ],
)
def test_products(one, other, shape, output):
    """Of matrices, vectors and batches, combining along what they share."""
    local = rule_for("matmul")(tensor(*one), tensor(*other))
    assert tuple(local.result.shape) == shape
    assert local.pattern.output == output
    assert local.pattern.combines == (("k", "sum"),)


def test_a_batch_of_one_is_whole():
    """It goes to each of the other's."""
    pattern = rule_for("matmul")(tensor(1, 3, 4), tensor(6, 4, 5)).pattern
    assert pattern.inputs == (("", "m", "k"), ("b0", "k", "n"))


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        ((tensor(3, 4), tensor(3, 4)), r"\(3, 4\) and \(3, 4\) do not fit, 4 is not 3"),
        ((tensor(2, 3, 4), tensor(5, 4, 3)), "cannot be broadcast together"),
        ((tensor(), tensor(3)), "at least one axis"),
        ((tensor(3), 2.0), "needs tensors with axes, got the number 2.0"),
    ],
)
def test_what_is_no_product(operands, text):
    """With the shapes."""
    with pytest.raises(ConfigError, match=text):
        rule_for("matmul")(*operands)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "text"),
    [
        ("i...,j", [(2,), (3,)], "'...' has no rule"),
        ("ij", [(2, 3), (3,)], "expected 1 operands, got 2"),
        ("ij", [(2,)], r"'ij' does not fit a tensor of shape \(2,\)"),
        ("ij,jk", [(2, 3), (4, 5)], "'j' is 3 and 4"),
        ("ij->k", [(2, 3)], "'k' is no result of 'ij'"),
        ("ij->ii", [(2, 3)], "'ii' is no result of 'ij'"),
        ("i;j", [(2,)], "expected letters, commas and ->"),
    ],
)
def test_what_is_no_einsum(subscripts, shapes, text):
    """With the subscripts as they were given."""
    with pytest.raises(ConfigError, match=text) as raised:
        rule_for("einsum")(*(tensor(*shape) for shape in shapes), subscripts=subscripts)
    assert str(raised.value).startswith(f"einsum of {subscripts!r}: ")


def test_letters_that_are_left_out_are_numpys():
    """Those that occur once, in order."""
    local = rule_for("einsum")(tensor(2, 3), tensor(3, 4), subscripts="ba, ac")
    assert local.options["subscripts"] == "ba,ac->bc"
    assert local.pattern.combines == (("a", "sum"),)
