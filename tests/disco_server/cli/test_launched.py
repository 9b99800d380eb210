"""``disco run`` in processes that an MPI launcher started: their ranks are the session's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from disco_server.cli.main import main

MPIEXEC = shutil.which("mpiexec", path=Path(sys.executable).parent)

pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec beside this Python")

PROGRAM = """
import os, signal, sys
import numpy as np

def world():
    from mpi4py import MPI
    named = [line for line in open("/proc/self/maps") if "/mpich_" in line and "(del" not in line]
    shown = [name for name in os.environ if name.startswith(("DISCO_KVS", "DISCO_TLS"))]
    comm = MPI.COMM_WORLD
    return [comm.Get_rank(), comm.Get_size(), comm.Get_attr(MPI.UNIVERSE_SIZE), *named, *shown]

def end(who):
    import disco_server
    if disco_server.current_worker().worker_id == who:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

def wait():
    signal.pause()
"""

COMMAND = (sys.executable, "-m", "disco_server.cli.main", "run")

Started = subprocess.Popen[str]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For temporary files; a short path, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="l-") as name:
        yield Path(name)


@pytest.fixture
def launch(tmp_path, short_folder) -> Iterator[Callable[..., Started]]:
    """Starts a script by mpiexec; none of its processes may be left."""
    started: list[Started] = []

    def go(text, *options, command=COMMAND, more=()):
        (tmp_path / "program.py").write_text(f"{PROGRAM}\nif __name__ == '__main__':\n    {text}\n")
        env = {**os.environ, "TMPDIR": str(short_folder)}
        launcher = (MPIEXEC, "-usize", "17", "-n", "2" if more else "3")
        started.append(
            subprocess.Popen(
                [*launcher, *command, *options, str(tmp_path / "program.py"), *more],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield go
    for process in started:
        process.kill()
        process.communicate()
    left = [
        each
        for each in psutil.process_iter()
        if str(tmp_path / "program.py") in " ".join(_words_of(each))
    ]
    psutil.wait_procs(left, 30)
    assert not [each for each in left if each.is_running()]


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_ranks_are_numbered_as_the_launcher_does_and_are_in_its_world(launch, short_folder):
    """The exit code is the script's, and arrays come from all of its workers."""
    text = """
    print(session.allreduce(session.broadcast(np.ones(2))).numpy(worker_id=2))
    found = session.function(world)()
    for worker in range(3):
        print(found.debug_get_from_remote(worker))
    rows = session.scatter(np.arange(3.0 * 2**17).reshape(3, -1))
    print([int(rows.numpy(worker_id=worker)[0]) for worker in range(3)])
    print([rank.node.rpartition("-")[2] for rank in session.workers])
    sys.exit(5)
"""
    process = launch(text.strip(), "--json", "--no-logs")
    out, err = process.communicate(timeout=100)
    lines = out.splitlines()
    assert lines[0] == "[3. 3.]", err
    assert lines[1:4] == [f"[{worker}, 3, 17]" for worker in range(3)]
    assert lines[4:] == ["[0, 131072, 262144]", "['0', '1', '2']"]
    told = json.loads(err.splitlines()[0])
    assert (told["name"], told["workers"], told["exit_code"]) == ("program", 3, 5)
    assert process.returncode == 5
    assert not list(short_folder.glob("disco-step-*"))  # with keys


def test_a_rank_that_dies_is_named_with_its_host_and_everything_ends(launch):
    """The others do not wait for it, and the exit code is that of the script's error."""
    process = launch("session.function(end)(1).get()")
    _, err = process.communicate(timeout=100)
    assert f"worker 1 on node '{os.uname().nodename}-1' died of SIGKILL" in err, err
    assert process.returncode == 1, err


def test_ctrl_c_reaches_the_script_which_ends_all(launch):
    """The launcher signals every process; the first one decides what it means."""
    text = "print('waits', flush=True); session.function(wait)(); session.sync_all()"
    process = launch(text)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert "KeyboardInterrupt" in err
    assert process.returncode != 0


def test_a_script_that_is_none_is_told_once(launch):
    """The other processes leave without a word, since there will be no session."""
    process = launch("what this")
    _, err = process.communicate(timeout=100)
    assert err.count("is no Python that can be run") == 1, err
    assert process.returncode == 2


def test_processes_that_do_not_come_are_named(launch):
    """One that meets the others by the launcher, and then does something else; it is ended."""
    text = """
import os, signal, sys
from disco_server.worker.launcher_pmi import LauncherPmi
with LauncherPmi.take(os.environ) as launcher:
    print(len(launcher.share("")) > 512, flush=True)
    signal.pause()
"""
    more = (":", "-n", "1", sys.executable, "-c", text)
    process = launch("print('not reached')", "--timeout", "1", more=more)
    out, err = process.communicate(timeout=100)
    assert out.startswith("True\n"), err
    assert "expected 3 processes of the MPI launcher, within 1 s there was no sign of" in err
    assert "process 2; each must reach" in err
    assert process.returncode != 0


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "expected --workers N for a session on a cluster, or an MPI launcher"),
        ({"PMIX_RANK": "0"}, "the one that did (PMIX_RANK) does not speak PMI-1"),
        ({"PMI_FD": "x", "PMI_RANK": "0", "PMI_SIZE": "2"}, "got PMI_FD=x, PMI_RANK=0, PMI_SIZE=2"),
    ],
)
def test_without_a_launcher_the_number_of_workers_is_asked_for(tmp_path, variables, said):
    """A variable of a launcher whose protocol is another one is named."""
    script = tmp_path / "script.py"
    script.write_text("")
    none: dict[str, str | None] = dict.fromkeys(("PMI_FD", "PMI_RANK", "PMI_SIZE"))
    shown = CliRunner().invoke(main, ["run", str(script)], env=none | variables)
    assert shown.exit_code == 2
    assert said in shown.stderr
