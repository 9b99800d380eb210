"""A node that is lost and comes back, in Disco and beside Ray, where Ray is and where it is not."""

from __future__ import annotations

import json

import pytest
from benching import run_benchmarks
from disco_bench.child import peer_python
from disco_bench.node_trial import NUMBERS, NodeTrial
from disco_bench.nodes import LOST_NODES
from disco_bench.table import Unavailable
from peer_processes import processes_of


def run(file, **environ):
    """The rows of a quick run by their keys, and what it printed."""
    done = run_benchmarks("--quick", "--only", "nodes", "--check", "--json", file, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["key"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == [spec.key for spec in LOST_NODES]
    assert {row["status"] for row in rows.values()} == {"measured"}
    wrong = rows.pop("nodes.wrong")
    assert wrong["disco"] == 0
    assert all(row["disco"] > 0 for row in rows.values())
    return {**rows, "nodes.wrong": wrong}, done.stdout


@pytest.mark.timeout(180)
def test_without_ray_disco_alone_is_measured(tmp_path):
    """All its answers are right, it waits as it is told, and how to get Ray is said once."""
    rows, printed = run(tmp_path / "figures", DISCO_BENCH_RAY=str(tmp_path / "none"))
    assert {row["yardstick"]["figure"] for row in rows.values()} == {None}
    assert {row["note"].partition(" at ")[0] for row in rows.values()} == {"ray is not installed"}
    assert printed.count("make bench-peers") == 1
    assert rows["nodes.lost.prompt"]["disco"] > 0.2
    assert rows["nodes.lost.default"]["disco"] > 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_beside_ray_every_row_is_measured(tmp_path):
    """All answers of both are right, and nothing of Ray is left running."""
    try:
        python = peer_python("ray", "bench-peers")
    except Unavailable as error:
        pytest.skip(str(error))
    rows, _ = run(tmp_path / "figures")
    assert rows.pop("nodes.wrong")["yardstick"]["figure"] == 0
    assert all(row["yardstick"]["figure"] > 0 for row in rows.values())
    assert not processes_of(python)


class Program:
    """One that gives some wrong answers, and answers with its old workers for a while."""

    def __init__(self, wrong=(), late=0):
        self.calls = []
        self._workers, self._late, self._wrong = [4], late, wrong

    def answer(self, factor):
        self.calls.append(factor)
        workers = self._workers.pop(0) if len(self._workers) > 1 else self._workers[0]
        return (NUMBERS * (factor + (factor in self._wrong))).sum(), workers

    def _become(self, workers):
        self._workers = [self._workers[-1]] * self._late + [workers]

    def kill_node(self):
        self.calls.append("killed")
        self._become(2)

    def start_node(self):
        self.calls.append("started")

    def use_node(self):
        self.calls.append("used")
        self._become(4)


def test_a_trial_ends_with_a_right_answer_of_all_workers():
    """Those of the workers before do not count as its end, nor wrong ones, which are counted."""
    program = Program(wrong=(4,), late=2)
    figures = NodeTrial(program, 4, 2)()
    assert program.calls == [1, "killed", 2, 3, 4, 5, "started", "used", 6, 7, 8]
    assert (figures.answers, figures.wrong) == (8, 1)
    assert min(figures) >= 0


def test_no_factor_comes_twice():
    """A second trial goes on from the first one's, so an old answer is a wrong one."""
    program = Program()
    trial = NodeTrial(program, 4, 2)
    assert [trial().answers, trial().answers] == [3, 3]
    assert [call for call in program.calls if isinstance(call, int)] == [1, 2, 3, 4, 5, 6]
