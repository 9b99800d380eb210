"""Compares a program's weight plan with a model's files; decides, moves nothing."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from disco_client.bulk_io import UnderWay, batches, progress_bar, whole_path
from disco_client.distributed.dtensor import DTensor, Origin
from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    PlacementSpecKind,
    TensorStructInfo,
)
from disco_client.errors import ConfigError, WeightsMismatch
from disco_client.telemetry.spans import spanned
from disco_client.wire.values import (
    Shape,
    dtype_from_name,
    dtype_name,
    extents_of,
    is_floating,
)

if TYPE_CHECKING:
    import os

    from disco_client.core import DRef, SessionCore
    from disco_client.distributed.dtensor import Computing

__all__ = [
    "Chosen",
    "StoredTensor",
    "WeightPlan",
    "choose",
    "load_weights",
    "read_catalog",
    "read_expected",
]


SKIP = "skip"
"""The entry of tensors that are left out."""

_UNMATCHED = "no pattern of the plan matches it"
_SHOWN = 40
_SUGGESTED = 3

Expected: TypeAlias = Mapping[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the workers' files.

    Attributes:
        index: Its place in the catalog.
        name: Its name.
        shape: Its extents.
        dtype: The name of its dtype; empty where no array can have it.
        stored: The name of the dtype of its bytes in the file.
        nbytes: Its bytes in the file.
        same_as: The tensor that has the bytes, where this is a second name of it; else empty.
        block: How many numbers share how many bytes, side by side along the last axis; zeros
            where each number has its own.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: str
    nbytes: int
    same_as: str = ""
    block: tuple[int, int] = (0, 0)


class Chosen(NamedTuple):
    """A tensor that is to be loaded, and its placement."""

    tensor: StoredTensor
    info: DTensorStructInfo

    @property
    def nbytes(self) -> int:
        """The bytes that the worker with the largest part reads."""
        whole, mesh = math.prod(self.info.tensor_sinfo.shape), self.info.device_mesh
        if not whole or self.axis is None:
            return self.tensor.nbytes
        largest = max(math.prod(self.info.local_shape(place)) for place in range(mesh.shape[-1]))
        return self.tensor.nbytes * largest // whole

    @property
    def in_blocks(self) -> bool:
        """Whether it stays in the blocks in which it is stored."""
        return bool(self.tensor.block[0]) and self.info.tensor_sinfo.dtype_name == "uint8"

    @property
    def axis(self) -> int | None:
        """Along which axis it is split; None for replicated."""
        spec = self.info.placement.dim_specs[-1]
        return None if spec.is_replica else spec.axis

    def layout(self) -> list[Shape]:
        """For each worker the axis that is split, and first and last of each of its pieces."""
        places = range(self.info.device_mesh.size)
        axis = cast("int", self.axis)
        pieces = (self.info.pieces(place)[axis] for place in places)
        return [
            Shape((axis, *(at for piece in each if piece[0] < piece[1] for at in piece)))
            for each in pieces
        ]


@dataclass(frozen=True, slots=True)
class _PatternRule:
    pattern: str
    match: re.Pattern[str]
    skip: bool
    spec: PlacementSpec


class WeightPlan:
    """Patterns of names, and how the tensors that they match are split.

    Args:
        entries: Names or patterns (``*``, ``?``, ``[...]`` as in file names, dots
            included) with ``"R"``, None, ``"S[axis]"``, an axis, a `PlacementSpec`
            or ``"skip"``. The first match counts.

    Raises:
        ConfigError: They are no mapping of these.
    """

    def __init__(self, entries: Mapping[str, object]) -> None:
        if not isinstance(entries, Mapping):
            msg = f"expected a plan such as {{'*.weight': 'S[0]', '*': 'R'}}, got {entries!r}"
            raise ConfigError(msg)
        self.rules: list[_PatternRule] = [
            _read_rule(pattern, entry) for pattern, entry in entries.items()
        ]

    def find(self, name: str) -> _PatternRule | None:
        """The first rule that covers a name."""
        return next((rule for rule in self.rules if _covers(rule, name)), None)


def _covers(rule: _PatternRule, name: str) -> bool:
    return rule.pattern == name or rule.match.match(name) is not None


def _read_rule(pattern: object, entry: object) -> _PatternRule:
    if not isinstance(pattern, str):
        msg = f"expected names or patterns of tensors in the plan, got {pattern!r}"
        raise ConfigError(msg)
    skip = isinstance(entry, str) and entry.strip() == SKIP
    try:
        spec = PlacementSpec.replica() if skip else _read_spec(entry)
    except ConfigError as error:
        msg = f"plan[{pattern!r}]: {error}; 'skip' leaves tensors out"
        raise ConfigError(msg) from None
    return _PatternRule(pattern, re.compile(fnmatch.translate(pattern)), skip, spec)


def _read_spec(entry: object) -> PlacementSpec:
    """Reads how tensors are divided; an axis alone must be one that the workers divide."""
    if isinstance(entry, str):
        try:
            # Spaces there are no part of a placement, and plans have always taken them.
            placement = Placement.from_text(re.sub(r"\s+\]", "]", entry))
        except ConfigError:
            placement = ()
        if len(placement) == 1 and isinstance(placement, Placement):
            (entry,) = placement.dim_specs
            if entry.kind is PlacementSpecKind.SHARDING and not entry.parts:
                entry = PlacementSpec.fused(entry.axis)
    elif entry is None:
        entry = PlacementSpec.replica()
    elif isinstance(entry, int) and not isinstance(entry, bool):
        entry = PlacementSpec.fused(entry)
    if not isinstance(entry, PlacementSpec) or entry.is_partial:
        msg = f"expected 'R', None, 'S[axis]', an axis or a PlacementSpec, got {entry!r}"
        raise ConfigError(msg)
    return entry


def read_expected(expect: object) -> Expected | None:
    """Checks a program's list of the tensors that it needs.

    Raises:
        ConfigError: It is no mapping of names to shapes or None.
    """
    if expect is None:
        return None
    if not isinstance(expect, Mapping):
        msg = f"expected a mapping of names to shapes, got {expect!r}"
        raise ConfigError(msg)
    read: dict[str, tuple[int, ...] | None] = {}
    for name, shape in cast("Mapping[object, Any]", expect).items():
        if not isinstance(name, str):
            msg = f"expected the name of a tensor, got {name!r}"
            raise ConfigError(msg)
        try:
            read[name] = None if shape is None else extents_of(shape)
        except (TypeError, ValueError) as error:
            msg = f"expect[{name!r}]: {error}"
            raise ConfigError(msg) from None
    return read


def read_catalog(catalog: Mapping[str, Any], first: int = 0) -> list[StoredTensor]:
    """Parses what a worker reports of its files, from their tensor number ``first`` on."""
    columns = [catalog[key] for key in ("names", "shapes", "dtypes", "stored", "nbytes", "same_as")]
    # Workers of older releases do not say this.
    columns.append(catalog.get("blocks") or [(0, 0)] * len(columns[0]))
    return [
        StoredTensor(index, name, tuple(shape), dtype, stored, nbytes, same_as, tuple(block))
        for index, (name, shape, dtype, stored, nbytes, same_as, block) in enumerate(
            zip(*columns, strict=True), first
        )
    ]


def choose(
    path: str,
    tensors: Sequence[StoredTensor],
    plan: WeightPlan,
    expected: Expected | None,
    *,
    strict: bool,
    mesh: DeviceMesh,
    dtype: str = "",
    keep_blocks: Collection[str] = (),
) -> list[Chosen]:
    """Decides what is loaded and how it is split, and finds everything that is wrong.

    Args:
        path: Of the files, for the error.
        tensors: What they hold.
        plan: How to split it.
        expected: What the program needs; None if it does not say.
        strict: Whether rules without a tensor and tensors without a rule are wrong.
        mesh: The workers that will hold them; along its last axis a tensor is split.
        dtype: What tensors of floating-point numbers become; empty for what they are.
        keep_blocks: Formats of blocks: tensors that are stored so become the bytes of their parts,
            where no block is cut.

    Raises:
        WeightsMismatch: Something is; the error names all of it.
    """
    problems = list(_absent(tensors, expected))
    rules = [plan.find(tensor.name) for tensor in tensors]
    if strict:
        problems += _unused(plan, tensors, rules, expected or {})
    chosen: list[Chosen] = []
    surplus: dict[str, str] = {}
    for tensor, rule in zip(tensors, rules, strict=True):
        if rule is not None and rule.skip:
            if expected is not None and tensor.name in expected:
                problems.append(f"{tensor.name}: expected, but plan[{rule.pattern!r}] skips it")
            continue
        if expected is not None and tensor.name not in expected:
            surplus[tensor.name] = "it is not among the expected tensors"
        elif rule is None:
            surplus[tensor.name] = _UNMATCHED
        else:
            try:
                placed = _place(tensor, rule, expected or {}, mesh, dtype)
                kept = _in_blocks(placed) if tensor.stored in keep_blocks else None
                chosen.append(kept or placed)
            except ConfigError as error:
                problems.append(str(error))
            continue
        if not strict and expected is not None and tensor.name in expected:
            problems.append(f"{tensor.name}: expected, but {_UNMATCHED}")
    if strict:
        # A tensor with several names needs one of them in the plan.
        spare = {tensor.name for tensor in tensors if tensor.same_as}
        spare |= {each.tensor.same_as for each in chosen}
        problems += (
            f"{name}: surplus, {why}"
            for name, why in surplus.items()
            if name not in spare or name in (expected or {})
        )
    if problems:
        raise WeightsMismatch(_describe(path, problems), problems=problems)
    return chosen


def _absent(tensors: Sequence[StoredTensor], expected: Expected | None) -> Iterator[str]:
    present = {tensor.name for tensor in tensors}
    missing = sorted(set(expected or ()) - present)
    for place, name in enumerate(missing):
        hint = _near(name, present) if place < _SUGGESTED else ""
        yield f"{name}: missing, the files do not hold it{hint}"


def _unused(
    plan: WeightPlan,
    tensors: Sequence[StoredTensor],
    rules: Sequence[_PatternRule | None],
    expected: Expected,
) -> Iterator[str]:
    """The errors of rules of the plan that apply to no tensor, but for what was missed already."""
    used = {id(rule) for rule in rules}
    names = [tensor.name for tensor in tensors]
    missed = expected.keys() - names
    suggested = 0
    for rule in plan.rules:
        if id(rule) in used or rule.pattern == "*" or rule.pattern in missed:
            continue
        taken = next((name for name in names if _covers(rule, name)), None)
        if taken is not None:
            yield f"plan[{rule.pattern!r}]: unused, earlier patterns match all that it does"
        elif not rule.skip:  # what is not there is left out
            suggested += 1
            hint = _near(rule.pattern, names) if suggested <= _SUGGESTED else ""
            yield f"plan[{rule.pattern!r}]: missing, the files hold no such tensor{hint}"


def _place(
    tensor: StoredTensor, rule: _PatternRule, expected: Expected, mesh: DeviceMesh, dtype: str
) -> Chosen:
    """Decides the placement of a tensor.

    Raises:
        ConfigError: It is not what was expected, or does not fit the rule.
    """
    shape = expected.get(tensor.name)
    if shape is not None and shape != tensor.shape:
        raise ConfigError(
            f"{tensor.name}: expected shape {list(shape)}, the file has {list(tensor.shape)}"
        )
    if not tensor.dtype:
        raise ConfigError(
            f"{tensor.name}: no array can have its dtype {tensor.stored}; 'skip' leaves it out"
        )
    held = dtype if dtype and is_floating(tensor.dtype) else tensor.dtype
    specs = [PlacementSpec.replica()] * (mesh.ndim - 1) + [rule.spec]
    try:
        info = DTensorStructInfo(TensorStructInfo(tensor.shape, held), mesh, Placement(specs))
    except ConfigError as error:
        raise ConfigError(
            f"{tensor.name}: {tensor.stored}{list(tensor.shape)} does not fit "
            f"plan[{rule.pattern!r}] = {rule.spec}: {error}"
        ) from None
    return Chosen(tensor, info)


def _in_blocks(chosen: Chosen) -> Chosen | None:
    """The same parts of the bytes of a tensor that is stored in blocks; None where one is cut."""
    tensor, info = chosen
    numbers, nbytes = tensor.block
    shape = (*tensor.shape[:-1], tensor.shape[-1] // numbers * nbytes)
    placement = info.placement
    if chosen.axis == len(shape) - 1:
        parts = [info.pieces(place)[-1] for place in range(info.device_mesh.shape[-1])]
        if any(at % numbers for part in parts for piece in part for at in piece):
            return None
        scaled = [
            [(start // numbers * nbytes, stop // numbers * nbytes) for start, stop in part]
            for part in parts
        ]
        specs = placement.dim_specs
        placement = Placement([*specs[:-1], PlacementSpec.explicit(len(shape) - 1, scaled)])
    sinfo = TensorStructInfo(shape, "uint8")
    return Chosen(tensor, DTensorStructInfo(sinfo, info.device_mesh, placement))


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return f"; did you mean {close[0]!r}?" if close else ""


def _describe(path: str, problems: Sequence[str]) -> str:
    count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
    lines = [f"{path}: {count}, nothing was loaded"]
    lines += [f"  {problem}" for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"  ... and {len(problems) - _SHOWN} more, see the error's `problems`")
    if any(_UNMATCHED in problem for problem in problems):
        lines.append(
            "  an entry '*': 'R' at the plan's end replicates the rest, 'skip' leaves it out"
        )
    return "\n".join(lines)


# ``session.load_weights``: each worker reads its own parts of a model's files.


@spanned("disco.load_weights")
def load_weights(  # noqa: PLR0913  (those of the session, and its engine)
    core: SessionCore,
    path: str | os.PathLike[str],
    plan: Mapping[str, str | int | PlacementSpec | None],
    engine: Computing,
    *,
    dtype: object = None,
    expect: Mapping[str, Sequence[int] | None] | None = None,
    strict: bool = True,
    in_group: bool = True,
    keep_blocks: Collection[str] = (),
    progress: bool | None = None,
) -> dict[str, DTensor]:
    """Loads a model's tensors; see ``Session.load_weights``."""
    rules, expected, kind = WeightPlan(plan), read_expected(expect), _float_name(dtype)
    kept = _read_formats(keep_blocks)
    where = whole_path(path)
    groups = core.num_groups if in_group else 1
    shape = (groups, core.num_workers // groups) if groups > 1 else (core.num_workers,)
    mesh = DeviceMesh(shape, range(core.num_workers))
    opened = core.call_builtin("runtime.disco._weights_open", where)
    core.sync()
    tensors, fingerprint = _fetch_catalog(core, opened)
    chosen = choose(
        where,
        tensors,
        rules,
        expected,
        strict=strict,
        mesh=mesh,
        dtype=kind,
        keep_blocks=kept,
    )
    core.call_builtin("runtime.disco._weights_check", opened, fingerprint)
    core.sync()
    loaded: dict[str, DTensor] = {}
    with (
        progress_bar(
            core, "load_weights", where, sum(each.tensor.nbytes for each in chosen), progress
        ) as bar,
        UnderWay(core, bar.update) as under_way,
    ):
        for some in batches([each.nbytes for each in chosen]):
            batch = [chosen[number] for number in some]
            stay = Shape(each.tensor.index for each in batch if each.in_blocks)
            # Workers of older releases know nothing of the last one.
            asked = opened, *_requests(batch), kind, *([stay] if stay else [])
            read = core.call_builtin("runtime.disco._weights_read", *asked)
            for place, each in enumerate(batch):
                item = core.call_builtin("runtime.disco._weights_item", read, place)
                name = each.tensor.name
                loaded[name] = DTensor(engine, each.info, item, Origin("load_weights"), name)
            under_way.add(sum(each.tensor.nbytes for each in batch))
    return loaded


def _requests(batch: Sequence[Chosen]) -> tuple[list[Shape], list[list[Shape]]]:
    """The request for workers: each tensor's position and number of a layout, and the layouts.

    Those of most tensors are alike: each is described once.
    """
    wanted: list[Shape] = []
    numbers: dict[object, int] = {}
    layouts: list[list[Shape]] = []
    for each in batch:
        if each.axis is None:
            wanted.append(Shape((each.tensor.index,)))
            continue
        key = (each.info.placement, each.info.tensor_sinfo.shape[each.axis])
        if key not in numbers:
            numbers[key] = len(layouts)
            layouts.append(each.layout())
        wanted.append(Shape((each.tensor.index, numbers[key])))
    return wanted, layouts


def _fetch_catalog(core: SessionCore, opened: DRef) -> tuple[list[StoredTensor], str]:
    """Asks worker 0 what its files hold; returns that and the files' fingerprint."""
    tensors: list[StoredTensor] = []
    while True:
        first = len(tensors)
        page = core.call_builtin("runtime.disco._weights_catalog", opened, first)
        facts: dict[str, Any] = page.debug_get_from_remote(0)
        tensors += read_catalog(facts, first)
        if len(tensors) == facts["total"] or len(tensors) == first:
            return tensors, facts["fingerprint"]


def _read_formats(keep_blocks: object) -> frozenset[str]:
    """Checks which formats of blocks are to stay.

    Raises:
        ConfigError: They are no names.
    """
    fine = isinstance(keep_blocks, Collection) and not isinstance(keep_blocks, str)
    names = list(cast("Collection[object]", keep_blocks)) if fine else []
    if not fine or not all(isinstance(name, str) for name in names):
        msg = "expected formats of blocks such as ('Q4_1', 'Q8_0') in keep_blocks, got "
        raise ConfigError(f"{msg}{keep_blocks!r}")
    return frozenset(cast("list[str]", names))


def _float_name(dtype: object) -> str:
    """The name of a dtype of floating-point numbers; empty for None.

    Raises:
        ConfigError: It is none.
    """
    if dtype is None:
        return ""
    # Names of ml_dtypes need that package on the workers only.
    extension = isinstance(dtype, str) and dtype.startswith(("bfloat", "float8"))
    name = dtype if isinstance(dtype, str) and extension else dtype_name(dtype_from_name(dtype))
    if not is_floating(name):
        msg = f"expected a floating-point dtype, got {name!r}"
        raise ConfigError(msg)
    return name
