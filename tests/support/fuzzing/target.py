"""What a decoder under test is, and what counts as a finding."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SLOWEST_S = 5.0
"""An input of a few KiB that takes more of a processor is a finding: nothing may hang."""

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


class Finding(Exception):
    """A decoder raised what it does not declare, or took too long."""


@dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        name: What tables call it.
        decode: Takes the bytes.
        errors: What it may raise.
        seeds: Makes inputs that it takes, to begin with.
    """

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]

    def corpus(self) -> list[bytes]:
        """The seeds, and the interesting inputs of earlier runs."""
        kept = sorted((CORPUS / self.name).glob("*"))
        return [*self.seeds(), *(file.read_bytes() for file in kept)]


def outcome(target: Target, data: bytes) -> str:
    """Decodes; returns what came of it, without what differs from input to input.

    Raises:
        Finding: It raised what it does not declare, or took too long.
    """
    began = time.process_time()
    try:
        result = target.decode(data)
        came = f"ok {type(result).__name__}"
    except target.errors as error:
        said = re.sub(r"'.*?'|\".*?\"|b'.*|\d+|\[.*|/\S+", "#", str(error))
        came = f"{type(error).__name__}: {said[:40]}"
    except Exception as error:
        msg = f"{target.name} raised {type(error).__name__}: {error} for {data[:200]!r}"
        raise Finding(msg) from error
    took = time.process_time() - began
    if took > SLOWEST_S:
        msg = f"{target.name} took {took:.1f} s for {data[:200]!r}"
        raise Finding(msg)
    return came
