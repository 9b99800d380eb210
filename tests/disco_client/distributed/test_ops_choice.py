"""Which way to compute is chosen."""

from __future__ import annotations

import pytest

from disco_client.distributed import DeviceMesh, DTensorStructInfo, Pattern, TensorStructInfo
from disco_client.distributed.ops import choose

LINE, GRID = DeviceMesh((4,), range(4)), DeviceMesh((2, 2), range(4))
MATMUL = Pattern((("m", "k"), ("k", "n")), ("m", "n"), (("k", "sum"),), ((0,), (1,)))


def operand(placement, mesh=LINE, shape=(8, 8)):
    return DTensorStructInfo(TensorStructInfo(shape, "float32"), mesh, placement)


@pytest.mark.parametrize(
    ("one", "other", "result", "cost"),
    [
        ("R", "R", "R", 0),
        ("S[0]", "R", "S[0]", 0),
        ("R", "S[1]", "S[1]", 0),
        ("S[1]", "S[0]", "P[sum]", 0),
        ("P", "R", "P[sum]", 0),
        ("R", "P", "P[sum]", 0),
        # The smaller way: one operand goes along the other's axis.
        ("S[1]", "S[1]", "P[sum]", 48),
        ("S[0]", "S[0]", "P[sum]", 48),
    ],
)
def test_the_way_of_a_product(one, other, result, cost):
    """As people split products; what must move is the least that can be."""
    choice = choose(MATMUL, (operand(one), operand(other)))
    assert (str(choice.output), choice.cost) == (result, cost)


def test_each_axis_of_the_mesh_goes_its_own_way():
    """Rows along one, the contraction along the other."""
    choice = choose(MATMUL, (operand("S[0], S[1]", GRID), operand("R, S[0]", GRID)))
    assert (str(choice.output), choice.cost) == ("S[0], P[sum]", 0)


def test_a_letter_that_must_be_even_is_split_only_where_it_is():
    """Eight over four, but not six."""
    for extent, output in ((8, "S[0]"), (6, "R")):
        pattern = Pattern((("a",),), ("a",), even=(("a", extent),))
        assert str(choose(pattern, (operand("S[0]", shape=(extent,)),)).output) == output
