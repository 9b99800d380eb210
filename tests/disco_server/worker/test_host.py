"""Daemons that can share memory know it, and daemons that cannot do too."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from disco_server.worker.environment import host_id

PROGRAM = "from disco_server.worker.environment import host_id; print(host_id())"


def of_another_process(*wrapper):
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    if done.returncode and wrapper:
        pytest.skip(f"this machine makes no namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_processes_of_one_machine_have_the_same():
    """The text is opaque, short and the same for everybody here."""
    assert host_id() == of_another_process()
    assert len(host_id()) == 32
    assert host_id().isalnum()


@pytest.mark.netns
@pytest.mark.parametrize("kind", ["--net", "--ipc"])
def test_a_namespace_counts_as_a_machine_of_its_own(kind):
    """Ranks in different network or IPC namespaces must not try shared memory."""
    if shutil.which("unshare") is None:
        pytest.skip("this machine has no unshare")
    assert of_another_process("unshare", kind) != host_id()
