"""The command on GPUs: those of the stand-in, and those of the machine where it has some."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

# Sums of float32 in another order than the published implementation's.
_CLOSE = 1e-5


def embed(*arguments, text, **environ):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    return subprocess.run(
        [sys.executable, EXAMPLES / "embed.py", "--device", "cuda", *arguments],
        input=text.encode(),
        env=env | environ,
        capture_output=True,
        timeout=110,
        check=False,
    )


def as_lines(reference):
    return "".join(f"{sentence}\n" for sentence in reference.sentences)


def close(run, reference):
    assert run.returncode == 0, run.stderr.decode()
    embeddings = np.array([json.loads(line) for line in run.stdout.splitlines()])
    np.testing.assert_allclose(embeddings, reference.embeddings, atol=_CLOSE)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_embeddings_are_the_published_ones(need_gpus, reference, workers):
    """On any number of GPUs of this machine, and they equal the plain numpy forward."""
    need_gpus(workers)
    run = embed("--workers", str(workers), "--json", "--check", text=as_lines(reference))
    close(run, reference)
    assert "check         passed" in run.stderr.decode()


@pytest.mark.timeout(120)
def test_the_time_is_the_gpus(need_gpus):
    """Computing and reductions are measured by the GPU's own clock, as the report says."""
    need_gpus(2)
    run = embed("--workers", "2", text="A sentence.\nAnother, longer one.\n")
    report = run.stdout.decode()
    assert run.returncode == 0, run.stderr.decode()
    assert "2 workers on cuda" in report
    assert "GPU's own time" in report
    for part in ("compute", "collectives"):
        assert float(re.search(rf"{part} +([0-9.]+) s", report)[1]) > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_another_model_computes_there_too(need_gpus, make_model, pooling):
    """Equal and different lengths, another pooling, another width: as the plain forward."""
    need_gpus(2)
    folder = make_model(pooling={"pooling_mode": pooling})
    text = "a\nb\n\nc d e f g\n" + "word " * 60
    run = embed("--workers", "2", "--model", str(folder), "--check", "--json", text=text)
    assert run.returncode == 0, run.stderr.decode()
    assert "check         passed" in run.stderr.decode()


@pytest.mark.timeout(120)
def test_a_cluster_of_gpus_computes_there(need_gpus, reference, daemons):
    """With an address, the slots of the cluster are the GPUs."""
    need_gpus(2)
    path = os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))
    address = daemons.controller().address
    options = ("--devices", "cuda:0,1", "--allow-module", "embedding.*")
    # The daemon would ask the driver, which the stand-in has none of.
    daemons.worker(address, *options, PYTHONPATH=path, DISCO_DEVICE_CHECK="off")
    run = embed("--workers", "2", "--address", address, "--json", text=as_lines(reference))
    close(run, reference)


def test_a_cluster_of_cpus_is_refused(daemons):
    """One sentence says that its slots are no GPUs, and what to do."""
    address = daemons.controller().address
    daemons.worker(address, "--slots", "1")
    run = embed("--workers", "1", "--address", address, text="A sentence.\n")
    assert run.returncode == 2
    (complaint,) = run.stderr.decode().splitlines()
    assert "worker 0 on" in complaint
    assert "'disco-worker --devices cuda'" in complaint


def test_a_machine_of_the_standin_without_gpus_is_refused():
    """What is missing is one sentence, with the command that says more."""
    hidden = str(ROOT / "tests" / "standin")
    run = embed("--workers", "1", text="A sentence.\n", PYTHONPATH=hidden, STANDIN_GPUS="0")
    assert run.returncode == 1
    assert run.stdout == b""
    (complaint,) = run.stderr.decode().splitlines()
    assert "cudaErrorInsufficientDriver" in complaint
    assert "disco doctor --gpu" in complaint
