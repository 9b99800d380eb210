"""Secrets that a session brings: its workers have them, and they are nowhere else."""

from __future__ import annotations

import base64
import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from object_servers import answers, ask_for_credentials, make_bucket, s3_server

from disco_client import BadFile, ConfigError, DiscoError, ProcessSession, SocketSession, WorkerLost
from disco_server.cli.main import main

FUNCTIONS = "disco_test_functions"
VALUE = "hush-b81e4c07-and-no-word-of-it"
GIVEN = {"AWS_SECRET_ACCESS_KEY": VALUE, "AWS_ACCESS_KEY_ID": "AKIAOFTHESESSION"}


def variables(session, name):
    """One variable of each worker's environment."""
    session.import_python_module(FUNCTIONS)
    found = session.get_global_func("tests.environment")(name)
    return [found.debug_get_from_remote(worker) for worker in range(session.num_workers)]


@pytest.fixture(scope="module")
def nodes(shared_daemons):
    """A controller with a dashboard and two nodes, which log all they can."""
    loud = ("--log-level", "debug", "--audit-log", "audit")
    controller = shared_daemons.controller(*loud, "--http", "127.0.0.1:0", DISCO_HTTP="")
    workers = [
        shared_daemons.worker(
            controller.address,
            *(*loud, "--name", name, "--slots", "2", "--core-dumps", "on"),
            *("--allow-module", "resource"),
            DISCO_ENV="AWS_*",
            AWS_ACCESS_KEY_ID="of-the-node",
            AWS_SESSION_TOKEN="of-the-node",
            AWS_ENDPOINT_URL="http://127.0.0.1:1",
        )
        for name in ("one", "two")
    ]
    return controller, workers


def test_workers_have_them_and_those_of_another_session_do_not(nodes, connect, eventually):
    """In place of the daemon's of the same store; its address of the store stays."""
    controller, _ = nodes
    with connect(controller.address, num_workers=2, secrets=GIVEN) as session:
        assert variables(session, "AWS_SECRET_ACCESS_KEY") == [VALUE, VALUE]
        assert variables(session, "AWS_ACCESS_KEY_ID") == ["AKIAOFTHESESSION"] * 2
        assert variables(session, "AWS_SESSION_TOKEN") == [None, None]
        assert variables(session, "AWS_ENDPOINT_URL") == ["http://127.0.0.1:1"] * 2
        with connect(controller.address, num_workers=2) as other:
            assert variables(other, "AWS_SECRET_ACCESS_KEY") == [None, None]
            assert variables(other, "AWS_ACCESS_KEY_ID") == ["of-the-node"] * 2
    with connect(controller.address, num_workers=4) as after:
        assert variables(after, "AWS_SECRET_ACCESS_KEY") == [None] * 4


def test_a_rank_with_secrets_has_no_core_file(nodes, connect):
    """Though the daemon leaves them to others."""
    controller, _ = nodes
    for given, most in ((GIVEN, 0), (None, -1)):
        with connect(controller.address, num_workers=1, secrets=given) as session:
            limits = session.get_global_func("resource.getrlimit")(4)  # RLIMIT_CORE of Linux
            assert limits.debug_get_from_remote(0)[1] == most


FEEDS = ("events", "session")
PAGES = ("load", "timeline", "stack", "programs", "tensors", "trace", "logs")


def of_the_page(controller, session):
    """What the dashboard says of a session, and the first event of each of its feeds."""
    found = re.search(r"the dashboard at (http://[\d.]+:\d+)", controller.stderr)
    about = f"name={session}&session={session}&worker=0&seconds=60"
    for path in PAGES:
        try:
            with urllib.request.urlopen(f"{found[1]}/{path}?{about}", timeout=20) as answer:
                yield answer.read().decode()
        except urllib.error.HTTPError as refused:
            yield refused.read().decode()
    for path in FEEDS:
        with urllib.request.urlopen(f"{found[1]}/{path}?{about}", timeout=20) as answer:
            yield "".join(answer.readline().decode() for _ in range(3))


def of_the_command(controller, session):
    """What `disco` shows of it."""
    shown = ("status", "status --json", f"stack {session} --json", f"logs {session}")
    for words in shown:
        yield CliRunner().invoke(main, [*words.split(), "--address", controller.address]).output


def of_the_system(daemons):
    """What processes and files of daemons show to others."""
    for daemon in daemons:
        yield daemon.stdout + daemon.stderr
        for process in (psutil.Process(daemon.process.pid), *daemon.family()):
            yield " ".join(process.cmdline())
            yield Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
            folder = Path(f"/proc/{process.pid}/cwd").readlink()
            if folder.name.startswith("worker-"):
                yield from contents(folder.parent)
        yield from contents(daemon.folder)


def contents(folder):
    """What files below a folder hold."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [file.read_bytes().decode(errors="replace") for file in files]


def test_nobody_else_sees_them(nodes, connect, tmp_path):
    """Neither in logs, lists, reports, pages and errors, nor in files, nor in /proc."""
    controller, workers = nodes
    daemons = [controller, *workers]
    session = connect(controller.address, name="hushed", num_workers=4, secrets=GIVEN)
    assert variables(session, "AWS_ACCESS_KEY_ID") == ["AKIAOFTHESESSION"] * 4
    with pytest.raises(DiscoError, match=r"tests\.no_such") as failed:
        session.get_global_func("tests.no_such")().debug_get_from_remote(0)
    said = [repr(session), repr(session._core.transport.__dict__), str(session.diagnose())]
    said += [str(session.flight()), str(failed.value), repr(vars(failed.value))]
    said += [*of_the_page(controller, "hushed"), *of_the_command(controller, "hushed")]
    said += of_the_system(daemons)
    with session.trace(tmp_path / "trace.json"):
        session.sync_all()
    said.append((tmp_path / "trace.json").read_text())
    os.kill(session.workers[1].pid, signal.SIGSEGV)
    with pytest.raises(WorkerLost) as lost:
        session.sync_all()
    said += [str(lost.value), *(daemon.stderr for daemon in daemons)]
    text = "\n".join(said)
    assert text.count("hushed") > 20  # these are about it
    raw = VALUE.encode()
    forms = [VALUE, raw.hex(), *(base64.b64encode(b"x" * n + raw)[4:-4].decode() for n in range(3))]
    assert [form for form in forms if form in text] == []


def test_other_workers_get_them_again(nodes, connect, lose):
    """From the program, which has them; the cluster does not keep them."""
    controller, _ = nodes
    with connect(controller.address, num_workers=2, recover="replay", secrets=GIVEN) as session:
        lose(session)
        assert variables(session, "AWS_SECRET_ACCESS_KEY") == [VALUE, VALUE]


def test_a_controller_that_restarts_does_not_hear_of_them(daemons, connect, eventually):
    """The session goes on, and so do its workers with what they have."""
    patient = {"DISCO_SESSION_LEASE_S": "60"}
    controller = daemons.controller("--log-level", "debug", **patient)
    worker = daemons.worker(controller.address, "--slots", "1", "--log-level", "debug")
    session = connect(controller.address, num_workers=1, secrets=GIVEN)
    assert variables(session, "AWS_SECRET_ACCESS_KEY") == [VALUE]
    controller.send(signal.SIGKILL)
    controller.wait()
    again = daemons.controller("--listen", controller.address, "--log-level", "debug", **patient)
    assert variables(session, "AWS_SECRET_ACCESS_KEY") == [VALUE]
    assert VALUE not in again.stderr + worker.stderr + controller.stderr


def test_a_controller_sends_none_to_a_node_in_clear(daemons, connect):
    """Where --insecure lets others listen; a session without goes on as before."""
    controller = daemons.controller("--listen", "0.0.0.0:0", "--insecure")
    port = controller.address.rpartition(":")[2]
    daemons.worker(f"127.0.0.1:{port}", "--slots", "1")
    with pytest.raises(
        ConfigError, match=r"connection of node.*is neither; start the controller"
    ) as e:
        connect(f"127.0.0.1:{port}", secrets=GIVEN)
    assert VALUE not in str(e.value) + controller.stderr
    assert variables(connect(f"127.0.0.1:{port}"), "AWS_SECRET_ACCESS_KEY") == [None]


def test_they_travel_over_tls(daemons, pki, own_tokens, connect):
    """To a controller that listens for other machines, and from there to its node."""
    for role, name in (("client", "alice"), ("worker", "pool")):
        own_tokens.add(role, name)
    controller = daemons.controller(
        *("--listen", "0.0.0.0:0", "--auth-token-file", own_tokens.path, *pki.flags("controller"))
    )
    port = controller.address.rpartition(":")[2]
    shown = ("--tls-ca", pki.ca, "--auth-token-file", own_tokens.of("pool"))
    daemons.worker(f"127.0.0.1:{port}", "--slots", "1", *shown)
    session = connect(
        f"127.0.0.1:{port}", tls_ca=pki.ca, token_file=own_tokens.of("alice"), secrets=GIVEN
    )
    assert variables(session, "AWS_SECRET_ACCESS_KEY") == [VALUE]


@pytest.mark.parametrize("carrier", ["frames"], indirect=True)
@pytest.mark.parametrize(
    "open_session",
    [
        lambda: ProcessSession(2, secrets=GIVEN),
        lambda: SocketSession(1, 2, 1, "127.0.0.1", 0, secrets=GIVEN),
    ],
    ids=["processes", "sockets"],
)
def test_workers_of_a_program_have_them(open_session, carrier, monkeypatch):
    """And the program itself does not get them; its own of that store are not theirs."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-program")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "worker_modules"))
    with open_session() as session:
        assert variables(session, "AWS_SECRET_ACCESS_KEY") == [VALUE, VALUE]
        assert variables(session, "AWS_SESSION_TOKEN") == [None, None]
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ


def test_a_store_that_checks_credentials_knows_the_session(daemons, connect, eventually, tmp_path):
    """A checkpoint is saved with those of the session alone; others are refused by the store."""
    with s3_server(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="inf") as address:
        eventually(lambda: answers(address), what="the S3 server to answer")
        bucket = make_bucket(address)
        known = ask_for_credentials(address)
        controller = daemons.controller()
        options = ("--slots", "2", "--allow-read", "*", "--allow-save", "*")
        daemons.worker(controller.address, *options, DISCO_ENV=f"AWS_ENDPOINT_URL=http://{address}")
        x = np.arange(8.0)
        with connect(controller.address, num_workers=2, secrets=known) as session:
            session.save(f"s3://{bucket}/run", {"x": session.distribute(x, None, "S[0]")})
            loaded = session.load(f"s3://{bucket}/run", session.mesh((2,)), "R")
            assert np.array_equal(loaded["x"].numpy(), x)
        wrong = {**known, "AWS_SECRET_ACCESS_KEY": VALUE}
        with (
            connect(controller.address, num_workers=2, secrets=wrong) as session,
            pytest.raises(BadFile, match="SignatureDoesNotMatch") as refused,
        ):
            session.load(f"s3://{bucket}/run", session.mesh((2,)), "R")
        assert VALUE not in str(refused.value)
        assert known["AWS_ACCESS_KEY_ID"] not in str(refused.value)
