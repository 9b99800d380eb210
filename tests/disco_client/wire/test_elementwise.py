"""The names of element-wise functions."""

from __future__ import annotations

import numpy as np

from disco_client.wire.elementwise import ELEMENTWISE


def test_each_is_a_function_of_numpys_with_one_result():
    """And one that works element by element."""
    for name in ELEMENTWISE:
        function = getattr(np, name)
        assert isinstance(function, np.ufunc)
        assert (function.nout, function.signature) == (1, None)
