"""The dashboard's HTTP: who gets which of it, and what the stream of events carries."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal

import numpy as np
import pytest

import disco_client

TOKENS = {"alice": "client", "bob": "client", "eye": "observer", "pool": "worker"}


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


@pytest.mark.parametrize(
    "path", ["/", "/dashboard.css", "/dashboard.js", "/charts.js", "/timeline.js", "/programs.js"]
)
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
        assert [node["name"] for node in view["nodes"]["rows"]] == ["one"]
        assert view["may"] == {"stop": True, "interrupt": True, "drain": True}
        (mine,) = view["sessions"]["rows"]
        assert mine["name"] == "seen"
        with asked(door_of(cluster_of_one), f"/events?session={mine['session']}") as answer:
            _, view = next(events(answer))
        assert [rank["worker"] for rank in view["session"]["ranks"]["rows"]] == [0, 1]
        with asked(door_of(cluster_of_one), f"/session?session={mine['session']}") as answer:
            wanted, found = {"logs", "verdict"}, {}
            for name, data in events(answer):
                found[name] = data
                if wanted <= found.keys():
                    break
        assert {each["worker"] for each in found["logs"]["printed"]} <= {0, 1}
        assert "hello" in str(found["logs"])
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
        for _ in range(32):
            assert stack.enter_context(asked(where, "/events")).status == 200
        assert status() == 429
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


def got(where, path, **headers):
    """The status and the content of an answer."""
    with asked(where, path, **headers) as answer:
        return answer.status, answer.read()


def test_ranks_are_looked_at_from_nearby(cluster_of_one):
    """What they did, where they are in their code, and both as files."""
    where = door_of(cluster_of_one)
    with disco_client.connect(
        cluster_of_one.address, num_workers=2, name="near", logs=False
    ) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.say")("hello")
        session.sync_all()
        status, content = got(where, "/timeline?session=near&count=2&ms=10000&spans=500")
        found = json.loads(content)
        assert status == 200
        assert [rank["worker"] for rank in found["ranks"]] == [0, 1]
        assert "tests.say" in [each["name"] for each in found["functions"]]
        (rank,) = json.loads(got(where, "/stack?session=near&first=1")[1])["ranks"]
        assert rank["worker"] == 1
        assert "File" in rank["stack"]
        with asked(where, "/trace?session=near&count=2") as answer:
            assert "near.trace.json" in answer.headers["Content-Disposition"]
            assert json.loads(answer.read())["traceEvents"]
        assert got(where, "/logs?session=near")[1].decode().count(" out hello") == 2
        for path in ("/timeline?session=near&first=2", "/timeline?session=near&spans=1e9"):
            status, text = got(where, path)
            assert (status, b"expected a number" in text) == (400, True)
        assert got(where, "/stack?session=far")[0] == 404


def ask(where, path):
    status, content = got(where, path)
    assert status == 200, content
    return json.loads(content)


def test_a_captured_program_is_shown_with_its_runs_and_the_times_of_its_steps(cluster_of_one):
    """Of a rank that is chosen; a session goes on meanwhile as ever."""
    where = door_of(cluster_of_one)
    with disco_client.connect(
        cluster_of_one.address, num_workers=2, name="captured", logs=False
    ) as session:
        assert ask(where, "/programs?session=captured")["programs"]["rows"] == []
        add, held = session.get_global_func("numpy.add"), session.broadcast(np.ones((2, 2)))
        with session.capture("step") as program:
            x = program.input("x")
            total = add(x, held)
            session.allreduce(total, total)
            program.output(add(total, x))
        for _ in range(4):
            program(held)
        session.sync_all()
        told = ask(where, "/programs?session=captured&first=1")
        (row,) = told["programs"]["rows"]
        assert (row["name"], row["steps"], row["runs"], row["known"]) == ("step", 3, 4, 4)
        assert 0 < row["mean_s"] < 60
        assert told["graph"] is None
        path = f"/programs?session=captured&first=1&program={row['defined']}"
        assert ask(where, path)["graph"]["timed"] == 0
        program(held)
        session.sync_all()
        told = ask(where, path)["graph"]
        assert told["timed"] == 1
        names = [each["name"] for each in told["rows"]]
        assert names == ["numpy.add", "runtime.disco.allreduce", "numpy.add"]
        assert [each["reads"] for each in told["rows"]] == [[-1, 0], [1], [2, -1]]
        assert [each["outputs"] for each in told["rows"]] == [[], [], [1]]
        assert sum(each["share"] for each in told["rows"]) == pytest.approx(1)
        assert all(each["last_s"] > 0 for each in told["rows"])
        del program
        session.sync_all()
        told = ask(where, path)
        assert told["programs"]["found"] == 0
        assert told["graph"] is None


def test_a_published_tensor_is_shown_with_its_layout(cluster_of_one):
    """As its client published it."""
    where = door_of(cluster_of_one)
    with disco_client.connect(
        cluster_of_one.address, num_workers=2, name="layouts", logs=False
    ) as session:
        whole = session.distribute(np.ones((8, 6), "float32"), placement="S[0]")
        session.publish("weights <b>", whole)
        session.sync_all()
        told = ask(where, "/tensors?session=layouts&first=1&name=weights+%3Cb%3E")
        (row,) = told["tensors"]["rows"]
        assert (row["name"], row["shape"], row["here"], row["bytes"]) == (
            "weights <b>",
            [8, 6],
            [4, 6],
            96,
        )
        parts = told["layout"]["workers"]["rows"]
        assert [each["part"] for each in parts] == ["[0:4, 0:6]", "[4:8, 0:6]"]
        assert sum(each["bytes"] for each in parts) == 192
        session.unpublish("weights <b>")
        session.sync_all()
        assert ask(where, "/tensors?session=layouts")["tensors"]["found"] == 0


def test_a_rank_that_is_busy_is_asked_once_and_answers_later(cluster_of_one, eventually):
    """The page says that it did not; nothing piles up before it."""
    where = door_of(cluster_of_one)
    with disco_client.connect(
        cluster_of_one.address, num_workers=1, name="busy", logs=False
    ) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.sleep")(4.0)

        def note():
            return ask(where, "/programs?session=busy")["note"]

        eventually(lambda: re.search(r"tests\.sleep.* did not answer", note()), what="that it is")
        session.sync_all()
        eventually(lambda: not note(), what="its answer")


@pytest.mark.parametrize(
    "query", ["program=-1", "program=9999999999999999999", "step=65537", "steps=0", "from=x"]
)
def test_numbers_that_cannot_be_are_refused(cluster_of_one, query):
    """In words that say which can."""
    with disco_client.connect(cluster_of_one.address, num_workers=1, name="odd", logs=False):
        status, text = got(door_of(cluster_of_one), f"/programs?session=odd&{query}")
    assert (status, b"expected a number" in text) == (400, True)


def test_the_last_hour_of_nodes_is_there_for_whom_names_them(cluster_of_one, eventually):
    """Nodes that are not there are left out."""

    def samples():
        query = "/load?node=one&node=two&parts=10&seconds=60"
        found = json.loads(got(door_of(cluster_of_one), query)[1])
        assert set(found["nodes"]) <= {"one"}
        return [cpu for cpu in found["nodes"]["one"]["cpu"] if cpu is not None]

    eventually(samples, what="a sample")
    assert all(0 <= cpu <= 1 for cpu in samples())


def post(where, path, said, **headers):
    """The status and the text of an answer to something that is posted."""
    connection = http.client.HTTPConnection(*where, timeout=20)
    try:
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def own(where, **more):
    """The headers of a request that the page itself makes."""
    return {"Origin": f"http://{where[0]}:{where[1]}", "Content-Type": "application/json"} | more


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 403),
        (JSON | {"Origin": "null"}, 403),
        (JSON | {"Origin": "http://["}, 403),
        (JSON | {"Origin": "https://evil.example"}, 403),
        (JSON | {"Origin": "http://127.0.0.1:1"}, 403),
        (JSON | {"Sec-Fetch-Site": "cross-site"}, 403),
        (JSON | {"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_other_sites_cannot_have_a_browser_act(cluster_of_one, headers, status):
    """A request from elsewhere changes nothing, whatever credentials the browser adds."""
    where = door_of(cluster_of_one)
    if status == 415 or "Sec-Fetch-Site" in headers:
        headers = own(where) | headers
    with disco_client.connect(
        cluster_of_one.address, num_workers=1, name="kept", logs=False
    ) as session:
        said = {"session": "kept", "confirm": "kept"}
        assert post(where, "/stop", said, **headers)[0] == status
        session.sync_all()
    assert got(where, "/stop", **own(where))[0] == 405


def test_another_site_reads_nothing_either(cluster_of_one):
    """Browsers say where a request comes from."""
    headers = {"Sec-Fetch-Site": "cross-site"}
    for path in ("/events", "/session?session=x", "/load?node=one", "/logs?session=x"):
        assert got(door_of(cluster_of_one), path, **headers)[0] == 403


def test_a_session_is_stopped_by_its_name_and_the_audit_log_says_who(cluster_of_one, eventually):
    """Its program is told; a name that differs stops nothing."""
    where = door_of(cluster_of_one)
    session = disco_client.connect(cluster_of_one.address, num_workers=1, name="over", logs=False)
    status, text = post(where, "/stop", {"session": "over", "confirm": "ove"}, **own(where))
    assert (status, "expected the session's name, 'over'" in text) == (409, True)
    session.sync_all()
    status, text = post(where, "/stop", {"session": "over", "confirm": "over"}, **own(where))
    assert (status, json.loads(text)["name"]) == (200, "over")
    with pytest.raises(disco_client.SessionError, match="closed on request"):
        session.sync_all()
    lines = cluster_of_one.stderr.splitlines()
    line = next(x for x in lines if "audit: session closed" in x and "session=over" in x)
    assert "what=dashboard" in line
    said = {"session": "over", "confirm": "over"}
    eventually(lambda: post(where, "/stop", said, **own(where))[0] == 404, what="that it is gone")
    for said in (b"{", b"[]", b'{"session": 7}', b"[" * 4000):
        assert post(where, "/stop", said, **own(where))[0] == 400
    assert post(where, "/stop", b" " * 5000, **own(where))[0] == 413


def test_only_those_stop_and_see_who_may(guarded, shared_daemons, tmp_path):
    """An owner its own session; others are refused, and the audit log has it."""
    where = door_of(guarded)
    secret = tmp_path / "pool"
    secret.write_text(f"{'pool':x>32}")
    secret.chmod(0o600)
    shared_daemons.worker(guarded.address, "--slots", "1", "--auth-token-file", secret)
    tokens = {name: {"Authorization": f"Bearer {name:x>32}"} for name in TOKENS}
    said = {"session": "hers", "confirm": "hers"}
    with disco_client.connect(
        guarded.address, num_workers=1, name="hers", token=f"{'alice':x>32}", logs=False
    ) as session:
        for name in ("bob", "eye"):
            assert post(where, "/stop", said, **own(where, **tokens[name]))[0] == 403
            for what in ("stack", "logs", "trace", "programs", "tensors"):
                assert got(where, f"/{what}?session=hers", **tokens[name])[0] == 403
            with asked(where, "/events", **tokens[name]) as answer:
                _, view = next(events(answer))
            (row,) = view["sessions"]["rows"]
            assert (row["yours"], view["may"]["stop"]) == (False, name == "bob")
            assert not view["may"]["drain"]
            drained = {"node": "any", "confirm": "any"}
            assert post(where, "/drain", drained, **own(where, **tokens[name]))[0] == 403
        assert post(where, "/stop", said, **own(where))[0] == 401
        session.sync_all()
        assert post(where, "/stop", said, **own(where, **tokens["alice"]))[0] == 200
        with pytest.raises(disco_client.SessionError, match="on request of client alice"):
            session.sync_all()
    audit = [line for line in guarded.stderr.splitlines() if "disco.audit" in line]
    assert any("close refused" in line and "client bob" in line for line in audit)
    assert any("session closed" in line and "client alice" in line for line in audit)


def test_a_node_is_drained_and_taken_back_by_its_name(cluster_of_one, eventually):
    """It takes no new sessions meanwhile; the audit log has both."""
    where = door_of(cluster_of_one)

    def state(**said):
        status, text = post(where, "/drain", {"node": "one", "confirm": "one"} | said, **own(where))
        return json.loads(text)["state"] if status == 200 else status

    assert state(confirm="two") == 409
    assert state(node="o") == 404
    assert state() == "draining"
    with asked(where, "/events") as answer:
        (node,) = next(events(answer))[1]["nodes"]["rows"]
    assert (node["state"], node["drained"]) == ("draining", "on request")
    assert post(where, "/drain", {"node": "one", "confirm": "one"}, **JSON)[0] == 403
    assert state(undo="yes") == "ready"

    def audit():
        return [line for line in cluster_of_one.stderr.splitlines() if "by=dashboard" in line]

    eventually(lambda: len(audit()) == 2, what="the audit log")
    assert ["node drained" in audit()[0], "node taken back" in audit()[1]] == [True, True]


def test_a_session_is_interrupted_by_its_name(cluster_of_one):
    """Its program is told, and goes on; the audit log says by what it was asked."""
    where = door_of(cluster_of_one)
    with disco_client.connect(
        cluster_of_one.address, num_workers=1, name="endless", logs=False
    ) as session:
        session.import_python_module("disco_test_functions")
        ref = session.get_global_func("tests.sleep")(600)
        status, text = post(where, "/interrupt", {"session": "endless"}, **own(where))
        assert (status, "expected the session's name, 'endless'" in text) == (409, True)
        said = {"session": "endless", "confirm": "endless"}
        status, text = post(where, "/interrupt", said, **own(where))
        assert (status, json.loads(text)["name"]) == (200, "endless")
        with pytest.raises(disco_client.Interrupted):
            ref.get()
    lines = cluster_of_one.stderr.splitlines()
    line = next(x for x in lines if "audit: session interrupted" in x and "session=endless" in x)
    assert "what=dashboard" in line
