"""numpy's products of distributed tensors that are no ufuncs, and what stands on a diagonal."""

from __future__ import annotations

import string
from typing import Any, SupportsIndex, cast

import numpy as np

from disco_client.distributed.composites import Composite, Steps, norm
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.numpy_arguments import array_of, in_a_row, no_out
from disco_client.distributed.ops import as_index, integers, normal_axes, normal_axis
from disco_client.errors import ConfigError, OutOfBounds

__all__ = ["PRODUCTS", "PRODUCT_UFUNCS"]

_PLANE, _SPACE = 2, 3


def _dot(engine: Computing, a: Any, b: Any, out: None = None) -> DTensor:
    no_out("dot", out)
    # A number is an array without axes here, with a dtype of its own.
    a, b = array_of(a), array_of(b)
    if not (a.ndim and b.ndim):
        return engine.call("multiply", a, b)
    if a.ndim > 1 and b.ndim > _PLANE:
        raise ConfigError(
            "numpy.dot of more than two axes on both sides pairs all of their leading axes, for"
            " which there is no rule; numpy.einsum can say which are to be paired"
        )
    return engine.call("matmul", a, b)


def _norm(
    engine: Computing,
    x: DTensor,
    ord: Any = None,  # noqa: A002  (numpy's name)
    axis: Any = None,
    keepdims: bool = False,
) -> DTensor:
    return norm(engine, x, ord, axis, keepdims=keepdims)


def _tensordot(engine: Computing, a: Any, b: Any, axes: Any = 2) -> DTensor:
    one, other = np.ndim(a), np.ndim(b)
    count = as_index(axes)
    if count is not None:
        if count > min(one, other):
            raise OutOfBounds(f"tensordot: {one} and {other} axes cannot be paired in {count}")
        pairs = [(one - count + number, number) for number in range(count)]
    else:
        ours, theirs = map(several, axes)
        ours, theirs = normal_axes(ours, one), normal_axes(theirs, other)
        if len(ours) != len(theirs):
            raise ConfigError(
                f"tensordot: expected as many axes of one as of the other, got {axes}"
            )
        pairs = list(zip(ours, theirs, strict=True))
    names = iter(string.ascii_letters)
    first = [next(names) for _ in range(one)]
    second = [next(names) for _ in range(other)]
    for here, there in pairs:
        second[there] = first[here]
    rest = [letter for letter in (*first, *second) if (*first, *second).count(letter) == 1]
    subscripts = f"{''.join(first)},{''.join(second)}->{''.join(rest)}"
    return engine.call("einsum", a, b, subscripts=subscripts)


def _einsum(engine: Computing, subscripts: Any, *operands: Any, **options: Any) -> DTensor:
    if not isinstance(subscripts, str):
        raise ConfigError("einsum of distributed tensors takes its subscripts as text, 'ij,jk->ik'")
    options.pop("optimize", None)
    return engine.call("einsum", *operands, subscripts=subscripts, **options)


def _outer(engine: Computing, a: Any, b: Any, out: None = None) -> DTensor:
    no_out("outer", out)
    steps = Steps(engine)
    one, other = in_a_row(steps.call, a), in_a_row(steps.call, b)
    column = one[:, None] if not isinstance(one, DTensor) else steps.keep(one[:, None])
    steps.call("multiply", column, other)
    return steps.result("outer")


def _linalg_outer(engine: Computing, x1: Any, x2: Any) -> DTensor:
    for each in (x1, x2):
        if np.ndim(each) != 1:
            raise ConfigError(f"linalg.outer needs vectors, got a shape of {tuple(np.shape(each))}")
    return _outer(engine, x1, x2)


def _inner(engine: Computing, a: Any, b: Any) -> DTensor:
    """Sums over the last axis of both, of each pair of their other axes."""
    a, b = array_of(a), array_of(b)
    if not (a.ndim and b.ndim):
        return engine.call("multiply", a, b)
    if a.shape[-1] != b.shape[-1]:
        raise ConfigError(
            f"inner: the last axes of {tuple(a.shape)} and {tuple(b.shape)} are not equally long"
        )
    letters = string.ascii_lowercase
    one, other = letters[: a.ndim - 1], letters[a.ndim - 1 : a.ndim + b.ndim - 2]
    return engine.call("einsum", a, b, subscripts=f"{one}z,{other}z->{one}{other}")


def _conjugate(steps: Steps, operand: Any) -> Any:
    if operand.dtype.kind != "c":
        return operand
    return steps.call("conjugate", operand) if isinstance(operand, DTensor) else operand.conj()


def _vdot(engine: Computing, a: Any, b: Any) -> DTensor:
    steps = Steps(engine)
    one, other = in_a_row(steps.call, a), in_a_row(steps.call, b)
    if one.shape != other.shape:
        raise ConfigError(f"vdot: {one.shape[0]} and {other.shape[0]} elements do not fit")
    steps.call("matmul", _conjugate(steps, one), other)
    return steps.result("vdot")


def _vecdot(engine: Computing, x1: Any, x2: Any, axis: SupportsIndex = -1) -> DTensor:
    """Of the conjugate of the first, along one axis of both; the other axes are broadcast."""
    steps = Steps(engine)
    one, other = array_of(x1), array_of(x2)
    if not (one.ndim and other.ndim):
        raise ConfigError("vecdot needs at least one axis of both")
    for each in (one, other):
        normal_axis(axis, each.ndim)
    (place,) = integers("vecdot", (axis,))
    if one.shape[place] != other.shape[place]:
        raise ConfigError(
            f"vecdot: axis {place} of {tuple(one.shape)} and {tuple(other.shape)} is not equally"
            " long"
        )
    one, other = (np.moveaxis(each, place, -1) for each in (one, other))
    product = steps.call("multiply", _conjugate(steps, one), other)
    steps.call("sum", product, axis=-1, dtype=product.dtype)
    return steps.result("vecdot")


def _kron(engine: Computing, a: Any, b: Any) -> DTensor:
    one, other = array_of(a), array_of(b)
    ndim = max(one.ndim, other.ndim)
    wide = [(1,) * (ndim - each.ndim) + tuple(each.shape) for each in (one, other)]
    steps = Steps(engine)
    spread = [
        [extent for pair in zip(wide[0], (1,) * ndim, strict=True) for extent in pair],
        [extent for pair in zip((1,) * ndim, wide[1], strict=True) for extent in pair],
    ]
    parts = [
        steps.call("reshape", each, shape=shape)
        if isinstance(each, DTensor)
        else each.reshape(shape)
        for each, shape in zip((one, other), spread, strict=True)
    ]
    product = steps.call("multiply", *parts)
    shape = [mine * theirs for mine, theirs in zip(*wide, strict=True)]
    steps.call("reshape", product, shape=shape)
    return steps.result("kron")


def _cross(
    engine: Computing,
    a: Any,
    b: Any,
    axisa: SupportsIndex = -1,
    axisb: SupportsIndex = -1,
    axisc: SupportsIndex = -1,
    axis: SupportsIndex | None = None,
) -> DTensor:
    """Of vectors of three numbers along an axis."""
    if axis is not None:
        axisa = axisb = axisc = axis
    one, other = array_of(a), array_of(b)
    for each, along in ((one, axisa), (other, axisb)):
        if each.shape[normal_axis(along, each.ndim)] != _SPACE:
            raise ConfigError(
                f"cross: expected vectors of 3 along axis {along}, got {tuple(each.shape)}"
            )
    one, other = np.moveaxis(one, axisa, -1), np.moveaxis(other, axisb, -1)
    steps = Steps(engine)
    there = [
        steps.call(
            "subtract",
            steps.call("multiply", one[..., i], other[..., j]),
            steps.call("multiply", one[..., j], other[..., i]),
        )[..., None]
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    joined = steps.call("concatenate", *there, axis=-1)
    steps.keep(cast("DTensor", np.moveaxis(cast("Any", joined), -1, axisc)))
    return steps.result("cross")


def _linalg_cross(engine: Computing, x1: Any, x2: Any, *, axis: SupportsIndex = -1) -> DTensor:
    return _cross(engine, x1, x2, axis=axis)


def _diagonal(
    engine: Computing, a: DTensor, offset: SupportsIndex = 0, axis1: int = 0, axis2: int = 1
) -> DTensor:
    """Elements whose positions along two axes differ by an offset, along a new last axis."""
    if a.ndim < _PLANE:
        raise ConfigError(f"diagonal needs at least two axes, got {tuple(a.shape)}")
    one, other = normal_axes((axis1, axis2), a.ndim)
    (by,) = integers("diagonal", (offset,))
    items: list[Any] = [slice(None)] * a.ndim
    items[one], items[other] = slice(max(-by, 0), None), slice(max(by, 0), None)
    steps = Steps(engine)
    part = steps.keep(a[tuple(items)])
    count = min(part.shape[one], part.shape[other])
    items[one] = items[other] = slice(count)
    part = steps.keep(part[tuple(items)])
    letters = string.ascii_lowercase
    rest = "".join(letters[at] for at in range(a.ndim) if at not in (one, other))
    each = "".join("z" if at in (one, other) else letters[at] for at in range(a.ndim))
    steps.call("einsum", part, subscripts=f"{each}->{rest}z")
    return steps.result("diagonal")


def _trace(
    engine: Computing,
    a: DTensor,
    offset: SupportsIndex = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Any = None,
    out: None = None,
) -> DTensor:
    no_out("trace", out)
    steps = Steps(engine)
    found = steps.keep(_diagonal(engine, a, offset, axis1, axis2))
    steps.call("sum", found, axis=-1, dtype=dtype)
    return steps.result("trace")


def _linalg_diagonal(engine: Computing, x: DTensor, *, offset: SupportsIndex = 0) -> DTensor:
    return _diagonal(engine, x, offset, -2, -1)


def _linalg_trace(
    engine: Computing, x: DTensor, *, offset: SupportsIndex = 0, dtype: Any = None
) -> DTensor:
    return _trace(engine, x, offset, -2, -1, dtype)


def _vector_norm(
    engine: Computing,
    x: DTensor,
    *,
    axis: Any = None,
    keepdims: bool = False,
    ord: Any = 2,  # noqa: A002  (numpy's name)
) -> DTensor:
    """Of vectors along an axis, or of all elements along several."""
    steps = Steps(engine)
    if isinstance(axis, int):
        steps.keep(norm(engine, x, ord, axis, keepdims=keepdims))
        return steps.result("vector_norm")
    axes = normal_axes(axis, x.ndim)
    rest = [at for at in range(x.ndim) if at not in axes]
    moved = steps.call("transpose", x, axes=(*rest, *axes))
    shape = [x.shape[at] for at in rest]
    rows = steps.call("reshape", moved, shape=(*shape, -1) if x.size else (*shape, 0))
    found = steps.keep(norm(engine, rows, ord, -1))
    if keepdims:
        kept = [1 if at in axes else x.shape[at] for at in range(x.ndim)]
        steps.call("reshape", found, shape=kept)
    return steps.result("vector_norm")


def _matvec(engine: Computing, x1: Any, x2: Any) -> DTensor:
    """Of matrices and vectors, the last axes of both; the others are broadcast."""
    one, other = array_of(x1), array_of(x2)
    if one.ndim < _PLANE or not other.ndim:
        raise ConfigError(
            f"matvec: expected matrices and vectors, got {tuple(one.shape)} and"
            f" {tuple(other.shape)}"
        )
    if other.ndim == 1:
        return engine.call("matmul", one, other)._explained_as("matvec")
    steps = Steps(engine)
    column = np.expand_dims(other, -1)
    product = steps.call("matmul", one, column)
    steps.call("reshape", product, shape=product.shape[:-1])
    return steps.result("matvec")


def _vecmat(engine: Computing, x1: Any, x2: Any) -> DTensor:
    """Of the conjugates of vectors and of matrices; the other axes are broadcast."""
    one, other = array_of(x1), array_of(x2)
    if other.ndim < _PLANE or not one.ndim:
        raise ConfigError(
            f"vecmat: expected vectors and matrices, got {tuple(one.shape)} and"
            f" {tuple(other.shape)}"
        )
    steps = Steps(engine)
    one = _conjugate(steps, one)
    if one.ndim == 1:
        steps.call("matmul", one, other)
        return steps.result("vecmat")
    product = steps.call("matmul", np.expand_dims(one, -2), other)
    steps.call("reshape", product, shape=(*product.shape[:-2], product.shape[-1]))
    return steps.result("vecmat")


def _matmul(engine: Computing, x1: Any, x2: Any) -> DTensor:
    return engine.call("matmul", x1, x2)


PRODUCTS: dict[str, Composite] = {
    "dot": _dot,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "linalg.tensordot": _tensordot,
    "linalg.norm": _norm,
    "outer": _outer,
    "inner": _inner,
    "vdot": _vdot,
    "kron": _kron,
    "cross": _cross,
    "diagonal": _diagonal,
    "trace": _trace,
    "linalg.outer": _linalg_outer,
    "linalg.vecdot": _vecdot,
    "linalg.cross": _linalg_cross,
    "linalg.diagonal": _linalg_diagonal,
    "linalg.trace": _linalg_trace,
    "linalg.matmul": _matmul,
    "linalg.vector_norm": _vector_norm,
}
"""By numpy's names, of which older versions of numpy lack some."""

PRODUCT_UFUNCS: dict[str, Composite] = {"vecdot": _vecdot, "matvec": _matvec, "vecmat": _vecmat}
"""By the names of numpy's ufuncs that are no functions of each element."""
