"""``disco run --torch``: scripts that were written for torchrun, on four ranks of two nodes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import disco_client
from disco_client.scripts import run_script
from disco_server.cli.local import LocalCluster

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"\[worker (\d) (node-\d)\] (.*)")

FACTS = """
import os, sys
import words.told
from words.told import told
assert sys.modules["__main__"].told is words.told.told and __name__ == "__main__"
names = ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
words.told.told(sys.argv, [os.environ[each] for each in names])
sys.stdout.flush()
if os.environ["RANK"] == "2":
    sys.exit(3)
sys.stderr.write("the last line has no end")
"""

RAISES = """
import os

def inner():
    raise ValueError("no good")

if os.environ["RANK"] == "1":
    inner()
"""

WAITS = """
import signal
try:
    print("waits", flush=True)
    while True:  # of a signal that came before, `signal.pause` would know nothing
        signal.sigtimedwait((), 1)
finally:
    print("cleans up")
"""

KILLED = """
import os, signal, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
loss = DistributedDataParallel(torch.nn.Linear(4, 4))(torch.ones(2, 4)).sum()
if dist.get_rank() == 2:
    loss.register_hook(lambda _gradient: os.kill(os.getpid(), signal.SIGKILL))
loss.backward()
"""

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def nodes():
    """Two worker daemons with two slots each, which load what clients bring and no other file."""
    pytest.importorskip("torch", reason="needs torch: `make interop`")
    with LocalCluster(2, 2, allow_load=("uploads",)) as made:
        yield made


@pytest.fixture
def command(nodes, tmp_path):
    """Makes the command that runs a script on all ranks; also of a text."""

    def make(script, *arguments, options=()):
        if "\n" in script:
            (tmp_path / "script.py").write_text(script, encoding="utf-8")
            script = "script.py"
        disco = [sys.executable, "-m", "disco_server.cli.main", "run", "--torch", "--workers", "4"]
        return [*disco, "--address", nodes.address, *options, script, *arguments]

    return make


@pytest.fixture
def run(command, tmp_path):
    """Runs a script on all ranks, in the folder of the test."""

    def go(*arguments, options=()):
        words = command(*arguments, options=options)
        return subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
        )

    return go


def example(name):
    """The path of an example."""
    return str(ROOT / "examples" / "torchrun" / name)


def largest_differences(done):
    """By how much trainings differ, of a run that passed."""
    assert done.returncode == 0, done.stderr
    lines = [LINE.fullmatch(each) for each in done.stderr.splitlines()]
    assert {each[1] for each in lines} == {"0"}
    found = [re.fullmatch(r"largest difference of \d+ losses: (.*)", each[3]) for each in lines]
    return [float(each[1]) for each in found if each]


@pytest.mark.parametrize("name", ["ddp.py", "dtensors.py"])
def test_ranks_train_as_one_process_does(run, name):
    """By DistributedDataParallel, and by torch's DTensor; the same losses to rounding."""
    (largest,) = largest_differences(run(example(name), "--steps", "5"))
    assert largest < 1e-12


def test_sharded_weights_train_as_one_process_does_and_go_on_from_a_checkpoint(run, tmp_path):
    """By FSDP2 and torch's distributed checkpoints; the same losses to rounding."""
    folder = tmp_path / "checkpoint"
    found = largest_differences(run(example("fsdp.py"), "--steps", "6", "--folder", str(folder)))
    assert len(found) == 2
    assert max(found) < 1e-12
    assert (folder / ".metadata").exists()


def test_a_script_finds_what_torchrun_gives_it_and_chooses_the_exit_code(run, tmp_path):
    """Its package, its arguments, its rank; every line is shown, a last one without an end too."""
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "__init__.py").write_text("")
    (tmp_path / "words" / "told.py").write_text("import beside\ntold = beside.told\n")
    (tmp_path / "beside.py").write_text("told = print\n")
    done = run(FACTS, "--epochs", "3", "-h", options=["--json", "--name", "facts"])
    *lines, last = done.stderr.splitlines()
    found = Counter(LINE.fullmatch(each).group(1, 3) for each in lines)
    told = "['script.py', '--epochs', '3', '-h'] ['{}', '4', '4']"
    expected = {(str(rank), told.format(rank)) for rank in range(4)}
    expected |= {(rank, "the last line has no end") for rank in "013"}
    assert found == Counter(expected)
    about = json.loads(last)
    assert (done.returncode, about["exit_code"], about["workers"]) == (3, 3, 4)
    assert about["name"] == "facts"


def test_an_exception_is_shown_with_its_rank_and_the_environment_is_as_before(
    nodes, tmp_path, printed, eventually
):
    """From the script on, and the exit code is 1; a second script of a session can run."""
    script = tmp_path / "raises.py"
    script.write_text(RAISES, encoding="utf-8")
    plain = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env={"RANK": "1"}, check=False
    )
    with disco_client.connect(nodes.address, num_workers=4) as session:
        assert run_script(session, script, []) == 1
        script.write_text("import sys\nsys.exit('enough')\n", encoding="utf-8")
        assert run_script(session, script, []) == 1
        session.import_python_module("os")
        assert session.get_global_func("os.getenv")("RANK").get_all() == [None] * 4
    eventually(lambda: printed().count("enough\n") == 4)
    lines = [each.groups() for each in LINE.finditer(printed())]
    failed = [text for rank, _, text in lines if text != "enough" and rank == "1"]
    assert failed == plain.stderr.splitlines()
    assert len(lines) == len(failed) + 4


def test_ctrl_c_ends_the_script_on_all_ranks(command, tmp_path):
    """Which clean up, and their lines are shown; the exit code is 130."""
    with subprocess.Popen(
        command(WAITS), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        began = [LINE.match(process.stderr.readline())[3] for _ in range(4)]
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert began == ["waits"] * 4
    assert (process.returncode, said.count("cleans up")) == (130, 4)
    assert said.endswith("disco: Ctrl-C has ended the script on all workers\n")


def test_a_rank_that_is_killed_in_the_backward_pass_is_named(run):
    """With its node, though the others fail in their libraries first; the exit code is 1."""
    done = run(KILLED)
    assert done.returncode == 1
    assert re.search(
        r"^disco: worker 2 on node 'node-\d' died of SIGKILL", done.stderr, re.MULTILINE
    )
