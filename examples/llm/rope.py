"""How fast rotary positions turn where a model stretches them.

A pair of numbers of a head turns by ``base ** (-2 i / head)`` at each position. Models that were
trained further for longer texts divide these speeds: all by one factor, or the slow ones by more
than the fast ones (Llama 3.1). Whatever a file says of it becomes one divisor a pair.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from llm.fields import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["llama3_divisors", "read_gguf", "read_json"]

_BASE = 10000.0
_LARGEST = 1e30
_KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""The scalings that are served, and the numbers of each."""


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


def read_json(path: Path, said: Mapping[str, Any], head: int) -> tuple[float, tuple[float, ...]]:
    """Reads the positions of a ``config.json``: the base, and the divisors, none for 1.

    Newer releases of transformers write ``rope_parameters``, with the base in it, older ones
    ``rope_scaling`` and ``rope_theta``.

    Raises:
        ModelError: It is no scaling, or one that is not served.
    """
    older, newer = said.get("rope_scaling"), said.get("rope_parameters")
    name = "rope_scaling" if older else "rope_parameters"
    found: Any = older or newer or {}
    if older and newer and older != newer:
        raise ModelError(f"{path} has rope_scaling = {older!r} and rope_parameters = {newer!r}.")

    def refuse(why: str) -> ModelError:
        return ModelError(
            f"{path} has {name} = {found!r:.300}, which this example does not compute: {why}."
        )

    if not isinstance(found, dict):
        raise refuse("expected an object")
    fields = cast("dict[str, Any]", found)
    kinds = [fields[key] for key in ("rope_type", "type") if fields.get(key) is not None]
    kind = kinds[0] if kinds else "default"
    if kinds[1:] not in ([], [kind]) or not isinstance(kind, str) or kind not in _KINDS:
        raise refuse(f"expected rope_type {', '.join(_KINDS)}")
    bases = (fields.get("rope_theta"), said.get("rope_theta"), _BASE)
    base = _number(path, "rope_theta", next(each for each in bases if each is not None))
    for key, value in fields.items():
        known = key in ("rope_type", "type", "rope_theta", *_KINDS[kind])
        neutral = key == "original_max_position_embeddings" or (
            key == "partial_rotary_factor" and value == 1
        )
        if value is not None and not known and not neutral:
            raise refuse(f"{key} is not served for rope_type {kind!r}")
    missing = [key for key in _KINDS[kind] if fields.get(key) is None]
    if missing:
        raise refuse(f"expected {', '.join(missing)}")
    numbers = [_number(path, f"{name}.{key}", fields[key]) for key in _KINDS[kind]]
    if kind == "default":
        return base, ()
    factor, *others = numbers
    if not others:
        return base, _all(factor, head)
    low, high, context = others
    if low >= high:
        raise refuse("expected a high_freq_factor above low_freq_factor")
    return base, llama3_divisors(base, head, factor=factor, low=low, high=high, context=context)


def read_gguf(
    path: Path, said: Mapping[str, Any], own: Sequence[float] | None, head: int
) -> tuple[float, tuple[float, ...]]:
    """Reads the positions of a GGUF file, as `read_json`.

    Args:
        path: The file.
        said: Its metadata.
        own: The tensor ``rope_freqs.weight``, which has the divisors of Llama 3.1; None for none.
        head: The width of a head.

    Raises:
        ModelError: It is no scaling, or one that is not served.
    """
    base = _number(path, "llama.rope.freq_base", said.get("llama.rope.freq_base", _BASE))
    kind = said.get("llama.rope.scaling.type") or "linear"
    if kind not in ("none", "linear"):
        raise ModelError(
            f"{path} has llama.rope.scaling.type = {kind!r}, which this example does not compute; "
            "expected 'none' or 'linear'."
        )
    divisors: tuple[float, ...] = ()
    # The second one is the older name; 0 is none.
    for name in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
        if kind == "linear" and said.get(name) is not None:
            divisors = _all(_number(path, name, said[name]), head) if said[name] != 0 else ()
            break
    if own is None:
        return base, divisors
    if len(own) != head // 2 or not all(0 < each < math.inf for each in own):
        raise ModelError(
            f"{path} has rope_freqs.weight with {len(own)} numbers; expected {head // 2} above 0."
        )
    return base, tuple(
        each * other for each, other in zip(own, divisors or _all(1.0, head), strict=True)
    )


def _all(factor: float, head: int) -> tuple[float, ...]:
    return (factor,) * (head // 2)


def _number(path: Path, name: str, value: object) -> float:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if not 0 < number < _LARGEST:
        raise ModelError(f"{path} has {name} = {value!r:.80}; expected a number above 0.")
    return float(number)
