"""``disco trace``: a file for Perfetto, for sessions that run and that have ended."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from disco_client import connect
from disco_server.cli.main import main


def disco(*arguments, **env):
    return CliRunner().invoke(main, [*arguments], env=env, prog_name="disco")


@pytest.fixture
def training(cluster):
    """A session that has done something."""
    with connect(cluster.address, num_workers=3, name="training") as session:
        array = session.empty((4,), "float32")
        session.allreduce(array, array)
        session.sync_all()
        yield session


def test_the_file_has_what_every_rank_did(cluster, training, tmp_path):
    """Commands and collectives with bytes; the command says what is in it."""
    out = tmp_path / "out.json"
    shown = disco("trace", "training", "-o", out, "--address", cluster.address)
    assert shown.exit_code == 0
    assert shown.output.startswith(f"{out}: 3 ranks, ")
    assert "https://ui.perfetto.dev" in shown.output
    events = json.loads(out.read_text())["traceEvents"]
    reduced = [event for event in events if event["name"] == "allreduce(sum)"]
    assert sorted(event["pid"] - 1 for event in reduced if event["cat"] == "collective") == [
        0,
        1,
        2,
    ]
    assert {event["args"]["bytes"] for event in reduced} == {16}


def test_it_goes_to_standard_output_or_to_a_file_named_for_the_session(
    cluster, training, tmp_path, monkeypatch
):
    """The session may be given by its id, and the address by the environment."""
    monkeypatch.chdir(tmp_path)
    shown = disco("trace", training.session_id, "-o", "-", DISCO_ADDRESS=cluster.address)
    assert json.loads(shown.stdout)["otherData"]["session"] == "training"
    shown = disco("trace", training.session_id, "--json", DISCO_ADDRESS=cluster.address)
    assert (tmp_path / "training.trace.json").exists()
    told = json.loads(shown.stdout)
    assert (told["file"], told["ranks"]) == ("training.trace.json", 3)


def test_what_cannot_be_done_is_said_in_one_line(cluster, training, tmp_path):
    """The exit code says which: no such session, no such folder, nobody who answers."""
    unknown = disco("trace", "trainings", "--address", cluster.address)
    assert unknown.exit_code == 5
    assert "got 'trainings'; there run: " in unknown.output
    assert "'training'" in unknown.output
    nowhere = disco("trace", "training", "-o", tmp_path / "a" / "b", "--address", cluster.address)
    assert (nowhere.exit_code, nowhere.output.count("\n")) == (2, 1)
    assert "cannot write" in nowhere.output
    nobody = disco("trace", "training", "--address", f"unix:{tmp_path}/nobody")
    assert nobody.exit_code == 3
    assert "no controller answers" in nobody.output
