"""Arrays in memory that a daemon shares: who gets what, and what is left of clients that go."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from disco_client.arrays.memory_endpoint import MemoryEndpoint
from disco_client.arrays.memory_messages import MAX_MESSAGE_BYTES, READ_BYTES, pack, unpack
from disco_client.arrays.shared_memory import allocate, read_shared, write_shared
from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2, memory_pb2
from disco_client.transport.base import EndpointLost, TransferFailed, TransferRefused
from disco_client.wire.arrays import encode_head
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_server.ipc.framing import FrameReader
from disco_server.worker import array_server
from disco_server.worker.array_server import MemoryService
from disco_server.worker.array_store import NotAdmitted
from disco_server.worker.pending_arrays import PendingArrays

pytestmark = pytest.mark.usefixtures("no_memory_left")

KEY = b"secret"
SIZES = (0, 1, (3 << 20) + 7)

CLIENT = """
import sys, time
from disco_client.arrays import mapped_memory, memory_endpoint
from disco_client.wire.arrays import encode_head

def write(_, fd, data):
    print("granted", flush=True)
    time.sleep(600)

mapped_memory.MappedMemory.write = write
endpoint = memory_endpoint.MemoryEndpoint(sys.argv[1])
endpoint.upload(encode_head(5, b"secret", 7, 1 << 20), memoryview(bytes(1 << 20)))
"""


class Store:
    """One session's arrays, without ranks: what is handed in can be looked at."""

    def __init__(self):
        self.handed_in = {}
        self.refused = []
        self.given_back = []
        self.tasks = []
        self.arrays = PendingArrays([0], self.send, 60.0, 1 << 64)

    def admit(self, transfer):
        if transfer.session != 5 or transfer.transfer_key != KEY:
            raise NotAdmitted("no such worker, session or key on this node")
        self.tasks.append(asyncio.current_task())
        return self.arrays

    def send(self, kind, told, fd):
        if told.error:
            self.refused.append((told.ticket, told.error))
        elif kind == EnvelopeKind.ARRAY_BACK:
            self.given_back.append(fd)
        else:
            into = bytearray(told.nbytes)
            read_shared(fd.fileno(), memoryview(into))
            self.handed_in[told.ticket] = bytes(into)
        if fd is not None:
            fd.close()

    def offer(self, ticket, data):
        fd = allocate(len(data))
        write_shared(fd.fileno(), memoryview(data))
        reader = FrameReader()
        reader.fds.append(fd)
        told = controller_pb2.Transfer(ticket=ticket, nbytes=len(data), there=len(data))
        offered = EncodedEnvelope(kind=EnvelopeKind.ARRAY_OUT, payload=told.SerializeToString())
        self.arrays.receive(0, offered, reader)


def head(ticket, nbytes, *, key=KEY):
    return encode_head(5, key, ticket, nbytes)


def play(act):
    """Runs a test's coroutine beside a service; returns its store."""
    store = Store()

    async def run():
        service = MemoryService(store)
        await service.start()
        try:
            async with asyncio.timeout(20):
                await act(service, store)
        finally:
            await service.stop()
            await service.stop()

    asyncio.run(run())
    store.arrays.close()
    return store


def path_of(service):
    kind, _, path = service.address.partition(":")
    assert kind == "memory"
    return path


@contextlib.asynccontextmanager
async def line(service):
    """A connection by hand."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, path_of(service))
        yield sock


async def answer(sock):
    """What the service says next; None once it has closed the connection."""
    data = b""
    while (raw := unpack(data)) is None:
        more = await asyncio.get_running_loop().sock_recv(sock, READ_BYTES)
        if not more:
            return None
        data += more
    return memory_pb2.MemoryReply.FromString(raw)


async def until(condition):
    while not condition():  # noqa: ASYNC110  (the store tells of no event)
        await asyncio.sleep(0.005)


def test_arrays_of_odd_sizes_go_there_and_back():
    """Nothing at all, a byte, and what fills no page: bit for bit, and the memory comes back."""
    sent = {ticket: os.urandom(size) for ticket, size in enumerate(SIZES)}

    async def act(service, store):
        endpoint = MemoryEndpoint(path_of(service))
        for ticket, data in sent.items():
            await asyncio.to_thread(endpoint.upload, head(ticket, len(data)), memoryview(data))
            store.offer(ticket, data)
            into = memoryview(bytearray(len(data)))
            assert await asyncio.to_thread(endpoint.download, head(ticket, 0), into) == len(data)
            assert into == data
        await until(lambda: len(store.given_back) == len(sent))

    store = play(act)
    assert store.handed_in == sent
    assert not store.refused


def test_many_transfers_at_a_time_do_not_meet():
    """Each has a connection and memory of its own."""
    sent = {ticket: os.urandom(100_000 + ticket) for ticket in range(20)}

    async def act(service, store):
        endpoint = MemoryEndpoint(path_of(service))
        carried = (
            asyncio.to_thread(endpoint.upload, head(ticket, len(data)), memoryview(data))
            for ticket, data in sent.items()
        )
        await asyncio.gather(*carried)

    assert play(act).handed_in == sent


def test_a_client_that_does_not_know_the_secret_gets_nothing():
    """What is offered stays where it is."""

    async def act(service, store):
        store.offer(1, b"data")
        endpoint = MemoryEndpoint(path_of(service))
        for carry in (endpoint.upload, endpoint.download):
            with pytest.raises(TransferFailed, match="no such worker, session or key"):
                await asyncio.to_thread(carry, head(1, 4, key=b"x"), memoryview(bytearray(4)))
        async with store.arrays.download(head(1, 4)) as array:
            assert array.nbytes == 4

    store = play(act)
    assert not store.tasks
    assert not store.refused


def test_an_offer_is_taken_once():
    """A ticket that nobody offers, or not any more, finds nothing."""

    async def act(service, store):
        store.offer(1, b"data")
        endpoint = MemoryEndpoint(path_of(service))
        into = memoryview(bytearray(4))
        assert await asyncio.to_thread(endpoint.download, head(1, 4), into) == 4
        for ticket in (1, 2):
            with pytest.raises(TransferFailed, match="the worker offers no such array"):
                await asyncio.to_thread(endpoint.download, head(ticket, 4), into)

    assert len(play(act).given_back) == 1


def test_without_room_the_worker_hears_why_like_the_client():
    """It waits for the array, and would wait on."""

    async def act(service, store):
        endpoint = MemoryEndpoint(path_of(service))
        with pytest.raises(TransferFailed, match="File too large"):
            await asyncio.to_thread(endpoint.upload, head(1, (1 << 64) - 1), memoryview(b""))

    store = play(act)
    ((ticket, why),) = store.refused
    assert ticket == 1
    assert "File too large" in why


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_dies_in_an_upload_breaks_it_off(end):
    """Whether it is killed or interrupted, the worker hears of it, and the memory is let go."""

    async def act(service, store):
        command = (sys.executable, "-c", CLIENT, path_of(service))
        client = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert await client.stdout.readline() == b"granted\n"
        assert not store.refused
        client.send_signal(end)
        assert await client.wait()
        await until(lambda: store.refused)
        client._transport.close()

    store = play(act)
    assert store.refused == [(7, "the upload was broken off")]
    assert not store.handed_in


@pytest.mark.parametrize("rest", [b"", pack(memory_pb2.MemoryRequest(done=True))[:5], b"\xff" * 9])
def test_an_upload_is_not_done_before_the_client_says_so(rest):
    """Leaving, breaking off in the middle of a word and talking nonsense are something else."""

    async def act(service, store):
        async with line(service) as sock:
            sock.send(pack(memory_pb2.MemoryRequest(upload=head(1, 4))))
            assert (await answer(sock)).granted == 4
            sock.send(rest)
            sock.shutdown(socket.SHUT_WR)
            await until(lambda: store.refused)

    store = play(act)
    assert store.refused == [(1, "the upload was broken off")]
    assert not store.handed_in


def test_a_client_that_dies_in_a_download_gives_the_memory_back():
    """As one does that is done: the worker may use it again."""

    async def act(service, store):
        store.offer(1, b"data")
        async with line(service) as sock:
            sock.send(pack(memory_pb2.MemoryRequest(download=head(1, 4))))
            assert (await answer(sock)).granted == 4
            assert not store.given_back
        await until(lambda: store.given_back)

    play(act)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"), "at most 4096 bytes, got 4097"),
        (b"GET / HTTP/1.1\r\n\r\n", "at most 4096 bytes"),
        (pack(memory_pb2.MemoryRequest(done=True)), "an upload or a download first"),
        (pack(memory_pb2.MemoryRequest()), "an upload or a download first"),
        (b"\x02\0\0\0\xff\xff", ""),
        (pack(memory_pb2.MemoryRequest(done=True)) * 2, "one message"),
    ],
    ids=["long", "http", "done", "nothing", "nonsense", "two"],
)
def test_a_wrong_first_message_is_answered_and_ends_it(first, why):
    """With what was expected; the next client is served as ever."""

    async def act(service, store):
        async with line(service) as sock:
            sock.send(first)
            reply = await answer(sock)
            assert why in reply.refused
            assert await answer(sock) is None
        data = memoryview(b"data")
        await asyncio.to_thread(MemoryEndpoint(path_of(service)).upload, head(1, 4), data)

    assert play(act).handed_in == {1: b"data"}


def test_whoever_says_nothing_holds_up_nobody(monkeypatch):
    """And is refused after a while."""
    monkeypatch.setattr(array_server, "REQUEST_S", 0.3)

    async def act(service, store):
        async with line(service) as silent, line(service) as slow:
            slow.send(b"\x07")
            data = memoryview(b"data")
            await asyncio.to_thread(MemoryEndpoint(path_of(service)).upload, head(1, 4), data)
            for sock in (silent, slow):
                assert "no request came within" in (await answer(sock)).refused
                assert await answer(sock) is None

    assert play(act).handed_in == {1: b"data"}


def test_a_transfer_may_take_as_long_as_it_takes(monkeypatch):
    """What is limited is the time to ask, not the time to copy."""
    monkeypatch.setattr(array_server, "REQUEST_S", 0.05)

    async def act(service, store):
        async with line(service) as sock:
            sock.send(pack(memory_pb2.MemoryRequest(upload=head(1, 4))))
            assert (await answer(sock)).granted == 4
            await asyncio.sleep(0.2)
            sock.send(pack(memory_pb2.MemoryRequest(done=True)))
            assert (await answer(sock)).taken

    assert play(act).handed_in == {1: bytes(4)}


def test_the_end_of_a_session_ends_its_transfers():
    """The client is not left waiting, and the memory is let go."""

    async def act(service, store):
        store.offer(1, b"data")
        async with line(service) as up, line(service) as down:
            up.send(pack(memory_pb2.MemoryRequest(upload=head(2, 4))))
            down.send(pack(memory_pb2.MemoryRequest(download=head(1, 4))))
            for sock in (up, down):
                assert (await answer(sock)).granted == 4
            for task in store.tasks:
                task.cancel()
            for sock in (up, down):
                assert await answer(sock) is None

    store = play(act)
    assert len(store.given_back) == 1
    assert store.refused == [(2, "the upload was broken off")]


def test_the_end_of_the_service_ends_its_transfers():
    """Those who have said nothing yet included; its folder is gone."""
    kept = []

    async def act(service, store):
        async with line(service) as silent, line(service) as up:
            up.send(pack(memory_pb2.MemoryRequest(upload=head(2, 4))))
            assert (await answer(up)).granted == 4
            await service.stop()
            assert await answer(silent) is None
            assert await answer(up) is None
        kept.append(path_of(service))
        with pytest.raises(EndpointLost):
            await asyncio.to_thread(MemoryEndpoint(kept[0]).upload, head(1, 4), memoryview(b"data"))

    assert play(act).refused == [(2, "the upload was broken off")]
    assert not Path(kept[0]).parent.exists()


def test_nobody_else_can_enter_its_folder():
    """The socket is its user's alone."""

    async def act(service, store):
        assert Path(path_of(service)).parent.stat().st_mode & 0o077 == 0

    play(act)


def test_where_it_cannot_listen_it_says_what_to_do(tmp_path, monkeypatch):
    """The path of a socket must be short; nothing is left of the attempt."""
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    async def run():
        service = MemoryService(Store())
        try:
            with pytest.raises(ConfigError, match=r"cannot listen on .*--array-listen.*TMPDIR"):
                await service.start()
            assert service.address == ""
        finally:
            await service.stop()

    asyncio.run(run())
    assert not list(deep.iterdir())


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE])
def test_it_accepts_clients_again_after_it_could_not(monkeypatch, caplog, number):
    """Without memory for a moment they wait; without a descriptor they are told."""
    told = number == errno.EMFILE
    monkeypatch.setattr(array_server, "_PAUSE_S", 20.0 if told else 0.01)
    failed = []

    async def act(service, store):
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept

        async def full(listener):
            if not failed:
                failed.append(listener)
                coming = select.poll()
                coming.register(listener, select.POLLIN)
                await asyncio.to_thread(coming.poll)
                raise OSError(number, "there is none")
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", full)
        endpoint = MemoryEndpoint(path_of(service))
        for ticket in (1, 2, 3):  # the first wait to accept may have begun before
            try:
                await asyncio.to_thread(endpoint.upload, head(ticket, 4), memoryview(b"data"))
            except TransferRefused as error:
                refused.append(str(error))

    refused = []
    assert len(play(act).handed_in) == 3 - told
    assert refused == ["the daemon: [Errno 24] there is none"] * told
    assert "there is none" in caplog.text
