"""``disco status``: nodes, slots and sessions, for people and for programs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from disco_client import connect
from disco_client.errors import Interrupted
from disco_client.pb import controller_pb2
from disco_client.version import __version__
from disco_server.cli.main import main
from disco_server.cli.sessions import _draw


@pytest.fixture
def held(cluster, await_free_slots):
    """A session that holds three of the cluster's four slots, and nobody the fourth."""
    await_free_slots(cluster.address)
    with connect(cluster.address, num_workers=3, name="holder") as session:
        yield session


def status(*arguments, **env):
    return CliRunner().invoke(main, ["status", *arguments], env=env, prog_name="disco")


def test_a_session_is_idle_unless_a_rank_executes_a_command(cluster, held, eventually):
    """A program that holds workers and gives them nothing to do is seen as such."""

    def state():
        content = json.loads(status("--address", cluster.address, "--json").stdout)
        return next(s["state"] for s in content["sessions"] if s["session"] == held.session_id)

    assert eventually(lambda: state() == "idle")
    held.get_global_func("time.sleep")(600)
    assert eventually(lambda: state() == "running")
    held.interrupt()
    with pytest.raises(Interrupted):
        held.sync_all()
    assert eventually(lambda: state() == "idle")


def test_the_json_has_every_node_and_session(cluster, held):
    """Counts, devices, versions, owners and where each rank runs; the key is not shown."""
    shown = status("--address", cluster.address, "--json")
    assert shown.exit_code == 0
    content = json.loads(shown.stdout)
    assert content["version"] == __version__
    nodes = {node["name"]: node for node in content["nodes"]}
    assert set(nodes) == {"node-0", "node-1"}
    assert all(node["slots"] == 2 for node in nodes.values())
    assert sum(node["free_slots"] for node in nodes.values()) == 1
    assert {tuple(node["devices"]) for node in nodes.values()} == {("cpu", "cpu")}
    (session,) = [s for s in content["sessions"] if s["session"] == held.session_id]
    assert session["name"] == "holder"
    assert session["state"] in ("idle", "running")
    assert session["num_workers"] == 3
    assert [rank["pid"] for rank in session["ranks"]] == [rank.pid for rank in held.workers]
    assert "@" in session["owner"]
    assert "transfer_key" not in shown.output
    assert session["attached"]
    assert {node["state"] for node in nodes.values()} == {"ready"}


def test_it_may_go_on(cluster, held):
    """One picture below the other where there is no terminal, or one object a line."""
    watch = [sys.executable, "-m", "disco_server.cli.main", "status", "--watch", "--json"]
    env = {**os.environ, "DISCO_ADDRESS": cluster.address}
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True, env=env) as watching:
        found = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.terminate()
    ages = [
        [s["age_s"] for s in each["sessions"] if s["session"] == held.session_id] for each in found
    ]
    assert ages[0] < ages[1]


def test_the_tables_have_a_row_each(cluster, held):
    """A row for each node and session, with the address in DISCO_ADDRESS honoured."""
    shown = status(DISCO_ADDRESS=cluster.address)
    assert shown.exit_code == 0
    rows = shown.output.splitlines()
    assert any(cluster.address in row for row in rows)
    for name in ("node-0", "node-1"):
        assert any(name in row and "cpu" in row for row in rows)
    (row,) = [row for row in rows if held.session_id in row]
    assert "idle" in row or "running" in row
    assert "holder" in row


def test_the_id_of_the_json_is_one_that_commands_take(cluster, held):
    """As it is printed, without a conversion."""
    (listed,) = [
        s["session"]
        for s in json.loads(status("--address", cluster.address, "--json").stdout)["sessions"]
        if s["session"] == held.session_id  # one of another test may still be ending
    ]
    shown = CliRunner().invoke(main, ["sessions", listed, "--json", "--address", cluster.address])
    assert json.loads(shown.stdout)["name"] == "holder"


@pytest.mark.parametrize("address", ["nonsense", ":99999", "host:99999", "a:b:c", "unix:here", ""])
@pytest.mark.parametrize("command", [["status"], ["sessions"], ["stop", "x"], ["top", "--once"]])
def test_what_is_no_address_is_refused_before_anything_is_asked(address, command, monkeypatch):
    """Exit code 2, and a line that says what was expected and what came; nobody is dialled."""
    monkeypatch.setattr("disco_client.transport.channel.open_channel", pytest.fail)
    shown = CliRunner().invoke(main, [*command, "--address", address], prog_name="disco")
    assert shown.exit_code == 2
    (line,) = shown.stderr.splitlines()
    assert line.startswith("disco: address: expected ")
    assert line.endswith(f"got {address!r}")


WHERE = [controller_pb2.RankInfo(worker=w, node=f"node-{w}") for w in (0, 2, 10)]
LISTED = controller_pb2.ListResult(
    nodes=[
        controller_pb2.NodeInfo(name=f"gpu-{n}.cluster.example", slots=8, devices=["cuda:0"])
        for n in (1, 2)
    ],
    sessions=[
        controller_pb2.SessionInfo(
            session=n, name=f"training-of-a-model-{n}", owner="somebody@host-7:4711", ranks=WHERE
        )
        for n in (1, 2)
    ],
)


@pytest.mark.parametrize("columns", [40, 60, 80, 150])
def test_names_are_whole_on_a_narrow_screen(columns):
    """What is less important is shortened or left out, and it is said what."""
    out = Console(width=columns, file=io.StringIO())
    out.print(_draw(LISTED, "unix:/run/disco.sock"))
    text = out.file.getvalue()
    assert max(map(len, text.splitlines())) <= columns
    for each in (*LISTED.nodes, *LISTED.sessions):
        assert each.name in text
    less = (f"{1:016x}", "somebody@host-7:4711", "node-0, node-2, node-10")
    assert all(each in text for each in less) == (columns == 150)
    assert ("not shown for want of room: " in text) == (columns < 150)


def test_where_nobody_answers_it_says_so_in_one_line(tmp_path):
    """The exit code is 3, and the line names the address and the option."""
    shown = status("--address", f"unix:{tmp_path}/nobody")
    assert shown.exit_code == 3
    (line,) = shown.output.splitlines()
    assert f"no controller answers at unix:{tmp_path}/nobody" in line
    assert "--address" in line
