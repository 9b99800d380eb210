"""Embeds sentences with a language model that is split over the workers of a session.

Reads one sentence a line from standard input::

    disco local --nodes 2 --slots 2 -- python examples/embed.py --workers 4 < examples/sentences.txt
    python examples/embed.py --workers 2 --device cuda < examples/sentences.txt

Exit codes: 0, or 1 where a cluster failed or a check did, or 2 where the input,
the model, the number of workers or the device was refused.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from embedding.command import embed_command
from embedding.embedder import Embedder

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return embed_command("embed", Embedder, arguments)


if __name__ == "__main__":
    sys.exit(main())
