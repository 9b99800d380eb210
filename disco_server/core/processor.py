"""What the processor promises."""

from __future__ import annotations

import platform

__all__ = ["keeps_order"]


def keeps_order() -> bool:
    """Whether other processors see stores in the order in which they were made.

    x86 promises it (Intel SDM 3A, 8.2.2; AMD APM 2, 7.2).
    """
    return platform.machine().lower() in {"x86_64", "amd64", "i686"}
