"""Host arrays between two threads: one copy, and nobody waits in vain."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disco_server.embedded.threads import Loans, TransferBroken


def view(array):
    return memoryview(array).cast("B")


@pytest.fixture
def loans():
    return Loans()


def test_nobody_comes_in_time_so_a_copy_is_made(loans):
    """The copy is what the array held, and becomes the worker's own."""
    host = np.arange(100, dtype="uint8")
    loans.lend(1, view(host)).await_return()
    host[...] = 0
    taken = loans.get(1).take()
    assert taken.tolist() == list(range(100))
    assert taken.flags.writeable


def test_who_waits_already_copies_from_the_lender(loans):
    """The lender goes on when that is done."""
    host = np.ones(50 << 20, "uint8")
    out = np.empty_like(host)
    worker = threading.Thread(target=lambda: loans.get(2).copy_into(out))
    worker.start()
    loans.lend(2, view(host)).await_return()
    host[...] = 7
    worker.join()
    assert out.min() == out.max() == 1


def test_a_wrong_size_is_refused(loans):
    """Before a byte is copied."""
    loan = loans.lend(3, view(np.ones(8, "uint8")))
    with pytest.raises(ValueError, match="expected 9 bytes, got 8"):
        loan.copy_into(np.empty(9, "uint8"))


def test_what_is_broken_off_is_an_error_for_the_worker(loans):
    """Instead of memory that is no longer lent."""
    loan = loans.lend(4, view(np.ones(8, "uint8")))
    loan.break_off()
    with pytest.raises(TransferBroken):
        loan.take()


def test_the_end_frees_whoever_waits(loans):
    """For an array that will never come."""
    broken = []

    def wait():
        try:
            loans.get(5)
        except TransferBroken as error:
            broken.append(error)

    worker = threading.Thread(target=wait)
    worker.start()
    loans.close()
    worker.join()
    assert len(broken) == 1


def test_what_nobody_wants_is_given_back_at_once(loans):
    """Before it comes or afterwards: the lender does not wait for a worker that will not."""
    early = loans.lend(5, view(np.ones(8, "uint8")))
    loans.discard(5)
    loans.discard(6)
    late = loans.lend(6, view(np.ones(8, "uint8")))
    for loan in (early, late):
        loan.await_return()
        with pytest.raises(TransferBroken):
            loan.take()
    assert not loans._loans
    assert not loans._unwanted
