"""numpy's running sums and products of distributed tensors, and what follows from them."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import has_nan, no_out
from disco_client.distributed.ops import normal_axis
from disco_client.errors import ConfigError

__all__ = ["CUMULATIVE"]


def _running(name: str) -> Composite:
    def run(
        engine: Computing, a: DTensor, axis: Any = None, dtype: Any = None, out: None = None
    ) -> DTensor:
        no_out(name, out)
        return engine.call(name, a, axis=axis, dtype=dtype)

    return run


def _without_nan(name: str, neutral: int) -> Composite:
    """With what changes nothing in place of what is NaN."""

    def run(
        engine: Computing, a: DTensor, axis: Any = None, dtype: Any = None, out: None = None
    ) -> DTensor:
        no_out(f"nan{name}", out)
        steps = Steps(engine)
        x = a
        if has_nan(a.dtype):
            x = steps.call("where", steps.call("isnan", a), a.dtype.type(neutral), a)
        steps.call(name, x, axis=axis, dtype=dtype)
        return steps.result(f"nan{name}")

    return run


def _cumulative(name: str, function: str, first: int) -> Composite:
    """As the Array API standard has it."""

    def run(
        engine: Computing,
        x: DTensor,
        *,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        include_initial: bool = False,
    ) -> DTensor:
        no_out(name, out)
        if axis is None and x.ndim != 1:
            raise ConfigError(f"{name}: expected an axis for a tensor of {x.ndim} axes")
        if not x.ndim:
            raise ConfigError(f"{name} needs at least one axis")
        place = normal_axis(0 if axis is None else axis, x.ndim)
        steps = Steps(engine)
        made = steps.call(function, x, axis=place, dtype=dtype)
        if include_initial:
            shape = (*x.shape[:place], 1, *x.shape[place + 1 :])
            start = engine.namespace(x.mesh).full(shape, first, made.dtype)
            steps.call("concatenate", start, made, axis=place)
        return steps.result(name)

    return run


def _unwrap(
    engine: Computing,
    p: DTensor,
    discont: float | None = None,
    axis: SupportsIndex = -1,
    *,
    period: float = 2 * math.pi,
) -> DTensor:
    """Adds multiples of a period where neighbours are further apart than half of it."""
    if not p.ndim:
        raise ConfigError("unwrap needs at least one axis")
    place = normal_axis(axis, p.ndim)
    steps = Steps(engine)
    before = (slice(None),) * place
    later, earlier = (steps.keep(p[*before, each]) for each in (slice(1, None), slice(None, -1)))
    apart = steps.call("subtract", later, earlier)
    kind = np.result_type(apart.dtype, period)
    half, odd = divmod(period, 2) if kind.kind in "iu" else (period / 2, 0)
    # The smallest correction: both ends of the interval are the same step, to the sign it has.
    shifted = steps.call("subtract", apart, -half)
    near = steps.call("add", steps.call("remainder", shifted, period), -half)
    if not odd:
        at_end = steps.call(
            "logical_and", steps.call("equal", near, -half), steps.call("greater", apart, 0)
        )
        near = steps.call("where", at_end, near.dtype.type(half), near)
    limit = period / 2 if discont is None else discont
    small = steps.call("less", steps.call("absolute", apart), limit)
    step = steps.call("subtract", near, apart)
    correction = steps.call("where", small, step.dtype.type(0), step)
    moved = steps.call("add", later, steps.call("cumsum", correction, axis=place))
    first = steps.keep(p[*before, slice(None, 1)])
    steps.call(
        "concatenate",
        *(steps.call("cast", each, dtype=kind) for each in (first, moved)),
        axis=place,
    )
    return steps.result("unwrap")


CUMULATIVE: dict[str, Composite] = {
    "cumsum": _running("cumsum"),
    "cumprod": _running("cumprod"),
    "nancumsum": _without_nan("cumsum", 0),
    "nancumprod": _without_nan("cumprod", 1),
    "cumulative_sum": _cumulative("cumulative_sum", "cumsum", 0),
    "cumulative_prod": _cumulative("cumulative_prod", "cumprod", 1),
    "unwrap": _unwrap,
}
"""By numpy's names, of which older versions of numpy lack some."""
