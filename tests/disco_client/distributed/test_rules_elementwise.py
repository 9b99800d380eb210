"""Rules of element-wise functions: dtypes, letters, and what they refuse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_client import ConfigError
from disco_client.distributed import TensorStructInfo
from disco_client.distributed.ops import letters_of, rule_for
from disco_client.wire.elementwise import ELEMENTWISE


def tensor(*shape, dtype="float32"):
    return TensorStructInfo(shape, dtype)


def test_axes_that_are_broadcast_have_no_letter():
    """They are whole everywhere; others go by their place from the end."""
    assert letters_of((4, 1), (2, 4, 3)) == ("a1", "")
    assert letters_of((), (2,)) == ()
    # An axis of one that stays one goes with the others of one.
    assert letters_of((1, 3), (1, 3)) == ("a0", "a1")


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_the_dtype_is_that_of_numpy(name):
    """For all functions, and dtypes that they take; the others are refused."""
    function = getattr(np, name)
    for dtype in (np.float32, np.int8, np.bool_, np.complex64, np.float16, ml_dtypes.bfloat16):
        arrays = [np.ones(1, dtype)] * function.nin
        operands = [tensor(1, dtype=dtype)] * function.nin
        try:
            with np.errstate(all="ignore"):
                want = function(*arrays).dtype
        except TypeError:
            with pytest.raises(ConfigError, match=f"numpy.{name}: "):
                rule_for(name)(*operands)
        else:
            assert rule_for(name)(*operands).result.dtype == want


def test_what_is_linear():
    """Sums of sums, multiples of sums, quotients of sums; nothing else."""

    def linear(name, *operands):
        return rule_for(name)(*operands).pattern.linear

    x = tensor(3)
    assert linear("add", x, x) == ((0, 1),)
    assert linear("add", x, 1.0) == ()
    assert linear("multiply", x, x) == ((0,), (1,))
    assert linear("multiply", 2.0, x) == ((0,),)
    assert linear("true_divide", x, x) == ((0,),)
    assert linear("true_divide", 1.0, x) == ()
    assert linear("exp", x) == linear("maximum", x, x) == ()


def test_what_is_refused():
    """Shapes, numbers of operands, and dtypes that do not fit."""
    with pytest.raises(ConfigError, match=r"add: shapes \[\(3,\), \(4,\)\] cannot be broadcast"):
        rule_for("add")(tensor(3), tensor(4))
    with pytest.raises(ConfigError, match=r"numpy.add takes 2 operands, got 1"):
        rule_for("add")(tensor(3))
    for name in ("relu", "silu", "gelu", "sigmoid"):
        with pytest.raises(ConfigError, match=f"{name} needs real floating-point numbers, got int"):
            rule_for(name)(tensor(3, dtype="int32"))
        assert rule_for(name)(tensor(3, dtype="bfloat16")).result.dtype == ml_dtypes.bfloat16
    with pytest.raises(ConfigError, match="nonsense"):
        rule_for("cast")(tensor(3), dtype="nonsense")


def test_where_has_the_dtype_of_its_choices():
    """Numbers of Python take that of the tensor."""
    condition = tensor(3, dtype="bool")
    assert rule_for("where")(condition, tensor(3), 0).result.dtype == np.float32
    assert rule_for("where")(condition, 1.5, tensor(3, dtype="int8")).result.dtype == np.float64
    assert tuple(rule_for("where")(condition, tensor(2, 1), 0).result.shape) == (2, 3)
