"""The audit log, and that no secret is in it or anywhere else where others look."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

import disco_client
from disco_client import errors

FUNCTIONS = "disco_test_functions"


@pytest.fixture(scope="module")
def cluster(shared_daemons, tokens):
    """A controller and a node on loopback that ask for tokens, with audit logs of their own."""
    controller = shared_daemons.controller(
        *("--auth-token-file", tokens.path, "--audit-log", "audit", "--log-level", "debug")
    )
    worker = shared_daemons.worker(
        controller.address,
        *("--auth-token-file", tokens.of("pool"), "--audit-log", "audit", "--slots", "2"),
        *("--log-level", "debug"),
        DISCO_TOKEN="environment-of-the-daemon",
    )
    return controller, worker


def audited(daemon):
    """The entries of a daemon's audit log."""
    path = daemon.folder / "audit"
    assert path.stat().st_mode & 0o777 == 0o600
    return [json.loads(line) for line in path.read_text().splitlines()]


def of(entries, session):
    return [
        (entry["message"], entry.get("what", ""), entry["outcome"])
        for entry in entries
        if entry.get("session") == session
    ]


def test_the_life_of_a_session_is_written_down(cluster, tokens, connect, eventually):
    """Who created, left, attached and closed it, and from where."""
    controller, _ = cluster
    session = connect(controller.address, name="audited", token_file=tokens.of("alice"))
    session.detach()
    with disco_client.attach("audited", address=controller.address, token_file=tokens.of("alice")):
        pass
    eventually(lambda: len(of(audited(controller), "audited")) == 5)
    assert of(audited(controller), "audited") == [
        ("session created", "", "allowed"),
        ("session detached", "", "allowed"),
        ("session attached", "", "allowed"),
        ("session closed", "", "allowed"),
        ("session ended", "closed", "allowed"),
    ]
    created = next(e for e in audited(controller) if e["message"] == "session created")
    assert created["who"] == "client alice"
    assert created["peer"].startswith("ipv4:127.0.0.1:")
    assert created["owner"].startswith("alice (")
    joined = next(e for e in audited(controller) if e["message"] == "node joined")
    assert joined["who"] == "worker pool"


def test_a_daemon_writes_what_its_ranks_load_and_refuse(cluster, tokens, connect, eventually):
    """Once for all ranks of a node, with whose session it was."""
    controller, worker = cluster
    session = connect(controller.address, num_workers=2, name="loads", token_file=tokens.of("bob"))
    session.import_python_module(FUNCTIONS)
    session.get_global_func("numpy.linalg.norm")
    session.sync_all()
    session.import_python_module("ctypes")
    with pytest.raises(errors.NotAllowed):
        session.sync_all()
    with pytest.raises(errors.NotAllowed):
        session.load_weights("/etc", {})
    eventually(lambda: len(of(audited(worker), "loads")) >= 4)
    entries = [e for e in audited(worker) if e.get("session") == "loads"]
    lines = {(e["message"], e.get("what", ""), e["outcome"] == "allowed") for e in entries}
    assert ("module imported", FUNCTIONS, True) in lines
    assert ("function imported", "numpy.linalg.norm", True) in lines
    refused = [e["outcome"] for e in entries if e["message"] == "refused"]
    assert any("'ctypes' is not on this worker's allow-list" in why for why in refused)
    assert any("/etc" in why for why in refused)
    assert len(entries) == len(lines)
    assert all(e["who"].startswith("bob (") for e in entries)


def test_refusals_are_written_down(cluster, tokens):
    """Whoever was not let in, and what he wanted, without what he showed."""
    controller, _ = cluster
    with pytest.raises(errors.AccessDenied):
        disco_client.connect(controller.address, num_workers=1, token="guess" * 8)
    last = [e for e in audited(controller) if e["message"] == "refused"][-1]
    assert "does not know the token" in last["outcome"]
    assert last["what"] == "/disco.v1.SessionService/List"


def test_no_secret_is_where_others_look(cluster, tokens, connect):
    """Not in logs, not in command lines, not in the environment of ranks, not in a repr."""
    controller, worker = cluster
    session = connect(controller.address, token=tokens.tokens["alice"])
    assert tokens.tokens["alice"] not in repr(session._core.transport.__dict__)
    assert tokens.tokens["alice"] not in repr(session._core.transport._line.credentials)
    secrets = [*tokens.tokens.values(), "environment-of-the-daemon"]
    key = session._core.transport._arrays._key
    said = "".join(
        daemon.stderr + daemon.stdout + (daemon.folder / "audit").read_text()
        for daemon in (controller, worker)
    )
    for daemon in (controller, worker):
        for process in (psutil.Process(daemon.process.pid), *daemon.family()):
            said += " ".join(process.cmdline())
    for rank in session.workers:
        said += Path(f"/proc/{rank.pid}/environ").read_text()
    found = [secret for secret in (*secrets, key.hex(), repr(key)) if secret in said]
    assert not found
