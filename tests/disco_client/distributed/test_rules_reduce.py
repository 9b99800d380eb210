"""Rules of functions along axes: results, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client import ConfigError
from disco_client.distributed import TensorStructInfo
from disco_client.distributed.ops import normal_axes, normal_axis, rule_for


def tensor(*shape, dtype="float32"):
    return TensorStructInfo(shape, dtype)


def test_axes_are_counted_from_the_front():
    """Numbers of numpy too; others are refused in words."""
    assert (normal_axis(-1, 3), normal_axis(np.int8(1), 3)) == (2, 1)
    assert normal_axes(None, 2) == (0, 1)
    assert normal_axes([-1, 0], 2) == (1, 0)
    assert normal_axes((), 2) == ()
    for axis, text in (
        (2, "2 axes has no axis 2"),
        (-3, "no axis -3"),
        ((0, -2), r"named twice in \(0, 0\)"),
        (1.0, "an axis by its number, got 1.0"),
        ("rows", "an axis by its number, got 'r'"),
        (True, "an axis by its number, got True"),
    ):
        with pytest.raises(ConfigError, match=text):
            normal_axes(axis, 2)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float16", "complex64"])
def test_results_are_those_of_numpy(name, dtype):
    """In shape and dtype."""
    array = np.ones((2, 3), dtype)
    for axis, keepdims in ((None, False), (1, True), ((0,), False), ((), False)):
        want = np.asarray(getattr(np, name)(array, axis=axis, keepdims=keepdims))
        local = rule_for(name)(tensor(2, 3, dtype=dtype), axis=axis, keepdims=keepdims)
        assert (tuple(local.result.shape), local.result.dtype) == (want.shape, want.dtype)


def test_complex_numbers_are_compared_where_they_all_are():
    """They have an order for numpy, but not for what combines the workers' results."""
    for name in ("max", "min"):
        assert rule_for(name)(tensor(4, dtype="complex64")).pattern.combines == ()
        assert rule_for(name)(tensor(4)).pattern.combines == (("a0", name),)
    assert rule_for("sum")(tensor(4, dtype="complex64")).pattern.combines == (("a0", "sum"),)


@pytest.mark.parametrize(
    ("name", "operands", "options", "text"),
    [
        ("max", [tensor(2, 0)], {"axis": 1}, r"max along axis 1 of \(2, 0\) has no elements"),
        ("argmin", [tensor(0)], {"axis": 0}, r"argmin along axis 0 of \(0,\) has no elements"),
        ("any", [tensor(2)], {"dtype": "int8"}, "any has no dtype of its own"),
        ("argmax", [tensor(2)], {"axis": None}, "an axis by its number, got None"),
        ("softmax", [tensor(2, dtype="int8")], {}, "softmax needs real floating-point numbers"),
        ("layer_norm", [tensor(2, 3), tensor(2)], {}, r"expected a vector of 3, got \(2,\)"),
        ("rms_norm", [tensor(2, 3), 1.0], {}, "rms_norm needs tensors with axes, got the number"),
        ("softmax", [tensor()], {}, "0 axes has no axis -1"),
    ],
)
def test_what_is_refused(name, operands, options, text):
    """With the function, the axis and the shape."""
    with pytest.raises(ConfigError, match=text):
        rule_for(name)(*operands, **options)
