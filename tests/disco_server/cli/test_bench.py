"""``disco bench``: figures of a cluster."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from disco_server.cli.main import main

QUICK = ("--workers", "2", "--rounds", "2", "--sizes", "64KiB,4KiB")


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", *arguments], prog_name="disco")


def test_programs_get_each_figure_with_its_best(cluster):
    """Commands, syncs, copies, and an allreduce of each size."""
    shown = bench(*QUICK, "--json", "--address", cluster.address)
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    assert (found["workers"], found["address"]) == (2, cluster.address)
    figures = found["figures"]
    assert [(f["name"], f["unit"], f["nbytes"]) for f in figures] == [
        ("commands", "1/s", 0),
        ("sync of one worker", "s", 0),
        ("sync of all workers", "s", 0),
        ("copy to worker 0", "B/s", 64 << 10),
        ("copy from worker 0", "B/s", 64 << 10),
        *(("allreduce", unit, n) for n in (4 << 10, 64 << 10) for unit in ("s", "B/s")),
    ]
    for figure in figures:
        worse, better = figure["typical"], figure["best"]
        assert 0 < better <= worse if figure["unit"] == "s" else 0 < worse <= better


def test_people_get_a_table(cluster):
    """With units."""
    shown = bench(*QUICK, "--address", cluster.address)
    assert shown.exit_code == 0
    assert f"2 workers at {cluster.address}" in shown.output
    (row,) = [line for line in shown.output.splitlines() if "copy to worker 0" in line]
    assert "64 KiB" in row
    assert "B/s" in row


@pytest.mark.parametrize("sizes", ["", "x", "4 KB", "1KiB,", "5000GiB", "0"])
def test_sizes_are_checked_before_anything_is_opened(sizes, tmp_path):
    """A usage error that shows how they are written."""
    shown = bench("--sizes", sizes, "--address", f"unix:{tmp_path}/nobody")
    assert shown.exit_code == 2
    assert "such as 4KiB,64KiB,1MiB,16MiB" in shown.stderr
