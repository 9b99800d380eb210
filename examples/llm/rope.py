"""How fast rotary positions turn where a model stretches them.

A pair of numbers of a head turns by ``base ** (-2 i / head)`` at each position. Models that were
trained further for longer texts divide these speeds: all by one factor, the slow ones by more
than the fast ones (Llama 3.1), or each by a number of its own (LongRoPE, Ding et al.,
arXiv:2402.13753). Whatever a file says of it becomes one divisor a pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from llm.fields import ModelError, positive
from llm.traits import Rope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llm.families import Family

__all__ = ["Turning", "llama3_divisors", "read_gguf", "read_json"]

_BASE = 10000.0
_OLD = "original_max_position_embeddings"
_LONG = ("short_factor", "long_factor")
_KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _OLD),
    "longrope": (_OLD,),
    "su": (_OLD,),
}
"""The scalings that are served, and the numbers of each; the last two are one by two names."""
_KINDS_OF_LAYERS = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Turning:
    """What a file says of rotary positions.

    Attributes:
        rope: Those of layers that see all positions.
        local: Those of layers that see a window; None for the same.
        context: The most positions for which they hold; None for all of the model's.
    """

    rope: Rope
    local: Rope | None = None
    context: int | None = None


def llama3_divisors(
    base: float, head: int, *, factor: float, low: float, high: float, context: float
) -> tuple[float, ...]:
    """The divisors of Llama 3.1 (``apply_scaling`` of meta-llama/llama-models, models/llama3).

    A pair that turns around in fewer than ``context / high`` positions keeps its speed; one that
    takes more than ``context / low`` is divided by the factor; between them both speeds are mixed.

    Args:
        base: Of the angles.
        head: The width of a head.
        factor: By how much the slow pairs are divided.
        low: ``low_freq_factor``.
        high: ``high_freq_factor``, larger.
        context: For how many positions the model was trained first.
    """
    divisors: list[float] = []
    for pair in range(head // 2):
        around = 2 * math.pi * base ** (2 * pair / head)
        if around < context / high:
            divisors.append(1.0)
        elif around > context / low:
            divisors.append(factor)
        else:
            fast = (context / around - low) / (high - low)
            divisors.append(1 / ((1 - fast) / factor + fast))
    return tuple(divisors)


# A folder ----------------------------------------------------------------------------------


def read_json(path: Path, said: Mapping[str, Any], head: int, family: Family) -> Turning:
    """Reads the positions of a ``config.json``.

    Newer releases of transformers write ``rope_parameters``, with the base in it, older ones
    ``rope_scaling`` and ``rope_theta``. Where layers that see a window have positions of their
    own, the newer ones write ``rope_parameters`` for each of both kinds of layers, the older ones
    ``rope_local_base_freq``.

    Raises:
        ModelError: It is no scaling, or one that is not served.
    """
    older, newer = said.get("rope_scaling"), said.get("rope_parameters")
    name = "rope_scaling" if older else "rope_parameters"
    found: Any = older or newer or {}
    if older and newer and older != newer:
        raise ModelError(f"{path} has rope_scaling = {older!r} and rope_parameters = {newer!r}.")
    usual = "rope_theta", said.get("rope_theta", family.saying.missing.get("rope_theta"))
    if family.local_base is None:
        return _Stretch(path, name, found, said, family).turning(head, usual)
    near: Any = {}
    if isinstance(found, dict) and found and found.keys() <= {*_KINDS_OF_LAYERS}:
        kinds = cast("dict[str, Any]", found)
        found, near = (cast("Any", kinds.get(kind) or {}) for kind in _KINDS_OF_LAYERS)
    far = _Stretch(path, name, found, said, family).turning(head, usual)
    usual = "rope_local_base_freq", said.get("rope_local_base_freq", family.local_base)
    local = _Stretch(path, f"{name}.{_KINDS_OF_LAYERS[1]}", near, said, family).turning(head, usual)
    return Turning(far.rope, local.rope)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One scaling of a ``config.json``.

    Attributes:
        path: The file.
        name: Its field.
        found: The value of that.
        said: All that the file says.
        family: The model's.
    """

    path: Path
    name: str
    found: Any
    said: Mapping[str, Any]
    family: Family

    def turning(self, head: int, usual: tuple[str, object]) -> Turning:
        """What it comes to for heads of a width, with a base that another field says."""
        fields = cast("dict[str, Any]", self.found)
        if not isinstance(fields, dict):
            raise self._refusal("expected an object")
        kinds = [fields[key] for key in ("rope_type", "type") if fields.get(key) is not None]
        kind = kinds[0] if kinds else "default"
        known = self.family.saying.rope
        if kinds[1:] not in ([], [kind]) or not isinstance(kind, str) or kind not in known:
            raise self._refusal(f"expected rope_type {', '.join(known)}")
        bases = (("rope_theta", fields.get("rope_theta")), usual, ("rope_theta", _BASE))
        base = positive(self.path, *next(each for each in bases if each[1] is not None))
        part = self._part(fields)
        self._check_names(fields, kind)
        turned = int(head * part)
        rope = Rope(base, turned=turned if part < 1 else 0)
        if kind in ("longrope", "su"):
            return self._long(fields, rope, turned)
        missing = [key for key in _KINDS[kind] if fields.get(key) is None]
        if missing:
            raise self._refusal(f"expected {', '.join(missing)}")
        numbers = [positive(self.path, f"{self.name}.{key}", fields[key]) for key in _KINDS[kind]]
        return Turning(Rope(base, self._divisors(numbers, base, turned), rope.turned))

    def _divisors(self, numbers: list[float], base: float, turned: int) -> tuple[float, ...]:
        if not numbers:
            return ()
        factor, *others = numbers
        if not others:
            return _all(factor, turned)
        low, high, context = others
        if low >= high:
            raise self._refusal("expected a high_freq_factor above low_freq_factor")
        return llama3_divisors(base, turned, factor=factor, low=low, high=high, context=context)

    def _part(self, fields: dict[str, Any]) -> float:
        """Which part of a head turns."""
        if "partial_rotary_factor" not in self.family.saying.served:
            return 1.0  # what another value of it does, other checks say
        name = "partial_rotary_factor"
        values = (fields.get(name), self.said.get(name), 1.0)
        part = positive(self.path, name, next(each for each in values if each is not None))
        if part > 1:
            raise ModelError(f"{self.path} has {name} = {part}; expected at most 1.")
        return part

    def _check_names(self, fields: dict[str, Any], kind: str) -> None:
        extra = (*_LONG, "factor", "attention_factor") if kind in ("longrope", "su") else ()
        served = "partial_rotary_factor" in self.family.saying.served
        for key, value in fields.items():
            known = key in ("rope_type", "type", "rope_theta", *_KINDS[kind], *extra)
            neutral = key == _OLD or (key == "partial_rotary_factor" and (served or value == 1))
            if value is not None and not known and not neutral:
                raise self._refusal(f"{key} is not served for rope_type {kind!r}")

    def _long(self, fields: dict[str, Any], rope: Rope, turned: int) -> Turning:
        """LongRoPE, for as many positions as the short divisors are for.

        A longer text takes the long ones for all its positions, so the keys of its beginning
        would have to be computed again.
        """
        old = positive(self.path, f"{self.name}.{_OLD}", fields.get(_OLD) or self.said.get(_OLD))
        divisors: list[tuple[float, ...]] = []
        for key in _LONG:
            numbers = fields.get(key)
            if not isinstance(numbers, list) or len(numbers) != turned // 2:  # pyright: ignore[reportUnknownArgumentType]
                raise self._refusal(f"expected {turned // 2} numbers as {key}")
            each = cast("list[Any]", numbers)
            divisors.append(tuple(positive(self.path, f"{self.name}.{key}", one) for one in each))
        scale, factor = fields.get("attention_factor"), fields.get("factor")
        if factor is None:
            factor = positive(
                self.path, "max_position_embeddings", self.said.get("max_position_embeddings")
            )
            factor /= old
        if scale is None:
            factor = positive(self.path, f"{self.name}.factor", factor)
            scale = math.sqrt(1 + math.log(factor) / math.log(old)) if factor > 1 else 1.0
        scale = positive(self.path, f"{self.name}.attention_factor", scale)
        return Turning(Rope(rope.base, divisors[0], rope.turned, scale), context=int(old))

    def _refusal(self, why: str) -> ModelError:
        return ModelError(
            f"{self.path} has {self.name} = {self.found!r:.300}, which this example does not "
            f"compute: {why}."
        )


# A GGUF file -------------------------------------------------------------------------------


def read_gguf(
    path: Path,
    said: Mapping[str, Any],
    own: Mapping[str, Sequence[float]],
    head: int,
    family: Family,
) -> Turning:
    """Reads the positions of a GGUF file, as `read_json`.

    Args:
        path: The file.
        said: Its metadata.
        own: The tensors of it that have divisors: ``rope_freqs.weight`` those of Llama 3.1,
            ``rope_factors_short.weight`` those of LongRoPE.
        head: The width of a head.
        family: That of the model.

    Raises:
        ModelError: It is no scaling, or one that is not served.
    """
    before = f"{family.architecture}.rope"
    base = positive(path, f"{before}.freq_base", said.get(f"{before}.freq_base", _BASE))
    turned = _turned(path, f"{before}.dimension_count", said, head, family)
    long = "longrope" in family.saying.rope
    kind = said.get(f"{before}.scaling.type") or "linear"
    kinds = ("none", "linear", "longrope") if long else ("none", "linear")
    if kind not in kinds:
        raise ModelError(
            f"{path} has {before}.scaling.type = {kind!r}, which this example does not compute; "
            f"expected {' or '.join(map(repr, kinds))}."
        )
    divisors: tuple[float, ...] = ()
    # The second one is the older name; 0 is none.
    for name in (f"{before}.scaling.factor", f"{before}.scale_linear"):
        if kind == "linear" and said.get(name) is not None:
            divisors = _all(positive(path, name, said[name]), turned) if said[name] != 0 else ()
            break
    context, scale = None, 1.0
    for name, factors in own.items():
        divisors = _times(path, name, factors, divisors or _all(1.0, turned))
        if name == "rope_factors_short.weight":
            key = f"{before}.scaling.original_context_length"
            context = int(positive(path, key, said.get(key)))
            key = f"{before}.scaling.attn_factor"
            scale = positive(path, key, said.get(key, 1.0))
    rope = Rope(base, divisors, turned if turned < head else 0, scale)
    if family.local_base is None:
        return Turning(rope, context=context)
    name = f"{before}.freq_base_swa"
    return Turning(rope, Rope(positive(path, name, said.get(name, family.local_base))), context)


def _turned(path: Path, name: str, said: Mapping[str, Any], head: int, family: Family) -> int:
    """How many numbers of a head turn."""
    turned = said.get(name, head)
    parts = "partial_rotary_factor" in family.saying.served
    if turned != head and not (parts and isinstance(turned, int) and 0 < turned < head):
        raise ModelError(f"{path} has {name} = {turned!r}; expected {head}, of all heads.")
    return turned


def _times(
    path: Path, name: str, factors: Sequence[float], divisors: tuple[float, ...]
) -> tuple[float, ...]:
    if len(factors) != len(divisors) or not all(0 < each < math.inf for each in factors):
        raise ModelError(
            f"{path} has {name} with {len(factors)} numbers; expected {len(divisors)} above 0."
        )
    return tuple(each * other for each, other in zip(factors, divisors, strict=True))


def _all(factor: float, turned: int) -> tuple[float, ...]:
    return (factor,) * (turned // 2)
