"""Functions x dtypes x placements: whatever numpy computes, distributed tensors compute too.

A program takes an array and a tensor that holds the same, and goes through a few functions.
After each of them both have the same shape, dtype and values; where numpy raises, so does
Disco; and where Disco alone refuses, it does so by a typed error, never by a wrong value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, note, settings
from hypothesis import strategies as st

from disco_client import ConfigError, DiscoError, ProcessSession, RemoteError, ThreadedSession
from disco_client.distributed import DeviceMesh, DTensor
from disco_client.wire.elementwise import ELEMENTWISE

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("settled"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning"),
]
EXAMPLES = 2 * settings.default.max_examples
"""Of each test; they take milliseconds."""

search = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

MESHES = (
    DeviceMesh((4,), [0, 1, 2, 3]),
    DeviceMesh((3,), [2, 0, 3]),
    DeviceMesh((2, 2), [1, 3, 0, 2]),
    DeviceMesh((2, 1), [3, 1]),
)
DTYPES = [
    *map(np.dtype, ("bool", "int8", "int16", "int32", "int64")),
    *map(np.dtype, ("uint8", "uint16", "uint32", "uint64")),
    *map(np.dtype, ("float16", "float32", "float64", "complex64", "complex128")),
    *map(np.dtype, ("M8[ns]", "M8[D]", "m8[s]", "m8[ms]")),
    *map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4)),
    np.dtype(ml_dtypes.float8_e4m3fn),
]
TINY = [np.dtype(each) for each in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn)]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCES = {"float16": 0.02, "bfloat16": 0.06, "float8_e4m3fn": 0.3}
UNARY = sorted(name for name in ELEMENTWISE if getattr(np, name).nin == 1)
BINARY = sorted(name for name in ELEMENTWISE if getattr(np, name).nin == 2)
ARITHMETIC = ("add", "subtract", "multiply", "true_divide", "floor_divide", "remainder", "power")
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "mean", "var", "std")

REFUSALS = (ConfigError, TypeError, IndexError, ValueError, OverflowError, RemoteError)
"""What may be raised where numpy raises."""

ALONE = (ConfigError, TypeError)
"""What may be raised where numpy does not: a refusal of the client."""


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """Four workers that are threads, shared by all examples."""
    with ThreadedSession(4) as shared:
        yield shared


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    """Four workers that are processes."""
    with ProcessSession(4) as shared:
        yield shared


# What is drawn ---------------------------------------------------------------------------


def shapes(most: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    """Without axes, empty, of extent one, and such as fall unevenly on the workers."""
    return st.lists(st.sampled_from((0, 1, 2, 3, 4, 5)), max_size=most).map(tuple)


@st.composite
def arrays(draw: Any, shape: tuple[int, ...] | None = None, dtypes: Any = DTYPES) -> Any:
    """Small whole numbers, of which sums are exact, of any dtype."""
    dtype = draw(st.sampled_from(dtypes))
    extents = draw(shapes()) if shape is None else shape
    count = int(np.prod(extents))
    low = -3 if dtype.kind in "ifcmM" or dtype in (BFLOAT16, TINY[0], TINY[2]) else 0
    few = draw(st.lists(st.integers(low, 4), min_size=1, max_size=6))
    whole = np.resize(np.array(few), count).reshape(extents)
    if dtype.kind == "b":
        return whole > 1
    return whole.astype(dtype)


@st.composite
def placements(draw: Any, mesh: DeviceMesh, ndim: int) -> str:
    """A spec for each axis of a mesh; partial values of one tensor are combined in one way."""
    partial = draw(st.sampled_from(("P", "P", "P[max]", "P[min]", "P[prod]")))
    specs = ["R", partial, *(f"S[{axis}]" for axis in range(ndim))]
    return ", ".join(draw(st.sampled_from(specs)) for _ in range(mesh.ndim))


class Pair(NamedTuple):
    """What numpy has, and what Disco has."""

    host: Any
    ours: Any


class Lab(NamedTuple):
    """Where an example runs."""

    session: Any
    mesh: DeviceMesh
    draw: Callable[[Any], Any]

    def lay(self, array: np.ndarray[Any, Any]) -> Pair:
        """An array and a tensor of it, anywhere."""
        placement = self.draw(placements(self.mesh, array.ndim))
        note(f"{array!r} as {placement!r} on {self.mesh}")
        return Pair(array, self.session.distribute(array, self.mesh, placement))

    def other(self, like: np.ndarray[Any, Any]) -> Pair:
        """Another operand: a tensor, an array, a list or a number, of any dtype."""
        kind = self.draw(st.sampled_from(("tensor", "tensor", "array", "list", "number", "odd")))
        if kind == "number":
            number = self.draw(
                st.sampled_from((0, 1, 2, -1, 3, True, 1.5, -2.0, 2j, np.inf, -np.inf, np.nan, 0.0))
                | st.sampled_from((np.int8(2), np.float32(1.5), np.uint64(3), np.bool_(True)))
                | st.sampled_from((np.timedelta64(5, "s"), np.datetime64("2026-01-02")))
            )
            note(f"with {number!r}")
            return Pair(number, number)
        shape = self.draw(shapes()) if kind == "odd" else self.draw(broadcast(like.shape))
        same = self.draw(st.booleans())
        array = self.draw(arrays(shape, [like.dtype] if same else DTYPES))
        if kind == "tensor":
            return self.lay(array)
        if kind == "list" and array.dtype.kind in "biufc":
            note(f"with {array.tolist()!r}")
            return Pair(array.tolist(), array.tolist())
        note(f"with {array!r}")
        return Pair(array, array)


@st.composite
def broadcast(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that goes with another one."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(draw(st.sampled_from((extent, extent, 1))) for extent in kept)


# Functions -------------------------------------------------------------------------------

Call = Callable[[Any, Any], Any]
"""Takes the first operand and the second, of numpy or of Disco."""


def axes(ndim: int) -> st.SearchStrategy[Any]:
    """One axis, several or all; some are beyond."""
    one = st.integers(-ndim - 1, ndim) if ndim else st.sampled_from((0, -1))
    inside = st.integers(-ndim, ndim - 1) if ndim else st.nothing()
    return st.none() | inside | inside | one | st.lists(inside, max_size=ndim).map(tuple)


def one_axis(ndim: int) -> st.SearchStrategy[int]:
    """One axis; seldom one that there is not."""
    if not ndim:
        return st.sampled_from((0, -1))
    return st.integers(-ndim, ndim - 1) | st.integers(-ndim - 1, ndim)


def positions(extent: int) -> st.SearchStrategy[Any]:
    """Positions along an axis, mostly within it, of any dtype."""
    inside = st.integers(-extent, extent - 1) if extent else st.integers(0, 0)
    numbers = st.lists(inside | inside | inside | st.integers(-extent - 2, extent + 1), max_size=4)
    dtypes = st.sampled_from(("int8", "int32", "int64", "uint8", "uint64", "list", "float32"))

    def made(given: tuple[list[int], str]) -> Any:
        values, dtype = given
        if dtype == "list":
            return values
        if dtype.startswith("u"):
            values = [abs(value) for value in values]
        return np.array(values, dtype)

    return st.tuples(numbers, dtypes).map(made)


def items(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Numbers, slices, ... and None, as many as there are axes or fewer; seldom more."""
    ends = st.none() | st.integers(-7, 7)
    steps = st.none() | st.sampled_from((1, 2, -1, -2, 3, -7))
    pieces = st.builds(slice, ends, ends, steps)
    numbers = st.integers(-2, 2) | st.sampled_from((np.int8(0), np.uint64(1), np.int64(-1)))
    each = pieces | pieces | numbers | st.none()
    whole = st.lists(each, max_size=len(shape) + 1).map(tuple)
    dotted = st.tuples(st.lists(each, max_size=1), st.lists(each, max_size=1)).map(
        lambda both: (*both[0], Ellipsis, *both[1])
    )
    return whole | dotted | each


def elementwise(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    """A function of each element, of one operand or two, in either order."""
    name = lab.draw(st.sampled_from(ARITHMETIC) | st.sampled_from((*UNARY, *BINARY)))
    function = getattr(np, name)
    if function.nin == 1:
        return name, lambda v, _w: function(v), None
    if lab.draw(st.booleans()):
        return name, function, lab.other(x)
    return f"{name} from the right", lambda v, w: function(w, v), lab.other(x)


def reduction(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    """A function along axes."""
    name, axis = lab.draw(st.sampled_from(REDUCTIONS)), lab.draw(axes(x.ndim))
    more: dict[str, Any] = {"axis": axis, "keepdims": lab.draw(st.booleans())}
    if name in ("var", "std"):
        more["ddof"] = lab.draw(st.sampled_from((0, 0, 1)))
    if name in ("sum", "prod"):
        dtype = lab.draw(st.sampled_from((None, None, "int64", "float32", "complex128")))
        more |= {} if dtype is None else {"dtype": dtype}
    return f"{name} {more}", lambda v, _w: getattr(np, name)(v, **more), None


def along(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    """A function that goes along one axis."""
    name = lab.draw(st.sampled_from(("argmax", "argmin", "cumsum", "norm", "round", "clip")))
    axis = lab.draw(st.none() | one_axis(x.ndim))
    if name == "norm":
        order = lab.draw(st.sampled_from((None, 1, 2, np.inf, 0)))
        return f"norm {order} {axis}", lambda v, _w: np.linalg.norm(v, order, axis), None
    if name == "round":
        decimals = lab.draw(st.sampled_from((0, 0, 1, -1)))
        return f"round {decimals}", lambda v, _w: np.round(v, decimals), None
    if name == "clip":
        low, high = lab.draw(st.sampled_from(((-1, 2), (0, None), (None, 1), (-0.5, 1.5))))
        return f"clip {low} {high}", lambda v, _w: np.clip(v, low, high), None
    return f"{name} {axis}", lambda v, _w: getattr(np, name)(v, axis=axis), None


def moved(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    """A function that moves elements."""
    choice = lab.draw(st.sampled_from(sorted(MOVES)))
    return MOVES[choice](lab, x)


def _getitem(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    at = lab.draw(items(x.shape))
    return f"[{at!r}]", lambda v, _w: v[at], None


def _take(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    axis = lab.draw(st.none() | one_axis(x.ndim))
    inside = axis is not None and -x.ndim <= axis < x.ndim
    extent = x.size if axis is None else x.shape[axis] if inside else 1
    ids = lab.draw(positions(extent))
    if isinstance(ids, np.ndarray) and lab.draw(st.booleans()):
        laid = lab.lay(ids)
        return f"take {axis}", lambda v, w: np.take(v, w, axis=axis), laid
    return f"take {ids!r} {axis}", lambda v, _w: np.take(v, ids, axis=axis), None


def _reshape(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    known = [(-1,), (x.size,), x.shape[::-1], (*x.shape, 1), (1, -1), (2, -1), (-1, 3), (4, 2)]
    shape = lab.draw(st.sampled_from(known))
    return f"reshape {shape}", lambda v, _w: np.reshape(v, shape), None


def _order(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    order = lab.draw(st.permutations(range(x.ndim)) | st.none())
    return f"transpose {order}", lambda v, _w: np.transpose(v, order), None


def _axis_moves(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    name = lab.draw(st.sampled_from(("swapaxes", "expand_dims", "squeeze", "ravel")))
    one, other = lab.draw(one_axis(x.ndim)), lab.draw(one_axis(x.ndim))
    calls: dict[str, Call] = {
        "swapaxes": lambda v, _w: np.swapaxes(v, one, other),
        "expand_dims": lambda v, _w: np.expand_dims(v, one),
        "squeeze": lambda v, _w: np.squeeze(v, None if other == one else one),
        "ravel": lambda v, _w: np.ravel(v),
    }
    return f"{name} {one} {other}", calls[name], None


def _joined(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    names = ("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack")
    name, axis = lab.draw(st.sampled_from(names)), lab.draw(st.none() | one_axis(x.ndim))
    other = lab.lay(lab.draw(arrays(x.shape)))
    if name == "concatenate":
        return f"{name} {axis}", lambda v, w: np.concatenate([v, w, v], axis=axis), other
    if name == "stack":
        return f"{name} {axis}", lambda v, w: np.stack([v, w], axis=axis or 0), other
    return name, lambda v, w: getattr(np, name)([v, w]), other


def _split(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    axis, at = lab.draw(one_axis(x.ndim)), lab.draw(st.integers(0, 1))
    sections = lab.draw(st.sampled_from((1, 2, [1], [-1], [7], [2, 1])))
    name = lab.draw(st.sampled_from(("split", "array_split")))
    return (
        f"{name} {sections} {axis} [{at}]",
        lambda v, _w: getattr(np, name)(v, sections, axis)[at if sections != 1 else 0],
        None,
    )


def _more(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    name = lab.draw(st.sampled_from(("tile", "repeat", "pad", "zeros_like")))
    if name == "tile":
        reps = lab.draw(st.sampled_from((2, (2, 1), (1, 2), 0, (1, 1, 2, 1))))
        return f"tile {reps}", lambda v, _w: np.tile(v, reps), None
    if name == "repeat":
        axis = lab.draw(st.none() | one_axis(x.ndim))
        count = lab.draw(st.sampled_from((0, 1, 2, [1, 2], -1)))
        return f"repeat {count} {axis}", lambda v, _w: np.repeat(v, count, axis), None
    if name == "pad":
        mode = lab.draw(st.sampled_from(("constant", "edge", "reflect", "symmetric", "wrap")))
        width = lab.draw(st.sampled_from((0, 1, (1, 2), 3, -1)))
        return f"pad {width} {mode}", lambda v, _w: np.pad(v, width, mode=mode), None
    dtype = lab.draw(st.sampled_from((None, *DTYPES)))
    return f"zeros_like {dtype}", lambda v, _w: np.zeros_like(v, dtype), None


def _where(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    condition = lab.draw(arrays(lab.draw(broadcast(x.shape)), [np.dtype(bool)]))
    other = lab.other(x)
    return f"where {condition!r}", lambda v, w: np.where(condition, v, w), other


def _cast(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    dtype = lab.draw(st.sampled_from(DTYPES))
    assume(finite(x))  # what NaN is as an integer differs from machine to machine
    return f"astype {dtype}", lambda v, _w: v.astype(dtype), None


def _laid(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    placement = lab.draw(placements(lab.mesh, x.ndim))

    def call(v: Any, _w: Any) -> Any:
        return v.redistribute(placement) if isinstance(v, DTensor) else v

    return f"redistribute {placement}", call, None


MOVES = {
    "getitem": _getitem,
    "take": _take,
    "reshape": _reshape,
    "order": _order,
    "axes": _axis_moves,
    "joined": _joined,
    "split": _split,
    "more": _more,
    "where": _where,
    "cast": _cast,
    "laid": _laid,
}


def product(lab: Lab, x: np.ndarray[Any, Any]) -> tuple[str, Call, Pair | None]:
    """A product of two tensors."""
    name = lab.draw(st.sampled_from(("matmul", "dot", "tensordot", "einsum", "operator")))
    shape = lab.draw(st.sampled_from((x.shape[::-1], x.shape[-1:], x.shape, (*x.shape[-1:], 2))))
    if name == "einsum":
        letters = "ijkl"[: x.ndim]
        into = lab.draw(st.sampled_from((letters[::-1], letters[:1], "")))
        other = lab.lay(lab.draw(arrays(x.shape, [x.dtype])))
        text = f"{letters},{letters}->{into}"
        return f"einsum {text}", lambda v, w: np.einsum(text, v, w), other
    other = lab.lay(lab.draw(arrays(shape, [x.dtype])))
    if name == "tensordot":
        count = lab.draw(st.integers(0, 2))
        return f"tensordot {count}", lambda v, w: np.tensordot(v, w, count), other
    if name == "operator":
        return "@", lambda v, w: v @ w, other
    return name, getattr(np, name), other


FUNCTIONS = (elementwise, elementwise, reduction, along, moved, moved, product)


# What is compared ------------------------------------------------------------------------


def follow(lab: Lab, steps: int, functions: Any = FUNCTIONS, first: Any = None) -> None:
    """Draws an array, and takes it through functions of both worlds."""
    start = lab.draw(arrays() if first is None else first)
    with lab.session.scope():
        try:
            pair = lab.lay(start)
        except REFUSALS as error:
            note(f"refused: {error}")
            return
        for _ in range(steps):
            made = step(lab, pair, functions)
            if made is None:
                return
            pair = made


def step(lab: Lab, pair: Pair, functions: Any) -> Pair | None:
    """One function; None where it was refused."""
    draw_function = lab.draw(st.sampled_from(functions))
    try:
        label, call, other = draw_function(lab, pair.host)
    except REFUSALS as error:  # of the second operand
        note(f"refused: {error}")
        return None
    note(f"-> {label}")
    second = other or Pair(None, None)
    try:
        with np.errstate(all="ignore"):
            want = np.asarray(call(pair.host, second.host))
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        refused = error
        event("refused by numpy")
    else:
        return computed(pair, call, second, label, want)
    with must_refuse(label, pair):
        got = call(pair.ours, second.ours)
        note(f"numpy raised {type(refused).__name__}: {refused}")
        note(f"Disco has {got.numpy() if isinstance(got, DTensor) else got!r}")
    return None


@contextmanager
def must_refuse(label: str, pair: Pair) -> Iterator[None]:
    """Makes sure that a block raises where numpy does."""
    if served(label, pair):
        try:
            yield
        except DiscoError as error:
            note(f"refused, too: {error}")
        return
    with pytest.raises(REFUSALS) as caught:
        yield
    assert_typed(caught.value, REFUSALS)


def computed(
    pair: Pair, call: Call, second: Pair, label: str, want: np.ndarray[Any, Any]
) -> Pair | None:
    """Compares what a function gives; None where Disco alone refuses it."""
    try:
        got = call(pair.ours, second.ours)
        fetched = got.numpy()
    except (DiscoError, TypeError, ValueError, IndexError) as error:
        assert_typed(error, ALONE)
        note(f"refused: {error}")
        event(f"refused alone by a {type(error).__name__}")
        return None
    assert isinstance(got, DTensor)
    if wider(label, pair):
        return None
    assert (got.dtype, fetched.dtype) == (want.dtype, want.dtype)
    assert (tuple(got.shape), fetched.shape) == (want.shape, want.shape)
    if rough(label, pair, second, want):
        return None
    alike(fetched, want)
    event("as numpy")
    if is_partial(got) and fetched.tobytes() != want.tobytes():
        return None  # its parts are not rounded as their sum was
    return Pair(fetched, got)


def assert_typed(error: BaseException, kinds: tuple[type[BaseException], ...]) -> None:
    """Makes sure that an error is one of these; raises it with its traceback otherwise."""
    if not isinstance(error, kinds):
        raise error


def alike(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Equal where numbers are exact, and nearly so elsewhere."""
    tolerance = TOLERANCES.get(want.dtype.name, 1e-5)
    if want.dtype.kind in "biumM" or want.dtype in TINY[:2]:
        np.testing.assert_array_equal(got, want)
        return
    kind = np.complex128 if want.dtype.kind == "c" else np.float64
    finite = np.abs(want.astype(kind))[np.isfinite(want.astype(kind))]
    atol = tolerance * max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(got.astype(kind), want.astype(kind), rtol=tolerance, atol=atol)


# What differs from numpy on purpose --------------------------------------------------------


def served(label: str, pair: Pair) -> bool:
    """Whether Disco may compute what numpy does not.

    It orders the operands of einsum itself. numpy adds up integers of 4 bits in 4 bits, so that
    their variance may be negative, and has no place for its root.
    """
    name, _, _ = label.partition(" ")
    if name == "std":
        return pair.host.dtype in TINY
    return name in ("einsum", "tensordot") and pair.host.dtype in (*TINY, BFLOAT16)


def wider(label: str, pair: Pair) -> bool:
    """Whether numpy lacks a loop of its own for small floats, and takes a wider one."""
    name, _, _ = label.partition(" ")
    small = pair.host.dtype in (*TINY, BFLOAT16)
    return small and name in ("clip", "norm", "tensordot", "dot", "round")


def rough(label: str, pair: Pair, second: Pair, want: np.ndarray[Any, Any]) -> bool:
    """Whether values are not compared: numpy adds up in fewer bits, or they left the range."""
    name, _, _ = label.partition(" ")
    dtypes = {pair.host.dtype, np.asarray(second.host).dtype if second.host is not None else None}
    if scaled_parts(pair, second) and not finite(want):
        return True
    if dtypes & {*TINY} and name in (*REDUCTIONS, "cumsum", "matmul", "@", "einsum"):
        return True
    if want.dtype.kind in "fc" or want.dtype in (BFLOAT16, TINY[2]):
        large = {"float16": 1e3, "bfloat16": 1e6, "float8_e4m3fn": 60}.get(want.dtype.name, 1e12)
        sizes = np.abs(want.astype(np.complex128))
        return bool((sizes[np.isfinite(sizes)] > large).any())
    return False


def scaled_parts(pair: Pair, second: Pair) -> bool:
    """Whether partial sums meet an array, not a number: these stay partial, and 0 times inf is NaN.

    docs/dtensor.md says so.
    """
    held = [each.ours for each in (pair, second) if isinstance(each.ours, DTensor)]
    return any(map(is_partial, held)) and isinstance(second.host, (np.ndarray, list))


def is_partial(tensor: DTensor) -> bool:
    """Whether its parts are still to be combined."""
    return any(spec.is_partial for spec in tensor.placement.dim_specs)


def finite(array: np.ndarray[Any, Any]) -> bool:
    """Whether all of it is finite."""
    return array.dtype.kind in "biumM" or bool(np.isfinite(array.astype("complex128")).all())


# The tests ---------------------------------------------------------------------------------


def lab_of(session: Any, data: Any) -> Lab:
    return Lab(session, data.draw(st.sampled_from(MESHES)), data.draw)


@search
@given(data=st.data())
def test_functions_of_each_element_are_numpys(session: Any, data: Any) -> None:
    """Of every dtype, with whatever stands on the other side."""
    follow(lab_of(session, data), 1, (elementwise,))


@search
@given(data=st.data())
def test_functions_along_axes_are_numpys(session: Any, data: Any) -> None:
    """Of every dtype and placement, along any axis."""
    follow(lab_of(session, data), 1, (reduction, along))


@search
@given(data=st.data())
def test_functions_that_move_elements_are_numpys(session: Any, data: Any) -> None:
    """By slices, positions, shapes and axes."""
    follow(lab_of(session, data), 2, (moved,))


@search
@given(data=st.data())
def test_products_are_numpys(session: Any, data: Any) -> None:
    """Of tensors that lie anyhow."""
    follow(lab_of(session, data), 1, (product,))


@search
@given(data=st.data())
def test_programs_are_numpys(session: Any, data: Any) -> None:
    """Of several functions, each on what the last one gave."""
    follow(lab_of(session, data), 4)


@settings(search, max_examples=EXAMPLES // 4)
@given(data=st.data())
def test_programs_on_processes_are_numpys(processes: Any, data: Any) -> None:
    """The same where values travel, and collectives go through MPI."""
    follow(lab_of(processes, data), 3)
