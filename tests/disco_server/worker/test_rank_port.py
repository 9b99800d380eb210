"""The rank's end of its socket: envelopes in order, arrays beside them."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from disco_client.pb import controller_pb2
from disco_client.transport.shared import allocate, map_shared, write_shared
from disco_client.wire.codec import EncodedEnvelope, EncodedReply, Kind, envelope
from disco_server.channels.frames import FrameReader, frame, receive, send_with_fd
from disco_server.worker.rank_port import DaemonGone, RankPort


class Daemon:
    """The other end, as the daemon uses it."""

    def __init__(self, sock):
        self.sock = sock
        self.reader = FrameReader()

    def send(self, kind, payload=b""):
        self.sock.sendall(frame(envelope(kind, payload, session=5)))

    def send_array(self, ticket, data, error=""):
        told = controller_pb2.Transfer(ticket=ticket, nbytes=len(data), error=error)
        raw = envelope(Kind.ARRAY_IN, told.SerializeToString())
        if error:
            self.sock.sendall(frame(raw))
            return
        fd = allocate(len(data))
        write_shared(fd, memoryview(data))
        send_with_fd(self.sock, raw, fd)
        os.close(fd)

    def receive(self):
        return [EncodedEnvelope.FromString(raw) for raw in receive(self.sock, self.reader)]


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield RankPort(ours), Daemon(theirs)


def test_envelopes_come_in_order(pair):
    """Each is returned once, in the order in which the daemon sent them."""
    port, daemon = pair
    for payload in (b"a", b"b", b"c"):
        daemon.send(Kind.BATCH, payload)
    assert [port.next().payload for _ in range(3)] == [b"a", b"b", b"c"]
    assert not port.wait(0.0)
    daemon.send(Kind.END_SESSION)
    assert port.wait(5.0)
    assert port.next().kind == Kind.END_SESSION


def test_what_it_says_carries_its_name(pair):
    """Every envelope has the session and the worker on whose behalf it speaks."""
    port, daemon = pair
    port.become(77, 3)
    port.reply(EncodedReply(ack=9).SerializeToString())
    port.send(Kind.ASSIGNED)
    reply, assigned = daemon.receive()
    assert (reply.kind, reply.session, reply.worker_plus_one) == (Kind.REPLY, 77, 4)
    assert EncodedReply.FromString(reply.payload).ack == 9
    assert assigned.kind == Kind.ASSIGNED


def test_a_closed_socket_means_that_the_daemon_is_gone(pair):
    """Waiting for more ends at once, with an error of its own."""
    port, daemon = pair
    daemon.sock.close()
    assert port.wait(5.0)
    with pytest.raises(DaemonGone):
        port.next()


def test_an_array_waits_for_the_command_that_names_it(pair):
    """Uploads may come in any order and before their commands; those keep their order."""
    port, daemon = pair
    first, second = np.arange(6, dtype="int32"), np.arange(4.0)
    daemon.send_array(2, second.tobytes())
    daemon.send(Kind.BATCH, b"names 1, then 2")
    daemon.send_array(1, first.tobytes())
    assert port.next().payload == b"names 1, then 2"
    got = port.collect(1, first.dtype, (2, 3))
    np.testing.assert_array_equal(got, first.reshape(2, 3))
    got[0, 0] = 42  # it is the rank's own from now on
    np.testing.assert_array_equal(port.collect(2, second.dtype, (4,)), second)


def test_an_array_goes_to_where_the_rank_wants_it(pair):
    """Also into a part of another array; one that cannot be written stays as it is."""
    port, daemon = pair
    data = np.arange(12, dtype="int32").reshape(3, 4)
    for ticket in (1, 2):
        daemon.send_array(ticket, data.tobytes())
    table = np.zeros((4, 8), "int32")
    port.collect_into(1, table[1:, ::2])
    np.testing.assert_array_equal(table[1:, ::2], data)
    assert not table[0].any()
    assert not table[:, 1::2].any()
    fixed = np.zeros((3, 4), "int32")
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        port.collect_into(2, fixed)
    assert not fixed.any()


def test_commands_that_come_while_it_waits_are_kept(pair):
    """Looking for an array does not lose what arrives before it."""
    port, daemon = pair

    def later():
        daemon.send(Kind.BATCH, b"behind")
        daemon.send_array(8, bytes(8))

    sender = threading.Thread(target=later)
    sender.start()
    assert port.collect(8, np.dtype("int64"), (1,))[0] == 0
    sender.join()
    assert port.next().payload == b"behind"


def test_an_array_that_will_not_come_is_an_error(pair):
    """The reason that the daemon gives is what the command fails with."""
    port, daemon = pair
    daemon.send_array(3, b"", error="no room for it")
    with pytest.raises(OSError, match="no room for it"):
        port.collect(3, np.dtype("uint8"), (1,))


def test_an_array_of_another_size_is_refused(pair):
    """Shape and dtype of the command must account for every byte that came."""
    port, daemon = pair
    daemon.send_array(4, bytes(12))
    with pytest.raises(ValueError, match=r"expected 16 bytes for float64\[2\], got 12"):
        port.collect(4, np.dtype("float64"), (2,))


def test_an_offer_reaches_the_daemon_with_its_memory(pair):
    """Ticket, worker and size are told, the descriptor has the bytes, tickets are not reused."""
    port, daemon = pair
    port.become(77, 2)
    array = np.arange(1000.0)
    tickets = [port.offer(array), port.offer(array[:0])]
    assert tickets[0] != tickets[1]
    told = [controller_pb2.Transfer.FromString(found.payload) for found in daemon.receive()]
    if len(told) < 2:  # descriptors part what one read returns
        told += [controller_pb2.Transfer.FromString(found.payload) for found in daemon.receive()]
    assert [(t.session, t.worker, t.ticket, t.nbytes) for t in told] == [
        (77, 2, tickets[0], 8000),
        (77, 2, tickets[1], 0),
    ]
    fd = daemon.reader.fds.popleft()
    with map_shared(fd, 8000) as found:
        assert found[:] == array.tobytes()
    os.close(fd)
    daemon.reader.close()
