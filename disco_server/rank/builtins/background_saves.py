"""The functions behind ``session.save(..., wait=False)``, besides those of any save."""

from __future__ import annotations

from typing import Any

from disco_server.observe.memory_limit import memory_room
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import register_func
from disco_server.storage.background_save import BackgroundSave

__all__: list[str] = []


@register_func("runtime.disco._save_memory")
def save_memory() -> list[int | None]:
    """How many bytes its machine has left for all, and this worker for itself; None: no limit."""
    return [*memory_room()]


@register_func("runtime.disco._save_status")
def save_status(save: Any) -> list[Any]:
    """How far this worker is: its state, and how many bytes are written."""
    checked = _checked(save)
    return [checked.state, checked.written]


@register_func("runtime.disco._save_join")
def save_join(save: Any, dropped: bool) -> None:
    """Waits until this worker has ended, which it mostly has; raises what has ended it.

    Args:
        save: The save.
        dropped: Whether that may be that its file was gone.
    """
    _checked(save).join(dropped=dropped)


def _checked(save: Any) -> BackgroundSave:
    if not isinstance(save, BackgroundSave):
        msg = f"expected a save in the background, got {type(save).__name__}"
        raise ArgumentRefused(msg)
    return save
