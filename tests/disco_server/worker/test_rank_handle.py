"""The daemon's end of a rank process: frames, output, exits, and no leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import psutil
import pytest

from disco_client.descriptors import opened
from disco_client.pb import node_pb2
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedReply,
    EnvelopeKind,
    encode_value,
    envelope,
)
from disco_client.wire.framing import frame
from disco_server.observe.printed_lines import KEPT_LINES, decode_lines
from disco_server.worker.fork_server import ForkServer

ENVIRON = dict(os.environ)
START_CHILD = "print(__import__('subprocess').Popen(['sleep', '600']).pid)"


@contextlib.asynccontextmanager
async def keeper():
    """What starts ranks."""
    server = ForkServer(ENVIRON)
    try:
        kept = await server.keeper(1)
        yield kept
        assert await kept.end()
    finally:
        await server.close()


async def end(handle):
    """Ends a rank, as the end of its session does; returns its exit status."""
    handle.kill()
    status = await handle.exited
    handle.kill()  # what it left behind in its group
    handle.close()
    return status


def assign(*allow):
    told = node_pb2.AssignRank(
        num_workers=1, num_groups=1, device="cpu:0", allow_modules=allow, local_workers=1
    )
    return frame(envelope(EnvelopeKind.ASSIGN, told.SerializeToString(), session=1))


def call(name, *args, first_seq=1):
    """A batch that calls a function and then syncs."""
    batch = EncodedBatch()
    command = batch.commands.add(action=int(Action.GET_GLOBAL_FUNC), reg=1)
    encode_value(command.args.add(), name)
    command = batch.commands.add(action=int(Action.CALL_PACKED), reg=2, func=1)
    for arg in args:
        encode_value(command.args.add(), arg)
    batch.commands.add(action=int(Action.SYNC_WORKER))
    payload = batch.SerializeToString()
    last = first_seq + 2
    return frame(
        envelope(EnvelopeKind.BATCH, payload, session=1, first_seq=first_seq, last_seq=last)
    )


class Heard:
    """Collects what a rank says."""

    def __init__(self, handle):
        self.envelopes = asyncio.Queue()
        self.lines = []
        self._spoke = asyncio.Event()
        handle.on_envelope = self._receive
        handle.on_output = self._hear

    def _receive(self, _raw, received, _reader):
        if received.kind != EnvelopeKind.AUDIT:
            self.envelopes.put_nowait(received)

    def _hear(self, is_error, block):
        self.lines.extend((is_error, line) for line in decode_lines(block))
        self._spoke.set()

    async def line(self):
        await asyncio.wait_for(self._spoke.wait(), 30)
        return self.lines[0][1]

    async def next(self, kind):
        received = await asyncio.wait_for(self.envelopes.get(), 30)
        assert received.kind == kind
        return received


def on_a_rank(use, *allow):
    """Runs a coroutine with a rank that has been assigned, and ends the rank."""

    async def run():
        async with keeper() as kept:
            handle = await kept.start_rank(fresh=False)
            heard = Heard(handle)
            heard.keeper = kept
            try:
                handle.sender.send(assign(*allow))
                await heard.next(EnvelopeKind.ASSIGNED)
                return await use(handle, heard)
            finally:
                await end(handle)

    return asyncio.run(run())


def test_frames_go_both_ways():
    """What is sent is executed, and each reply is delivered."""

    async def use(handle, heard):
        handle.sender.send(call("numpy.add", 1, 2))
        received = await heard.next(EnvelopeKind.REPLY)
        assert EncodedReply.FromString(received.payload).seq == 3

    on_a_rank(use, "numpy")


def test_more_than_the_socket_takes_follows_by_itself():
    """While the rank is busy, frames wait here and keep their order."""

    async def use(handle, heard):
        handle.sender.send(call("time.sleep", 0.3))
        for number in range(1, 200):
            handle.sender.send(call("numpy.size", "x" * 50_000, first_seq=1 + 3 * number))
        seqs = []
        while len(seqs) < 200:
            reply = EncodedReply.FromString((await heard.next(EnvelopeKind.REPLY)).payload)
            if reply.seq:
                seqs.append(reply.seq)
        assert seqs == [3 * number + 3 for number in range(200)]

    on_a_rank(use, "time", "numpy")


def test_output_is_cut_into_lines_and_the_last_ones_are_kept():
    """Each line says whether it came from standard error; a last one needs no line end."""

    async def use(handle, heard):
        handle.sender.send(call("builtins.print", "\n".join(f"line {n}" for n in range(30))))
        await heard.next(EnvelopeKind.REPLY)
        handle.sender.send(call("os.write", 2, b"no end", first_seq=4))
        await heard.next(EnvelopeKind.REPLY)
        handle.sender.send(frame(envelope(EnvelopeKind.END_SESSION, session=1)))
        assert await asyncio.wait_for(handle.exited, 20) == 0
        assert heard.lines[:30] == [(False, f"line {n}") for n in range(30)]
        assert heard.lines[30:] == [(True, "no end")]
        assert list(handle.last_lines)[-1] == "no end"
        assert len(list(handle.last_lines)) == KEPT_LINES

    on_a_rank(use, "builtins", "os")


@pytest.mark.parametrize(
    ("function", "arguments", "status"),
    [("sys.exit", (3,), 3), ("os.abort", (), -signal.SIGABRT)],
)
def test_the_exit_status_is_a_code_or_a_signal(function, arguments, status):
    """A code is as it is, a signal is negative; sending to the dead is no error."""

    async def use(handle, heard):
        handle.sender.send(call(function, *arguments))
        assert await asyncio.wait_for(handle.exited, 20) == status
        handle.sender.send(call(function))

    on_a_rank(use, "sys", "os")


def test_what_is_not_our_protocol_ends_the_rank():
    """A function that writes into the socket cannot confuse the daemon for long."""

    async def use(handle, heard):
        code = "__import__('os').write(int(__import__('sys').argv[1]), b'\\xff' * 64)"
        handle.sender.send(call("builtins.eval", code))
        assert await asyncio.wait_for(handle.exited, 20) == -signal.SIGKILL

    on_a_rank(use, "*")


GOODBYE = frame(envelope(EnvelopeKind.END_SESSION, session=1))


def test_a_rank_leaves_when_it_is_asked_to():
    """A free one does at once; a busy one has no turn for the goodbye until it is killed."""

    async def use(handle, heard):
        handle.sender.send(call("time.sleep", 600))
        handle.sender.send(GOODBYE)
        other = await heard.keeper.start_rank(fresh=False)
        heard = Heard(other)
        other.sender.send(assign())
        await heard.next(EnvelopeKind.ASSIGNED)
        other.sender.send(GOODBYE)
        assert await asyncio.wait_for(other.exited, 20) == 0
        assert await end(other) == 0
        other.close()  # once more is no error
        assert not handle.exited.done()
        assert await end(handle) == -signal.SIGKILL

    on_a_rank(use, "time")


def test_what_the_rank_started_ends_with_it():
    """Its children are in its process group, and go when it is ended."""

    async def use(handle, heard):
        handle.sender.send(call("builtins.eval", START_CHILD))
        await heard.next(EnvelopeKind.REPLY)
        child = psutil.Process(int(await heard.line()))
        handle.sender.send(GOODBYE)
        assert await asyncio.wait_for(handle.exited, 20) == 0
        await end(handle)
        gone, _ = psutil.wait_procs([child], timeout=10)
        assert gone

    on_a_rank(use, "builtins")


def test_a_death_is_known_though_children_hold_the_pipes():
    """A process that the rank started does not keep its end a secret."""

    async def use(handle, heard):
        handle.sender.send(call("builtins.eval", START_CHILD))
        child = psutil.Process(int(await heard.line()))
        os.kill(handle.pid, signal.SIGKILL)
        assert await asyncio.wait_for(handle.exited, 10) == -signal.SIGKILL
        assert child.is_running()
        handle.kill()
        gone, _ = psutil.wait_procs([child], timeout=10)
        assert gone

    on_a_rank(use, "builtins")


def test_no_descriptor_outlives_a_rank():
    """Sockets and pipes of a rank that ended are closed, used or not."""

    async def run():
        async with keeper() as kept:
            first = await kept.start_rank(fresh=False)
            await end(first)
            first.memory.close()
            before = psutil.Process().num_fds()
            for fresh in (False, True):
                handle = await kept.start_rank(fresh=fresh)
                handle.sender.send(assign(), opened(os.dup, 0))
                await end(handle)
                handle.memory.close()  # what it has written down is left to whoever wants it
            await asyncio.sleep(0)
            assert psutil.Process().num_fds() <= before

    asyncio.run(run())


def test_closing_one_rank_leaves_the_output_of_the_next_alone():
    """A pipe whose end has come is closed, and its number may be that of a later rank's."""

    async def run():
        async with keeper() as kept:
            ended = [await kept.start_rank(fresh=False) for _ in range(8)]
            pipes = {fd for handle in ended for fd in handle.outputs}
            for handle in ended:
                handle.kill()
                await asyncio.wait_for(handle.exited, 20)
            others = [await kept.start_rank(fresh=False)]
            while others[-1].outputs[0] not in pipes:  # lower numbers may have been free, too
                others.append(await kept.start_rank(fresh=False))
            rank = others.pop()
            heard = Heard(rank)
            rank.sender.send(assign("builtins"))
            await heard.next(EnvelopeKind.ASSIGNED)
            for handle in ended:
                handle.close()
                handle.memory.close()
            rank.sender.send(call("builtins.print", "still heard"))
            await heard.next(EnvelopeKind.REPLY)
            assert await heard.line() == "still heard"
            for each in (rank, *others):
                await end(each)
                each.memory.close()

    asyncio.run(run())
