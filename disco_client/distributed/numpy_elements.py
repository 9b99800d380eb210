"""numpy's functions of each element of distributed tensors by itself that are no ufuncs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.numpy_arguments import array_of, no_out
from disco_client.distributed.numpy_rules import options_of
from disco_client.distributed.ops import integers
from disco_client.errors import ConfigError, DtypeError

__all__ = ["ELEMENTS", "several_results"]


def _plain(name: str, *, takes_out: bool = False) -> Composite:
    """A function of one operand and nothing besides."""

    def compute(engine: Computing, x: Any) -> DTensor:
        return engine.call("elements", x, function=name)._explained_as(name)

    def into(engine: Computing, x: Any, out: None = None) -> DTensor:
        no_out(name, out)
        return compute(engine, x)

    return into if takes_out else compute


def _real(engine: Computing, val: DTensor) -> DTensor:
    if val.dtype.kind != "c":
        return val.__copy__()
    return engine.call("elements", val, function="real")._explained_as("real")


def _imag(engine: Computing, val: DTensor) -> DTensor:
    if val.dtype.kind != "c":
        return np.zeros_like(val)  # type: ignore[arg-type]
    return engine.call("elements", val, function="imag")._explained_as("imag")


def _angle(engine: Computing, z: DTensor, deg: bool = False) -> DTensor:
    options = options_of(deg=bool(deg))
    return engine.call("elements", z, function="angle", named=options)._explained_as("angle")


def several_results(engine: Computing, name: str, *inputs: Any) -> tuple[DTensor, ...]:
    """What numpy's ufuncs return that have two results.

    Args:
        engine: Computes.
        name: "modf", "frexp" or "divmod".
        *inputs: Its operands.
    """
    if name == "divmod":
        names = ("floor_divide", "remainder")
        return tuple(engine.call(each, *inputs)._explained_as(name) for each in names)
    return tuple(
        engine.call("elements", *inputs, function=name, named=options_of(output=output))
        for output in range(2)
    )


def _interp(
    engine: Computing,
    x: Any,
    xp: Any,
    fp: Any,
    left: Any = None,
    right: Any = None,
    period: float | None = None,
) -> DTensor:
    """Between the points of a table, which every worker has."""
    tables = [array_of(each) for each in (xp, fp)]
    shapes = [tuple(each.shape) for each in tables]
    if len(shapes[0]) != 1 or shapes[0] != shapes[1] or not shapes[0][0]:
        raise ConfigError(f"interp: expected two equally long vectors as a table, got {shapes}")
    if period is not None and not period:
        raise ConfigError("interp: expected a period that is not 0")
    named = options_of(left=left, right=right, period=period)
    made = engine.call("elements", array_of(x), *tables, function="interp", tables=2, named=named)
    return made._explained_as("interp")


def _polyval(engine: Computing, p: Any, x: Any) -> DTensor:
    """Of the coefficients, the highest power first, which every worker has."""
    coefficients = array_of(p)
    if coefficients.ndim != 1:
        raise ConfigError(f"polyval: expected a vector, got one of {tuple(coefficients.shape)}")
    made = engine.call("elements", array_of(x), coefficients, function="polyval", tables=1)
    return made._explained_as("polyval")


def _isin(
    engine: Computing,
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> DTensor:
    """Whether each element is one of a table, which every worker has."""
    table = array_of(test_elements)
    if table.ndim != 1:
        table = np.reshape(table, (-1,))  # type: ignore[arg-type]
    named = options_of(assume_unique=bool(assume_unique), invert=bool(invert), kind=kind)
    made = engine.call("elements", array_of(element), table, function="isin", tables=1, named=named)
    return made._explained_as("isin")


def _choose(
    engine: Computing, a: Any, choices: Any, out: None = None, mode: str = "raise"
) -> DTensor:
    """By numbers of the choices; one that is none raises on the worker that has it."""
    no_out("choose", out)
    if mode not in ("raise", "wrap", "clip"):
        raise ConfigError(f"choose: expected 'raise', 'wrap' or 'clip' as the mode, got {mode!r}")
    if isinstance(choices, DTensor):
        choices = [choices[at] for at in range(choices.shape[0])] if choices.ndim else [choices]
    which = array_of(a)
    if which.dtype.kind not in "iub":
        raise DtypeError(f"choose: expected integers to choose by, got {which.dtype}")
    given = [array_of(each) for each in choices]
    if not given:
        raise ConfigError("choose: expected at least one choice")
    made = engine.call("elements", which, *given, function="choose", named=options_of(mode=mode))
    return made._explained_as("choose")


def _select(
    engine: Computing, condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0
) -> DTensor:
    """Of the first condition that is true the choice."""
    if len(condlist) != len(choicelist) or not condlist:
        raise ConfigError(
            f"select: expected as many conditions as choices, got {len(condlist)} and"
            f" {len(choicelist)}"
        )
    conditions = [array_of(each) for each in condlist]
    for each in conditions:
        if each.dtype.kind != "b":
            raise DtypeError(f"select: expected conditions of bool, got {each.dtype}")
    choices = [
        each if type(each) in (int, float, complex) else array_of(each)
        for each in (*choicelist, default)
    ]
    kinds = [each.dtype if hasattr(each, "dtype") else each for each in choices]
    kind = np.result_type(*kinds)
    steps = Steps(engine)
    typed = [
        each if isinstance(each, DTensor) and each.dtype == kind else _typed(steps, each, kind)
        for each in choices
    ]
    out = typed.pop()
    for condition, choice in zip(conditions[::-1], typed[::-1], strict=True):
        if any(isinstance(each, DTensor) for each in (condition, choice, out)):
            out = steps.call("where", condition, choice, out)
        else:
            out = np.where(condition, choice, out)
    return steps.result("select")


def _typed(steps: Steps, value: Any, kind: np.dtype[Any]) -> Any:
    if isinstance(value, DTensor):
        return steps.call("cast", value, dtype=kind)
    return np.asarray(value).astype(kind)


def _unravel_index(
    engine: Computing, indices: DTensor, shape: Any, order: str = "C"
) -> tuple[DTensor, ...]:
    """One that is out of bounds raises on the worker that has it."""
    extents = integers("unravel_index", several(shape))
    if order not in ("C", "F"):
        raise ConfigError(f"unravel_index: expected 'C' or 'F' as the order, got {order!r}")
    return tuple(
        engine.call(
            "elements",
            indices,
            function="unravel_index",
            named=options_of(shape=tuple(extents), order=order, output=output),
        )._explained_as("unravel_index")
        for output in range(len(extents))
    )


def _ravel_multi_index(
    engine: Computing, multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C"
) -> DTensor:
    """One that is out of bounds raises on the worker that has it, unless the mode is another."""
    places = [array_of(each) for each in multi_index]
    extents = integers("ravel_multi_index", several(dims))
    if len(places) != len(extents):
        raise ConfigError(
            f"ravel_multi_index: expected an index for each of {len(extents)} axes, got"
            f" {len(places)}"
        )
    modes = mode if isinstance(mode, str) else tuple(mode)
    named = options_of(dims=tuple(extents), mode=modes, order=order)
    made = engine.call("elements", *places, function="ravel_multi_index", named=named)
    return made._explained_as("ravel_multi_index")


def _days(name: str) -> Composite:
    """One of numpy's functions of days, by a mask of the week."""

    def compute(engine: Computing, *args: Any, **more: Any) -> DTensor:
        no_out(name, more.pop("out", None))
        roll = more.pop("roll", args[2] if name == "busday_offset" and len(args) > 2 else None)  # noqa: PLR2004
        count = 1 if name == "is_busday" else 2
        if set(more) - {"weekmask"} or len(args) > count + (roll is not None):
            raise ConfigError(
                f"numpy.{name} of distributed tensors takes a weekmask by name, and no holidays"
            )
        week = more.pop("weekmask", "1111100")
        named = {"weekmask": week if isinstance(week, str) else tuple(map(bool, week))}
        if name == "busday_offset":
            named["roll"] = roll or "raise"
        operands = [array_of(each) for each in args[:count]]
        named_options = options_of(**named)
        made = engine.call("elements", *operands, function=name, named=named_options)
        return made._explained_as(name)

    return compute


ELEMENTS: dict[str, Composite] = {
    "real": _real,
    "imag": _imag,
    "angle": _angle,
    **{name: _plain(name) for name in ("isreal", "iscomplex", "sinc", "i0")},
    **{name: _plain(name, takes_out=True) for name in ("isneginf", "isposinf", "fix")},
    "interp": _interp,
    "polyval": _polyval,
    "isin": _isin,
    "choose": _choose,
    "select": _select,
    "unravel_index": _unravel_index,
    "ravel_multi_index": _ravel_multi_index,
    **{name: _days(name) for name in ("is_busday", "busday_count", "busday_offset")},
}
"""By numpy's names."""
