"""Checkpoints on a disk and in a store, saved in the same way: two savers, and crashes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from disco_server.storage import stores
from disco_server.storage.checkpoint_read import StoredCheckpoint
from disco_server.storage.files import FileError, FileNotAllowed, absolute_path
from disco_server.storage.folders import list_names
from fault_tools.object_faults import Fault, FaultyServer

OLD, NEW, NEXT = (
    {"b": np.full(3, value, bool), "a": np.full((7, 2), value, "f4")} for value in (0, 1, 2)
)
"""The one with smaller elements first: files hold them in another order."""


@pytest.fixture(params=["disk", "store"])
def place(request, tmp_path):
    """Where a checkpoint is saved."""
    if request.param == "disk":
        return str(tmp_path / "c")
    return request.getfixturevalue("bucket") + "/run/c"


def value_at(place, read_whole):
    """The value of all elements of the checkpoint, which is whole then."""
    stored = StoredCheckpoint(place, ("*",))
    assert read_whole(stored, "b").shape == (3,)
    (value,) = np.unique(read_whole(stored, "a"))
    return value


def names_at(place):
    return sorted(list_names(absolute_path(place)))


def run_until(saving, step):
    """Goes on with a save until a worker has done a step."""
    for name, _ in saving:
        if name == step:
            return


def test_a_checkpoint_is_replaced_by_the_next_one(place, write_checkpoint, read_whole):
    """An index with the next number, and the files that it names; the former ones go."""
    for number, tensors in enumerate((OLD, NEW, NEXT), 1):
        write_checkpoint(place, tensors)
        assert value_at(place, read_whole) == number - 1
        generation, index = names_at(place)[::-1]
        assert index == f"disco-checkpoint-{number:010}.json"
        assert generation.startswith("generation-")
        files = names_at(f"{place}/{generation}")
        assert files == ["worker-00000.safetensors", "worker-00001.safetensors"]
        # Its own index names it as well, as where there are no lists.
        assert StoredCheckpoint(f"{place}/{index}", ("*",)).fingerprint == (
            StoredCheckpoint(place, ("*",)).fingerprint
        )


def test_a_save_that_ends_at_any_step_leaves_the_former_one(
    place, write_checkpoint, steps, read_whole
):
    """Until its last one; and nothing of its own."""
    write_checkpoint(place, OLD)
    before = names_at(place)
    count = 0
    while True:
        saving = steps(place, NEW)
        done = [name for name, _ in zip(range(count + 1), saving, strict=False)]
        if len(done) <= count:
            break
        saving.close()
        if value_at(place, read_whole) == 1:
            break
        assert names_at(place) == before
        count += 1
    assert count > 8


def test_of_two_savers_one_makes_the_checkpoint(bucket, steps, read_whole):
    """The other one is told, and leaves nothing; in a store none can wait for the other."""
    place = f"{bucket}/c"
    first, second = steps(place, OLD), steps(place, NEW)
    run_until(first, "finished")
    run_until(second, "begun")
    list(second)
    with pytest.raises(FileError, match=r"another session saved here meanwhile, .* once more"):
        list(first)
    assert value_at(place, read_whole) == 1
    assert len(names_at(place)) == 2


def test_a_saver_that_was_overtaken_twice_makes_no_checkpoint(
    bucket, steps, write_checkpoint, read_whole
):
    """The index of its number is gone by then, so that it could be made once more."""
    place = f"{bucket}/c"
    slow = steps(place, OLD)
    run_until(slow, "written")
    for tensors in (NEW, NEXT):
        write_checkpoint(place, tensors)
    with pytest.raises(FileError, match="another session saved here meanwhile"):
        list(slow)
    assert value_at(place, read_whole) == 2
    assert names_at(place)[0] == "disco-checkpoint-0000000002.json"
    assert len(names_at(place)) == 2


def test_an_index_without_a_number_is_loaded_and_replaced(tmp_path, write_checkpoint, read_whole):
    """As Disco 0.2 wrote it."""
    write_checkpoint(tmp_path, OLD)
    (index,) = tmp_path.glob("*.json")
    index.rename(tmp_path / "disco-checkpoint.json")
    assert value_at(str(tmp_path), read_whole) == 0
    write_checkpoint(tmp_path, NEW)
    assert value_at(str(tmp_path), read_whole) == 1
    assert "disco-checkpoint.json" not in names_at(str(tmp_path))


def test_only_allowed_places_of_a_store_are_written(bucket, write_checkpoint):
    """By whole parts of the name; the flag is named."""
    for allowed in ((f"{bucket}/ru",), (), (f"{bucket}/run/c/d",)):
        with pytest.raises(FileNotAllowed, match=f"--allow-save {bucket}/run/c"):
            write_checkpoint(f"{bucket}/run/c", OLD, allowed=allowed)
    write_checkpoint(f"{bucket}/run/c", OLD, allowed=(f"{bucket}/run",))


def test_a_web_server_is_only_read(write_checkpoint):
    """Saving there is refused before anything is sent."""
    with pytest.raises(FileError, match="web servers are only read: expected a folder or a store"):
        write_checkpoint("http://127.0.0.1:1/c", OLD)


# A server on a bad day.


SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@pytest.fixture
def faulty(bucket, s3_address, monkeypatch):
    """A proxy before the server, and a bucket that this process reaches through it."""
    with FaultyServer(s3_address) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.address}")
        monkeypatch.setattr(stores, "_LONGEST_PAUSE_S", 0.2)
        yield server


def test_an_index_whose_answer_was_lost_is_the_checkpoint(
    faulty, bucket, write_checkpoint, read_whole
):
    """What the request was to make is there, as the next one finds."""
    write_checkpoint(f"{bucket}/c", OLD)
    faulty.faults.append(Fault("PUT", "disco-checkpoint-0000000002.json", lost=True))
    write_checkpoint(f"{bucket}/c", NEW)
    assert faulty.faults[0].met == 1
    assert value_at(f"{bucket}/c", read_whole) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault("PUT", "worker-00001", status=503, times=2),
        Fault("PUT", "worker-00001", cut=10),
        Fault("PUT", "worker-00001", lost=True),
        Fault("GET", "worker-00001", cut=60),
        Fault("GET", "worker-00001", status=503, times=2),
        Fault("GET", "list-type", status=500),
        Fault("GET", "worker-00001", status=429, times=2),
        Fault("PUT", "worker-00001", status=503, body=SLOW_DOWN, times=12),
        Fault("GET", "worker-00001", pause_s=1e-4),
    ],
    ids=[
        *("refused", "cut", "lost", "read-cut", "read-refused", "list-refused"),
        *("read-busy", "overloaded", "read-slow"),
    ],
)
def test_what_fails_now_and_then_is_done_again(faulty, bucket, write_checkpoint, read_whole, fault):
    """Requests that are refused, and connections that are reset in the middle of a body."""
    faulty.faults.append(Fault(**{**vars(fault), "met": 0}))
    write_checkpoint(f"{bucket}/c", NEW)
    assert value_at(f"{bucket}/c", read_whole) == 1
    assert faulty.faults[0].met == fault.times


@pytest.mark.parametrize(
    "fault",
    [
        {"method": "GET", "held": 60},
        {"method": "GET", "pause_s": 0.2},
        {"method": "GET", "before": True},
        {"method": "HEAD", "before": True},
        {"method": "PUT", "before": True},
    ],
    ids=["answer", "bytes", "get", "head", "put"],
)
def test_a_server_that_stalls_is_given_up(
    faulty, bucket, write_checkpoint, read_whole, monkeypatch, fault
):
    """In the middle of an answer, with a byte now and then, or before it answers at all."""
    write_checkpoint(f"{bucket}/c", OLD)
    monkeypatch.setattr(stores, "_ANSWER_S", 0.5)
    monkeypatch.setattr(stores, "_AGAIN_S", 1.0)
    stores._store.cache_clear()
    use, told = partial(value_at, read_whole=read_whole), r"it stalled: .* in full within 0\.5 s"
    if fault["method"] == "PUT":
        use = partial(write_checkpoint, tensors=NEW)
        told = r"error sending request \(tried [2-9] times in [1-9][0-9.]* s\)"
    if fault.get("before"):
        fault = {**fault, "before": faulty.released.wait}
    faulty.faults.append(Fault(holds="worker-00001", times=99, **fault))
    with pytest.raises(FileError, match=told) as raised:
        use(f"{bucket}/c")
    assert f"{bucket}/c/generation-" in str(raised.value)
    assert faulty.faults[0].met > 1
    faulty.released.set()
    faulty.faults.clear()
    assert value_at(f"{bucket}/c", read_whole) == 0


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_interrupt_ends_the_wait_for_a_server(
    faulty, bucket, write_checkpoint, read_whole, method
):
    """Which does not answer: the library waits on, in a thread of its own."""

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    def hang():
        os.kill(os.getpid(), signal.SIGUSR1)
        faulty.released.wait()

    write_checkpoint(f"{bucket}/c", OLD)
    faulty.faults.append(Fault(method, "worker-00001", before=hang))
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            value_at(f"{bucket}/c", read_whole)
    finally:
        signal.signal(signal.SIGUSR1, before)
        faulty.released.set()
    assert value_at(f"{bucket}/c", read_whole) == 0


def said(code, message):
    return f"<Error><Code>{code}</Code><Message>{message}</Message><Key>k</Key></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "ExpiredToken", "The provided token has expired."),
        (403, "QuotaExceeded", "The bucket is full."),
    ],
)
@pytest.mark.parametrize("holds", ["worker-00001", "disco-checkpoint-0000000002.json"])
def test_what_a_store_refuses_leaves_the_former_one(
    faulty, bucket, write_checkpoint, read_whole, status, code, message, holds
):
    """Credentials that have ended, a bucket that is full: with its words, and without secrets."""
    write_checkpoint(f"{bucket}/c", OLD)
    faulty.faults.append(Fault("PUT", holds, status=status, body=said(code, message), times=99))
    with pytest.raises(FileError, match=f"{code}, {message}") as raised:
        write_checkpoint(f"{bucket}/c", NEW)
    assert f"{bucket}/c/" in str(raised.value)
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert os.environ[name] not in str(raised.value)
    assert value_at(f"{bucket}/c", read_whole) == 0
    faulty.faults.clear()
    write_checkpoint(f"{bucket}/c", NEXT)
    assert value_at(f"{bucket}/c", read_whole) == 2


def test_a_saver_that_begins_while_another_one_ends_goes_on(
    faulty, bucket, write_checkpoint, read_whole
):
    """The index that it has listed is gone when it reads it."""
    write_checkpoint(f"{bucket}/c", OLD)
    index = "disco-checkpoint-0000000001.json"
    # Each worker looks first whether this save was completed before.
    faulty.faults.append(Fault("HEAD", index))
    faulty.faults.append(Fault("HEAD", index, before=lambda: write_checkpoint(f"{bucket}/c", NEW)))
    write_checkpoint(f"{bucket}/c", NEXT)
    assert faulty.faults[1].met == 1
    assert value_at(f"{bucket}/c", read_whole) == 2
    assert names_at(f"{bucket}/c")[0] == "disco-checkpoint-0000000003.json"


def test_a_save_that_is_given_up_leaves_no_parts_of_objects(faulty, bucket, steps):
    """For which a store charges, and which no list shows."""
    saving = steps(f"{bucket}/c", {"a": np.zeros((2, 3 << 20), "f8")})
    run_until(saving, "written")
    saving.close()
    assert any(method == "POST" and "?uploads" in target for method, target in faulty.seen)
    assert any(method == "DELETE" and "uploadId=" in target for method, target in faulty.seen)
    assert names_at(f"{bucket}/c") == []


# Crashes.


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_savers_that_are_killed_leave_a_whole_checkpoint(place):
    """Two of them at once, killed at random moments; the program looks after each."""
    program = Path(__file__).with_name("two_savers.py")
    seed = random.randrange(1 << 16)
    command = [sys.executable, program, place, "4", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}, with the seed {seed}"
    assert done.stdout.count("whole") == 4
