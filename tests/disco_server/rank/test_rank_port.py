"""The rank's end of its socket: envelopes in order, arrays beside them."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import psutil
import pytest

from disco_client.arrays.shared_memory import allocate, map_shared, read_shared, write_shared
from disco_client.pb import controller_pb2
from disco_client.wire.arrays import PIECE_BYTES
from disco_client.wire.codec import EncodedEnvelope, EncodedReply, EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.ipc.framing import FrameReader, receive, send_with_fd
from disco_server.rank.port import DaemonGone, RankPort


class Daemon:
    """The other end, as the daemon uses it."""

    def __init__(self, sock):
        self.sock = sock
        self.reader = FrameReader()

    def send(self, kind, payload=b""):
        self.sock.sendall(frame(envelope(kind, payload, session=5)))

    def send_array(self, ticket, data, error=""):
        if error:
            self.send_more(ticket, error=error)
            return
        self.send_beginning(ticket, data, len(data)).close()

    def send_beginning(self, ticket, data, there):
        """Hands an array in of which so much is there; returns the memory."""
        told = controller_pb2.Transfer(ticket=ticket, nbytes=len(data), there=there)
        fd = allocate(len(data))
        write_shared(fd.fileno(), memoryview(data)[:there])
        framed = frame(envelope(EnvelopeKind.ARRAY_IN, told.SerializeToString()))
        send_with_fd(self.sock, framed, fd, str.encode)
        return fd

    def send_more(self, ticket, there=0, error=""):
        told = controller_pb2.Transfer(ticket=ticket, there=there, error=error)
        self.send(EnvelopeKind.ARRAY_MORE, told.SerializeToString())

    def receive(self):
        return [EncodedEnvelope.FromString(raw) for raw in receive(self.sock, self.reader)]

    def hear(self, count):
        """Waits for so many envelopes; returns the kind and the progress of each."""
        found = []
        while len(found) < count:
            found += self.receive()
        told = [controller_pb2.Transfer.FromString(each.payload) for each in found]
        return [(each.kind, t.there, t.error) for each, t in zip(found, told, strict=True)]

    def close(self):
        self.reader.close()
        self.sock.close()


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours:
        daemon = Daemon(theirs)
        yield RankPort(ours), daemon
        daemon.close()


def test_envelopes_come_in_order(pair):
    """Each is returned once, in the order in which the daemon sent them."""
    port, daemon = pair
    for payload in (b"a", b"b", b"c"):
        daemon.send(EnvelopeKind.BATCH, payload)
    assert [port.next().payload for _ in range(3)] == [b"a", b"b", b"c"]
    assert not port.wait(0.0)
    daemon.send(EnvelopeKind.END_SESSION)
    assert port.wait(60.0)
    assert port.next().kind == EnvelopeKind.END_SESSION


def test_what_it_says_carries_its_name(pair):
    """Every envelope has the session and the worker on whose behalf it speaks."""
    port, daemon = pair
    port.become(77, 3)
    port.reply(EncodedReply(ack=9).SerializeToString())
    port.send(EnvelopeKind.ASSIGNED)
    reply, assigned = daemon.receive()
    assert (reply.kind, reply.session, reply.worker_plus_one) == (EnvelopeKind.REPLY, 77, 4)
    assert EncodedReply.FromString(reply.payload).ack == 9
    assert assigned.kind == EnvelopeKind.ASSIGNED


def test_a_closed_socket_means_that_the_daemon_is_gone(pair):
    """Waiting for more ends at once, with an error of its own."""
    port, daemon = pair
    daemon.sock.close()
    assert port.wait(60.0)
    with pytest.raises(DaemonGone):
        port.next()


def test_an_array_waits_for_the_command_that_names_it(pair):
    """Uploads may come in any order and before their commands; those keep their order."""
    port, daemon = pair
    first, second = np.arange(6, dtype="int32"), np.arange(4.0)
    daemon.send_array(2, second.tobytes())
    daemon.send(EnvelopeKind.BATCH, b"names 1, then 2")
    daemon.send_array(1, first.tobytes())
    assert port.next().payload == b"names 1, then 2"
    got = port.porter.collect(1, first.dtype, (2, 3))
    np.testing.assert_array_equal(got, first.reshape(2, 3))
    got[0, 0] = 42  # it is the rank's own from now on
    np.testing.assert_array_equal(port.porter.collect(2, second.dtype, (4,)), second)


def test_an_array_goes_to_where_the_rank_wants_it(pair):
    """Also into a part of another array; one that cannot be written stays as it is."""
    port, daemon = pair
    data = np.arange(12, dtype="int32").reshape(3, 4)
    for ticket in (1, 2):
        daemon.send_array(ticket, data.tobytes())
    table = np.zeros((4, 8), "int32")
    port.porter.collect_into(1, table[1:, ::2])
    np.testing.assert_array_equal(table[1:, ::2], data)
    assert not table[0].any()
    assert not table[:, 1::2].any()
    fixed = np.zeros((3, 4), "int32")
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        port.porter.collect_into(2, fixed)
    assert not fixed.any()


def test_commands_that_come_while_it_waits_are_kept(pair):
    """Looking for an array does not lose what arrives before it."""
    port, daemon = pair

    def later():
        daemon.send(EnvelopeKind.BATCH, b"behind")
        daemon.send_array(8, bytes(8))

    sender = threading.Thread(target=later)
    sender.start()
    assert port.porter.collect(8, np.dtype("int64"), (1,))[0] == 0
    sender.join()
    assert port.next().payload == b"behind"


def test_an_array_that_will_not_come_is_an_error(pair):
    """The reason that the daemon gives is what the command fails with."""
    port, daemon = pair
    daemon.send_array(3, b"", error="no room for it")
    with pytest.raises(OSError, match="no room for it"):
        port.porter.collect(3, np.dtype("uint8"), (1,))


def test_an_array_of_another_size_is_refused(pair):
    """Shape and dtype of the command must account for every byte that came."""
    port, daemon = pair
    daemon.send_array(4, bytes(12))
    with pytest.raises(ValueError, match=r"expected 16 bytes for float64\[2\], got 12"):
        port.porter.collect(4, np.dtype("float64"), (2,))


def test_an_offer_reaches_the_daemon_with_its_memory(pair):
    """Ticket, worker and size are told, the descriptor has the bytes, tickets are not reused."""
    port, daemon = pair
    port.become(77, 2)
    array = np.arange(1000.0)
    tickets = [port.porter.offer(array), port.porter.offer(array[:0])]
    assert tickets[0] != tickets[1]
    port.reply(b"")
    found = []
    while len(found) < 3:  # descriptors part what one read returns
        found += daemon.receive()
    assert found.pop().kind == EnvelopeKind.REPLY
    told = [controller_pb2.Transfer.FromString(each.payload) for each in found]
    assert [(t.session, t.worker, t.ticket, t.nbytes) for t in told] == [
        (77, 2, tickets[0], 8000),
        (77, 2, tickets[1], 0),
    ]
    fd = daemon.reader.fds.popleft()
    with map_shared(fd.fileno(), 8000) as found:
        assert found[:] == array.tobytes()
    fd.close()


@pytest.fixture
def descriptors():
    """What is open before must be all that is open afterwards."""
    before = psutil.Process().num_fds()
    yield
    assert psutil.Process().num_fds() <= before


def bytes_of(count):
    return np.random.default_rng(count).integers(0, 256, count, "u1")


SIZES = (PIECE_BYTES + 1, 3 * PIECE_BYTES - 5)


@pytest.mark.parametrize("size", SIZES)
def test_a_large_array_is_announced_and_filled_after_the_reply(descriptors, pair, size):
    """The daemon hears of it before the reply, and of each piece of it afterwards."""
    port, daemon = pair
    array = bytes_of(size)
    port.porter.offer(array)
    port.reply(b"")
    ends = [*range(PIECE_BYTES, size, PIECE_BYTES), size]
    expected = [(EnvelopeKind.ARRAY_OUT, 0, ""), (EnvelopeKind.REPLY, 0, "")]
    expected += ((EnvelopeKind.ARRAY_MORE, end, "") for end in ends)
    assert daemon.hear(len(expected)) == expected
    found = np.empty_like(array)
    read_shared(daemon.reader.fds[0].fileno(), memoryview(found))
    np.testing.assert_array_equal(found, array)


def test_up_to_one_piece_is_one_frame(descriptors, pair):
    """What is not worth overlapping is there when the daemon hears of it."""
    port, daemon = pair
    port.porter.offer(bytes_of(PIECE_BYTES))
    port.reply(b"")
    assert daemon.hear(2) == [
        (EnvelopeKind.ARRAY_OUT, PIECE_BYTES, ""),
        (EnvelopeKind.REPLY, 0, ""),
    ]


def broken(first, error):
    yield memoryview(first)
    raise error


@pytest.mark.parametrize("size", [8, 2 * PIECE_BYTES], ids=["small", "large"])
def test_a_copy_that_fails_is_told_with_its_reason(descriptors, pair, size):
    """Whoever waits for the rest hears why, and the rank goes on with the next array."""
    port, daemon = pair
    port.become(5, 3)
    port.porter.offer_pieces(size, broken(bytes(size // 2), RuntimeError("device \udcff lost")))
    port.porter.offer(np.arange(3))
    port.reply(b"")
    told = daemon.hear(3 if size == 8 else 5)
    kind, there, error = next(each for each in told if each[2])
    assert error == "worker 3 could not copy it: RuntimeError: device \\udcff lost"
    assert there == size // 2
    assert kind == (EnvelopeKind.ARRAY_OUT if size == 8 else EnvelopeKind.ARRAY_MORE)
    assert (EnvelopeKind.ARRAY_OUT, 24, "") in told


def in_one(port, out):
    port.porter.collect_into(1, out)


def in_pieces(port, out):
    at = 0
    for piece in port.porter.collect_pieces(1, out.dtype, out.shape):
        out[at : at + len(piece)] = piece
        at += len(piece)


@pytest.mark.parametrize("collect", [in_one, in_pieces])
def test_an_upload_is_copied_as_it_comes(descriptors, pair, eventually, collect):
    """What is there before the rest comes, and the memory goes back at the end."""
    port, daemon = pair
    array = bytes_of(2 * PIECE_BYTES + 77)
    fd = daemon.send_beginning(1, array.data, PIECE_BYTES)
    out = np.zeros_like(array)
    copying = threading.Thread(target=collect, args=(port, out))
    copying.start()
    beginning = slice(PIECE_BYTES)
    eventually(lambda: np.array_equal(out[beginning], array[beginning]), what="the beginning")
    assert not out[PIECE_BYTES:].any()
    write_shared(fd.fileno(), array.data[PIECE_BYTES:], PIECE_BYTES)
    fd.close()
    daemon.send_more(1, 2 * PIECE_BYTES)
    daemon.send_more(1, array.nbytes)
    copying.join(20)
    np.testing.assert_array_equal(out, array)
    assert daemon.hear(1) == [(EnvelopeKind.ARRAY_BACK, 0, "")]
    assert os.fstat(daemon.reader.fds[0].fileno()).st_size == array.nbytes


def test_an_upload_that_is_broken_off_half_way_is_an_error(descriptors, pair):
    """A rank that has copied a part hears why; the memory, which somebody has still, is let go."""
    port, daemon = pair
    array = bytes_of(2 * PIECE_BYTES)
    daemon.send_beginning(1, array.data, PIECE_BYTES).close()
    daemon.send_more(1, error="the upload was broken off")
    daemon.send_array(2, b"12345678")
    out = np.zeros_like(array)
    with pytest.raises(OSError, match="the upload was broken off"):
        port.porter.collect_into(1, out)
    assert port.porter.collect(2, np.dtype("S8"), ())[()] == b"12345678"
    assert daemon.hear(2) == [
        (EnvelopeKind.ARRAY_BACK, 0, "the upload was broken off"),
        (EnvelopeKind.ARRAY_BACK, 0, ""),
    ]
    assert len(daemon.reader.fds) == 1


def test_what_is_offered_for_a_reply_that_does_not_leave_is_kept(descriptors, pair):
    """Its memory is for the next array; the daemon never hears of it."""
    port, daemon = pair
    port.porter.offer(bytes_of(8))
    port.porter.offer(bytes_of(PIECE_BYTES + 1))
    port.porter.withdraw()
    port.reply(b"")
    assert daemon.hear(1) == [(EnvelopeKind.REPLY, 0, "")]
    assert len(port.porter._memory._kept) == 2
    port.porter._memory.close()


def test_an_array_whose_descriptor_was_lost_is_an_error(descriptors, pair):
    """The next array has its own memory, and what more is told of this one changes nothing."""
    port, daemon = pair
    told = controller_pb2.Transfer(ticket=1, nbytes=8)
    port._reader.fds.append(None)  # as `receive` says it
    daemon.send(EnvelopeKind.ARRAY_IN, told.SerializeToString())
    daemon.send_more(1, 8)
    daemon.send_array(2, b"12345678")
    with pytest.raises(OSError, match="no descriptor was free"):
        port.porter.collect(1, np.dtype("S8"), ())
    assert port.porter.collect(2, np.dtype("S8"), ())[()] == b"12345678"
    daemon.hear(2)


def test_memory_is_not_given_back_while_somebody_writes_there(descriptors, pair):
    """A command that has no use for an array waits for its end before it fails."""
    port, daemon = pair
    array = bytes_of(2 * PIECE_BYTES)
    daemon.send_beginning(1, array.data, PIECE_BYTES).close()
    later = threading.Timer(0.1, daemon.send_more, (1, array.nbytes))
    later.start()
    with pytest.raises(ValueError, match="expected 8 bytes"):
        port.porter.collect(1, np.dtype("int64"), ())
    later.join()
    assert daemon.hear(1) == [(EnvelopeKind.ARRAY_BACK, 0, "")]


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_an_upload_that_nobody_will_collect_is_given_back(descriptors, pair, when):
    """Once nobody writes there any more, whenever that is."""
    port, daemon = pair
    array = bytes_of(2 * PIECE_BYTES)
    if when == "before":
        port.porter.discard(1)
    fd = daemon.send_beginning(1, array.data, PIECE_BYTES)
    fd.close()
    if when == "half":
        daemon.send(EnvelopeKind.BATCH, b"looked at")
        port.next()
        port.porter.discard(1)
    daemon.send_more(1, array.nbytes)
    daemon.send(EnvelopeKind.BATCH, b"behind")
    assert port.next().payload == b"behind"
    if when == "after":
        port.porter.discard(1)
    assert daemon.hear(1) == [(EnvelopeKind.ARRAY_BACK, 0, "")]
    assert not port.porter._uploads


def test_uploads_of_a_program_that_is_gone_are_not_waited_for(pair):
    """What is there already is good; of what is not the daemon says that it will not come."""
    port, daemon = pair
    daemon.send_array(3, b"12345678")
    told = controller_pb2.Transfer(ticket=5, and_before=True, error="the program is gone")
    daemon.send(EnvelopeKind.ARRAY_MORE, told.SerializeToString())
    with pytest.raises(OSError, match="the program is gone"):
        port.porter.collect(4, np.dtype("S8"), ())
    assert port.porter.collect(3, np.dtype("S8"), ())[()] == b"12345678"
    daemon.send_array(6, b"87654321")
    assert port.porter.collect(6, np.dtype("S8"), ())[()] == b"87654321"
