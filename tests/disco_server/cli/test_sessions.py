"""``disco sessions``: the list, and what the ranks of one do."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from disco_client import NoSuchSession, WorkerLost, attach, connect
from disco_client.text import short_ids
from disco_client.wire.codec import Action
from disco_client.wire.overview import Overview, RankView, SessionView
from disco_client.wire.reports import CollectiveReport, CommandReport
from disco_server.cli.main import main
from disco_server.cli.output import shown_ids
from disco_server.cli.sessions import choose, doing


@pytest.fixture(scope="module")
def training(cluster):
    """A session that has executed something."""
    with connect(cluster.address, num_workers=3, name="training") as session:
        session.get_global_func("time.time")()
        session.sync_all()
        yield session


@pytest.fixture
def listed(cluster):
    """Runs the command."""

    def run(*arguments):
        options = ["--address", cluster.address]
        return CliRunner().invoke(main, ["sessions", *arguments, *options], prog_name="disco")

    return run


def test_the_list_has_a_row_for_each(listed, training, eventually):
    """With its owner, state, client, commands and what waits."""

    def idle():
        shown = listed()
        assert shown.exit_code == 0
        (row,) = [line for line in shown.output.splitlines() if training.session_id in line]
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        return cells if cells[3] == "idle" else None  # what it did last may not be noted yet

    cells = eventually(idle)
    assert cells[1] == "training"
    assert "@" in cells[2]
    assert cells[4] == "attached"
    assert cells[6:8] == ["3", "2"]
    assert cells[9] == "0"
    assert int(cells[8]) > 0


def test_of_one_each_rank_is_shown(listed, training, eventually):
    """Where it runs, what it does; given by its name or its id."""
    eventually(lambda: "executed, 0 queued" in listed("training").output)
    shown = listed("training").output
    assert f"training ({training.session_id})" in shown
    for rank in training.workers:
        (row,) = [line.split() for line in shown.splitlines() if str(rank.pid) in line.split()]
        assert row[:5] == [str(rank.worker), rank.node, str(rank.pid), "cpu", "running"]
        assert row[-1] == "idle"
    view = json.loads(listed(training.session_id, "--json").stdout)
    assert (view["name"], view["queued"], len(view["ranks"])) == ("training", 0, 3)
    assert all(rank["memory_bytes"] for rank in view["ranks"])


def test_programs_get_all_of_them(listed, training):
    """As one list."""
    views = json.loads(listed("--json").stdout)
    assert [view["session"] for view in views if view["name"] == "training"] == [
        training.session_id
    ]


def test_a_session_that_waits_for_its_client_says_how_long(listed, cluster):
    """Nobody is attached to it."""
    waiting = connect(cluster.address, num_workers=1, name="waiting")
    waiting.detach(lease=100.0)
    (row,) = [line for line in listed().output.splitlines() if " waiting " in line]
    assert "away, 1m3" in row or "away, 1m4" in row
    assert "detached" in row
    CliRunner().invoke(main, ["stop", "waiting", "--address", cluster.address])


def test_what_there_is_not_is_exit_code_5(listed, training):
    """In one line that says what there is."""
    shown = listed("nope")
    assert (shown.exit_code, shown.stderr.count("\n")) == (5, 1)
    assert "got 'nope'; there run: " in shown.stderr
    assert "'training'" in shown.stderr


def test_those_that_ended_are_shown_for_a_while_with_the_reason(listed, cluster, eventually):
    """On request, also over JSON and one by one; a list of what runs is without them."""
    with connect(cluster.address, num_workers=1, name="done") as done:
        done.sync_all()
    failed = connect(cluster.address, num_workers=1, name="broken")
    failed.get_global_func("os.abort")()
    with pytest.raises(WorkerLost):
        failed.sync_all()

    def over():
        views = {view["session"]: view for view in json.loads(listed("--all", "--json").stdout)}
        found = views[done.session_id], views[failed.session_id]
        return found if all(view["ended_s"] is not None for view in found) else None

    ended, lost = eventually(over, what="the ends of both")
    assert [ended[key] for key in ("state", "end_reason", "end_message")] == [
        *("ended", "closed", "closed")
    ]
    assert (lost["state"], lost["end_reason"]) == ("failed", "rank_lost")
    assert "died of SIGABRT" in lost["end_message"]
    assert 0 <= lost["ended_s"] < 600
    shown = listed("--all").output
    (row,) = [line for line in shown.splitlines() if failed.session_id in line]
    assert "failed" in row
    assert "died of SIGABRT" in row
    assert "died of SIGABRT" in listed("broken", "--all").output
    assert failed.session_id not in listed().output
    assert listed("broken").exit_code == 5


def test_of_several_of_a_name_it_is_one_s_own_and_the_newest():
    """As for everything that takes a name."""
    made = [
        SessionView(1, "s", "x", "running", 1, True, 1.0, yours=False),
        SessionView(2, "s", "x", "running", 1, True, 9.0),
        SessionView(3, "s", "x", "running", 1, True, 5.0),
    ]
    view = Overview("1", 0.0, (), tuple(made))
    assert choose(view, "s").session == 3
    assert choose(view, f"{1:016x}").session == 1
    with pytest.raises(NoSuchSession, match="there run: none"):
        choose(Overview("1", 0.0), "s")


def test_a_beginning_of_an_id_is_enough():
    """Where several begin so they are listed, whole."""
    ids = (0x3A6B82CF00000001, 0x3A6C000000000002, 0x3A6C0F0000000003, 0x3A6B000000000004)
    made = [SessionView(n, f"s{n % 16}", "x", "running", 1, True, 1.0) for n in ids[:3]]
    over = SessionView(ids[3], "s4", "x", "ended", 1, False, 1.0, ended_s=9.0)
    view = Overview("1", 0.0, (), (*made, over))
    assert choose(view, "3a6b").session == ids[0]
    assert choose(view, "3A6C0F").session == ids[2]
    assert choose(view, "3a6b00").session == ids[3]
    with pytest.raises(NoSuchSession, match=r"begin: 3a6c000000000002 \('s2'\), 3a6c0f00000000"):
        choose(view, "3a6c")
    with pytest.raises(NoSuchSession, match="got '3a6'"):
        choose(view, "3a6")


def test_tables_have_short_ids_on_a_terminal_alone(monkeypatch):
    """In a pipe they are whole, so that a search finds them."""
    ids = (0x3A6B82CF00000001, 0x3A6C000000000002)
    assert shown_ids(ids) == {each: f"{each:016x}" for each in ids}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert list(shown_ids(ids).values()) == ["3a6b", "3a6c"]


def test_every_command_takes_the_beginning_of_an_id(cluster, tmp_path):
    """So does attach(); the session is the same."""

    def disco(*arguments):
        return CliRunner().invoke(main, [*arguments, "--address", cluster.address])

    with connect(cluster.address, num_workers=1, name="shortened") as session:
        session.sync_all()
        session.detach()
    listed = json.loads(disco("sessions", "--json").stdout)
    short = short_ids(int(each["session"], 16) for each in listed)[int(session.session_id, 16)]
    for command in (["sessions"], ["top", "--once"], ["logs"], ["stack"], ["doctor", "--session"]):
        shown = disco(*command, short)
        assert shown.exit_code == 0, shown.output
    assert disco("trace", short, "-o", str(tmp_path / "trace")).exit_code == 0
    with attach(short, address=cluster.address) as session:
        assert session.name == "shortened"
        session.detach()
    assert disco("stop", short).output.startswith("session 'shortened'")


def test_what_a_rank_does_is_said_in_words():
    """A collective, and whether it waits there; a command; nothing."""
    place = (0, "a", 1, "cpu", "running", 7)
    command = CommandReport(8, Action.CALL_PACKED, "step", 2.0)
    waits = CollectiveReport(3, 8, 0, "barrier", "", (), 0, (0, 1), 0.5, met=False)
    moves = CollectiveReport(3, 8, 0, "barrier", "", (), 0, (0, 1), 0.5, met=True)
    assert doing(RankView(*place)) == ("idle", "")
    assert doing(RankView(*place, command)) == ("step", "2.0 s")
    assert doing(RankView(*place, command, waits)) == ("waits in barrier #3", "500 ms")
    assert doing(RankView(*place, command, moves)) == ("barrier #3", "500 ms")
    assert doing(RankView(0, "a", 1, "cpu", "stopped")) == ("", "")
