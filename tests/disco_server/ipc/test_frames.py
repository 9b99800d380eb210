"""Frames on a socket: whole again however they were cut, with their descriptors in order."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import threading
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.descriptors import Descriptor
from disco_client.wire.framing import MAX_FRAME_BYTES, frame
from disco_server.ipc.framing import (
    HOW_FAR,
    FrameReader,
    Unsent,
    frame_of_progress,
    progress_in,
    receive,
    send_with_fd,
)


@pytest.fixture
def ends():
    """Two connected sockets of the kind that a daemon and its rank have."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with mine, theirs:
        yield mine, theirs


def holding(text):
    """A descriptor that reads this text."""
    fd, write = os.pipe()
    os.write(write, text)
    os.close(write)
    return Descriptor(fd)


def contents(fd):
    with fd:
        return fd.read(100)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_frames_survive_any_cut(payloads, data):
    """Wherever the stream is cut, the same frames come out, and no byte is left over."""
    stream = b"".join(map(frame, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    came = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        came += reader.feed(stream[start:end])
    assert came == payloads
    assert reader.feed(b"") == []
    assert reader.feed(frame(b"next")) == [b"next"]


def test_a_frame_is_returned_as_soon_as_its_last_byte_is_there():
    """Nobody waits for bytes that belong to somebody else's frame."""
    reader = FrameReader()
    whole = frame(b"abc")
    assert [reader.feed(bytes((byte,))) for byte in whole][-1] == [b"abc"]


def test_too_long_a_frame_is_refused():
    """By its header alone, so that no memory is spent on it."""
    reader = FrameReader()
    with pytest.raises(ValueError, match=f"at most {MAX_FRAME_BYTES} bytes, got"):
        reader.feed(frame(b"good") + struct.pack("<I", MAX_FRAME_BYTES + 1))
    longest = FrameReader()
    assert longest.feed(struct.pack("<I", MAX_FRAME_BYTES)) == []


def test_descriptors_stay_in_order_with_the_frames_that_carry_them(ends):
    """Small frames and ones of several reads, with and without a descriptor, all mixed."""
    mine, theirs = ends
    sent = [(i, i % 3 == 1, b"x" * (700_000 if i % 7 == 4 else i)) for i in range(40)]

    def send():
        for number, has_fd, padding in sent:
            raw = b"%d %d " % (number, has_fd) + padding
            if has_fd:
                fd = holding(b"for %d" % number)
                send_with_fd(theirs, frame(raw), fd, str.encode)
                fd.close()
            else:
                theirs.sendall(frame(raw))
        theirs.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    reader = FrameReader()
    came = []
    while (raws := receive(mine, reader)) is not None:
        for raw in raws:
            number, has_fd, padding = raw.split(b" ", 2)
            if int(has_fd):
                assert contents(reader.fds.popleft()) == b"for " + number
            came.append((int(number), has_fd == b"1", padding))
    sender.join()
    assert came == sent
    assert not reader.fds


def test_a_descriptor_s_content_can_still_change_hands_after_the_sender_closed_it(ends):
    """What travels is the open file, not a number that means something to the sender."""
    mine, theirs = ends
    fd = holding(b"kept")
    send_with_fd(theirs, frame(b"raw"), fd, str.encode)
    fd.close()
    theirs.close()
    reader = FrameReader()
    assert receive(mine, reader) == deque([b"raw"])
    assert receive(mine, reader) is None
    assert contents(reader.fds.popleft()) == b"kept"


def test_received_descriptors_are_not_for_children(ends):
    """A process that user code starts must not keep an array's memory alive."""
    mine, theirs = ends
    fd = holding(b"")
    send_with_fd(theirs, frame(b"raw"), fd, str.encode)
    fd.close()
    reader = FrameReader()
    receive(mine, reader)
    assert not os.get_inheritable(reader.fds[0].fileno())
    reader.close()


def test_descriptors_that_nobody_took_are_closed_with_the_reader(ends):
    """As often as one likes; a broken session leaks no memory."""
    mine, theirs = ends
    for text in (b"one", b"two"):
        fd = holding(text)
        send_with_fd(theirs, frame(text), fd, str.encode)
        fd.close()
    reader = FrameReader()
    came = []
    while len(came) < 2:
        came += receive(mine, reader)
    taken = list(reader.fds)
    assert len(taken) == 2
    assert not any(fd.closed for fd in taken)
    reader.close()
    reader.close()
    assert all(fd.closed for fd in taken)


def test_the_end_is_none_however_the_peer_went(ends):
    """Also where it left with words of ours unread, which the system calls a reset."""
    mine, theirs = ends
    mine.sendall(frame(b"never read"))
    theirs.close()
    assert receive(mine, FrameReader()) is None


def test_a_socket_that_does_not_block_says_that_it_has_nothing(ends):
    """The daemon's loop reads this way; nothing is not the end."""
    mine, _ = ends
    mine.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(mine, FrameReader())


def test_a_question_and_its_answer_are_no_envelopes():
    """They are shorter than any envelope with a session."""
    reader = FrameReader()
    question, answer, other = reader.feed(HOW_FAR + frame_of_progress(1 << 40) + frame(b"x" * 9))
    assert question == b""
    assert progress_in(answer) == 1 << 40
    assert progress_in(other) is None


def test_a_descriptor_that_cannot_be_passed_is_not_missed(ends):
    """Another frame says so in its place; those around it come, with their own descriptors."""
    mine, theirs = ends
    failed = []

    class Full:
        """The socket, in a system where too many descriptors are under way once."""

        send = theirs.send

        def sendmsg(self, buffers, ancillary):
            if not failed:
                failed.append(ancillary)
                raise OSError(errno.ETOOMANYREFS, "too many references")
            return theirs.sendmsg(buffers, ancillary)

    unsent, fds = Unsent(Full()), [holding(b"one"), holding(b"two")]
    unsent.add(frame(b"before"))
    for fd, raw in zip(fds, (b"first", b"second"), strict=True):
        unsent.add(frame(raw), fd, lambda why: frame(f"without: {why}".encode()))
    assert unsent.flush()
    assert failed
    assert all(fd.closed for fd in fds)
    reader, came = FrameReader(), []
    while len(came) < 3:
        came += receive(mine, reader)
    assert came[::2] == [b"before", b"second"]
    assert came[1].endswith(b"too many references")
    assert [contents(fd) for fd in reader.fds] == [b"two"]


def test_a_descriptor_for_which_there_is_no_room_leaves_its_place(ends):
    """The one behind it still belongs to its own frame."""
    mine, theirs = ends
    for text in (b"one", b"two"):
        fd = holding(text)
        send_with_fd(theirs, frame(text), fd, str.encode)
        fd.close()
    reader = FrameReader()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Whatever others close meanwhile, no new one has a number as low as this.
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        came = receive(mine, reader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert came == deque([b"one"])
    assert receive(mine, reader) == deque([b"two"])
    lost, kept = reader.fds
    assert lost is None
    assert contents(kept) == b"two"
