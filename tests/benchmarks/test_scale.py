"""The measurement of how costs grow: its peers answer as real ones do, and it sees what grows."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import scale
from disco_scale import recording
from disco_scale.measure import (
    NODE_QUANTITIES,
    SESSION_QUANTITIES,
    WAITING_QUANTITIES,
    measure_waiting,
)
from disco_scale.nodes import PretendedNode, Templates, Traffic

ROOT = Path(__file__).parents[2]


def shapes(said):
    """Of every kind; how many items a fence has is the MPI library's affair."""
    fence = {**said["FENCE"], "items": "sizes"}
    return recording.shape_of({**said, "FENCE": fence})


def test_the_recording_is_what_a_worker_daemon_says_today():
    """Message by message, field by field; `make scale ARGS=--record` records it anew."""
    said = asyncio.run(recording.record_real())
    kept = recording.read()
    assert shapes(said) == shapes(kept)
    assert said["ACK_EVERY"] == kept["ACK_EVERY"]
    assert said["REGISTER"]["payload"]["protocol"] == kept["REGISTER"]["payload"]["protocol"]


def test_a_pretended_node_answers_the_same_to_the_same():
    """The script that was played to the real daemon gets the same messages from it."""

    async def begin(address):
        node = PretendedNode(Templates(recording.read()), "recorded", 2, Traffic())
        return asyncio.ensure_future(node.run(address))

    async def end(task):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    kept = recording.read()
    said = asyncio.run(recording.record(begin, end, with_fence=False))
    said["FENCE"] = kept["FENCE"]
    assert shapes(said) == shapes(kept)
    assert said["ACK_EVERY"] == kept["ACK_EVERY"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_costs_grow_by_their_laws(tmp_path):
    """From 16 to 64 nodes of one slot and of many; what is counted and grows faster fails it."""
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/scale.py", "--quick", "--check", "--json", file],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tables = json.loads(file.read_text())["tables"]
    assert tables.keys() == {"nodes of 1", "nodes of 32"}
    for figures in tables.values():
        assert figures.keys() == {"16", "64"}
        for each in figures.values():
            assert each.keys() == {quantity.key for quantity in NODE_QUANTITIES}
            assert min(each.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("held_back", [False, True], ids=["slots", "quota"])
def test_sessions_that_wait_are_measured(held_back):
    """Those that wait for slots, and those that a quota holds back: each row has its figure."""
    figures = measure_waiting(3, held_back=held_back)
    assert figures.keys() == {quantity.key for quantity in WAITING_QUANTITIES}
    assert min(figures.values()) > 0


def grown_by(monkeypatch, power, key="sync_all_bytes"):
    """Runs the quick form on figures that all grow in proportion, but for one quantity."""

    def measure(nodes, _slots, *, frames):
        assert frames
        figures = {each.key: nodes**each.law for each in NODE_QUANTITIES}
        return {**figures, key: float(nodes) ** power}

    monkeypatch.setattr(scale, "measure_nodes", measure)
    return scale.main(["--quick", "--check", "--slots", "1"])


def test_what_grows_faster_than_its_law_is_named_and_fails_the_run(monkeypatch, capsys):
    """A count fails it; a time, which depends on the machine, is named and fails no quick run."""
    assert grown_by(monkeypatch, 1.0) == 0
    assert not capsys.readouterr().err.count("power")
    assert grown_by(monkeypatch, 1.2) == 1
    assert "bytes that come to all nodes grows with the power 1.20" in capsys.readouterr().err
    assert grown_by(monkeypatch, 1.6, "start") == 0
    assert "start of a session" in capsys.readouterr().err


def test_every_quantity_has_a_law_and_a_name_of_its_own():
    """The data has one entry for each, and the page's picture finds it."""
    for quantities in (NODE_QUANTITIES, SESSION_QUANTITIES, WAITING_QUANTITIES):
        assert len({each.key for each in quantities}) == len(quantities)
        assert all(each.law in (0.0, 1.0, 2.0) for each in quantities)
