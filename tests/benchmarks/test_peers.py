"""Ray, Dask and Monarch beside Disco, where they are and where they are not."""

from __future__ import annotations

import json
import sys

import pytest
from benching import run_benchmarks
from disco_bench.child import peer_python
from disco_bench.peers import PEER_NAMES, PEERS
from disco_bench.table import Unavailable
from peer_processes import processes_of


def run(file, **environ):
    return run_benchmarks("--quick", "--only", "peers", "--json", file, **environ)


def but(*peers, python):
    """The environment in which none but these peers are installed."""
    return {f"DISCO_BENCH_{name.upper()}": str(python) for name in PEER_NAMES if name not in peers}


def test_without_peers_the_rows_say_how_to_get_them(tmp_path):
    """They are no failure, and what is to be done is said of each of the three."""
    file = tmp_path / "figures.json"
    done = run(file, **but(python=tmp_path / "none"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["key"] for row in rows] == [spec.key for spec in PEERS]
    assert {row["status"] for row in rows} == {"unavailable"}
    for row in rows:
        name = row["key"].rpartition(".")[2]
        assert row["note"].startswith(f"{name} is not installed")
        assert "make bench-peers" in row["note"]


def test_a_peer_that_cannot_start_is_no_failure(tmp_path):
    """Its rows have its last words."""
    file = tmp_path / "figures.json"
    # This interpreter has none of them.
    environ = but(python=tmp_path / "none") | {"DISCO_BENCH_RAY": sys.executable}
    done = run(file, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["key"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["peers.call.ray"]["status"] == "unavailable"
    assert "No module named 'ray'" in rows["peers.call.ray"]["note"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("peer", PEER_NAMES)
def test_beside_a_peer_every_row_is_measured(tmp_path, peer):
    """Both sides have figures, and nothing of the peer is left running."""
    try:
        python = peer_python(peer, "bench-peers")
    except Unavailable as error:
        pytest.skip(str(error))
    file = tmp_path / "figures.json"
    done = run(file, **but(peer, python=tmp_path / "none"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        if row["key"].endswith(f".{peer}"):
            assert row["status"] == "measured", row
            assert row["disco"] > 0
            assert row["yardstick"]["figure"] > 0
    assert not processes_of(python)
