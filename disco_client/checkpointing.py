"""``session.checkpoint``: state of lost workers is read again, rather than computed again."""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_client.bulk_io import progress_bar, whole_path
from disco_client.call_sites import locate
from disco_client.errors import ConfigError, EncodingError, RemoteError, SessionError
from disco_client.reentry import import_uninterrupted
from disco_client.telemetry.spans import spanned
from disco_client.wire.codec import Action, EncodedCommand
from disco_client.wire.values import Shape, dtype_from_name

if TYPE_CHECKING:
    import os

    from disco_client.core import DRef, SessionCore
    from disco_client.errors import Recovery
    from disco_client.recovery.replay import Replaying

__all__ = ["checkpoint", "is_replaying", "recoveries"]

_ATTEMPTS = 3
_PAGE = 512
_STEPS = ("begin", "describe", "start", "finish", "commit", "close")
_OWN = ("take", "kinds", "seal", "facts", "write", "check", "remove")
_RESTORE = "runtime.disco._snapshot_restore"


class _Former:
    """The checkpoints that a session has made so far.

    Attributes:
        count: How many.
        folder: Of the last one; empty where there is none.
    """

    def __init__(self, core: SessionCore) -> None:
        del core
        self.count = 0
        self.folder = ""


def is_replaying(core: SessionCore) -> bool:
    """Whether the session continues with other workers if some are lost."""
    return core.replaying is not None


def recoveries(core: SessionCore) -> tuple[Recovery, ...]:
    """The recoveries of the session with other workers, in order."""
    import_uninterrupted("disco_client.recovery.base")
    from disco_client.recovery.base import Recovering

    return core.transport.recoveries if isinstance(core.transport, Recovering) else ()


@spanned("disco.checkpoint")
def checkpoint(core: SessionCore, path: str | os.PathLike[str]) -> None:
    """Saves what the workers hold; see ``Session.checkpoint``."""
    where = whole_path(path)
    core.log.check_open()
    replaying = core.replaying
    if replaying is None:
        raise ConfigError(
            "this session does not do again what lost workers have done, so it needs no"
            " checkpoint; open it with disco_client.connect(..., recover='replay'), or save"
            " tensors with session.save"
        )
    import_uninterrupted("disco_client.saving").check_no_saving(core)
    core.sync()
    replaying.check_can_prune()
    for name in (*(f"save_{step}" for step in _STEPS), *(f"snapshot_{step}" for step in _OWN)):
        core.builtin(f"runtime.disco._{name}")
    for attempt in range(1, _ATTEMPTS + 1):
        before = len(replaying.recoveries)
        try:
            with core.log.alone():
                _try_to_save(core, replaying, where)
        except RemoteError:
            # Was some of it done twice, because workers were lost meanwhile?
            if attempt == _ATTEMPTS or len(replaying.recoveries) == before:
                raise
        else:
            return


def _try_to_save(core: SessionCore, replaying: Replaying, where: str) -> None:
    try:
        _save_all(core, replaying, where)
    except BaseException as error:
        # Else who keeps the error keeps what workers hold for this checkpoint, which no other
        # one could save.
        clear_frames(error.__traceback__)
        raise


def _save_all(core: SessionCore, replaying: Replaying, where: str) -> None:
    core.sync()  # also releases registers without references
    made_before = core.part(_Former)
    made_before.count += 1
    folder = f"{where}/{core.session_id}-{made_before.count}"
    numbers = np.asarray(sorted(core.log.live_registers()), np.uint32)
    taken = _snapshot(core, "take", numbers)
    made, names = _find_made(core, replaying, taken, numbers)
    _snapshot(core, "seal", taken, np.asarray(sorted(made), np.uint32), sorted(names))
    begun = _save(core, "begin", folder, f"generation-{secrets.token_hex(8)}")
    try:
        core.sync()
        fingerprint = _write(core, taken, begun, folder)
    except BaseException:
        with suppress(RemoteError, SessionError):
            _save(core, "close", begun)
            core.sync()
        raise
    del begun, taken
    core.sync()
    last = core.log.last_seq
    live = core.log.live_registers()
    high = core.log.registers.high_water
    restore = _restore(last, high, folder, fingerprint)
    restore[-1][1].released.extend(int(n) for n in numbers if int(n) not in live)
    replaying.prune([int(n) for n in numbers if int(n) in made], names, live, restore, last)
    former, made_before.folder = made_before.folder, folder
    if former:
        _snapshot(core, "remove", former)
        core.sync()  # its disk space is free from now on


def _snapshot(core: SessionCore, step: str, *args: object) -> DRef:
    return core.call_now(f"runtime.disco._snapshot_{step}", *args)


def _save(core: SessionCore, step: str, *args: object) -> DRef:
    return core.call_now(f"runtime.disco._save_{step}", *args)


def _find_made(
    core: SessionCore, replaying: Replaying, taken: DRef, numbers: np.ndarray[Any, Any]
) -> tuple[set[int], set[str]]:
    """Asks the workers what cannot be saved as it is: registers, and published names."""
    made: set[int] = set()
    names: set[str] = set()
    kinds = core.get_all(_snapshot(core, "kinds", taken), range(core.num_workers))
    for worker, found in enumerate(kinds):
        for place, kind in found["refused"]:
            what = f"what is published as {place!r}"
            if isinstance(place, int):
                what = _what(core, replaying, int(numbers[place]))
            raise EncodingError(
                f"cannot save the session: {what} is an object of type {kind} on"
                f" worker {worker}; let it go, keep what it consists of as arrays, or give its"
                " class __disco_state__ and __disco_load__"
            )
        made.update(int(numbers[place]) for place in found["made"])
        names.update(found["names"])
    return made, names


def _what(core: SessionCore, replaying: Replaying, register: int) -> str:
    """What is in a register, for people: the function that made it, and the line that issued it."""
    sites, name = core.log.registers.sites_of([register]), replaying.maker_of(register)
    at = f" ({locate(sites[0])})" if sites else ""
    return f"what {name}() returned{at}" if name else f"what was made by a program{at}"


def _write(core: SessionCore, taken: DRef, begun: DRef, folder: str) -> str:
    """Lets the workers write; returns the fingerprint of this checkpoint."""
    facts = core.get_all(_snapshot(core, "facts", taken), range(core.num_workers))
    rows: list[dict[str, object]] = []
    starts: list[int] = []
    for worker, found in enumerate(facts):
        starts.append(len(rows))
        rows += [_row(worker, at, fact, core.num_workers) for at, fact in enumerate(found)]
    nbytes = sum(_nbytes(fact) for found in facts for fact in found)
    with progress_bar(core, "checkpoint", folder, nbytes) as bar:
        for first in range(0, len(rows), _PAGE):
            _save(core, "describe", begun, rows[first : first + _PAGE])
        _save(core, "start", begun)
        core.sync()
        _snapshot(core, "write", begun, taken, starts)
        _save(core, "finish", begun)
        core.sync()
        bar.update(nbytes)
        _save(core, "commit", begun)
        _save(core, "close", begun)
        core.sync()
    # Also shows whether all workers may read it.
    seen = core.get_all(_snapshot(core, "check", folder), range(core.num_workers))
    return cast("str", seen[0])


def _nbytes(fact: list[Any]) -> int:
    shape, dtype = fact
    return math.prod(shape) * dtype_from_name(dtype).itemsize


def _row(worker: int, at: int, fact: list[Any], num_workers: int) -> dict[str, object]:
    shape, dtype = fact
    bounds = [bound for extent in shape for bound in (0, extent)]
    parts = [Shape(bounds) if each == worker else None for each in range(num_workers)]
    return {"name": f"{worker}/{at}", "shape": shape, "dtype": dtype, "layout": {}, "parts": parts}


def _restore(
    last: int, high: int, folder: str, fingerprint: str
) -> list[tuple[int, EncodedCommand]]:
    """The commands that read a checkpoint, and wait for that; they end with number ``last``."""
    find = EncodedCommand(action=Action.GET_GLOBAL_FUNC, reg=high + 1)  # type: ignore[arg-type]
    find.args.add().str = _RESTORE
    call = EncodedCommand(action=Action.CALL_PACKED, func=high + 1, reg=high + 2)  # type: ignore[arg-type]
    call.args.add().str = folder
    call.args.add().str = fingerprint
    release = EncodedCommand(action=Action.SYNC_WORKER, released=[high + 1, high + 2])  # type: ignore[arg-type]
    return [(last - 2, find), (last - 1, call), (last, release)]
