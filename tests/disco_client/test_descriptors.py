"""Descriptors are closed when nothing refers to them any more."""

from __future__ import annotations

import array
import gc
import os
import socket
import warnings

import pytest

from disco_client.descriptors import WITH_DESCRIPTORS, Descriptor, opened, receive_with_descriptors


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_one_that_is_dropped_is_closed_without_a_warning():
    """By what made it, as by an exception that comes between two steps."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fd = opened(os.dup, 0)
        number = fd.fileno()
        assert is_open(number)
        del fd
        gc.collect()
    assert not is_open(number)
    assert not warned


def test_one_that_is_closed_is_not_closed_again():
    """Its number may be another's by then."""
    fd = opened(os.dup, 0)
    number = fd.fileno()
    fd.close()
    other = opened(os.dup, 0)
    assert other.fileno() == number
    fd.close()
    del fd
    assert is_open(number)
    other.close()


def test_what_cannot_be_made_is_the_error_of_the_system():
    """Nothing is left of it."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        opened(os.dup, 1 << 20)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_those_that_come_with_a_message_are_received_with_it(count):
    """As many as came, in their order, none of them for child processes."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        sent = [Descriptor(os.memfd_create(f"of-{n}")) for n in range(count)]
        for number, each in enumerate(sent):
            os.write(each.fileno(), b"%d" % number)
        numbers = array.array("i", [each.fileno() for each in sent])
        theirs.sendmsg([b"text"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] * (count > 0))
        space = socket.CMSG_SPACE(8 * numbers.itemsize)
        (data, *_), came = receive_with_descriptors(mine.recvmsg, 100, space, WITH_DESCRIPTORS)
    assert data == b"text"
    assert [os.pread(each.fileno(), 9, 0) for each in came] == [b"%d" % n for n in range(count)]
    assert not any(os.get_inheritable(each.fileno()) for each in came)
    for each in (*sent, *came):
        each.close()


def test_a_socket_that_has_nothing_says_so():
    """The error of the system comes through."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)
        with pytest.raises(BlockingIOError):
            receive_with_descriptors(mine.recvmsg, 100, 0, WITH_DESCRIPTORS)
