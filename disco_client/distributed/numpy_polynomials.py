"""numpy's convolutions of distributed vectors, and polynomials by their coefficients."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of
from disco_client.distributed.numpy_rules import options_of
from disco_client.distributed.ops import integers
from disco_client.errors import ConfigError

__all__ = ["POLYNOMIALS"]

_MODES = ("full", "same", "valid")


def _vector(name: str, value: Any) -> Any:
    found = array_of(value)
    if found.ndim > 1:
        raise ConfigError(f"{name}: expected a vector, got {tuple(found.shape)}")
    return np.reshape(found, (-1,)) if not found.ndim else found


def _filtered(name: str, standard: str) -> Composite:
    """Sums of products at each shift; both vectors come to every worker."""

    def compute(engine: Computing, a: Any, v: Any, mode: str = standard) -> DTensor:
        if mode not in _MODES:
            raise ConfigError(f"{name}: expected one of {', '.join(_MODES)}, got {mode!r}")
        one, other = _vector(name, a), _vector(name, v)
        long, short = sorted((one.shape[0], other.shape[0]), reverse=True)
        if not short:
            raise ConfigError(f"{name}: expected vectors that have elements")
        extent = {"full": long + short - 1, "same": long, "valid": long - short + 1}[mode]
        named = options_of(mode=mode)
        made = engine.call(
            "rows", one, other, function=name, axis=0, extent=extent, tables=1, named=named
        )
        return made._explained_as(name)

    return compute


def _vander(
    engine: Computing,
    x: DTensor,
    N: SupportsIndex | None = None,  # noqa: N803  (numpy's name)
    increasing: bool = False,
) -> DTensor:
    """The powers of each element as a row."""
    if x.ndim != 1:
        raise ConfigError(f"vander: expected a vector, got {tuple(x.shape)}")
    (count,) = integers("vander", (x.size if N is None else N,))
    if count < 0:
        raise ConfigError(f"vander: expected a number of columns from 0, got {count}")
    column = engine.call("reshape", x, shape=(-1, 1))
    named = options_of(n=count, increasing=bool(increasing))
    made = engine.call("rows", column, function="vander", axis=1, extent=count, named=named)
    return made._explained_as("vander", column)


def _joined(name: str, function: str) -> Composite:
    """A sum of polynomials: the lowest powers stand at the end."""

    def compute(engine: Computing, a1: Any, a2: Any) -> DTensor:
        both = [_vector(name, each) for each in (a1, a2)]
        longest = max(each.shape[0] for each in both)
        steps = Steps(engine)
        padded = [
            each if each.shape[0] == longest else np.pad(each, (longest - each.shape[0], 0))
            for each in both
        ]
        steps.call(function, *padded)
        return steps.result(name)

    return compute


def _polyder(engine: Computing, p: DTensor, m: SupportsIndex = 1) -> DTensor:
    (times,) = integers("polyder", (m,))
    if times < 0:
        raise ConfigError(f"polyder: expected an order from 0, got {times}")
    steps = Steps(engine)
    out = _vector("polyder", p)
    for _ in range(times):
        degree = out.shape[0] - 1
        rest = steps.keep(out[slice(None, -1)])
        out = steps.call("multiply", rest, np.arange(max(degree, 0), 0, -1))
    return steps.result("polyder") if times else p.__copy__()


def _polyint(engine: Computing, p: DTensor, m: SupportsIndex = 1, k: Any = None) -> DTensor:
    (times,) = integers("polyint", (m,))
    if times < 0:
        raise ConfigError(f"polyint: expected an order from 0, got {times}")
    constants = np.atleast_1d(np.zeros(times) if k is None else np.asarray(k, float))
    if len(constants) == 1 and times > 1:
        constants = np.repeat(constants, times)
    if len(constants) < times:
        raise ConfigError(f"polyint: expected {times} constants, got {len(constants)}")
    steps = Steps(engine)
    out = _vector("polyint", p)
    for constant in constants[:times]:
        raised = steps.call("true_divide", out, np.arange(out.shape[0], 0, -1))
        out = steps.call("concatenate", raised, constant[None], axis=0)
    return steps.result("polyint") if times else p.__copy__()


POLYNOMIALS: dict[str, Composite] = {
    "convolve": _filtered("convolve", "full"),
    "correlate": _filtered("correlate", "valid"),
    "vander": _vander,
    "polyadd": _joined("polyadd", "add"),
    "polysub": _joined("polysub", "subtract"),
    "polyder": _polyder,
    "polyint": _polyint,
}
"""By numpy's names."""
