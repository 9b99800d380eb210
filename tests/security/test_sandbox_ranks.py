"""Rank processes: their environment, folder, limits and user, on real daemons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from disco_client import connect, errors

SECRETS = {
    "DISCO_TOKEN": "canary",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "MY_PROGRAM": "canary",
    "SSH_AUTH_SOCK": "canary",
}
OPEN = (
    "--slots",
    "1",
    "--allow-module",
    "os",
    "--allow-module",
    "posix",
    "--allow-module",
    "tempfile",
)


def ask(session, name, *args):
    return session.get_global_func(name)(*args).debug_get_from_remote(0)


@pytest.fixture(scope="module")
def limited(shared_daemons, tmp_path_factory):
    """A node with secrets in its environment, and little memory for each rank."""
    folder = tmp_path_factory.mktemp("work")
    controller = shared_daemons.controller()
    options = (
        "--env",
        "MY_*",
        "--env",
        "MODE=fast",
        "--max-memory",
        "600MiB",
        "--work-dir",
        folder,
    )
    daemon = shared_daemons.worker(controller.address, *OPEN, *options, DISCO_ENV="", **SECRETS)
    return controller.address, daemon, folder


def test_nothing_of_the_daemon_s_secrets_is_in_a_rank(limited):
    """Nor in what it is forked from, as far as that lets anybody look; what is named is there."""
    address, daemon, _ = limited
    with connect(address, num_workers=1, logs=False) as session:
        assert {child.pid for child in daemon.ranks()} == {session.workers[0].pid}
        family = daemon.family() if os.geteuid() == 0 else daemon.ranks()
        environs = [child.environ() for child in family]
        assert ask(session, "os.listdir", "/")  # it is a real rank
        for environ in environs:
            assert environ["MY_PROGRAM"] == "canary"
            assert environ["MODE"] == "fast"
            assert {name for name, value in environ.items() if value == "canary"} == {"MY_PROGRAM"}


def test_a_rank_works_in_a_folder_that_goes_with_its_session(limited, eventually):
    """Its temporary files too; two sessions have two of them."""
    address, _, folder = limited
    seen = []
    for _ in range(2):
        with connect(address, num_workers=1, logs=False) as session:
            where = Path(ask(session, "os.getcwd"))
            assert folder in where.parents
            assert ask(session, "tempfile.gettempdir") == str(where)
            ask(session, "os.mkdir", "left-behind")
            assert (where / "left-behind").is_dir()
            seen.append(where)
        eventually(lambda where=where: not where.exists(), what="the folder to go")
    assert seen[0] != seen[1]


def test_memory_beyond_the_limit_is_an_error_in_words(limited):
    """The command fails, with the limit and its setting; the rank lives on."""
    address, _, _ = limited
    with connect(address, num_workers=1, logs=False) as session:
        zeros = session.get_global_func("numpy.ones")
        with pytest.raises(errors.RemoteException) as raised:
            zeros(1 << 27).debug_get_from_remote(0)
        assert "the limit of this worker is 600 MiB: disco-worker --max-memory" in str(raised.value)
        assert ask(session, "numpy.ones", 3).sum() == 3


def test_a_rank_leaves_no_core_dump(limited):
    """Unless the settings ask for it: the limit is 0 for good."""
    address, _, _ = limited
    with connect(address, num_workers=1, logs=False) as session:
        limits = Path(f"/proc/{session.workers[0].pid}/limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)


NOBODY = 65534
REACHABLE = """
set -e
mkdir "$1" && mount --bind "$2" "$1" && mount -t tmpfs -o mode=755 none "$3"
mkdir -p "$2" && mount --bind "$1" "$2"
shift 3
exec "$@"
"""
"""Mounts, for one process, an empty folder that all may enter over $3, and $2 inside again."""


def closed_to_others():
    """The folder, if there is one, that keeps other users from this Python."""
    above = Path(sys.executable).resolve().parents
    return next((str(f) for f in reversed(above) if not f.stat().st_mode & 0o001), None)


@pytest.fixture
def opened(tmp_path):
    """What stands before a command so that any user can read the Python that it runs."""
    if os.geteuid():
        pytest.skip("only root can run ranks as another user")
    shut, prefix = closed_to_others(), []
    if shut:
        python = str(Path(sys.executable).resolve().parents[1])
        mounts = [str(tmp_path / "python"), python, shut]
        prefix = ["unshare", "-m", "sh", "-c", REACHABLE, "sh", *mounts]
    user = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "--regid", str(NOBODY)]
    program = [*prefix, *user, sys.executable, "-P", "-c", "import disco_server.config"]
    done = subprocess.run(program, capture_output=True, text=True, cwd="/", check=False)
    if shut:
        (tmp_path / "python").rmdir()
    if done.returncode:
        pytest.skip(f"no other user can run this Python here: {done.stderr.strip()[-200:]}")
    return prefix


def test_ranks_may_be_another_user(daemons, opened, eventually):
    """All of them; arrays, collectives and the end work as ever."""
    controller = daemons.controller()
    daemons.prefix = opened
    options = ("--slots", "2", "--user", "nobody", *OPEN[2:])
    daemon = daemons.worker(controller.address, *options)
    with connect(controller.address, num_workers=2, logs=False) as session:
        ids = session.get_global_func("os.getresuid")()
        for worker in range(2):
            assert ids.debug_get_from_remote(worker) == (NOBODY,) * 3
        assert ask(session, "os.getgroups") == os.getgrouplist("nobody", NOBODY)
        array = np.arange(1 << 16, dtype="float64")
        whole = session.empty(array.shape, "float64")
        session.broadcast(array, whole)
        session.allreduce(whole, whole)
        assert np.array_equal(whole.debug_get_from_remote(1), array * 2)
        pids = [rank.pid for rank in session.workers]
        uids = {child.pid: child.uids().real for child in daemon.family()}
        assert set(pids) <= set(uids)
        assert set(uids.values()) == {NOBODY}
    eventually(lambda: not any(map(psutil.pid_exists, pids)), what="the ranks to end")


@pytest.mark.parametrize("user", ["nobody", "no-such-user-here"])
def test_a_user_that_ranks_cannot_be_is_refused(daemons, user):
    """The daemon says why and does not start: unknown, or may not read this Python, or no root."""
    if user == "nobody" and os.geteuid() == 0 and not closed_to_others():
        pytest.skip("root may become nobody, who may read this Python")
    daemon = daemons.worker("127.0.0.1:1", *OPEN, "--user", user, ready=False)
    assert daemon.wait() == 2
    assert "--user: " in daemon.stderr


def test_nothing_that_a_rank_started_outlives_its_session(shared_daemons, eventually):
    """Neither a child of it nor what left its process group and its parent behind."""
    controller = shared_daemons.controller()
    allowed = ("--allow-module", "disco_test_functions")
    shared_daemons.worker(controller.address, "--slots", "1", *allowed)
    left = None
    try:
        with connect(controller.address, num_workers=1, logs=False) as session:
            session.import_python_module("disco_test_functions")
            child = ask(session, "tests.leave_child")
            left = ask(session, "tests.leave_grandchild")
            rank = session.workers[0].pid
            assert psutil.Process(left).ppid() not in (rank, child)
        eventually(lambda: not psutil.pid_exists(rank))
        eventually(lambda: not psutil.pid_exists(child))
        try:
            psutil.Process(left).wait(30.0)
        except psutil.TimeoutExpired:
            raise TimeoutError from None
        except psutil.NoSuchProcess:
            pass
    finally:
        if left is not None and psutil.pid_exists(left):
            psutil.Process(left).kill()
