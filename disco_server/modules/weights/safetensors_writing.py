"""The header of a safetensors file that is to be written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from disco_client.wire.values import dtype_name
from disco_server.modules.weights.safetensors_header import DTYPES, METADATA, PREFIX

__all__ = ["FileLayout", "lay_out", "stored_as"]

_WORDS = {name: word for word, (name, _) in DTYPES.items() if name}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file as it will be.

    Attributes:
        head: Its bytes before those of the tensors.
        offsets: Where each tensor's bytes begin, in the order in which they were given.
        nbytes: The size of the whole file.
    """

    head: bytes
    offsets: tuple[int, ...]
    nbytes: int


def stored_as(dtype: np.dtype[Any]) -> tuple[str, tuple[int, ...]]:
    """How elements of a dtype lie in a file: the format's word, and axes that come last.

    What the format has no word for is written as what an element consists of: complex
    numbers of 128 bits as pairs of F64, everything else as bytes.
    """
    word = _WORDS.get(dtype_name(dtype))
    if word is not None:
        return word, ()
    if dtype == np.complex128:
        return "F64", (2,)
    return "U8", (dtype.itemsize,)


def lay_out(
    tensors: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> FileLayout:
    """Decides where everything lies in a file; those of large elements come first.

    Args:
        tensors: Name, dtype and shape of each; all names are different.
        metadata: What the file says of itself.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    begins = [0] * len(tensors)
    at = 0
    for number in sorted(range(len(tensors)), key=lambda n: -tensors[n][1].itemsize):
        name, dtype, shape = tensors[number]
        word, more = stored_as(dtype)
        end = at + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": word, "shape": [*shape, *more], "data_offsets": [at, end]}
        begins[number], at = at, end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(PREFIX, "little") + text
    return FileLayout(head, tuple(len(head) + begin for begin in begins), len(head) + at)
