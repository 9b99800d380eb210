"""Arrays so large that they are copied, carried and read piece by piece."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import disco_client as di
import disco_client.arrays.transfer

PIECE = 4 << 20
ODD = 3 * PIECE // 4 + 1
"""So many numbers of four bytes fill three pieces, and a little more."""


def numbers(count, seed=1):
    """Numbers that are exact in any order of addition."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype("float32")


@pytest.fixture
def before_download(session, monkeypatch):
    """Has something done once, after a reply has come and before its arrays are fetched."""

    def act_first(act):
        download = session._core.transport.download
        acted = []

        def later(*args):
            if not acted:
                acted.append(act())
            download(*args)

        monkeypatch.setattr(session._core.transport, "download", later)
        return acted

    return act_first


@pytest.fixture
def workers_of_their_own(kind):
    """Only where workers are processes."""
    assert kind.processes


@pytest.mark.parametrize("count", [PIECE // 4, PIECE // 4 + 1, ODD], ids=["one", "more", "many"])
def test_large_arrays_go_there_and_back(session, count):
    """Of one piece exactly, with a byte more, and of several: bit for bit."""
    array = numbers(count)
    ref = session.copy_to_worker_0(array)
    np.testing.assert_array_equal(ref.numpy(), array)
    session.copy_to_worker_0(-array, ref)
    back = np.empty_like(array)
    session.copy_from_worker_0(back, ref)
    np.testing.assert_array_equal(back, -array)


def test_what_is_fetched_is_what_the_command_saw(kind, session, before_download):
    """Although the next command changes the array while it is on its way."""
    array = numbers(4 * ODD)
    ref = session.broadcast(array)
    acted = before_download(lambda: session.allreduce(ref, ref))
    np.testing.assert_array_equal(ref.numpy(), array)
    assert bool(acted) == kind.processes  # threads hand arrays over as they are
    for worker in range(2):
        np.testing.assert_array_equal(ref.numpy(worker), array * (2 if acted else 1))


def test_several_arrays_of_one_answer_do_not_meet(session, tools, before_download):
    """Large and small ones of a list, each whole, in whatever order they are fetched."""
    arrays = [numbers(count, count) for count in (ODD, 5, PIECE // 4, 2 * ODD, 20_000)]
    ref = tools.call("echo", arrays)
    before_download(lambda: tools.call("echo", 1))
    for got, array in zip(ref.debug_get_from_remote(1), arrays, strict=True):
        np.testing.assert_array_equal(got, array)


def test_a_copy_that_fails_ends_the_wait_and_not_the_worker(
    workers_of_their_own, open_session, tools_of
):
    """The error names the reason; afterwards the same array comes whole."""
    session = open_session(2)
    tools = tools_of(session)
    array = numbers(ODD)
    ref = session.copy_to_worker_0(array)
    tools.call("break_copies", 2, "fail")
    with pytest.raises(di.SessionError, match=r"worker 0 could not copy it: .*device is lost"):
        ref.numpy()
    tools.call("break_copies", 0, "")
    np.testing.assert_array_equal(ref.numpy(), array)
    session.sync_all()


def test_a_worker_that_dies_in_a_copy_ends_the_session(
    workers_of_their_own, open_session, tools_of
):
    """Whoever waits for the rest of the array is not left waiting."""
    session = open_session(2)
    ref = session.copy_to_worker_0(numbers(ODD))
    tools_of(session).call("break_copies", 2, "die")
    began = time.monotonic()
    with pytest.raises(di.SessionLost):
        ref.numpy()
    with pytest.raises(di.WorkerLost, match="worker 0"):
        session.sync_all()
    assert time.monotonic() - began < 20


def test_copies_leave_no_descriptors(workers_of_their_own, session, tools, eventually):
    """Neither at the client nor at a worker, also where copies fail."""
    processes = [psutil.Process(), psutil.Process(session.workers[0].pid)]
    array = numbers(ODD)
    ref = session.copy_to_worker_0(array)

    def copy():
        session.copy_to_worker_0(array, ref)
        tools.call("break_copies", 2, "fail")
        with pytest.raises(di.SessionError):
            ref.numpy()
        tools.call("break_copies", 0, "")
        ref.numpy()

    copy()  # what is made once is there now
    before = [process.num_fds() for process in processes]
    for _ in range(5):
        copy()
    # Memory that is used again may have been on its way when it was counted.
    most = [count + 3 for count in before]
    eventually(
        lambda: all(p.num_fds() <= count for p, count in zip(processes, most, strict=True)),
        what="the descriptors to be closed",
    )


def interrupt(*_):
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def test_an_upload_that_never_begins_leaves_no_worker_waiting(session, monkeypatch):
    """Ctrl-C between command and upload: the command fails, and the session goes on."""
    array = numbers(PIECE // 4 + 1)
    with monkeypatch.context() as patch:
        patch.setattr(di.arrays.transfer.Uploads, "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.copy_to_worker_0(array)
    with pytest.raises(di.RemoteError, match="the upload was broken off"):
        session.sync_worker_0()
    session.sync_all()
    np.testing.assert_array_equal(session.copy_to_worker_0(array).numpy(), array)


def held_for_uploads(process):
    """How much memory for arrays a process has open."""
    count = 0
    for fd in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "disco-array" in str(fd.readlink())
    return count


def test_what_a_skipped_command_would_have_taken_is_let_go(
    session, workers_of_their_own, eventually
):
    """Its arrays are not kept until the session ends: a rank holds no more of them than before."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("looks for descriptors in /proc")
    rank = psutil.Process(session.workers[0].pid)
    failed = session.get_global_func("tests.no_such_function")
    array = numbers(PIECE // 4 + 1)
    for _ in range(2):
        failed(array)
    with pytest.raises(di.FunctionNotFound):
        session.sync_all()
    before = held_for_uploads(rank)
    for _ in range(6):
        failed([array, {"more": array}])
    session.sync_all()
    eventually(lambda: held_for_uploads(rank) <= before + 2, what="the rank to let go of arrays")
    np.testing.assert_array_equal(session.copy_to_worker_0(array).numpy(), array)
