"""Reads from a model's files what sets it apart: windows, scales and caps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from llm.fields import ModelError, positive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llm.families import Family
    from llm.rope import Turning
    from llm.traits import Traits

__all__ = ["read_gguf_traits", "read_json_traits", "said_of"]

_FULL, _NEAR = "full_attention", "sliding_attention"


def said_of(said: Mapping[str, Any], family: Family, name: str) -> Any:
    """A field of a ``config.json``; where it is not there, what the family takes for it."""
    return said[name] if name in said else family.saying.missing.get(name)


def read_json_traits(
    path: Path, said: Mapping[str, Any], family: Family, turning: Turning
) -> Traits:
    """What a ``config.json`` says of windows, scales and caps.

    Args:
        path: The file.
        said: What it says, whose fields are checked.
        family: That of the model.
        turning: Its rotary positions.

    Raises:
        ModelError: A field is no number, or layers see a window without a width.
        KeyError: A field is not there.
    """
    layers, width = said["num_hidden_layers"], said["hidden_size"]
    # Where the field of use is not served, there is none, and a window is used.
    used = said_of(said, family, "use_sliding_window")
    if not isinstance(used, bool | None):
        raise ModelError(f"{path} has use_sliding_window = {used!r}; expected true or false.")
    window = None if used is False else said_of(said, family, "sliding_window")
    kinds = said.get("layer_types") if "layer_types" in family.saying.served else None
    if kinds is not None:
        local = _named(path, kinds, layers)
    else:
        first = int(said_of(said, family, "max_window_layers") or 0)
        name = "sliding_window_pattern"
        period = family.period if said.get(name) is None else int(positive(path, name, said[name]))
        local = () if window is None and not family.period else _rule(family, layers, first, period)
    scaled_by = said_of(said, family, "query_pre_attn_scalar")
    caps = [
        0.0 if (cap := said_of(said, family, name)) is None else positive(path, name, cap)
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    ]
    return dataclasses.replace(
        family.traits,
        window=int(positive(path, "sliding_window", window)) if local else 0,
        local=local,
        local_rope=turning.local,
        embedding_scale=width**0.5 if family.root_scale else 1.0,
        attention_scale=(
            0.0 if scaled_by is None else positive(path, "query_pre_attn_scalar", scaled_by) ** -0.5
        ),
        attention_cap=caps[0],
        logit_cap=caps[1],
    )


def _rule(family: Family, layers: int, first: int, period: int) -> tuple[int, ...]:
    """The layers that see a window where no file names them."""
    if family.windows == "period":
        return tuple(layer for layer in range(layers) if (layer + 1) % period)
    return tuple(range(first if family.windows == "late" else 0, layers))


def _named(path: Path, kinds: object, layers: int) -> tuple[int, ...]:
    listed = cast("list[Any]", kinds) if isinstance(kinds, list) else []
    if len(listed) != layers or any(each not in (_FULL, _NEAR) for each in listed):
        raise ModelError(
            f"{path} has layer_types = {kinds!r:.80}, which this example does not compute; "
            f"expected {_FULL!r} or {_NEAR!r} of each of {layers} layers."
        )
    return tuple(layer for layer, kind in enumerate(listed) if kind == _NEAR)


def read_gguf_traits(
    path: Path, said: Mapping[str, Any], family: Family, turning: Turning
) -> Traits:
    """What the metadata of a GGUF file say of the same; what they do not say is as in llama.cpp.

    Args:
        path: The file.
        said: Its metadata, which are checked.
        family: That of the model.
        turning: Its rotary positions.

    Raises:
        ModelError: A field is no number.
        KeyError: A field is not there.
    """

    def of_model(name: str, usual: Any) -> Any:
        return said.get(f"{family.architecture}.{name}", usual)

    layers, width = of_model("block_count", 0), of_model("embedding_length", 0)
    window = of_model("attention.sliding_window", 0)
    if not isinstance(window, int) or isinstance(window, bool) or window < 0:
        raise ModelError(
            f"{path} has {family.architecture}.attention.sliding_window = {window!r}; expected a "
            "number from 0 on."
        )
    local: tuple[int, ...] = ()
    if window:
        pattern = of_model("attention.sliding_window_pattern", family.period)
        local = _patterned(path, family, layers, pattern)
    caps = [
        0.0 if cap == 0 else positive(path, f"{family.architecture}.{name}", cap)
        for name, cap in (
            (name, of_model(name, usual))
            for name, usual in (
                ("attn_logit_softcapping", family.traits.attention_cap),
                ("final_logit_softcapping", family.traits.logit_cap),
            )
        )
    ]
    wide = family.wide_layers and family.wide_layers == layers
    return dataclasses.replace(
        family.traits,
        window=window if local else 0,
        local=local,
        local_rope=turning.local,
        norm_offset=0.0,
        embedding_scale=width**0.5 if family.root_scale else 1.0,
        attention_scale=(width // of_model("attention.head_count", 1)) ** -0.5 if wide else 0.0,
        attention_cap=caps[0],
        logit_cap=caps[1],
    )


def _patterned(path: Path, family: Family, layers: int, pattern: object) -> tuple[int, ...]:
    """The layers that see a window, by a period or by one flag a layer."""
    if isinstance(pattern, list):
        flags = cast("list[object]", pattern)
        if len(flags) == layers and all(isinstance(flag, bool) for flag in flags):
            return tuple(layer for layer, flag in enumerate(flags) if flag)
    elif isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 0:
        return _rule(family, layers, 0, pattern or layers + 1)
    raise ModelError(
        f"{path} has {family.architecture}.attention.sliding_window_pattern = {pattern!r:.80}; "
        f"expected a period, or true or false of each of {layers} layers."
    )
