"""Embeds sentences with the same model as ``embed.py``, written with distributed tensors.

Where ``embed.py`` has a program for each worker, with an allreduce after each half of
a layer, this has one program for the whole model, in which no collective is named.
Reads one sentence a line from standard input::

    disco local --slots 4 -- python examples/embed_dtensor.py < examples/sentences.txt

Options and exit codes are those of ``embed.py``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from embedding.command import embed_command
from embedding.tensors import TensorEmbedder

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return embed_command("embed_dtensor", TensorEmbedder, arguments)


if __name__ == "__main__":
    sys.exit(main())
