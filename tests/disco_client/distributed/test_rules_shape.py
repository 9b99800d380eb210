"""Rules of functions that move elements: which axes stay split, and what is refused."""

from __future__ import annotations

import pytest

from disco_client import ConfigError
from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.ops import choose, rule_for

LINE, GRID = DeviceMesh((4,), range(4)), DeviceMesh((2, 2), range(4))


def tensor(*shape, dtype="float32"):
    return TensorStructInfo(shape, dtype)


def reshaped(before, after, placement, mesh=LINE):
    """How a tensor lies after it was reshaped, and what that costs."""
    x = tensor(*before)
    choice = choose(
        rule_for("reshape")(x, shape=after).pattern, (DTensorStructInfo(x, mesh, placement),)
    )
    return str(choice.output), choice.cost


@pytest.mark.parametrize(
    ("before", "after", "placement", "output"),
    [
        ((8, 6), (48,), "S[0]", "S[0]"),
        ((48,), (8, 6), "S[0]", "S[0]"),
        ((5, 8), (5, 4, 2), "S[1]", "S[1]"),
        ((5, 8), (5, 4, 2), "S[0]", "S[0]"),
        ((5, 1, 7), (5, 7), "S[2]", "S[1]"),
        ((5, 7), (1, 5, 1, 7, 1), "S[1]", "S[3]"),
    ],
)
def test_parts_stay_whole_where_they_can(before, after, placement, output):
    """Heads out of features, rows out of batches; nothing moves."""
    assert reshaped(before, after, placement) == (output, 0)


def test_what_is_even_along_one_axis_of_the_mesh_stays():
    """Two heads along two of four workers; along all four they cannot be split."""
    assert reshaped((6, 8), (6, 2, 4), "R, S[1]", GRID) == ("R, S[1]", 0)
    assert reshaped((6, 8), (6, 2, 4), "S[0], S[1]", GRID) == ("S[0], S[1]", 0)
    output, cost = reshaped((6, 8), (6, 2, 4), "S[1], S[1]", GRID)
    assert cost > 0
    assert output.count("S[1]") < 2
    assert reshaped((6, 8), (6, 2, 4), "S[1]")[1] > 0


@pytest.mark.parametrize(
    ("name", "operands", "options", "text"),
    [
        ("reshape", [tensor(2, 3)], {"shape": (4,)}, r"\(2, 3\) cannot be reshaped to \(4,\)"),
        ("reshape", [tensor(2, 3)], {"shape": (-1, -1)}, "cannot be reshaped"),
        ("reshape", [tensor(2, 3)], {"shape": (-1, 4)}, "cannot be reshaped"),
        ("transpose", [tensor(2, 3)], {"axes": (0,)}, "each of 2 axes once"),
        ("transpose", [tensor(2, 3)], {"axes": (0, 0)}, "named twice"),
        ("concatenate", [], {}, "at least one tensor"),
        ("concatenate", [tensor(2, 3), tensor(3, 3)], {"axis": 1}, "differ along another axis"),
        ("concatenate", [tensor(2), 3], {}, "concatenate needs tensors with axes, got the number"),
        ("concatenate", [tensor()], {}, "0 axes has no axis 0"),
        ("take", [tensor(3), tensor(2)], {}, "positions of an integer dtype, got float32"),
        ("take", [tensor(3), 1], {}, "take needs tensors with axes, got the number 1"),
        ("take", [tensor(3), tensor(2, dtype="int8")], {"axis": 1}, "no axis 1"),
    ],
)
def test_what_is_refused(name, operands, options, text):
    """With the shapes."""
    with pytest.raises(ConfigError, match=text):
        rule_for(name)(*operands, **options)
