"""The rules of functions of distributed tensors, and where others are added.

A rule looks at the operands and says what a worker computes of its part: which local
function, how the axes go together (`Pattern`), and what the whole result is.
"""

from __future__ import annotations

import inspect
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, SupportsIndex, TypeVar, cast

import numpy as np

from disco_client.arguments import dims_of
from disco_client.distributed.partial_sums import may_convert, may_scale
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
    combines,
)
from disco_client.distributed.redistribute import RedistributionPlan, local_shapes, make_plan
from disco_client.errors import ConfigError, DtypeError, OutOfBounds
from disco_client.text import many
from disco_client.wire.elementwise import ELEMENTWISE
from disco_client.wire.partition import Intervals, coordinate_of
from disco_client.wire.values import (
    Shape,
    dtype_from_name,
    dtype_name,
    extents_of,
    is_extension,
    shown,
)

__all__ = [
    "LOCAL_AXIS",
    "Local",
    "OperandPlacements",
    "Pattern",
    "Rule",
    "Tables",
    "as_index",
    "call_checked",
    "choose",
    "exact",
    "integers",
    "letters_of",
    "normal_axes",
    "normal_axis",
    "numpy_dtype",
    "only_tensors",
    "probe",
    "register_rule",
    "rule_for",
]


# How the placement of a result follows from those of its operands: one rule for all.
#
# A function is described by which axes go together, as in einsum: each axis of each
# operand has a letter, and axes of the same letter are walked through together. Then,
# along each axis of the mesh by itself, there are these ways to compute:
#
# - every operand is whole: so is the result;
# - the axes of one letter are split, operands without it whole: the result is split
#   along that letter, or, where the letter is not in the result because the function
#   combines along it, each worker has a partial result;
# - some operands are partial sums and the function is linear in them, the others are
#   whole: the result is a partial sum. Where there are others, which may be factors, one
#   must be a partial sum already.
#
# Among all combinations the one is taken for which the fewest bytes must move first.


LOCAL_AXIS = ""
"""The letter of an axis that must be whole wherever the function is computed.

Examples:
    >>> rows = distributed.Pattern((("rows", distributed.LOCAL_AXIS),), ("rows",))
    >>> rows.output
    ('rows',)
"""


@dataclass(frozen=True)
class Pattern:
    """What a function does with the axes of its operands.

    Attributes:
        inputs: The letters of each operand's axes.
        output: Those of the result's.
        combines: (letter, reduction) for what the function combines along.
        linear: Sets of operands in which it is linear together, by their numbers. Where it
            has others, one of the set must lie as partial sums before it is computed so.
        even: (letter, extent) for axes that can be split only where the mesh divides
            this extent.
        equal: The letters of axes that are split only as equally as can be. Others may be
            split in given parts, of which a worker may have several.

    Examples:
        >>> product = distributed.Pattern(
        ...     inputs=(("i", "j"), ("j", "k")), output=("i", "k"), combines=(("j", "sum"),)
        ... )
        >>> product.output
        ('i', 'k')
    """

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    combines: tuple[tuple[str, str], ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    even: tuple[tuple[str, int], ...] = ()
    equal: tuple[str, ...] = ()


class _Option(NamedTuple):
    """One way to compute along one axis of the mesh."""

    inputs: tuple[PlacementSpec, ...]
    output: PlacementSpec
    letter: str = LOCAL_AXIS
    sums: tuple[int, ...] = ()

    @property
    def is_given(self) -> bool:
        """Whether it splits in given parts."""
        return any(spec.parts for spec in self.inputs)

    def has_sums(self, operands: Sequence[DTensorStructInfo], axis: int) -> bool:
        """Whether operands that others scale lie as partial sums along an axis of the mesh.

        Those that were made so would have zeros on some workers, of which a factor that is
        infinite or NaN, or a divisor that is zero, makes NaN. Where nothing scales them zeros do
        no harm.
        """
        if len(self.sums) in (0, len(operands)):
            return True
        return any(operands[at].placement.dim_specs[axis] == self.output for at in self.sums)


class OperandPlacements(NamedTuple):
    """The placements that operands must have, and the resulting one.

    Attributes:
        plans: How each operand is redistributed.
        output: The placement of the result.
    """

    plans: tuple[RedistributionPlan, ...]
    output: Placement

    @property
    def cost(self) -> int:
        """The bytes that must reach a worker first."""
        return sum(plan.cost for plan in self.plans)


def _options(
    pattern: Pattern, operands: Sequence[DTensorStructInfo], mesh_axis: int
) -> Iterator[_Option]:
    whole = PlacementSpec.replica()
    yield _Option(tuple(whole for _ in pattern.inputs), whole)
    combines = dict(pattern.combines)
    letters = dict.fromkeys(letter for letters in pattern.inputs for letter in letters)
    for letter in letters:
        if letter == LOCAL_AXIS or any(axes.count(letter) > 1 for axes in pattern.inputs):
            continue
        if letter in pattern.output:
            result = PlacementSpec.sharding(pattern.output.index(letter))
        elif letter in combines:
            result = PlacementSpec.partial(combines[letter])
        else:
            continue
        for parts in ((), *_given(pattern, operands, mesh_axis, letter)):
            split = tuple(
                replace(PlacementSpec.sharding(axes.index(letter)), parts=parts)
                if letter in axes
                else whole
                for axes in pattern.inputs
            )
            lies = result if result.is_partial else replace(result, parts=parts)
            yield _Option(split, lies, letter)
    partial = PlacementSpec.partial("sum")
    for together in pattern.linear:
        parts = tuple(
            partial if number in together else whole for number in range(len(pattern.inputs))
        )
        yield _Option(parts, partial, sums=together)


def _given(
    pattern: Pattern, operands: Sequence[DTensorStructInfo], mesh_axis: int, letter: str
) -> Iterable[tuple[Intervals, ...]]:
    """The given parts in which operands are split along a letter by an axis of the mesh."""
    if letter in pattern.equal or any(letter == even for even, _ in pattern.even):
        return ()
    specs = (operand.placement.dim_specs[mesh_axis] for operand in operands)
    found = (
        cast("tuple[Intervals, ...]", spec.parts)
        for spec, letters in zip(specs, pattern.inputs, strict=True)
        if spec.parts and letters[spec.axis] == letter
    )
    return dict.fromkeys(found)


def choose(pattern: Pattern, operands: tuple[DTensorStructInfo, ...]) -> OperandPlacements:
    """Finds the placements of operands on one mesh for which the least moves.

    Of equally cheap ways that with the fewest moves is taken, and then that which
    leaves the least to combine.

    Args:
        pattern: Of the function.
        operands: As they are placed.
    """
    mesh = operands[0].device_mesh
    pattern = _without_sums(pattern, operands)
    ways = itertools.product(
        *(
            [each for each in _options(pattern, operands, axis) if each.has_sums(operands, axis)]
            for axis in range(mesh.ndim)
        )
    )
    fitting = (options for options in ways if _fits(pattern, mesh.shape, options))
    return min((_choice(operands, options) for options in fitting), key=_rank)


def exact(
    pattern: Pattern, operands: Sequence[DTensorStructInfo], result: np.dtype[Any]
) -> Pattern:
    """A pattern less what holds for numbers, but not for those of these dtypes.

    What collectives do not combine is not combined.

    Args:
        pattern: Of a function.
        operands: Its operands.
        result: The dtype of the result.
    """
    linear = tuple(
        together
        for together in pattern.linear
        if all(may_convert(operands[number].tensor_sinfo.dtype, result) for number in together)
    )
    along = tuple(each for each in pattern.combines if combines(result, each[1]))
    alike = linear == pattern.linear and along == pattern.combines
    return pattern if alike else replace(pattern, linear=linear, combines=along)


def _without_sums(pattern: Pattern, operands: Sequence[DTensorStructInfo]) -> Pattern:
    """A pattern without what needs partial sums of dtypes that have none."""
    linear = tuple(
        together
        for together in pattern.linear
        if all(combines(operands[number].tensor_sinfo.dtype, "sum") for number in together)
    )
    return pattern if linear == pattern.linear else replace(pattern, linear=linear)


def _fits(pattern: Pattern, mesh: Sequence[int], options: Sequence[_Option]) -> bool:
    """Whether the axes that must be split evenly are, and those in given parts are split once."""
    along = [option.letter for option in options]
    if any(option.is_given and along.count(option.letter) > 1 for option in options):
        return False
    for letter, extent in pattern.even:
        split = (n for n, option in zip(mesh, options, strict=True) if option.letter == letter)
        if extent % math.prod(split):
            return False
    return True


def _choice(operands: Sequence[DTensorStructInfo], options: Sequence[_Option]) -> OperandPlacements:
    return OperandPlacements(
        _plans(operands, options), Placement(option.output for option in options)
    )


def _rank(choice: OperandPlacements) -> tuple[int, int, int]:
    steps = sum(len(plan.steps) for plan in choice.plans)
    return choice.cost, steps, sum(spec.is_partial for spec in choice.output.dim_specs)


def _plans(
    operands: Sequence[DTensorStructInfo], options: Sequence[_Option]
) -> tuple[RedistributionPlan, ...]:
    return tuple(
        make_plan(operand, Placement(option.inputs[number] for option in options))
        for number, operand in enumerate(operands)
    )


_Result = TypeVar("_Result")

Tables = Callable[[Sequence[DTensorStructInfo], DTensorStructInfo], Mapping[str, Sequence[Any]]]
"""Makes what differs by worker, from the operands as they are placed then and the result."""


@dataclass(frozen=True)
class Local:
    """What a rule returns: the local form of a function.

    Attributes:
        name: The function that each worker calls on its parts.
        pattern: How the axes go together.
        result: The whole result.
        options: What the local function takes besides, by name.
        tables: The same where it differs from worker to worker.

    Examples:
        >>> whole = distributed.TensorStructInfo((4, 2), "float64")
        >>> pattern = distributed.Pattern((("a", "b"),), ("a", "b"))
        >>> local = distributed.Local("numpy.tanh", pattern, whole)
        >>> local.name
        'numpy.tanh'
    """

    name: str
    pattern: Pattern
    result: TensorStructInfo
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: Tables | None = None


Rule = Callable[..., Local]
"""Takes a `TensorStructInfo` for each operand, then the options by name."""

_rules: dict[str, Rule] = {}


def register_rule(name: str) -> Callable[[Rule], Rule]:
    """Registers the rule of a function of distributed tensors under its name.

    A rule is called with a `TensorStructInfo` for each operand that is a tensor, and
    with numbers as they are, then with the options by name. It returns a `Local`,
    whose function is one that the workers know: of Disco's own, a dotted name such as
    ``"scipy.special.erf"`` that their allow-list covers, or one registered there with
    ``disco_server.register_func``. It is called with the parts of the operands, and the
    options by name. ``session.apply(name, x, y, ...)`` then computes.

    Args:
        name: The function's name.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.cube")
        ... def cube(part):
        ...     return part**3
        >>> @distributed.register_rule("docs.cube")
        ... def _cube(tensor):
        ...     pattern = distributed.Pattern((("a", "b"),), ("a", "b"))
        ...     return distributed.Local("docs.cube", pattern, tensor)
        >>> x = session.distribute(np.full((4, 2), 2.0), placement="S[0]")
        >>> session.apply("docs.cube", x).sum().item()
        64.0
    """

    def register(rule: Rule) -> Rule:
        _rules[name] = rule
        return rule

    return register


def rule_for(name: str) -> Rule:
    """Finds a rule.

    Raises:
        ConfigError: There is none.
    """
    rule = _rules.get(name)
    if rule is None:
        raise ConfigError(
            f"there is no rule by which {name} computes on distributed tensors: bring the"
            " operands to every worker with redistribute('R') and call a function of the workers"
            " on their .ref, fetch them with .numpy(), or register a rule with"
            " disco_client.distributed.register_rule"
        )
    return rule


def call_checked(
    name: str, function: Callable[..., _Result], /, *args: Any, **options: Any
) -> _Result:
    """Calls a rule or the like; arguments that it does not take raise a ConfigError.

    Args:
        name: What it is called by.
        function: The rule.
        *args: Its operands.
        **options: Its options.

    Raises:
        ConfigError: They do not fit.
    """
    try:
        return function(*args, **options)
    except TypeError:
        try:
            inspect.signature(function).bind(*args, **options)
        except TypeError as error:
            raise ConfigError(f"{name} on distributed tensors: {error}") from None
        raise


def only_tensors(name: str, *operands: object) -> None:
    """Refuses numbers where tensors must be.

    Raises:
        ConfigError: An operand is a number.
    """
    for operand in operands:
        if not isinstance(operand, TensorStructInfo):
            raise ConfigError(f"{name} needs tensors with axes, got the number {operand!r}")


# Rules of element-wise functions: each element of the result needs one of each operand.


_LINEAR_TOGETHER = {"add", "subtract"}
_LINEAR_ALONE = {"negative", "positive", "multiply"}
_LINEAR_IN_FIRST = {"divide", "true_divide"}
_ACTIVATIONS = ("relu", "silu", "gelu", "sigmoid", "rsqrt", "erf")


def letters_of(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[str, ...]:
    """The letters of an operand's axes that is broadcast to a shape, aligned at the end."""
    offset = len(whole) - len(shape)
    return tuple(
        f"a{offset + axis}" if extent == whole[offset + axis] else LOCAL_AXIS
        for axis, extent in enumerate(shape)
    )


def probe(operand: Any) -> Any:
    """Stands for an operand where only dtypes matter: an empty array, or the number itself."""
    return np.empty((0,), operand.dtype) if isinstance(operand, TensorStructInfo) else operand


def numpy_dtype(name: str, compute: Callable[[], Any]) -> np.dtype[Any]:
    """The dtype that numpy gives a result; the workers compute with numpy, too.

    Args:
        name: The function's.
        compute: Calls it, on operands of these dtypes with hardly an element.

    Raises:
        DtypeError: It does not take these dtypes.
    """
    try:
        with np.errstate(all="ignore"):
            return compute().dtype
    except TypeError as error:
        raise DtypeError(f"{name}: {error}") from None


def _broadcast(name: str, operands: tuple[Any, ...]) -> tuple[int, ...]:
    shapes = [tuple(each.shape) for each in operands if isinstance(each, TensorStructInfo)]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ConfigError(f"{name}: shapes {shapes} cannot be broadcast together") from None


def _elementwise(
    name: str, operands: tuple[Any, ...], dtype: Any, options: Mapping[str, Any] | None = None
) -> Local:
    whole = _broadcast(name, operands)
    inputs = tuple(
        letters_of(tuple(each.shape), whole)
        for each in operands
        if isinstance(each, TensorStructInfo)
    )
    output = tuple(f"a{axis}" for axis in range(len(whole)))
    result = TensorStructInfo(whole, dtype)
    pattern = Pattern(inputs, output, linear=_linear(name, operands, result.dtype))
    return Local(name, pattern, result, options or {})


def _linear(
    name: str, operands: tuple[Any, ...], result: np.dtype[Any]
) -> tuple[tuple[int, ...], ...]:
    if name in _LINEAR_TOGETHER:
        are_tensors = (isinstance(each, TensorStructInfo) for each in operands)
        return ((0, 1),) if all(are_tensors) else ()
    if name in _LINEAR_ALONE:
        return _scaled(operands, range(len(operands)), result)
    return _scaled(operands, (0,), result) if name in _LINEAR_IN_FIRST else ()


def _scaled(
    operands: tuple[Any, ...], places: Sequence[int], result: np.dtype[Any]
) -> tuple[tuple[int, ...], ...]:
    """Of the operands at some places those that may be partial sums, which the others scale.

    Args:
        operands: Of a function that is linear in each at these places.
        places: Among the operands, numbers included.
        result: The dtype of the result.
    """
    tensors = [place for place, each in enumerate(operands) if isinstance(each, TensorStructInfo)]
    return tuple(
        (number,)
        for number, place in enumerate(tensors)
        if place in places
        and all(
            may_scale(factor, operands[place].dtype, result)
            for factor in (*operands[:place], *operands[place + 1 :])
        )
    )


def _ufunc(*operands: Any, name: str) -> Local:
    function = getattr(np, name)
    if len(operands) != function.nin:
        raise ConfigError(f"numpy.{name} takes {function.nin} operands, got {len(operands)}")
    dtype = numpy_dtype(f"numpy.{name}", lambda: function(*map(probe, operands)))
    return _elementwise(name, operands, dtype)


for _name in ELEMENTWISE:
    register_rule(_name)(partial(_ufunc, name=_name))


def _activation(x: TensorStructInfo, *, name: str) -> Local:
    if not np.issubdtype(x.dtype, np.floating) and x.dtype.name != "bfloat16":
        raise DtypeError(f"{name} needs real floating-point numbers, got {x.dtype}")
    return _elementwise(name, (x,), x.dtype)


for _name in _ACTIVATIONS:
    register_rule(_name)(partial(_activation, name=_name))


@register_rule("cast")
def _cast(x: TensorStructInfo, *, dtype: object) -> Local:
    found = dtype_from_name(dtype)
    if not np.can_cast(x.dtype, found, "unsafe"):
        raise DtypeError(f"cast: {x.dtype} cannot be converted to {found}")
    return _elementwise("cast", (x,), found, {"dtype": dtype_name(found)})


@register_rule("zeros_like")
def _zeros_like(x: TensorStructInfo, *, dtype: object = None) -> Local:
    found = x.dtype if dtype is None else dtype_from_name(dtype)
    local = _elementwise("zeros_like", (x,), found, {"dtype": dtype_name(found)})
    return replace(local, pattern=replace(local.pattern, linear=((0,),)))


@register_rule("where")
def _where(condition: Any, x: Any, y: Any) -> Local:
    choose_from = cast("Callable[..., Any]", np.where)
    dtype = numpy_dtype("numpy.where", lambda: choose_from(*map(probe, (condition, x, y))))
    return _elementwise("where", (condition, x, y), dtype)


# Rules of products of tensors.


_SUBSCRIPTS = re.compile(r"[a-zA-Z]*(,[a-zA-Z]*)*(->[a-zA-Z]*)?")


@register_rule("matmul")
def _matmul(x: TensorStructInfo, y: TensorStructInfo) -> Local:
    only_tensors("matmul", x, y)
    one, other = tuple(x.shape), tuple(y.shape)
    if not one or not other:
        raise ConfigError("matmul needs tensors with at least one axis")
    rows = () if len(one) == 1 else ("m",)
    columns = () if len(other) == 1 else ("n",)
    inner = (1, *other)[-2] if columns else other[-1]
    if one[-1] != inner:
        raise ConfigError(f"matmul: {one} and {other} do not fit, {one[-1]} is not {inner}")
    try:
        batch = np.broadcast_shapes(one[:-2], other[:-2])
    except ValueError:
        raise ConfigError(f"matmul: {one} and {other} cannot be broadcast together") from None
    names = tuple(f"b{axis}" for axis in range(len(batch)))
    pattern = Pattern(
        (
            (*_batch(one[:-2], batch), *rows, "k"),
            (*_batch(other[:-2], batch), "k", *columns),
        ),
        (*names, *rows, *columns),
        (("k", "sum"),),
        ((0,), (1,)),
    )
    shape = (*batch, *one[-2:-1], *(other[-1:] if columns else ()))
    one_by_one = (np.zeros((1, 1), each.dtype) for each in (x, y))
    dtype = numpy_dtype("numpy.matmul", lambda: np.matmul(*one_by_one))
    return Local("matmul", pattern, TensorStructInfo(shape, dtype))


def _batch(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[str, ...]:
    offset = len(batch) - len(shape)
    return tuple(
        f"b{offset + axis}" if extent == batch[offset + axis] else LOCAL_AXIS
        for axis, extent in enumerate(shape)
    )


@register_rule("einsum")
def _einsum(*operands: TensorStructInfo, subscripts: str) -> Local:
    only_tensors("einsum", *operands)
    text = subscripts.replace(" ", "")
    if not _SUBSCRIPTS.fullmatch(text):
        _refuse(subscripts, "expected letters, commas and ->; '...' has no rule")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(operands):
        _refuse(subscripts, f"expected {len(inputs)} operands, got {len(operands)}")
    extents: dict[str, int] = {}
    for letters, operand in zip(inputs, operands, strict=True):
        if len(letters) != operand.ndim:
            shape = tuple(operand.shape)
            _refuse(subscripts, f"{letters!r} does not fit a tensor of shape {shape}")
        for letter, extent in zip(letters, operand.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                _refuse(subscripts, f"{letter!r} is {extents[letter]} and {extent}")
    if not arrow:
        right = "".join(sorted(letter for letter in extents if left.count(letter) == 1))
    if any(letter not in extents or right.count(letter) > 1 for letter in right):
        _refuse(subscripts, f"{right!r} is no result of {left!r}")
    full = f"{left}->{right}"
    dtype, wide = _einsum_dtypes(full, operands)
    pattern = Pattern(
        tuple(tuple(letters) for letters in inputs),
        tuple(right),
        tuple((letter, "sum") for letter in extents if letter not in right),
        _scaled(operands, range(len(operands)), dtype),
    )
    whole = [extents[letter] for letter in right]
    options = {"subscripts": full, "wide": wide}
    return Local("einsum", pattern, TensorStructInfo(whole, dtype), options)


def _einsum_dtypes(text: str, operands: Sequence[TensorStructInfo]) -> tuple[np.dtype[Any], str]:
    """The dtype of the result, and that of the computation; empty where that is numpy's choice.

    For the small dtypes of ``ml_dtypes`` numpy has it only for some shapes.
    """
    few = [np.zeros((1,) * operand.ndim, operand.dtype) for operand in operands]
    if any(is_extension(dtype_name(each.dtype)) for each in few):
        dtype = numpy_dtype("numpy.einsum", lambda: np.concatenate([each.ravel() for each in few]))
        if is_extension(dtype_name(dtype)):
            return dtype, "int64" if dtype.name in ("int4", "uint4") else "float32"
        return dtype, dtype_name(dtype)
    return numpy_dtype("numpy.einsum", lambda: np.einsum(text, *few)), ""


def _refuse(subscripts: str, why: str) -> NoReturn:
    raise ConfigError(f"einsum of {subscripts!r}: {why}")


# Rules of functions along axes: reductions, where the largest is, and normalisations.


_COMBINES = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "max", "all": "min"}


def as_index(value: object) -> int | None:
    """An integer of any kind as Python's; None where it is none, or several."""
    try:
        return operator.index(cast("SupportsIndex", value))
    except TypeError:
        return None


def integers(what: str, values: Iterable[object]) -> list[int]:
    """Integers of any kind as Python's.

    Args:
        what: Which function has them as an option, for the error.
        values: The integers.

    Raises:
        DtypeError: One is none.
    """
    found = [as_index(each) for each in dims_of(values)]
    if None in found:
        raise DtypeError(f"{what}: expected integers, got {shown(values)}")
    return cast("list[int]", found)


def normal_axis(axis: SupportsIndex, ndim: int) -> int:
    """An axis counted from the front.

    Raises:
        DtypeError: It is no integer.
        OutOfBounds: There is no such axis.
    """
    number = None if isinstance(axis, bool) else as_index(axis)
    if number is None:
        raise DtypeError(f"expected an axis by its number, got {axis!r}")
    if not -ndim <= number < ndim:
        raise OutOfBounds(f"a tensor of {many(ndim, 'axis', 'axes')} has no axis {number}")
    return number % ndim


def normal_axes(axis: SupportsIndex | Iterable[SupportsIndex] | None, ndim: int) -> tuple[int, ...]:
    """Axes counted from the front; None for all.

    Raises:
        ConfigError: There is no such axis, or one is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    one = as_index(axis)  # an array without axes is one, and claims to be iterable
    given = axis if one is None and isinstance(axis, Iterable) else (cast("SupportsIndex", axis),)
    found = tuple(normal_axis(each, ndim) for each in given)
    if len(set(found)) != len(found):
        raise ConfigError(f"an axis is named twice in {found}")
    return found


def _letters(ndim: int) -> tuple[str, ...]:
    return tuple(f"a{axis}" for axis in range(ndim))


def _reduce(
    x: TensorStructInfo, *, name: str, axis: Any = None, keepdims: bool = False, dtype: Any = None
) -> Local:
    if dtype is not None and name not in ("sum", "prod"):
        raise ConfigError(f"{name} has no dtype of its own; .astype() converts what comes out")
    axes = normal_axes(axis, x.ndim)
    for each in axes:
        if name in ("max", "min") and not x.shape[each]:
            raise ConfigError(f"{name} along axis {each} of {tuple(x.shape)} has no elements")
    letters = _letters(x.ndim)
    output = tuple(
        LOCAL_AXIS if place in axes else letter
        for place, letter in enumerate(letters)
        if keepdims or place not in axes
    )
    shape = [
        1 if place in axes else extent
        for place, extent in enumerate(x.shape)
        if keepdims or place not in axes
    ]
    found = _dtype_of(name, x.dtype, dtype)
    linear = ((0,),) if name == "sum" else ()
    # Complex numbers have an order for numpy, but not for what combines them.
    alone = x.dtype.kind == "c" and name in ("max", "min")
    combines = () if alone else tuple((letters[each], _COMBINES[name]) for each in axes)
    options = {"axis": Shape(axes), "keepdims": bool(keepdims), "dtype": dtype_name(found)}
    pattern = Pattern((letters,), output, combines, linear)
    return Local(name, pattern, TensorStructInfo(shape, found), options)


def _dtype_of(name: str, dtype: np.dtype[Any], wanted: Any) -> np.dtype[Any]:
    more = {} if wanted is None else {"dtype": dtype_from_name(wanted)}
    return numpy_dtype(f"numpy.{name}", lambda: getattr(np, name)(np.zeros(1, dtype), **more))


for _name in _COMBINES:
    register_rule(_name)(partial(_reduce, name=_name))


def _arg(x: TensorStructInfo, *, name: str, axis: SupportsIndex) -> Local:
    place = normal_axis(axis, x.ndim)
    if not x.shape[place]:
        raise ConfigError(f"{name} along axis {place} of {tuple(x.shape)} has no elements")
    letters = list(_letters(x.ndim))
    letters[place] = LOCAL_AXIS
    output = (*letters[:place], *letters[place + 1 :])
    shape = (*x.shape[:place], *x.shape[place + 1 :])
    dtype = numpy_dtype(f"numpy.{name}", lambda: getattr(np, name)(np.zeros(1, x.dtype)))
    result = TensorStructInfo(shape, dtype)
    return Local(name, Pattern((tuple(letters),), output), result, {"axis": place})


for _name in ("argmax", "argmin", "nanargmax", "nanargmin"):
    register_rule(_name)(partial(_arg, name=_name))


def _along(
    name: str, x: TensorStructInfo, axis: SupportsIndex, *more: Any, **options: Any
) -> Local:
    """A function that needs the whole of one axis, and vectors along it."""
    if not np.issubdtype(x.dtype, np.floating) and x.dtype.name != "bfloat16":
        raise DtypeError(f"{name} needs real floating-point numbers, got {x.dtype}")
    place = normal_axis(axis, x.ndim)
    only_tensors(name, *more)
    for vector in more:
        if tuple(vector.shape) != (x.shape[place],):
            raise ConfigError(
                f"{name} along axis {place} of {tuple(x.shape)}: expected a vector of"
                f" {x.shape[place]}, got {tuple(vector.shape)}"
            )
    letters = list(_letters(x.ndim))
    letters[place] = LOCAL_AXIS
    pattern = Pattern((tuple(letters), *((LOCAL_AXIS,) for _ in more)), tuple(letters))
    return Local(name, pattern, TensorStructInfo(x.shape, x.dtype), {"axis": place, **options})


@register_rule("softmax")
def _softmax(x: TensorStructInfo, *, axis: SupportsIndex = -1) -> Local:
    return _along("softmax", x, axis)


@register_rule("layer_norm")
def _layer_norm(
    x: TensorStructInfo, *weights: TensorStructInfo, axis: SupportsIndex = -1, epsilon: float = 1e-5
) -> Local:
    return _along("layer_norm", x, axis, *weights, epsilon=float(epsilon))


@register_rule("rms_norm")
def _rms_norm(
    x: TensorStructInfo, *weights: TensorStructInfo, axis: SupportsIndex = -1, epsilon: float = 1e-6
) -> Local:
    return _along("rms_norm", x, axis, *weights, epsilon=float(epsilon))


# Rules of running sums and the like: of a part by itself, and of parts that follow one another.


@register_rule("running_totals")
def _running_totals(x: TensorStructInfo, *, axis: SupportsIndex, parts: int, op: str) -> Local:
    """What each of so many parts comes to, which lie one after the other as the parts do."""
    place = normal_axis(axis, x.ndim)
    letters = _letters(x.ndim)
    shape = (*x.shape[:place], parts, *x.shape[place + 1 :])
    pattern = Pattern((letters,), letters, linear=((0,),) if op == "add" else ())
    options = {"axis": place, "op": op}
    return Local("running_totals", pattern, TensorStructInfo(shape, x.dtype), options)


@register_rule("running_parts")
def _running_parts(
    x: TensorStructInfo, *totals: TensorStructInfo, axis: SupportsIndex, op: str
) -> Local:
    """Running results of each part, on top of the totals of those before it if they are given."""
    place = normal_axis(axis, x.ndim)
    result = _letters(x.ndim)
    whole = (*result[:place], LOCAL_AXIS, *result[place + 1 :])
    info = TensorStructInfo(x.shape, x.dtype)
    options = {"axis": place, "op": op}
    if not totals:
        pattern = Pattern((whole,), whole, linear=((0,),) if op == "add" else ())
        return Local("running_parts", pattern, info, options)

    def tables(
        operands: Sequence[DTensorStructInfo], _result: DTensorStructInfo
    ) -> Mapping[str, Sequence[Any]]:
        mesh, specs = operands[0].device_mesh, operands[0].placement.dim_specs
        split = [at for at, spec in enumerate(specs) if spec.axis == place]
        before: list[int] = []
        for worker in range(mesh.size):
            at = coordinate_of(mesh.shape, worker)
            number = 0
            for along in split:
                number = number * mesh.shape[along] + at[along]
            before.append(number)
        return {"before": before}

    pattern = Pattern((result, whole), result, linear=((0, 1),) if op == "add" else ())
    return Local("running_parts", pattern, info, options, tables)


# Rules of functions that move elements without computing: reshape, slices, take and so on.


@register_rule("transpose")
def _transpose(x: TensorStructInfo, *, axes: Any = None) -> Local:
    order = normal_axes(axes, x.ndim) if axes is not None else tuple(reversed(range(x.ndim)))
    if len(order) != x.ndim:
        raise ConfigError(f"transpose needs each of {x.ndim} axes once, got {order}")
    letters = tuple(f"a{axis}" for axis in range(x.ndim))
    pattern = Pattern((letters,), tuple(letters[axis] for axis in order), linear=((0,),))
    result = TensorStructInfo([x.shape[axis] for axis in order], x.dtype)
    return Local("transpose", pattern, result, {"axes": Shape(order)})


@register_rule("reshape")
def _reshape(x: TensorStructInfo, *, shape: Sequence[SupportsIndex]) -> Local:
    before, after = tuple(x.shape), _filled(tuple(x.shape), integers("reshape", shape))
    inputs, output = [LOCAL_AXIS] * len(before), [LOCAL_AXIS] * len(after)
    even: list[tuple[str, int]] = []
    for number, (ours, theirs) in enumerate(_groups(before, after)):
        letter = f"g{number}"
        if len(ours) == len(theirs) == 1:
            inputs[ours[0]] = output[theirs[0]] = letter
        elif ours and theirs:
            # Of axes that become one, or one that becomes several, the first may be split.
            inputs[ours[0]] = output[theirs[0]] = letter
            even.append((letter, math.gcd(before[ours[0]], after[theirs[0]])))
    pattern = Pattern((tuple(inputs),), tuple(output), (), ((0,),), tuple(even))

    def tables(
        _operands: Sequence[DTensorStructInfo], result: DTensorStructInfo
    ) -> Mapping[str, Sequence[Any]]:
        return {"shape": local_shapes(result)}

    return Local("reshape", pattern, TensorStructInfo(after, x.dtype), {}, tables)


def _filled(before: tuple[int, ...], wanted: list[int]) -> tuple[int, ...]:
    size = math.prod(before)
    if wanted.count(-1) == 1:
        rest = math.prod(extent for extent in wanted if extent != -1)
        if rest and not size % rest:
            wanted[wanted.index(-1)] = size // rest
    if any(extent < 0 for extent in wanted) or math.prod(wanted) != size:
        raise ConfigError(
            f"a tensor of shape {before} cannot be reshaped to {shown(tuple(wanted))}"
        )
    return tuple(wanted)


def _groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Which axes become which, as small as can be; axes of extent 1 belong to none."""
    ours = [axis for axis, extent in enumerate(before) if extent != 1]
    theirs = [axis for axis, extent in enumerate(after) if extent != 1]
    groups: list[tuple[list[int], list[int]]] = []
    if 0 in before:
        return groups
    while ours and theirs:
        left, right = [ours.pop(0)], [theirs.pop(0)]
        one, other = before[left[0]], after[right[0]]
        while one != other:
            if one < other:
                left.append(ours.pop(0))
                one *= before[left[-1]]
            else:
                right.append(theirs.pop(0))
                other *= after[right[-1]]
        groups.append((left, right))
    return groups


@register_rule("concatenate")
def _concatenate(*operands: TensorStructInfo, axis: SupportsIndex = 0) -> Local:
    only_tensors("concatenate", *operands)
    if not operands:
        raise ConfigError("concatenate needs at least one tensor")
    first = operands[0]
    place = normal_axis(axis, first.ndim)
    for each in operands:
        rest = [*each.shape[:place], *each.shape[place + 1 :]]
        if each.ndim != first.ndim or rest != [*first.shape[:place], *first.shape[place + 1 :]]:
            raise ConfigError(
                f"concatenate along axis {place}: {tuple(first.shape)} and {tuple(each.shape)}"
                " differ along another axis"
            )
    letters = [f"a{number}" for number in range(first.ndim)]
    letters[place] = LOCAL_AXIS
    shape = list(first.shape)
    shape[place] = sum(each.shape[place] for each in operands)
    together = (tuple(range(len(operands))),)
    pattern = Pattern((tuple(letters),) * len(operands), tuple(letters), linear=together)
    dtype = numpy_dtype("numpy.concatenate", lambda: np.concatenate(list(map(probe, operands))))
    return Local("concatenate", pattern, TensorStructInfo(shape, dtype), {"axis": place})


@register_rule("tile")
def _tile(x: TensorStructInfo, *, reps: Sequence[int]) -> Local:
    """Copies one after the other; an axis of which there are several must be whole."""
    letters = tuple(
        letter if count == 1 else LOCAL_AXIS
        for letter, count in zip(_letters(x.ndim), reps, strict=True)
    )
    shape = [extent * count for extent, count in zip(x.shape, reps, strict=True)]
    pattern = Pattern((letters,), letters, linear=((0,),))
    return Local("tile", pattern, TensorStructInfo(shape, x.dtype), {"reps": extents_of(reps)})


@register_rule("repeat")
def _repeat(x: TensorStructInfo, *, repeats: SupportsIndex, axis: SupportsIndex) -> Local:
    """Each element several times; a part stays one where the mesh divides the axis."""
    place, (count,) = normal_axis(axis, x.ndim), integers("repeat", (repeats,))
    if count < 0:
        raise ConfigError(f"repeat: expected a count from 0, got {count}")
    letters, extent = _letters(x.ndim), x.shape[place]
    even = ((letters[place], extent),)
    pattern = Pattern((letters,), letters, linear=((0,),), even=even)
    result = TensorStructInfo((*x.shape[:place], extent * count, *x.shape[place + 1 :]), x.dtype)
    return Local("repeat", pattern, result, {"repeats": count, "axis": place})


_PAD_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


@register_rule("pad")
def _pad(
    x: TensorStructInfo,
    *,
    widths: Sequence[Sequence[int]],
    mode: str = "constant",
    values: Sequence[Sequence[Any]] = (),
) -> Local:
    """An axis that grows must be whole."""
    if mode not in _PAD_MODES:
        raise ConfigError(
            f"numpy.pad of distributed tensors has the modes {', '.join(_PAD_MODES)}, got {mode!r}"
        )
    letters: list[str] = []
    shape: list[int] = []
    for letter, extent, (before, after) in zip(_letters(x.ndim), x.shape, widths, strict=True):
        if before < 0 or after < 0:
            raise ConfigError(f"pad: expected widths from 0, got {widths}")
        if mode != "constant" and not extent and before + after:
            raise ConfigError(f"pad: an axis without elements cannot grow in mode {mode!r}")
        letters.append(LOCAL_AXIS if before + after else letter)
        shape.append(before + extent + after)
    linear = () if any(value != 0 for pair in values for value in pair) else ((0,),)
    pattern = Pattern((tuple(letters),), tuple(letters), linear=linear)
    options: dict[str, Any] = {"widths": [list(pair) for pair in widths], "mode": mode}
    if values:
        options["values"] = [list(pair) for pair in values]
    return Local("pad", pattern, TensorStructInfo(shape, x.dtype), options)


@register_rule("take")
def _take(x: TensorStructInfo, ids: TensorStructInfo, *, axis: SupportsIndex = 0) -> Local:
    """By positions that were checked, or lie on the workers, which check them."""
    only_tensors("take", x, ids)
    if ids.dtype.kind not in "iu":
        raise DtypeError(f"take needs positions of an integer dtype, got {ids.dtype}")
    place = normal_axis(axis, x.ndim)
    letters = [f"a{number}" for number in range(x.ndim)]
    letters[place] = "v"
    places = tuple(f"i{number}" for number in range(ids.ndim))
    output = (*letters[:place], *places, *letters[place + 1 :])
    # A worker gives zeros for rows that it has not, so that the sum is the row.
    pattern = Pattern((tuple(letters), places), output, (("v", "sum"),), ((0,),), equal=("v",))
    shape = (*x.shape[:place], *ids.shape, *x.shape[place + 1 :])

    def tables(
        operands: Sequence[DTensorStructInfo], _result: DTensorStructInfo
    ) -> Mapping[str, Sequence[Any]]:
        places = range(operands[0].device_mesh.size)
        return {"first": [operands[0].pieces(at)[place][0][0] for at in places]}

    options = {"axis": place, "extent": x.shape[place]}
    return Local("take", pattern, TensorStructInfo(shape, x.dtype), options, tables)


@register_rule("pick")
def _pick(x: TensorStructInfo, *ids: TensorStructInfo, axes: Sequence[int]) -> Local:
    """By positions along several axes, which have one shape and come first in the result."""
    only_tensors("pick", x, *ids)
    letters = [f"a{number}" for number in range(x.ndim)]
    for number, axis in enumerate(axes):
        letters[axis] = f"v{number}"
    places = tuple(f"i{number}" for number in range(ids[0].ndim))
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    taken = tuple(letters[axis] for axis in axes)
    # A worker gives zeros for elements that it has not, so that the sum is the element.
    pattern = Pattern(
        (tuple(letters), *(places,) * len(ids)),
        (*places, *(letters[axis] for axis in rest)),
        tuple((letter, "sum") for letter in taken),
        ((0,),),
        equal=taken,
    )
    shape = (*ids[0].shape, *(x.shape[axis] for axis in rest))

    def tables(
        operands: Sequence[DTensorStructInfo], _result: DTensorStructInfo
    ) -> Mapping[str, Sequence[Any]]:
        info = operands[0]
        at = (info.pieces(place) for place in range(info.device_mesh.size))
        return {"firsts": [[pieces[axis][0][0] for axis in axes] for pieces in at]}

    options = {"axes": Shape(axes), "extents": Shape(x.shape[axis] for axis in axes)}
    return Local("pick", pattern, TensorStructInfo(shape, x.dtype), options, tables)


@register_rule("update")
def _update(
    x: TensorStructInfo, values: TensorStructInfo, start: Any, *, axis: SupportsIndex = 0
) -> Local:
    """From a start that was checked, or lies on the workers, which check it."""
    only_tensors("update", x, values)
    place = normal_axis(axis, x.ndim)
    rest = [each for number, each in enumerate(x.shape) if number != place]
    if (
        values.ndim != x.ndim
        or [each for number, each in enumerate(values.shape) if number != place] != rest
        or values.shape[place] > x.shape[place]
    ):
        raise ConfigError(
            f"update along axis {place}: expected values that fit into {tuple(x.shape)} there and"
            f" have its other extents, got {tuple(values.shape)}"
        )
    if values.dtype != x.dtype:
        raise DtypeError(f"update: expected values of dtype {x.dtype}, got {values.dtype}")
    letters = [f"a{number}" for number in range(x.ndim)]
    letters[place] = LOCAL_AXIS
    inputs = [tuple(letters), tuple(letters)]
    if isinstance(start, TensorStructInfo):
        if start.ndim or start.dtype.kind not in "iu":
            raise DtypeError(
                "update: expected an integer without axes as the start, got"
                f" {start.dtype}{list(start.shape)}"
            )
        inputs.append(())
    pattern = Pattern(tuple(inputs), tuple(letters), linear=((0, 1),))
    return Local("update", pattern, TensorStructInfo(x.shape, x.dtype), {"axis": place})
