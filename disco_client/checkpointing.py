"""``session.checkpoint``: what lost workers held is read again, rather than computed again."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_client.errors import ConfigError, EncodingError, RemoteError, SessionError
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.telemetry.spans import spanned
from disco_client.wire.codec import Action, EncodedCommand
from disco_client.wire.values import Shape

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from disco_client.command_log import CommandLog
    from disco_client.handles import DPackedFunc, DRef
    from disco_client.transport.base import Transport
    from disco_client.transport.replaying import Recovery, Replaying

__all__ = ["Checkpointing"]

_ATTEMPTS = 3
_PAGE = 512
_STEPS = ("begin", "describe", "start", "finish", "commit", "close")
_OWN = ("take", "kinds", "seal", "facts", "write", "check", "remove")
_RESTORE = "runtime.disco._snapshot_restore"


class Checkpointing(ABC):
    """The part of a session that recovers which says from where."""

    _log: CommandLog
    _transport: Transport
    _checkpoints: int = 0
    _checkpoint: str = ""
    _span: Span = NO_SPAN

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many workers the session has."""

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session's id at the controller, in hexadecimal."""

    @abstractmethod
    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before."""

    @abstractmethod
    def _builtin(self, name: str) -> DPackedFunc: ...

    @abstractmethod
    def _call_now(self, name: str, *args: object) -> DRef: ...

    @abstractmethod
    def _get_all(self, ref: DRef, workers: Sequence[int], *, own: bool = False) -> list[Any]: ...

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """The times that the session went on with other workers, in order."""
        replaying = self._replaying()
        return replaying.recoveries if replaying is not None else ()

    @spanned("disco.checkpoint")
    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Saves what the workers hold, so that less must be done again where they are lost.

        What was issued before is forgotten then, and makes room. Arrays and plain values
        of all live references are saved, distributed tensors among them, and published
        ones; each worker writes its own. Functions, modules and programs are made again
        by the commands that made them. References stay as they are. Waits until all is
        durable; other threads that issue commands wait meanwhile. However it ends, the
        checkpoint before stays of use until a new one has taken its place.

        Args:
            path: A folder that all workers share, also those that will come; each
                checkpoint is a folder in it. A relative path is taken from the client's
                own folder.

        Raises:
            ConfigError: The path is none, or the session does not recover
                (``disco_client.connect(..., recover="replay")``).
            EncodingError: A reference stands for an object that can neither be saved nor
                made again without its history, or too much was issued before.
            BadFile: The folder cannot be written, has no room, or is not shared by all.
            NotAllowed: A worker's ``--allow-save`` or ``--allow-read`` does not cover it.
            RemoteError: A command failed on some worker and no call has raised it.
            SessionError: The session is closed or lost.
        """
        from disco_client.weights.progress import whole_path

        where = whole_path(path)
        replaying = self._replaying()
        if replaying is None:
            raise ConfigError(
                "this session does not recover from lost workers, so it needs no checkpoint; open"
                " it with disco_client.connect(..., recover='replay'), or save tensors with"
                " session.save"
            )
        self.sync_all()
        replaying.check_can_cut()
        for name in (*(f"save_{step}" for step in _STEPS), *(f"snapshot_{step}" for step in _OWN)):
            self._builtin(f"runtime.disco._{name}")
        for attempt in range(1, _ATTEMPTS + 1):
            before = len(replaying.recoveries)
            try:
                with self._log.alone():
                    self._save_all(replaying, where)
            except RemoteError:
                # Some of it was done twice, because workers were lost meanwhile?
                if attempt == _ATTEMPTS or len(replaying.recoveries) == before:
                    raise
            else:
                return

    def _replaying(self) -> Replaying | None:
        from disco_client.transport.replaying import Replaying

        return self._transport if isinstance(self._transport, Replaying) else None

    def _save_all(self, replaying: Replaying, where: str) -> None:
        self.sync_all()  # also lets go of what nobody refers to
        self._checkpoints += 1
        folder = f"{where}/{self.session_id}-{self._checkpoints}"
        numbers = np.asarray(sorted(self._log.live_registers()), np.uint32)
        taken = self._snapshot("take", numbers)
        made, names = self._find_made(taken, numbers)
        self._snapshot("seal", taken, np.asarray(sorted(made), np.uint32), sorted(names))
        begun = self._save("begin", folder, f"generation-{secrets.token_hex(8)}")
        try:
            self.sync_all()
            fingerprint = self._write(taken, begun, folder)
        except BaseException:
            with suppress(RemoteError, SessionError):
                self._save("close", begun)
                self.sync_all()
            raise
        del begun, taken
        self.sync_all()
        last = self._log.last_seq
        live = self._log.live_registers()
        high = self._log.high_water
        restore = _restore(last, high, folder, fingerprint)
        restore[-1][1].released.extend(int(n) for n in numbers if int(n) not in live)
        replaying.cut([int(n) for n in numbers if int(n) in made], names, live, restore, last)
        former, self._checkpoint = self._checkpoint, folder
        if former:
            self._snapshot("remove", former)

    def _snapshot(self, step: str, *args: object) -> DRef:
        return self._call_now(f"runtime.disco._snapshot_{step}", *args)

    def _save(self, step: str, *args: object) -> DRef:
        return self._call_now(f"runtime.disco._save_{step}", *args)

    def _find_made(self, taken: DRef, numbers: np.ndarray[Any, Any]) -> tuple[set[int], set[str]]:
        """Asks what cannot be saved as it is: registers, and published names."""
        made: set[int] = set()
        names: set[str] = set()
        kinds = self._get_all(self._snapshot("kinds", taken), range(self.num_workers))
        for worker, found in enumerate(kinds):
            for what, kind in found["refused"]:
                raise EncodingError(
                    f"cannot save the session: {what} stands for an object of type {kind} on"
                    f" worker {worker}; let it go, or keep what it consists of as arrays"
                )
            made.update(int(numbers[place]) for place in found["made"])
            names.update(found["names"])
        return made, names

    def _write(self, taken: DRef, begun: DRef, folder: str) -> str:
        """Lets the workers write; returns what tells this checkpoint from others."""
        facts = self._get_all(self._snapshot("facts", taken), range(self.num_workers))
        rows: list[dict[str, object]] = []
        starts: list[int] = []
        for worker, found in enumerate(facts):
            starts.append(len(rows))
            rows += [_row(worker, at, fact, self.num_workers) for at, fact in enumerate(found)]
        for first in range(0, len(rows), _PAGE):
            self._save("describe", begun, rows[first : first + _PAGE])
        self._save("start", begun)
        self.sync_all()
        self._snapshot("write", begun, taken, starts)
        self._save("finish", begun)
        self.sync_all()
        self._save("commit", begun)
        self._save("close", begun)
        self.sync_all()
        # Also shows whether all workers may read it.
        seen = self._get_all(self._snapshot("check", folder), range(self.num_workers))
        return cast("str", seen[0])


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
