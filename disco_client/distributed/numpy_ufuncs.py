"""numpy's ufuncs of distributed tensors: calls, and the methods that go along axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of, no_out
from disco_client.distributed.numpy_elements import several_results
from disco_client.distributed.numpy_products import PRODUCT_UFUNCS
from disco_client.distributed.numpy_reductions import reduced
from disco_client.distributed.ops import rule_for
from disco_client.errors import ConfigError
from disco_client.wire.elementwise import ELEMENTWISE

__all__ = ["call_ufunc", "is_served"]

_REDUCES = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}
_ACCUMULATES = {
    "add": "cumsum",
    "multiply": "cumprod",
    "maximum": "cummax",
    "minimum": "cummin",
}
_PAIRS = frozenset(["modf", "frexp", "divmod"])
"""Those that have two results."""


def is_served(ufunc: np.ufunc) -> bool:
    """Whether there is a rule by which one of numpy's ufuncs computes."""
    name = ufunc.__name__
    return name in ELEMENTWISE or name in _PAIRS or name in PRODUCT_UFUNCS or name == "matmul"


def call_ufunc(
    engine: Computing,
    ufunc: np.ufunc,
    method: str,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """Computes one of numpy's ufuncs.

    Args:
        engine: Computes.
        ufunc: The function.
        method: "__call__", or one of its methods.
        inputs: Its operands.
        options: What it takes by name.

    Raises:
        ConfigError: There is no rule for it, or for an option.
    """
    name = ufunc.__name__
    known = {key: value for key, value in options.items() if value is not None or key == "axis"}
    if method == "reduce" and name in _REDUCES:
        _no_out(name, known)
        return reduced(engine, _REDUCES[name], *inputs, **{"axis": 0, **known})
    if method == "accumulate" and name in _ACCUMULATES:
        _no_out(name, known)
        return engine.call(_ACCUMULATES[name], *inputs, **{"axis": 0, **known})
    if method == "outer" and ufunc.nin == 2 and is_served(ufunc) and not options:  # noqa: PLR2004
        return _outer(ufunc, *inputs)
    if method == "__call__" and name in PRODUCT_UFUNCS:
        return PRODUCT_UFUNCS[name](engine, *inputs, **options)
    if method != "__call__" or options:
        what = f"numpy.{name}.{method}" if method != "__call__" else f"numpy.{name}"
        more = f" with {', '.join(options)}" if options else ""
        raise ConfigError(
            f"{what}{more} has no rule for distributed tensors; of .numpy() numpy can"
            " compute it, and apply() does by a rule of your own"
        )
    if name in _PAIRS:
        return several_results(engine, name, *inputs)
    if not is_served(ufunc):
        rule_for(f"numpy.{name}")
    return engine.call(name, *inputs)


def _no_out(name: str, options: dict[str, Any]) -> None:
    no_out(name, options.pop("out", None))


def _outer(ufunc: np.ufunc, a: Any, b: Any) -> DTensor:
    """Of each element of one and each of the other."""
    one, other = array_of(a), array_of(b)
    return ufunc(np.reshape(one, (*one.shape, *(1,) * other.ndim)), other)
