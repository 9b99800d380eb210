"""Makes the teams of one rank, and keeps them.

A team's lane begins while the session runs; `preflight` says why that is sound. Two
meetings of all workers stand around it. After the first all know that they make the
same teams. Then each builds its end, which can fail on one of them alone, for want of
memory say. In the second they learn whether all have done so; if not, none of them
has the team.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from disco_server.collectives.agreement import Agreement
from disco_server.collectives.circle import Circle
from disco_server.collectives.lone_moves import LoneMoves
from disco_server.collectives.part_checks import Lines, offer_lines, read_lines
from disco_server.collectives.rows import RowExchange
from disco_server.collectives.sides import DataMoves, Transfer
from disco_server.collectives.team import Team

__all__ = ["LineParts", "OpenDevice", "OpenLine", "Teams"]


class LineParts(NamedTuple):
    """One rank's end of a line.

    Attributes:
        rows: Carries the rows of its lane.
        moves: Moves its data on the host.
    """

    rows: RowExchange
    moves: DataMoves


OpenLine = Callable[[Lines, int | None], LineParts | None]
"""Builds this rank's end of one of these lines, or only helps the others to build theirs.

Every worker of the session calls it, with equal lines, each of more than one worker;
the number says which line is this rank's.
"""

OpenDevice = Callable[[Lines, int | None, DataMoves], DataMoves | None]
"""The same for what moves arrays on GPUs; given what moves this line's data on the host."""


class Teams:
    """The teams of one rank.

    Args:
        worker_id: The rank.
        agreement: How it agrees with others.
        world: All workers.
        open_line: Builds the ends of lines.
        arrive: Called before each operation of a team.
        transfer: Sends to a worker or receives from one.
    """

    def __init__(
        self,
        worker_id: int,
        agreement: Agreement,
        world: Circle,
        *,
        open_line: OpenLine,
        arrive: Callable[[], None],
        transfer: Transfer,
    ) -> None:
        self._me = worker_id
        self._agreement = agreement
        self._world = world
        self._open_line = open_line
        self._open_device: OpenDevice | None = None
        self._arrive = arrive
        self._transfer = transfer
        # What all workers have made, in order, and of it what this rank is in.
        self._made: list[Lines] = []
        self._known: set[tuple[int, ...]] = set()
        self._circles: dict[tuple[int, ...], Circle] = {}
        self._teams: dict[tuple[int, ...], Team] = {}

    def make(self, lines: object) -> Team | None:
        """Makes teams, or finds those that were made; see `Communicator.make_teams`."""
        wanted = read_lines(lines, self._world.size)
        offer = offer_lines(wanted)
        self._agreement.meet(self._world.lane, offer, None, None)
        mine = next((line for line in wanted if self._me in line), None)
        # All workers have made the same teams so far, so they find the same ones missing.
        lone = mine is not None and len(mine) == 1
        if mine is not None and lone and mine not in self._teams:
            self._keep(mine, Circle(mine, self._me, self._agreement, LoneMoves()))
        missing = tuple(line for line in wanted if len(line) > 1 and line not in self._known)
        if missing:
            built, problem = None, ""
            try:
                built = self._open_line(missing, self._place(missing))
            except Exception as error:  # noqa: BLE001  (the others must learn of it)
                problem = f"its end could not be built: {type(error).__name__}: {error}"
            self._agreement.meet(self._world.lane, offer._replace(problem=problem), None, None)
            self._known.update(missing)
            self._made.append(missing)
            if mine is not None and built is not None:
                lane = self._agreement.add_lane(mine, built.rows)
                circle = Circle(mine, self._me, self._agreement, built.moves, lane, built.rows)
                self._keep(mine, circle)
            self._add_device(missing)
        self._agreement.notes.leave()
        return None if mine is None else self._teams[mine]

    def add_device(self, open_device: OpenDevice) -> None:
        """Lets arrays of GPUs take part from now on, in the teams that there are too."""
        self._open_device = open_device
        for lines in self._made:
            self._add_device(lines)

    @property
    def received_bytes(self) -> int:
        """How many bytes the teams of this rank have brought to it."""
        return sum(team.received_bytes for team in self._teams.values())

    def _add_device(self, lines: Lines) -> None:
        if self._open_device is None:
            return
        place = self._place(lines)
        circle = self._world if place is None else self._circles[lines[place]]
        moves = self._open_device(lines, place, circle.moves)
        if place is not None:
            circle.device_moves = moves

    def _keep(self, line: tuple[int, ...], circle: Circle) -> None:
        self._circles[line] = circle
        self._teams[line] = Team(circle, self._arrive, self._transfer)

    def _place(self, lines: Lines) -> int | None:
        """Which of these lines this rank is in."""
        return next((place for place, line in enumerate(lines) if self._me in line), None)
