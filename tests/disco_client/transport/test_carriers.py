"""A session's stream on a socket of frames: what it sends, answers, and raises."""

from __future__ import annotations

import collections
import queue
import select
import socket
import struct
import threading

import pytest

from disco_client.pb import controller_pb2
from disco_client.transport import carriers
from disco_client.transport.address import Address
from disco_client.transport.carriers import (
    FramedStream,
    StreamBroken,
    Unreached,
    frames_address,
    permit_request,
)
from disco_client.wire.framing import frame

LIMIT_S = 20.0


class _Queued:
    """Messages from a queue, until None."""

    def __init__(self):
        self._come = queue.SimpleQueue()
        self._next = collections.deque()
        self.put = self._come.put

    def wait(self):
        found = self._come.get()
        if found:
            self._next.append(found)
        return found is not None

    def nudge(self):
        self.put(b"")

    def take(self):
        return self._next[0] if self._next else None

    def left(self, raw):
        assert self._next.popleft() is raw


@pytest.fixture
def pair():
    """A stream whose messages come from a queue until None, and the socket at its other end."""
    ours, peer = socket.socketpair()
    peer.settimeout(LIMIT_S)
    outgoing = _Queued()
    stream = FramedStream(carriers._Link(ours), outgoing)
    yield stream, outgoing.put, peer
    stream.close()
    outgoing.put(None)
    assert stream.join(LIMIT_S)
    peer.close()


def read(peer, count):
    came = b""
    while len(came) < count:
        came += peer.recv(count - len(came))
    return came


def received(stream):
    """Takes out what has come; says whether the stream goes on too."""
    goes_on = stream.receive()
    came = list(stream.arrived)
    stream.arrived.clear()
    return came, goes_on


def test_messages_go_both_ways_in_order(pair):
    """Whole ones, however they come; the end of the stream is the end of the iteration."""
    stream, send, peer = pair
    send(b"one")
    send(b"two" * 100_000)
    expected = frame(b"one") + frame(b"two" * 100_000)
    assert read(peer, len(expected)) == expected
    sending = threading.Thread(target=peer.sendall, args=(expected,))
    sending.start()
    incoming = iter(stream)
    assert [next(incoming), next(incoming)] == [b"one", b"two" * 100_000]
    sending.join()
    peer.shutdown(socket.SHUT_WR)
    assert list(incoming) == []


def test_a_controller_that_asks_for_a_sign_of_life_gets_one(pair):
    """Also between messages, and whoever reads the stream sees neither."""
    stream, _, peer = pair
    peer.sendall(frame(b"") + frame(b"message"))
    assert next(iter(stream)) == b"message"
    assert read(peer, 4) == frame(b"")


def test_a_controller_that_is_gone_is_not_answered(pair):
    """What it had sent comes, then the end: the session attaches again, and no call fails."""
    stream, _, peer = pair
    peer.sendall(frame(b"") + frame(b"message"))
    peer.close()
    assert received(stream) == ([b"message"], True)
    assert received(stream) == ([], False)


def test_a_controller_that_says_nothing_for_too_long_is_gone(pair):
    """The stream breaks with that reason; here after a fraction of the time."""
    stream, _, _ = pair
    seconds = struct.pack("ll", 0, 200_000)
    stream._link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    with pytest.raises(StreamBroken, match="said nothing for 20 s"):
        list(stream)


def test_a_frame_beyond_the_limit_breaks_the_stream(pair):
    """No peer makes a client take more than a message of gRPC has."""
    stream, _, peer = pair
    peer.sendall((64 * 1024 * 1024 + 1).to_bytes(4, "little"))
    with pytest.raises(StreamBroken, match="at most 67108864 bytes"):
        list(stream)


def test_a_peer_that_breaks_off_ends_sending_too(pair):
    """The thread that sends does not outlive the stream."""
    stream, send, peer = pair
    peer.close()
    while stream._sender.is_alive():
        send(b"into the void" * 10_000)
    assert list(stream) == []


def test_frames_are_on_the_host_that_was_dialled():
    """At the port that the controller says; of a Unix socket beside it; or nowhere."""
    told = controller_pb2.Permit(secret=b"x", port=7603)
    assert frames_address("head:7600", told) == Address("head", 7603)
    assert frames_address("[::1]:7600", told) == Address("::1", 7603)
    assert frames_address("unix:/run/disco", told) == Address(path="/run/disco.frames")
    with pytest.raises(Unreached, match="takes no frames"):
        frames_address("head:7600", controller_pb2.Permit())


def test_an_admission_is_asked_for_one_first_message():
    """By its digest: what it says goes over the connection alone."""
    asked = permit_request(b"secret of a session").SerializeToString()
    assert b"secret" not in asked
    assert asked != permit_request(b"secret of another").SerializeToString()


def test_what_a_socket_does_not_take_at_once_leaves_in_order(pair):
    """The thread that flushes does not wait for it, and no sign of life comes in between."""
    stream, _, peer = pair
    messages = [bytes([number]) * 3_000_000 for number in range(3)]
    stream._outgoing._next.extend(messages)  # of which the thread that sends does not know
    stream.flush()
    peer.sendall(frame(b""))
    assert received(stream) == ([], True)
    expected = b"".join(map(frame, messages))
    assert read(peer, len(expected)) == expected


def test_what_has_come_is_received_without_waiting(pair):
    """By pieces of frames too; and the end of the stream is told once nothing is left."""
    stream, _, peer = pair
    assert received(stream) == ([], True)
    peer.sendall(frame(b"one") + frame(b"") + frame(b"two")[:-1])
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    assert waiting.poll(LIMIT_S * 1000)
    assert received(stream) == ([b"one"], True)
    assert read(peer, 4) == frame(b"")
    peer.sendall(b"o" + frame(b"three"))
    peer.shutdown(socket.SHUT_WR)
    came, goes_on = [], True
    while goes_on:
        more, goes_on = received(stream)
        came += more
    assert came == [b"two", b"three"]


def test_silence_ends_a_stream_that_is_polled(pair, monkeypatch):
    """With the reason, but not while something is there to be read."""
    stream, _, peer = pair
    peer.sendall(frame(b"late"))
    monkeypatch.setattr(stream, "_heard", stream._heard - 21)
    assert stream.is_silent
    assert received(stream) == ([b"late"], True)
    assert not stream.is_silent
    monkeypatch.setattr(stream, "_heard", stream._heard - 21)
    with pytest.raises(StreamBroken, match="said nothing for 20 s"):
        stream.receive()
