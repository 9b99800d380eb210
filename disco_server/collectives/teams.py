"""Makes the teams of one rank, and keeps them.

A team's channel begins while the session runs; `preflight` says why that is sound. An
agreement round of all workers comes before it and another one after it. After the first
all know that they make the same teams. Then each builds its end, which can fail on one
of them alone, for want of memory say. The second shows whether all have done so; if not,
none of them has the team.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from disco_server.collectives.group import Backend, LoneBackend, ProcessGroup, Transfer, guarded
from disco_server.collectives.types import CommunicatorLost
from disco_server.collectives.validation import Lines, read_lines, sign_lines

if TYPE_CHECKING:
    from disco_server.collectives.agreement import Agreement
    from disco_server.collectives.header_exchange import HeaderExchange
    from disco_server.collectives.preflight import Channel

__all__ = ["LineParts", "OpenDevice", "OpenLine", "Teams"]


class LineParts(NamedTuple):
    """One rank's end of a line.

    Attributes:
        exchange: Carries the headers of its channel.
        backend: Moves its data on the host.
    """

    exchange: HeaderExchange
    backend: Backend


OpenLine = Callable[[Lines, int | None], LineParts | None]
"""Builds this rank's end of one of these lines, or only helps the others to build theirs.

Every worker of the session calls it, with equal lines, each of more than one worker;
the number says which line is this rank's.
"""

OpenDevice = Callable[[Lines, int | None, Backend], Backend | None]
"""The same for what moves arrays on GPUs; given what moves this line's data on the host."""


class Teams:
    """The teams of one rank.

    Args:
        worker_id: The rank.
        agreement: How it agrees with others.
        world: All workers.
        open_line: Builds the ends of lines.
        transfer: Sends to a worker or receives from one.
    """

    def __init__(
        self,
        worker_id: int,
        agreement: Agreement,
        world: ProcessGroup,
        *,
        open_line: OpenLine,
        transfer: Transfer,
    ) -> None:
        self._me = worker_id
        self._agreement = agreement
        self._world = world
        self._open_line = open_line
        self._open_device: OpenDevice | None = None
        self._transfer = transfer
        # What all workers have made, in order, and of it what this rank is in.
        self._made: list[Lines] = []
        self._known: set[tuple[int, ...]] = set()
        self._teams: dict[tuple[int, ...], ProcessGroup] = {}

    @guarded
    def make(self, lines: object) -> ProcessGroup | None:
        """Makes teams, or finds existing ones; see `Worker.make_teams`.

        Either all workers have their teams afterwards or none has.
        """
        wanted = read_lines(lines, self._world.size)
        signature = sign_lines(wanted)
        self._agreement.meet(self._world.channel, signature, None, None)
        mine = next((line for line in wanted if self._me in line), None)
        # All workers have made the same teams so far, so the same ones are missing on all.
        lone = mine is not None and len(mine) == 1
        if mine is not None and lone and mine not in self._teams:
            self._teams[mine] = self._make(mine, LoneBackend())
        missing = tuple(line for line in wanted if len(line) > 1 and line not in self._known)
        if missing:
            built, problem = None, ""
            try:
                built = self._open_line(missing, self._place(missing))
            except CommunicatorLost:
                raise  # there is no channel left to agree in
            except Exception as error:  # noqa: BLE001  (the others must be notified)
                problem = f"its end could not be built: {type(error).__name__}: {error}"
            self._agreement.meet(
                self._world.channel, signature._replace(problem=problem), None, None
            )
            self._known.update(missing)
            self._made.append(missing)
            if mine is not None and built is not None:
                channel = self._agreement.add_channel(mine, built.exchange)
                self._teams[mine] = self._make(mine, built.backend, channel, built.exchange)
            self._add_device(missing)
        self._agreement.notes.leave()
        return None if mine is None else self._teams[mine]

    def add_device(self, open_device: OpenDevice) -> None:
        """Enables arrays on GPUs from now on, in existing teams too."""
        self._open_device = open_device
        for lines in self._made:
            self._add_device(lines)

    @property
    def received_bytes(self) -> int:
        """How many bytes this rank has received in its teams."""
        return sum(team.received_bytes for team in self._teams.values())

    def _add_device(self, lines: Lines) -> None:
        if self._open_device is None:
            return
        place = self._place(lines)
        group = self._world if place is None else self._teams[lines[place]]
        backend = self._open_device(lines, place, group.backend)
        if place is not None:
            group.device_backend = backend

    def _make(
        self,
        line: tuple[int, ...],
        backend: Backend,
        channel: Channel | None = None,
        exchange: HeaderExchange | None = None,
    ) -> ProcessGroup:
        return ProcessGroup(
            line,
            self._me,
            self._agreement,
            backend,
            channel,
            exchange,
            transfer=self._transfer,
        )

    def _place(self, lines: Lines) -> int | None:
        """Which of these lines this rank is in."""
        return next((place for place, line in enumerate(lines) if self._me in line), None)
