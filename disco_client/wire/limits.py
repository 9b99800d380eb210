"""How much there may be of what both ends count; nothing is loaded for it."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_NAME", "MAX_WORKERS", "MOST_WORKERS"]

MAX_NAME: Final = 128
"""How many characters the name of a node or session may have."""

MAX_WORKERS: Final = 4096
"""How many workers a session may have, unless its controller's settings say otherwise."""

MOST_WORKERS: Final = 1 << 16
"""As many as those settings can allow."""
