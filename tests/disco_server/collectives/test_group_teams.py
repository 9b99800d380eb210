"""How teams are kept; what making them is between ranks is shown by `test_team`."""

from __future__ import annotations

import pytest

from disco_server.collectives.agreement import Agreement
from disco_server.collectives.group import LoneBackend, ProcessGroup
from disco_server.collectives.preflight import HEADER_BYTES
from disco_server.collectives.teams import LineParts, Teams


class Rows:
    """A channel whose other ranks are not there."""

    data_bytes = most_bytes = 0

    def start(self, header):
        assert len(header) == HEADER_BYTES

    def test(self):
        return False

    def free(self):
        """Nothing is held."""


@pytest.fixture
def book():
    """The teams of worker 1 of 6, which need not meet the others, and what was built."""
    agreement, built = Agreement(1), []

    def open_line(lines, place):
        built.append((lines, place))
        return None if place is None else LineParts(Rows(), LoneBackend())

    made = Teams(
        1,
        agreement,
        ProcessGroup(range(6), 1, agreement, LoneBackend()),
        open_line=open_line,
        transfer=lambda *_, **__: None,
    )
    yield made, built, agreement.preflight
    agreement.close(orderly=False)


def test_only_new_lines_of_several_workers_are_built(book):
    """Those that were made, in whatever company, and those of one worker need nothing."""
    teams, built, preflight = book
    first = teams.make([[0, 1], [2, 3], [4]])
    assert built == [(((0, 1), (2, 3)), 0)]
    assert teams.make([[2, 3], [5, 4], [0, 1]]) is first
    assert built[1:] == [(((5, 4),), None)]
    assert teams.make([[2, 3], [5, 4]]) is None
    assert len(built) == 2
    assert [channel.members for channel in preflight.channels] == [(0, 1)]

    lone = teams.make([[1], [4]])
    assert teams.make([[1]]) is lone
    assert (len(built), lone.size, lone.members) == (2, 1, (1,))


def test_the_order_of_the_members_is_that_of_the_line(book):
    """And so is that of the channel's rows."""
    teams, _, preflight = book
    turned = teams.make([[3, 1, 0]])
    assert turned is not teams.make([[0, 1, 3]])
    assert (turned.members, turned.rank, turned.size) == ((3, 1, 0), 1, 3)
    assert [channel.members for channel in preflight.channels] == [(3, 1, 0), (0, 1, 3)]


def test_devices_are_opened_for_old_and_new_teams(book):
    """In the order in which the teams were made, on every worker of the session."""
    teams, _, _ = book
    opened = []
    before = teams.make([[1, 2]])
    teams.make([[4, 5]])
    teams.add_device(lambda lines, place, _moves: opened.append((lines, place)) or "moves")
    teams.make([[0, 1]])
    teams.make([[0, 1]])
    assert opened == [(((1, 2),), 0), (((4, 5),), None), (((0, 1),), 0)]
    assert before.device_backend == "moves"
    assert teams._world.device_backend is None
