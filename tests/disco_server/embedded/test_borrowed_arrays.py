"""Host arrays between two threads: one copy, and nobody waits in vain."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disco_server.embedded.threads import BorrowedArray, BorrowedArrays, TransferBroken


def view(array):
    return memoryview(array).cast("B")


@pytest.fixture
def borrowed():
    return BorrowedArrays()


def test_nobody_comes_in_time_so_a_copy_is_made(borrowed):
    """The copy is what the array held, and becomes the worker's own."""
    host = np.arange(100, dtype="uint8")
    borrowed.lend(1, view(host)).await_return()
    host[...] = 0
    taken = borrowed.get(1).take()
    assert taken.tolist() == list(range(100))
    assert taken.flags.writeable


def test_a_worker_that_waits_already_copies_from_the_client(borrowed):
    """The client goes on when that is done."""
    host = np.ones(50 << 20, "uint8")
    out = np.empty_like(host)
    worker = threading.Thread(target=lambda: borrowed.get(2).copy_into(out))
    worker.start()
    borrowed.lend(2, view(host)).await_return()
    host[...] = 7
    worker.join()
    assert out.min() == out.max() == 1


def test_a_wrong_size_is_refused(borrowed):
    """Before a byte is copied."""
    array = borrowed.lend(3, view(np.ones(8, "uint8")))
    with pytest.raises(ValueError, match="expected 9 bytes, got 8"):
        array.copy_into(np.empty(9, "uint8"))


def test_what_is_broken_off_is_an_error_for_the_worker(borrowed):
    """Instead of memory that is the client's again."""
    array = borrowed.lend(4, view(np.ones(8, "uint8")))
    array.break_off()
    with pytest.raises(TransferBroken):
        array.take()


def test_the_end_frees_whoever_waits(borrowed):
    """For an array that will never come."""
    broken = []

    def wait():
        try:
            borrowed.get(5)
        except TransferBroken as error:
            broken.append(error)

    worker = threading.Thread(target=wait)
    worker.start()
    borrowed.close()
    worker.join()
    assert len(broken) == 1


def test_what_nobody_wants_is_given_back_at_once(borrowed):
    """Before it comes or afterwards: the client does not wait for a worker that will not."""
    early = borrowed.lend(5, view(np.ones(8, "uint8")))
    borrowed.discard(5)
    borrowed.discard(6)
    late = borrowed.lend(6, view(np.ones(8, "uint8")))
    for array in (early, late):
        array.await_return()
        with pytest.raises(TransferBroken):
            array.take()
    assert not borrowed._arrays
    assert not borrowed._unwanted


def test_an_array_that_is_given_up_is_an_error_for_a_worker_that_waits_already(
    borrowed, monkeypatch
):
    """It does not get an empty one in its place, wherever the client's thread is."""
    break_off, got = BorrowedArray.break_off, []

    def wait():
        try:
            got.append(borrowed.get(1).take())
        except TransferBroken as error:
            got.append(str(error))

    def slowly(array, why):
        worker.join(0.1)
        break_off(array, why)

    monkeypatch.setattr(BorrowedArray, "break_off", slowly)
    worker = threading.Thread(target=wait)
    worker.start()
    borrowed.give_up(1, "Ctrl-C")
    worker.join(20)
    assert got == ["the upload was broken off: Ctrl-C"]
