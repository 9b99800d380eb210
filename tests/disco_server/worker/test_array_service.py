"""Host arrays over gRPC: straight to a daemon, by the controller, and who is refused."""

from __future__ import annotations

import contextlib
import queue
import tempfile
import time
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from disco_client import connect, errors
from disco_client.arrays.client import GrpcEndpoint
from disco_client.pb import controller_pb2
from disco_client.transport.channel import target
from disco_client.wire.arrays import (
    CHUNK_BYTES,
    TRANSFER_HEADER,
    chunk_data,
    encode_head,
    encode_stream,
)
from disco_client.wire.values import INLINE_ARRAY_BYTES

BREAKING = "disco_conformance_functions"
SERVICE = "/disco.v1.ArrayService/"


def metadata(head):
    """By which a worker's daemon knows a call before it reads a message."""
    return ((TRANSFER_HEADER, head.SerializeToString()),)


class Caller:
    """Calls of the array service, by hand: what a client sends is chosen by the test."""

    def __init__(self, address, session):
        self._channel = grpc.insecure_channel(target(address))
        arrays = session._core.transport._arrays
        self.session, self.key = arrays._session, arrays._key

    def _upload(self):
        return self._channel.stream_unary(
            SERVICE + "Upload", response_deserializer=controller_pb2.UploadResult.FromString
        )

    def upload(self, ticket, data, *, nbytes=None, key=None, worker=0):
        nbytes = len(data) if nbytes is None else nbytes
        head = encode_head(self.session, key or self.key, ticket, nbytes, worker)
        stream = encode_stream(head, memoryview(data))
        return self._upload()(stream, timeout=30, metadata=metadata(head))

    def break_off(self, ticket, array):
        """Begins an upload, and cancels it once the daemon has something of it."""
        messages = queue.Queue()
        head = encode_head(self.session, self.key, ticket, array.nbytes, 0)
        data = array.reshape(-1).view("uint8")
        for message in encode_stream(head, memoryview(data[: len(data) // 2])):
            messages.put(message)
        stream = iter(messages.get, None)
        call = self._upload().future(stream, timeout=30, metadata=metadata(head))
        while not messages.empty() and not call.done():
            time.sleep(0.01)
        call.cancel()
        messages.put(None)

    def raw(self, first):
        return self._upload()(iter([first]), timeout=30)

    def _download(self, ticket, *, key=None, worker=0, there=0):
        call = self._channel.unary_stream(
            SERVICE + "Download", request_serializer=controller_pb2.Transfer.SerializeToString
        )
        head = encode_head(self.session, key or self.key, ticket, 0, worker)
        head.there = there
        return call(head, timeout=30, metadata=metadata(head))

    def download(self, ticket, **options):
        return list(self._download(ticket, **options))

    def begin_download(self, ticket):
        """Breaks a download off once its first chunk is there."""
        call = self._download(ticket)
        next(call)
        call.cancel()

    def close(self):
        self._channel.close()


@pytest.fixture(scope="module")
def cluster(shared_daemons):
    """Two nodes that serve arrays over gRPC, as for clients elsewhere: one by either address."""
    controller = shared_daemons.controller()
    with tempfile.TemporaryDirectory() as folder:
        for name, listen in (("one", "127.0.0.1:0"), ("two", f"unix:{folder}/arrays")):
            options = ("--slots", "2", "--name", name, "--array-listen", listen)
            shared_daemons.worker(controller.address, *options, "--allow-module", BREAKING)
        yield controller


@pytest.fixture(scope="module")
def session(cluster):
    """One session for the file; what a test does to it leaves it whole."""
    with connect(cluster.address, num_workers=4) as opened:
        opened.import_python_module("disco_test_functions")
        opened.import_python_module(BREAKING)
        opened.sync_all()
        yield opened


@pytest.fixture
def direct(session):
    """Calls worker 0's daemon."""
    caller = Caller(session._core.transport._arrays._addresses[0], session)
    yield caller
    caller.close()


@pytest.fixture
def relay(cluster, session):
    """Calls the controller, which offers the same service."""
    caller = Caller(cluster.address, session)
    yield caller
    caller.close()


def code_of(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **options)
    return raised.value.code()


@pytest.mark.parametrize(
    "shape",
    [
        (0,),
        (3, 0, 2),
        (INLINE_ARRAY_BYTES // 8,),
        (INLINE_ARRAY_BYTES // 8 + 1,),
        (CHUNK_BYTES // 8, 1),
        (3, CHUNK_BYTES // 8 + 1),
    ],
    ids=str,
)
def test_arrays_of_every_size_go_there_and_back(session, shape):
    """None at all, inside the command, one chunk, several: each comes back as it went."""
    array = np.arange(np.prod(shape), dtype="float64").reshape(shape)
    ref = session.copy_to_worker_0(array)
    np.testing.assert_array_equal(ref.numpy(), array)
    back = np.empty_like(array)
    session.copy_from_worker_0(back, ref)
    np.testing.assert_array_equal(back, array)
    total = session.get_global_func("tests.total")(array)
    for worker in range(4):
        assert total.debug_get_from_remote(worker) == [array.sum(), list(shape), True]


def test_large_arrays_go_straight(session):
    """Of either kind of address: a client that can reach the daemon goes straight to it."""
    array = np.random.default_rng(4).random(1 << 17)
    ref = session.broadcast(array)
    for worker in range(4):
        np.testing.assert_array_equal(ref.numpy(worker), array)
    arrays = session._core.transport._arrays
    assert sorted(address.partition(":")[0] for address in arrays._direct) == ["127.0.0.1", "unix"]
    assert all(isinstance(each, GrpcEndpoint) for each in arrays._direct.values())


def test_where_the_daemon_cannot_be_reached_the_controller_relays(session, tmp_path, monkeypatch):
    """A wrong address costs a moment once; the arrays are the same, in both directions."""
    array = np.random.default_rng(5).random((5, CHUNK_BYTES // 16))
    arrays = session._core.transport._arrays
    nowhere = f"unix:{tmp_path}/nobody"
    monkeypatch.setattr(arrays, "_addresses", dict.fromkeys(range(4), nowhere))
    ref = session.copy_to_worker_0(array)
    np.testing.assert_array_equal(ref.numpy(), array)
    assert arrays._direct[nowhere] is None
    total = session.get_global_func("tests.total")(array)
    got = [total.debug_get_from_remote(worker)[0] for worker in range(4)]
    np.testing.assert_allclose(got, array.sum())
    ref.debug_copy_from(3, array * 2)
    np.testing.assert_array_equal(ref.numpy(3), array * 2)


@pytest.mark.parametrize("way", ["direct", "relay"])
def test_a_wrong_key_is_refused(request, session, way):
    """Without the session's secret there is nothing to find, neither way."""
    caller = request.getfixturevalue(way)
    for key in (bytes(16), b"short"):
        assert code_of(caller.upload, 1, b"data", key=key) is grpc.StatusCode.NOT_FOUND
        assert code_of(caller.download, 1, key=key) is grpc.StatusCode.NOT_FOUND
    session.sync_all()


def test_a_worker_that_is_not_here_is_refused(session, direct):
    """Each daemon takes arrays for its own ranks only."""
    away = next(r.worker for r in session.workers if r.node != session.workers[0].node)
    for worker in (away, 4):
        assert code_of(direct.upload, 1, b"data", worker=worker) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("first", [b"", b"\xff\xff\xff", b"\x12\x02ab"])
def test_a_stream_that_does_not_name_its_transfer_is_refused(direct, first):
    """Whatever comes first instead, nothing of it is taken."""
    assert code_of(direct.raw, first) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("way", ["direct", "relay"])
@pytest.mark.parametrize("size", [100_000, 9 << 20])
def test_more_than_announced_fails_the_command(request, session, announce, way, size):
    """Also where the worker has most of it; client and command get the reason."""
    caller = request.getfixturevalue(way)
    ref, ticket = announce(session, np.zeros(size, "uint8"))
    with pytest.raises(grpc.RpcError, match=f"expected an array of {size} bytes"):
        caller.upload(ticket, bytes(size + 1), nbytes=size)
    with pytest.raises(errors.RemoteError, match=f"expected an array of {size} bytes, got"):
        session.sync_all()
    with pytest.raises(errors.RemoteError, match=f"expected an array of {size} bytes"):
        ref.numpy()
    session.sync_all()


@pytest.mark.parametrize("way", ["direct", "relay"])
@pytest.mark.parametrize("size", [100_000, 9 << 20])
def test_less_than_announced_can_be_sent_again(request, session, announce, way, size):
    """It is what a cut looks like: the worker waits, and gets the array as if nothing were."""
    caller = request.getfixturevalue(way)
    array = np.random.default_rng(size).integers(0, 256, size, "uint8")
    ref, ticket = announce(session, array)
    with pytest.raises(grpc.RpcError, match=f"expected an array of {size} bytes, got {size - 1}"):
        caller.upload(ticket, array[:-1].tobytes(), nbytes=size)
    for _ in range(2):  # the second time it is there already
        assert caller.upload(ticket, array.tobytes()).nbytes == size
    np.testing.assert_array_equal(ref.numpy(), array)


@pytest.mark.parametrize("again", ["direct", "relay"])
@pytest.mark.parametrize("way", ["direct", "relay"])
def test_an_upload_that_is_broken_off_can_be_sent_again(request, session, announce, way, again):
    """By the same way or the other one; a worker has read the first half by then."""
    array = np.random.default_rng(7).integers(0, 256, 16 << 20, "uint8")
    ref, ticket = announce(session, array)
    request.getfixturevalue(way).break_off(ticket, array)
    request.getfixturevalue(again).upload(ticket, array.tobytes())
    np.testing.assert_array_equal(ref.numpy(), array)


@pytest.mark.parametrize("begun", [False, True], ids=["nothing", "half"])
@pytest.mark.parametrize("way", ["direct", "relay"])
def test_an_upload_that_is_given_up_fails_the_command(request, session, announce, way, begun):
    """With the client's reason; what comes of it afterwards is dropped."""
    caller = request.getfixturevalue(way)
    array = np.zeros(16 << 20, "uint8")
    _, ticket = announce(session, array)
    if begun:
        caller.break_off(ticket, array)
    session._core.transport.give_up([(ticket, 0)], "somebody has pressed a key")
    with pytest.raises(errors.RemoteError, match="somebody has pressed a key"):
        session.sync_all()
    caller.upload(ticket, array.tobytes())
    session.sync_all()


def test_an_upload_that_is_not_sent_again_fails_the_command(session, announce, direct):
    """After the lease of the session, which is short here."""
    array = np.zeros(16 << 20, "uint8")
    _, ticket = announce(session, array)
    direct.break_off(ticket, array)
    with pytest.raises(errors.RemoteError, match="not sent again within 2 s"):
        session.sync_all()
    session.sync_all()


@pytest.fixture(params=["direct", "relay"])
def way_out(request, session, monkeypatch):
    """Fetches the arrays of the shared session straight, or by way of the controller."""
    if request.param == "relay":
        monkeypatch.setattr(session._core.transport._arrays, "_addresses", {})


def test_a_copy_that_fails_half_way_ends_the_download(way_out, session):
    """With what the worker says of it, and the worker goes on."""
    array = np.random.default_rng(6).random(2 << 20)
    ref = session.copy_to_worker_0(array)
    break_copies = session.get_global_func("conformance.break_copies")
    break_copies(2, "fail")
    with pytest.raises(errors.SessionError, match=r"worker 0 could not copy it: .*device is lost"):
        ref.numpy()
    break_copies(0, "")
    np.testing.assert_array_equal(ref.numpy(), array)


def memory_of(process):
    """The arrays that a process has open."""
    folder = Path(f"/proc/{process.pid}/fd")
    if not folder.exists():
        pytest.skip("looks for descriptors in /proc")
    return [fd for fd in folder.iterdir() if "disco-array" in str(fd.resolve())]


@pytest.mark.parametrize("way", ["direct", "relay"])
def test_a_worker_that_dies_half_way_ends_the_download(shared_daemons, eventually, way):
    """And the session, whose error says which worker it was; the daemon keeps nothing of it."""
    controller = shared_daemons.controller()
    options = ("--slots", "1", "--array-listen", "127.0.0.1:0", "--allow-module", BREAKING)
    daemon = shared_daemons.worker(controller.address, *options).process
    with connect(controller.address, num_workers=1) as doomed:
        doomed.import_python_module(BREAKING)
        if way == "relay":
            doomed._core.transport._arrays._addresses.clear()
        ref = doomed.copy_to_worker_0(np.zeros(2 << 20))
        doomed.get_global_func("conformance.break_copies")(2, "die")
        with pytest.raises(errors.SessionLost):
            ref.numpy()
        with pytest.raises(errors.WorkerLost, match="worker 0"):
            doomed.sync_all()
    eventually(lambda: not memory_of(daemon), what="the memory to be let go")


def test_transfers_that_fail_keep_no_memory(session, announce, eventually, direct):
    """Neither the rank nor its daemon, beyond what both keep for the next array."""
    rank = psutil.Process(session.workers[0].pid)
    array = np.random.default_rng(7).random(2 << 20)
    ref = session.copy_to_worker_0(array)

    def fail():
        _, ticket = announce(session, array)
        direct.break_off(ticket, array)
        session._core.transport.give_up([(ticket, 0)], "somebody has pressed a key")
        with pytest.raises(errors.RemoteError, match="somebody has pressed a key"):
            session.sync_all()
        ref.numpy()
        session.sync_all()

    def count():
        return [len(memory_of(process)) for process in (rank, rank.parent())]

    fail()
    before = count()  # what is kept may still be on its way back
    for _ in range(10):
        fail()
    eventually(lambda: sum(count()) <= sum(before) + 3, what=f"{before} arrays, not {count()}")


def offered(session, ref):
    """The ticket of an array that worker 0 offers, and that nobody fetches yet."""
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session._core.transport, "download", lambda ticket, *_: taken.append(ticket))
        ref.numpy()
    return taken[0]


@pytest.mark.parametrize("way", ["direct", "relay"])
def test_an_offer_is_there_until_the_client_says_that_it_has_it(request, session, eventually, way):
    """Asked for twice it comes twice, also after a download that broke off; then it is gone."""
    caller = request.getfixturevalue(way)
    array = np.random.default_rng(8).random(4 << 20)
    ticket = offered(session, session.copy_to_worker_0(array))
    caller.begin_download(ticket)
    for _ in range(2):
        came = b"".join(bytes(chunk_data(raw)) for raw in caller.download(ticket))
        assert came == array.tobytes()
    assert caller.download(ticket, there=array.nbytes) == []

    def gone():
        with contextlib.suppress(grpc.RpcError, OSError):
            for raw in caller.download(ticket):
                chunk_data(raw)
            return False
        return True

    eventually(gone, what="the array to be let go")
    session.sync_all()


def test_what_a_client_has_fetched_is_let_go(session, direct, eventually):
    """It says so by itself: its tickets soon find nothing any more."""
    array = np.arange(100_000.0)
    ref = session.copy_to_worker_0(array)
    np.testing.assert_array_equal(ref.numpy(), array)

    def gone(ticket):
        with contextlib.suppress(grpc.RpcError):
            return not direct.download(ticket)
        return True

    for ticket in range(1, 10):
        eventually(lambda ticket=ticket: gone(ticket), what=f"the array of ticket {ticket} to go")
    np.testing.assert_array_equal(ref.numpy(), array)
