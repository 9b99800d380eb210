"""The dashboard's HTTP: who gets which of it, and what the stream of events carries."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal

import pytest

import disco_client

TOKENS = {"alice": "client", "eye": "observer", "pool": "worker"}


def door_of(daemon):
    host, _, port = re.search(r"the dashboard at https?://(\S+)/", daemon.stderr)[1].rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def asked(where, path, **headers):
    """An answer, whose body has not been read."""
    connection = http.client.HTTPConnection(*where, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        yield connection.getresponse()
    finally:
        connection.close()


def events(answer):
    """The events of a stream, as they come."""
    while name := answer.readline():
        data = answer.readline()
        assert answer.readline() == b"\n"
        yield name.removeprefix(b"event: ").strip().decode(), json.loads(data[len("data: ") :])


@pytest.fixture(scope="module")
def cluster_of_one(shared_daemons):
    controller = shared_daemons.controller("--http", "127.0.0.1:0")
    shared_daemons.worker(controller.address, "--slots", "2", "--name", "one")
    return controller


@pytest.fixture(scope="module")
def guarded(shared_daemons, tmp_path_factory):
    """A controller that asks for tokens; on the loopback address they may go in clear."""
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text("".join(f"{role} {name} {name:x>32}\n" for name, role in TOKENS.items()))
    file.chmod(0o600)
    return shared_daemons.controller("--http", "127.0.0.1:0", "--auth-token-file", file)


@pytest.mark.parametrize("path", ["/", "/dashboard.css", "/dashboard.js", "/charts.js"])
def test_the_page_may_ask_for_nothing_but_itself(cluster_of_one, path):
    """Neither scripts nor pictures nor connections of others, and no frame around it."""
    with asked(door_of(cluster_of_one), path) as answer:
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        body = answer.read().decode()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", body)


def test_the_stream_tells_of_the_cluster_and_of_one_session(cluster_of_one):
    """Its lists, what a session's ranks print, and what they did in the last seconds."""
    with disco_client.connect(
        cluster_of_one.address, num_workers=2, name="seen", logs=False
    ) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.say")("hello")
        session.sync_all()
        with asked(door_of(cluster_of_one), "/events") as answer:
            name, view = next(events(answer))
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert name == "overview"
        assert [node["name"] for node in view["nodes"]] == ["one"]
        (mine,) = view["sessions"]
        assert (mine["name"], len(mine["ranks"])) == ("seen", 2)
        with asked(door_of(cluster_of_one), f"/events?session={mine['session']}") as answer:
            wanted, found = {"overview", "timeline", "logs", "verdict"}, {}
            for name, data in events(answer):
                found[name] = data
                if wanted <= found.keys():
                    break
        assert {each["worker"] for each in found["logs"]["printed"]} <= {0, 1}
        assert "hello" in str(found["logs"])
        assert len(found["timeline"]["ranks"]) == 2
        assert found["verdict"] == ""


def test_a_name_that_leads_here_is_no_way_around_the_browser(cluster_of_one):
    """Where nobody is asked who he is, other sites could make one of their names lead here."""
    where = door_of(cluster_of_one)
    for path in ("/", "/events"):
        with asked(where, path, Host="evil.example:7601") as answer:
            assert answer.status == 403
            assert b"expected an address" in answer.read()
    for host in ("localhost:7601", "127.0.0.1", "[::1]:80"):
        with asked(where, "/", Host=host) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("shown", "status"),
    [("", 401), ("x" * 32, 401), ("pool", 403), ("eye", 200), ("alice", 200)],
)
def test_the_stream_wants_the_token_that_calls_want(guarded, shown, status):
    """None, an unknown one and a worker's are refused in words that do not repeat it."""
    token = f"{shown:x>32}" if shown in TOKENS else shown
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with asked(door_of(guarded), "/events", **headers) as answer:
        assert answer.status == status
        if status != 200:
            text = answer.read().decode()
            assert "token" in text or "may not look" in text
            assert not token or token not in text


def test_as_many_look_as_may_and_who_leaves_makes_room(daemons, eventually):
    """The next is told; a stream that nobody reads holds nobody else."""
    controller = daemons.controller("--http", "127.0.0.1:0")
    daemons.worker(controller.address, "--slots", "1")
    where = door_of(controller)

    def status():
        with asked(where, "/events") as answer:
            return answer.status

    with contextlib.ExitStack() as stack:
        for _ in range(64):
            assert stack.enter_context(asked(where, "/events")).status == 200
        assert status() == 503
        with disco_client.connect(controller.address, num_workers=1, logs=False) as session:
            session.sync_all()
    eventually(lambda: status() == 200, what="room")
    assert "Traceback" not in controller.stderr


def test_a_controller_ends_although_somebody_looks(daemons):
    """SIGTERM ends the streams."""
    controller = daemons.controller("--http", "127.0.0.1:0")
    with asked(door_of(controller), "/events") as answer:
        next(events(answer))
        controller.send(signal.SIGTERM)
        assert controller.wait() == 0
    assert "Traceback" not in controller.stderr


def test_a_door_for_other_machines_is_encrypted(daemons):
    """Or --insecure is said: what is shown there is nobody else's business."""
    refused = daemons.controller("--http", "0.0.0.0:0", ready=False)
    assert refused.wait() == 2
    assert "http: 0.0.0.0:0 can be reached from other machines" in refused.stderr
    assert door_of(daemons.controller("--http", "0.0.0.0:0", "--insecure"))
