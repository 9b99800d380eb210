"""What ranks print: how much of it leaves the node, and what is said of the rest."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EncodedEnvelope
from disco_client.wire.printed import LineCounter
from disco_server.observe import logs
from disco_server.worker.output import SessionOutput

MIB = 1 << 20


class Session:
    """A session's output, and what comes of it at a controller that takes it or not."""

    def __init__(self, reading=True):
        self.reading = reading
        self.said = []
        log = logging.getLogger("disco.test")
        self.output = SessionOutput(
            7, "here", lambda worker: logs.bind(log, rank=worker), self.post
        )

    def post(self, raw):
        if self.reading:
            envelope = EncodedEnvelope.FromString(raw)
            assert envelope.session == 7
            self.said.append(controller_pb2.LogLines.FromString(envelope.payload))
        return self.reading

    def lines(self, worker=0):
        """The lines of a rank as a client shows them."""
        counter = LineCounter()
        mine = [said for said in self.said if said.worker == worker]
        return [line for s in mine for line in counter.receive(worker, s.first, s.lines)]


def run(test):
    """Runs a test that needs an event loop, whose clock the budgets go by."""

    async def limited():
        async with asyncio.timeout(30):
            return await test()

    return asyncio.run(limited())


def block(*lines):
    return "\n".join(lines).encode()


def flood(session, worker=0, mib=64, line=b"flooding"):
    """A rank prints so much as fast as it can; how many lines that is."""
    piece = b"\n".join([line] * ((64 << 10) // (len(line) + 1)))
    times = mib * MIB // len(piece)
    for _ in range(times):
        session.output.add(worker, False, piece)
    return times * (piece.count(b"\n") + 1)


def counted(lines):
    """How many lines there are, those that were dropped included."""
    noted = [int(x.split()[1].replace(",", "")) for x in lines if x.endswith("dropped")]
    return len(lines) - len(noted) + sum(noted)


def test_lines_leave_together_as_they_came():
    """One message for what was read at once, whoever of the ranks printed it."""

    async def test():
        session = Session()
        session.output.add(0, False, block("one", "", "zw\u00f6lf", "with\r"))
        session.output.add(1, True, block("trouble"))
        session.output.add(0, False, block("two"))
        session.output.close()
        said = [(s.worker, s.stderr, s.first, list(s.lines)) for s in session.said]
        assert said == [
            (0, False, 0, ["one", "", "zw\u00f6lf", "with"]),
            (1, True, 0, ["trouble"]),
            (0, False, 4, ["two"]),
        ]

    run(test)


def test_a_flood_is_cut_down_and_every_line_of_it_is_counted():
    """Its beginning comes; of the rest a client learns how many lines they were."""

    async def test():
        session = Session()
        total = flood(session)
        sent = sum(said.ByteSize() for said in session.said)
        assert MIB // 4 < sent < 8 * MIB
        session.output.close()
        assert counted(session.lines()) == total
        assert session.lines()[-1].endswith("lines dropped")
        # Many lines a message, also where hardly any may pass.
        assert len(session.said) < total / 100

    run(test)


def test_a_flood_of_one_session_takes_nothing_from_another():
    """Each has a budget of its own."""

    async def test():
        session, other = Session(), Session()
        flood(session)
        other.output.add(0, False, block(*["fine"] * 5_000))
        assert other.lines() == ["fine"] * 5_000

    run(test)


def test_a_rank_is_heard_again_when_the_flood_is_over():
    """What was dropped is said without another line, and lines come through again."""

    async def test():
        session = Session()
        total = flood(session)
        async with asyncio.timeout(20):
            while counted(session.lines()) < total:  # noqa: ASYNC110  (a timer says it)
                await asyncio.sleep(0.05)
            while session.lines()[-1] != "calm":
                session.output.add(0, False, b"calm")
                await asyncio.sleep(0.05)

    run(test)


def test_what_nobody_takes_is_counted_too():
    """As while the controller is away; then the next lines, or a timer, say how many."""

    async def test():
        session = Session(reading=False)
        session.output.add(0, False, block("a", "b"))
        session.reading = True
        session.output.add(0, False, block("c"))
        assert session.lines() == ["... 2 lines dropped", "c"]
        session.reading = False
        session.output.add(0, False, block("d"))
        session.reading = True
        session.output.close()
        assert session.lines()[-1] == "... 1 line dropped"

    run(test)


@pytest.fixture
def daemon_log():
    """A pipe in which the log of this process ends, and which nobody reads yet."""
    root = logging.getLogger()
    level = root.level
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    with os.fdopen(theirs, "w") as stream:
        handler = logs.setup(stream=stream)
        try:
            yield ours
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
            os.close(ours)


def read_all(fd):
    for handler in logging.getLogger().handlers:
        handler.flush()
    text = b""
    try:
        while data := os.read(fd, 1 << 20):
            text += data
    except BlockingIOError:
        pass
    return text.decode()


def test_the_log_of_the_daemon_has_a_bound_for_what_ranks_print(daemon_log):
    """The first lines are there, cut where they are long, and then how many were left out."""

    async def test():
        session = Session()
        total = flood(session, line=b"f" * 20)
        assert counted([line.split("] ")[1] for line in read_all(daemon_log).splitlines()]) < 1000
        session.output.say()
        session.output.add(1, False, b"x" * 10_000)
        session.output.close()
        return total

    run(test)
    said = read_all(daemon_log)
    assert "[worker 0 here] ... " in said
    assert " lines dropped rank=0" in said


def test_a_log_that_nobody_reads_holds_up_nothing(daemon_log):
    """What ranks print is left out of it; the controller gets it all the same."""

    async def test():
        session = Session()
        for _ in range(20):
            lines = [f"{number} " + "y" * 3_000 for number in range(100)]
            session.output.add(0, False, block(*lines))
            session.output._log_budget.take(-1_000)  # as if time had passed
        session.output.close()
        assert sum(len(said.lines) for said in session.said) > 500

    run(test)
    assert 0 < len(read_all(daemon_log)) < 1 << 20
