"""What a program wants of a model's files, against what they hold; decides, moves nothing."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from disco_client.errors import ConfigError, WeightsMismatch
from disco_client.wire.splits import Split, read_split
from disco_client.wire.values import Shape

__all__ = ["Chosen", "Plan", "StoredTensor", "batches", "choose", "read_catalog", "read_expected"]

SKIP = "skip"
"""The entry of tensors that are left out."""

_UNMATCHED = "no pattern of the plan matches it"
_SHOWN = 40
_SUGGESTED = 3
_BATCH_BYTES = 32 << 20
_BATCH_TENSORS = 256

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
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """A tensor that is to be loaded, and how; ``split`` is None for replicated."""

    tensor: StoredTensor
    split: Split | None

    def request(self) -> Shape:
        """What a worker is told: the place, and of a split the axis and the parts' extents."""
        shape, split = self.tensor.shape, self.split
        if split is None:
            return Shape((self.tensor.index,))
        axis = split.axis_of(shape)
        return Shape((self.tensor.index, axis, *split.sizes_of(shape[axis])))


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: str
    match: re.Pattern[str]
    skip: bool
    split: Split | None


class Plan:
    """Patterns of names, and how the tensors that they match are split.

    Args:
        entries: Names or patterns (``*``, ``?``, ``[...]`` as in file names, dots
            included) with ``"R"``, None, ``"S[axis]"``, an axis, a
            :class:`~disco_client.Split` or ``"skip"``. The first match counts.

    Raises:
        ConfigError: They are no mapping of these.
    """

    def __init__(self, entries: Mapping[str, object]) -> None:
        if not isinstance(entries, Mapping):
            msg = f"expected a plan such as {{'*.weight': 'S[0]', '*': 'R'}}, got {entries!r}"
            raise ConfigError(msg)
        self.rules = [_read_rule(pattern, entry) for pattern, entry in entries.items()]

    def find(self, name: str) -> _Rule | None:
        """The first rule that covers a name."""
        return next((rule for rule in self.rules if _covers(rule, name)), None)


def _covers(rule: _Rule, name: str) -> bool:
    return rule.pattern == name or rule.match.match(name) is not None


def _read_rule(pattern: object, entry: object) -> _Rule:
    if not isinstance(pattern, str):
        msg = f"expected names or patterns of tensors in the plan, got {pattern!r}"
        raise ConfigError(msg)
    skip = isinstance(entry, str) and entry.strip() == SKIP
    try:
        split = None if skip else read_split(entry)
    except ConfigError as error:
        msg = f"plan[{pattern!r}]: {error}; 'skip' leaves tensors out"
        raise ConfigError(msg) from None
    return _Rule(pattern, re.compile(fnmatch.translate(pattern)), skip, split)


def read_expected(expect: object) -> Expected | None:
    """Checks what a program says of the tensors it needs.

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
            read[name] = None if shape is None else Shape(shape)
        except (TypeError, ValueError) as error:
            msg = f"expect[{name!r}]: {error}"
            raise ConfigError(msg) from None
    return read


def read_catalog(catalog: Mapping[str, Any], first: int = 0) -> list[StoredTensor]:
    """Takes apart what a worker says of its files, from their tensor number ``first`` on."""
    columns = (catalog[key] for key in ("names", "shapes", "dtypes", "stored", "nbytes"))
    return [
        StoredTensor(index, name, tuple(shape), dtype, stored, nbytes)
        for index, (name, shape, dtype, stored, nbytes) in enumerate(
            zip(*columns, strict=True), first
        )
    ]


def choose(
    path: str,
    tensors: Sequence[StoredTensor],
    plan: Plan,
    expected: Expected | None,
    *,
    strict: bool,
    workers: int,
) -> list[Chosen]:
    """Decides what is loaded and how it is split, and finds everything that is wrong.

    Args:
        path: Of the files, for the error.
        tensors: What they hold.
        plan: How to split it.
        expected: What the program needs; None if it does not say.
        strict: Whether rules without a tensor and tensors without a rule are wrong.
        workers: Among how many a tensor is split.

    Raises:
        WeightsMismatch: Something is; the error names all of it.
    """
    problems = list(_absent(tensors, expected))
    rules = [plan.find(tensor.name) for tensor in tensors]
    if strict:
        problems += _unused(plan, tensors, rules)
    chosen: list[Chosen] = []
    for tensor, rule in zip(tensors, rules, strict=True):
        if rule is not None and rule.skip:
            if expected is not None and tensor.name in expected:
                problems.append(f"{tensor.name}: expected, but plan[{rule.pattern!r}] skips it")
            continue
        if expected is not None and tensor.name not in expected:
            surplus = f"{tensor.name}: surplus, it is not among the expected tensors"
        elif rule is None:
            surplus = f"{tensor.name}: surplus, {_UNMATCHED}"
        else:
            problems += _misfits(tensor, rule, expected or {}, workers)
            chosen.append(Chosen(tensor, rule.split))
            continue
        if strict:
            problems.append(surplus)
        elif expected is not None and tensor.name in expected:
            problems.append(f"{tensor.name}: expected, but {_UNMATCHED}")
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
    plan: Plan, tensors: Sequence[StoredTensor], rules: Sequence[_Rule | None]
) -> Iterator[str]:
    """What the plan says of tensors that are not there."""
    used = {id(rule) for rule in rules}
    names = [tensor.name for tensor in tensors]
    suggested = 0
    for rule in plan.rules:
        if id(rule) in used or rule.pattern == "*":
            continue
        taken = next((name for name in names if _covers(rule, name)), None)
        if taken is not None:
            yield f"plan[{rule.pattern!r}]: unused, earlier patterns match all that it does"
        else:
            suggested += 1
            hint = _near(rule.pattern, names) if suggested <= _SUGGESTED else ""
            yield f"plan[{rule.pattern!r}]: missing, the files hold no such tensor{hint}"


def _misfits(tensor: StoredTensor, rule: _Rule, expected: Expected, workers: int) -> Iterator[str]:
    shape = expected.get(tensor.name)
    if shape is not None and shape != tensor.shape:
        yield f"{tensor.name}: expected shape {list(shape)}, the file has {list(tensor.shape)}"
        return
    if not tensor.dtype:
        yield f"{tensor.name}: no array can have its dtype {tensor.stored}; 'skip' leaves it out"
    if rule.split is not None:
        try:
            rule.split.check(tensor.shape, workers)
        except ConfigError as error:
            yield (
                f"{tensor.name}: {tensor.stored}{list(tensor.shape)} does not fit "
                f"plan[{rule.pattern!r}] = {rule.split}: {error}"
            )


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


def batches(chosen: Iterable[Chosen], workers: int) -> Iterator[list[Chosen]]:
    """Cuts what is to be loaded into commands, bounded by bytes on a worker and by number."""
    batch: list[Chosen] = []
    held = 0
    for each in chosen:
        nbytes = each.tensor.nbytes // (1 if each.split is None else workers)
        if batch and (held + nbytes > _BATCH_BYTES or len(batch) == _BATCH_TENSORS):
            yield batch
            batch, held = [], 0
        batch.append(each)
        held += nbytes
    if batch:
        yield batch
