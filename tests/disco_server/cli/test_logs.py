"""``disco logs``: what ranks print."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from disco_client import connect
from disco_server.cli.main import main


@pytest.fixture(scope="module")
def printed(cluster):
    """A session of two ranks, each of which has printed two lines."""
    with connect(cluster.address, num_workers=2, name="printing", logs=False) as session:
        say = session.get_global_func("builtins.print")
        for line in ("one", "two"):
            say(line)
        session.sync_all()
        yield session


@pytest.fixture
def logs(cluster, printed):
    """Runs the command."""

    def run(*arguments):
        options = ["--address", cluster.address]
        return CliRunner().invoke(main, ["logs", *arguments, *options], prog_name="disco")

    return run


def test_each_line_has_its_rank_and_node(logs, printed, eventually):
    """In the order in which they came."""
    expected = {
        f"[worker {r.worker} {r.node}] {w}" for r in printed.workers for w in ("one", "two")
    }
    eventually(lambda: set(logs("printing").output.splitlines()) == expected)
    assert len(logs("printing").output.splitlines()) == 4


def test_of_one_rank_its_lines_are_as_it_printed_them(logs, printed, eventually):
    """The last of them, and when they came, if that is asked for."""
    eventually(lambda: logs(printed.session_id, "--rank", "1").output == "one\ntwo\n")
    assert logs("printing", "--rank", "1", "-n", "1").output == "two\n"
    (line,) = logs("printing", "--rank", "1", "-n", "1", "-t").output.splitlines()
    assert line.endswith("+00:00 two")


def test_programs_get_an_object_a_line(logs, printed, eventually):
    """With the stream on which it was printed."""

    def read():
        output = logs("printing", "--rank", "0", "--json").output
        found = [json.loads(line) for line in output.splitlines()]
        return found if len(found) == 2 else None

    found = eventually(read)
    node = printed.workers[0].node
    assert [(f["rank"], f["node"], f["stream"], f["line"]) for f in found] == [
        (0, node, "stdout", "one"),
        (0, node, "stdout", "two"),
    ]
    assert all(each["time"] > 1e9 for each in found)


def test_who_follows_sees_what_is_printed_until_the_session_ends(cluster):
    """Another process that reads meanwhile; it leaves with exit code 0."""
    with connect(cluster.address, num_workers=1, name="followed", logs=False) as session:
        node = session.workers[0].node
        say = session.get_global_func("builtins.print")
        say("before")
        session.sync_all()
        command = [sys.executable, "-m", "disco_server.cli.main", "logs", "followed", "-f"]
        follower = subprocess.Popen(
            [*command, "--address", cluster.address], stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout.readline() == f"[worker 0 {node}] before\n"
        say("after")
        assert follower.stdout.readline() == f"[worker 0 {node}] after\n"
    assert follower.stdout.read() == ""
    assert follower.wait(20) == 0
    follower.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("nope",), 5, "got 'nope'; there run: "),
        (("printing", "--rank", "2"), 2, "expected a rank from 0 to 1, got 2"),
        (("printing", "--rank", "-1"), 2, "--rank"),
    ],
)
def test_what_cannot_be_read_is_said(logs, arguments, code, told):
    """Each with the exit code of its kind."""
    shown = logs(*arguments)
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert told in shown.stderr
