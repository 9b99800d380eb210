"""Quotas of owners and turns in the queue, on real clusters, by tokens and by certificates."""

from __future__ import annotations

import json
import logging
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.credentials import Credentials
from disco_server.cli.main import main

Why = controller_pb2.WaitReason
FUNCTIONS = "disco_test_functions"
WAIT = 60.0


@pytest.fixture
def background():
    """Runs calls that wait in threads of their own."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


class QuotaCluster:
    """A cluster that knows its callers, by tokens or by certificates."""

    def __init__(self, daemons, how, pki, tokens, eventually):
        self.eventually = eventually
        self.daemons, self.how, self.pki, self.tokens = daemons, how, pki, tokens
        self.controller = None
        if how == "certificates":
            for identity in ("observer/eye", "admin/root"):
                pki.issue(identity)

    def start(self, *options, slots=2, **env):
        flags = self._flags("controller", "controller")
        self.controller = self.daemons.controller(*flags, "--audit-log", "audit", *options, **env)
        self.worker(slots)
        return self.controller

    def worker(self, slots):
        flags = self._flags("pool", "worker")
        self.daemons.worker(self.controller.address, *flags, "--slots", slots)

    def _flags(self, token, certificate):
        if self.how == "tokens":
            file = self.tokens.path if token == "controller" else self.tokens.of(token)
            return ("--auth-token-file", file)
        return ("--require-client-cert", *self.pki.flags(certificate))

    def shown(self, name):
        """The arguments of connect() for somebody."""
        if self.how == "tokens":
            return {"token_file": self.tokens.of(name)}
        role = {"root": "admin", "eye": "observer"}.get(name, "client")
        return self.pki.files(f"{role}-{name}")

    def cli(self, name, *arguments):
        given = self.shown(name).items()
        flags = [word for key, path in given for word in (f"--{key.replace('_', '-')}", str(path))]
        return CliRunner().invoke(main, [*arguments, *flags, "--address", self.controller.address])

    def listed(self, name="root"):
        """The sessions that somebody sees, by their names."""
        line = ReloadingChannel(self.controller.address, Credentials.read(**self.shown(name)))
        listing = line.unary_unary(
            "/disco.v1.SessionService/List",
            response_deserializer=controller_pb2.ListResult.FromString,
        )
        try:
            return {each.name: each for each in listing(b"", timeout=20).sessions}
        finally:
            line.close()

    def waiting(self, name="root"):
        """Those of them that wait: their places, with why."""
        listed = self.listed(name).items()
        return {name: each.queued for name, each in listed if each.state == "queued"}

    def await_waiting(self, count):
        """Waits until so many wait."""
        self.eventually(lambda: len(self.waiting()) == count, what="the session to wait")

    def audited(self):
        lines = (self.controller.folder / "audit").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def events(self):
        return [entry["message"] for entry in self.audited()]


@pytest.fixture(params=["tokens", "certificates"])
def guarded(daemons, pki, tokens, eventually, request):
    """A cluster, once for each way to know its callers; to be started by the test."""
    return QuotaCluster(daemons, request.param, pki, tokens, eventually)


@pytest.fixture
def tokened(daemons, pki, tokens, eventually):
    """One that asks for tokens."""
    return QuotaCluster(daemons, "tokens", pki, tokens, eventually)


def test_two_owners_take_turns(guarded, connect, background, eventually):
    """Who holds fewer slots is next, though the other one has asked for more, and before."""
    controller = guarded.start()
    order: list[str] = []

    def ask(owner, name):
        session = connect(controller.address, name=name, timeout=WAIT, **guarded.shown(owner))
        order.append(name)
        return session

    held = [ask("alice", f"a{number}") for number in range(2)]
    asked = []
    for owner, name in (("alice", "a2"), ("alice", "a3"), ("bob", "b0"), ("bob", "b1")):
        asked.append(background.submit(ask, owner, name))
        guarded.await_waiting(len(asked))
    places = guarded.waiting()
    assert {name: each.ahead for name, each in places.items()} == {
        "b0": 0,
        "b1": 1,
        "a2": 2,
        "a3": 3,
    }
    assert places["b0"].why == Why.WAIT_REASON_NO_SLOTS
    assert places["a2"].why == Why.WAIT_REASON_TURN
    shown = guarded.cli("eye", "status").output
    assert "needs" in shown
    assert "2 sessions ahead" in shown
    held[0].shutdown()
    eventually(lambda: order[2:] == ["b0"], what="who holds no slots to be served")
    held[1].shutdown()
    eventually(lambda: order[2:] == ["b0", "a2"], what="the other one's turn")
    asked[0].result(WAIT).shutdown()
    eventually(lambda: order[2:] == ["b0", "a2", "a3"], what="none of the first one's is left")
    asked[2].result(WAIT).shutdown()
    eventually(lambda: order[2:] == ["b0", "a2", "a3", "b1"])


QUOTAS = """
[owner.alice]
slots = 1
sessions = 2
priority = "high"
"""


def test_an_owner_waits_for_its_quota_and_others_do_not_wait_for_it(
    guarded, connect, background, eventually, printed, tmp_path
):
    """It is told what it holds; more than it may ever have is refused at once, with all numbers."""
    file = tmp_path / "quotas.toml"
    file.write_text(QUOTAS)
    controller = guarded.start("--quota-file", file)
    alice, bob = guarded.shown("alice"), guarded.shown("bob")
    connect(controller.address, name="one", **alice)
    with pytest.raises(errors.QuotaExceeded, match=r"at most 1 worker.*\[owner.alice\]") as much:
        connect(controller.address, num_workers=2, timeout=WAIT, **alice)
    assert (much.value.quota, much.value.limit, much.value.used) == ("slots", 1, 1)
    assert much.value.sessions == ("one",)
    with pytest.raises(errors.QuotaExceeded, match="at most 'normal'") as high:
        connect(controller.address, priority="high", **bob)
    assert high.value.quota == "priority"
    with pytest.raises(errors.QuotaExceeded, match="may hold 1 slot at a time, and holds 1") as own:
        connect(controller.address, timeout=2.0, **alice)
    assert own.value.sessions == ("one",)
    wish = {"name": "two", "priority": "high", "timeout": WAIT, **alice}
    waits = background.submit(connect, controller.address, **wish)
    guarded.await_waiting(1)
    with pytest.raises(errors.QuotaExceeded, match="has 2 sessions") as third:
        connect(controller.address, **alice)
    assert set(third.value.sessions) == {"one", "two"}
    others = connect(controller.address, name="others", **bob)  # does not wait behind it
    place = guarded.waiting("alice")["two"]
    assert place.why == Why.WAIT_REASON_OWNER_SLOTS
    assert (place.owner_slots, place.owner_limit) == (1, 1)
    assert guarded.waiting("bob")["two"].owner_limit == 0, "is for who may use the session"
    why = "its owner holds 1 of the 1 slots that it may"
    eventually(lambda: why in printed(), what="the client to be told why it waits")
    others.shutdown()
    assert not waits.done()
    refused = [e for e in guarded.audited() if e.get("what") == "quota"]
    assert len(refused) == 4
    assert all(e["outcome"] != "allowed" for e in refused)
    file.write_text("[owner.alice]\nslots = 2\n")
    waits.result(WAIT).sync_all()


def test_who_ends_a_session_may_open_the_next_at_once(tokened, connect):
    """With all that the quota allows; the workers of the one before may still be ending."""
    controller = tokened.start("--max-client-sessions", 1, slots=2)
    alice = tokened.shown("alice")
    for turn in range(30):
        session = connect(controller.address, name=f"turn-{turn}", **alice)
        session.sync_all()
        session.shutdown()


def test_a_file_of_quotas_holds_as_soon_as_it_has_changed(
    tokened, connect, background, eventually, tmp_path
):
    """One with a mistake changes nothing, and is written down; a good one lets who waits begin."""
    file = tmp_path / "quotas.toml"
    file.write_text(QUOTAS)
    controller = tokened.start("--quota-file", file)
    connect(controller.address, **tokened.shown("alice"))
    wish = {"timeout": WAIT, **tokened.shown("alice")}
    waits = background.submit(connect, controller.address, **wish)
    tokened.await_waiting(1)
    file.write_text("[owner.alice]\nslots = 'many'")
    eventually(lambda: "the quotas before serve on" in controller.stderr)
    assert len(tokened.waiting()) == 1
    file.write_text("[owner.alice]\nslots = 2\n")
    waits.result(WAIT).sync_all()
    outcomes = [e["outcome"] for e in tokened.audited() if e["message"] == "quotas read"]
    assert outcomes[0] == outcomes[2] == "allowed"
    assert "expected a whole number" in outcomes[1]


def test_a_higher_class_goes_first_and_ends_nobody(tokened, connect, background, eventually):
    """Sessions that run go on; those of a lower class that wait are told why."""
    controller = tokened.start("--client-priority", "high", slots=1)
    runs = connect(controller.address, priority="low", **tokened.shown("alice"))
    asked = []
    for owner, priority in (("alice", "low"), ("alice", "normal"), ("bob", "high")):
        wish = {"name": priority, "priority": priority, "timeout": WAIT}
        wish |= tokened.shown(owner)
        asked.append(background.submit(connect, controller.address, **wish))
        tokened.await_waiting(len(asked))
    places = tokened.waiting()
    assert sorted(places, key=lambda name: places[name].ahead) == ["high", "normal", "low"]
    assert places["normal"].why == places["low"].why == Why.WAIT_REASON_HIGHER_CLASS
    assert "of a higher priority than 'low' too" in tokened.cli("alice", "status").output
    runs.sync_all()
    runs.shutdown()
    for each in reversed(asked):
        each.result(WAIT).shutdown()
    with pytest.raises(errors.ConfigError, match="'low', 'normal' or 'high'"):
        connect(controller.address, priority="urgent")


def use_until_it_ends(session):
    """Has something to do all the time."""
    while True:
        session.sync_all()
        time.sleep(0.05)


def metric(controller, name):
    """The value of one of the controller's metrics."""
    port = re.search(r"metrics at http://127.0.0.1:(\d+)", controller.stderr)[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])


def test_a_session_ends_at_its_length_and_says_so_before(tokened, connect, eventually, caplog):
    """It is warned; then a typed error, the reason in lists, the audit log and the metrics."""
    controller = tokened.start(
        "--session-limit", 8, "--limit-warning", 60, "--http", "127.0.0.1:0", DISCO_HTTP=""
    )
    with caplog.at_level(logging.WARNING, logger="disco_client"):
        session = connect(controller.address, name="long", **tokened.shown("alice"))
        assert session.expiry is None
        eventually(lambda: session.expiry is not None, what="a warning")
    assert "session 'long' ends in" in caplog.text
    assert session.expiry.limit == "length"
    assert 0 <= session.expiry.seconds_left <= 4
    seen = tokened.listed("eye")["long"]
    assert 0 <= seen.ends_in_s <= 4
    assert seen.ends_by == controller_pb2.END_REASON_EXPIRED
    with pytest.raises(errors.SessionExpired, match="held its slots for 8 s") as ended:
        use_until_it_ends(session)
    assert (ended.value.limit, ended.value.limit_s) == ("length", 8.0)
    assert isinstance(ended.value, errors.SessionLost)
    assert metric(controller, 'disco_sessions_ended_total{reason="expired"}') == 1
    events = [(e["message"], e.get("what")) for e in tokened.audited() if e.get("session")]
    assert events == [
        ("session created", None),
        ("session warned", "expired"),
        ("session ended", "expired"),
    ]


def test_a_client_that_does_nothing_is_ended_and_one_whose_ranks_work_is_not(
    tokened, connect, eventually
):
    """A command that runs for longer than the limit is nobody's idleness; nor is a wait for it."""
    controller = tokened.start("--idle-limit", 5, "--http", "127.0.0.1:0", DISCO_HTTP="")
    session = connect(controller.address, name="idle", **tokened.shown("alice"))
    session.import_python_module(FUNCTIONS)
    sleep = session.get_global_func("tests.sleep")
    session.sync_all()
    sleep(8.0)
    time.sleep(6.5)  # nobody waits for the command
    session.sync_all()
    eventually(lambda: session.expiry is not None, what="a warning")
    assert session.expiry.limit == "idle"
    session.sync_all()  # does something, and takes it back
    eventually(lambda: session.expiry is None, what="the warning to be withdrawn")
    eventually(lambda: session.expiry is not None, what="another warning")
    eventually(lambda: "session ended" in tokened.events(), what="the end")
    with pytest.raises(errors.SessionExpired, match="did nothing for 5 s") as ended:
        session.sync_all()
    assert (ended.value.limit, ended.value.limit_s) == ("idle", 5.0)
    assert metric(controller, 'disco_sessions_ended_total{reason="idle"}') == 1
    events = [(e["message"], e.get("what")) for e in tokened.audited() if e.get("session")]
    assert events[-3:] == [
        ("warning withdrawn", None),
        ("session warned", "idle"),
        ("session ended", "idle"),
    ]


def test_commands_of_one_owner_have_a_limit_of_their_own(tokened, connect, eventually, tmp_path):
    """It holds for sessions that begin while the file says so; others have that of all."""
    file = tmp_path / "quotas.toml"
    file.write_text("[owner.alice]\ncommand_limit_s = 1\n[owner.bob]\ncommand_limit_s = 0\n")
    controller = tokened.start("--command-limit", 600, "--quota-file", file, slots=3)
    limited, free = (
        connect(controller.address, **tokened.shown(owner)) for owner in ("alice", "bob")
    )
    for session in (limited, free):
        session.import_python_module(FUNCTIONS)
    answer = free.get_global_func("tests.sleep")(3.0)
    sleep = limited.get_global_func("tests.sleep")
    with pytest.raises(errors.TimeLimit, match="limit of 1 s, which the cluster sets"):
        sleep(600.0).get()
    assert answer.get() is None
    file.write_text("[owner.alice]\ncommand_limit_s = 2\n")
    eventually(lambda: tokened.events().count("quotas read") == 2, what="the file to be read")
    with pytest.raises(errors.TimeLimit, match="limit of 1 s"):
        sleep(600.0).get()
    later = connect(controller.address, **tokened.shown("alice"))
    later.import_python_module(FUNCTIONS)
    with pytest.raises(errors.TimeLimit, match="limit of 2 s"):
        later.get_global_func("tests.sleep")(600.0).get()


def test_the_length_goes_on_when_the_controller_is_started_again(tokened, connect):
    """Its node says how long the session has run."""
    limit = ("--session-limit", "9", "--limit-warning", "1")
    lease = {"DISCO_SESSION_LEASE_S": "60"}
    controller = tokened.start(*limit, **lease)
    session = connect(controller.address, name="long", **tokened.shown("alice"))
    began = time.monotonic()
    time.sleep(4.0)
    controller.send(9)
    controller.wait()
    flags = ("--auth-token-file", tokened.tokens.path, "--audit-log", "audit")
    tokened.daemons.controller("--listen", controller.address, *flags, *limit, **lease)
    with pytest.raises(errors.SessionExpired):
        use_until_it_ends(session)
    assert time.monotonic() - began < 13, "not nine seconds anew"


def test_an_administrator_looks_and_stops_and_it_is_written_down(guarded, connect):
    """Whoever's session it is; another client may neither, and an observer only lists."""
    controller = guarded.start()
    session = connect(controller.address, name="of-alice", **guarded.shown("alice"))
    session.sync_all()
    for name in ("bob", "eye"):
        for arguments in (("stop",), ("logs",), ("stack",)):
            refused = guarded.cli(name, *arguments, "of-alice")
            assert refused.exit_code == 4, (name, arguments, refused.stderr)
    assert "of-alice" in guarded.cli("eye", "status").output
    session.sync_all()  # it did not notice
    assert guarded.cli("alice", "logs", "of-alice").exit_code == 0
    for arguments in (("logs",), ("stack",), ("stop",)):
        done = guarded.cli("root", *arguments, "of-alice")
        assert done.exit_code == 0, done.stderr
    with pytest.raises(errors.SessionLost, match="closed on request of admin root"):
        session.sync_all()
    audited = [e for e in guarded.audited() if e.get("who") == "admin root"]
    events = [e["message"] for e in audited if e.get("session") == "of-alice"]
    assert events == ["logs read", "session inspected", "session closed"]
    assert all(e["owner"].startswith("alice (") for e in audited if e.get("session"))
    assert Path(controller.folder, "audit").stat().st_mode & 0o777 == 0o600


def test_quotas_of_single_owners_need_to_know_whose_a_session_is(daemons, tmp_path):
    """A file of quotas without authentication, or with a mistake, is refused at the start."""
    file = tmp_path / "quotas.toml"
    file.write_text("[owner.alice]\nslot = 1")
    controller = daemons.controller("--quota-file", file, ready=False)
    assert controller.wait() == 2
    assert "does not know whose a session is" in controller.stderr
