"""Measuring two installations in alternation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from disco_bench.against import Alternation, Installation, NoInstallation, SectionRun
from disco_bench.running import publish_comparison

ROOT = Path(__file__).parents[2]


class Figures:
    """Stands for an installation whose runs have figures that a test chose.

    Attributes:
        sections: The figures of each run, by section; the last one is repeated.
    """

    def __init__(self, name, order, **sections):
        self.name, self.order, self.sections = name, order, sections

    def run(self, section, *, quick):
        assert quick
        self.order.append(f"{self.name} {section}")
        if section not in self.sections:
            return SectionRun((), f"has no section {section}", unknown=True)
        figures = self.sections[section]
        figure = figures.pop(0) if len(figures) > 1 else figures[0]
        row = {"key": f"{section}.a", "what": section, "unit": "s", "disco": figure}
        return SectionRun([{**row, "status": "measured", "note": ""}])


def test_runs_alternate_and_every_section_has_one_before_any_has_two():
    """Rounds change who is first, and a section that the other one lacks is run once."""
    order = []
    runs = Alternation(
        Figures("this", order, a=[1.0], b=[1.0], c=[1.0]),
        Figures("other", order, a=[1.0], b=[1.0]),
        quick=True,
    )
    runs.measure(["a", "b", "c"], 2)
    assert order == [
        *("this a", "other a", "this b", "other b", "this c", "other c"),
        *("other a", "this a", "other b", "this b"),
    ]
    assert [row.note for row in runs.comparison.rows] == ["", "", "the other has no section c"]


def test_a_section_that_looks_worse_is_measured_again():
    """A difference that two runs showed by chance goes, and one that is there stays."""
    order = []
    runs = Alternation(
        Figures("this", order, chance=[2.0, 2.1, 1.0], there=[2.0, 2.1], fine=[1.0]),
        Figures("other", order, chance=[1.0], there=[1.0], fine=[1.0]),
        quick=True,
    )
    runs.measure(["chance", "there", "fine"], 2)
    verdicts = {row.key: row.outcome.value for row in runs.comparison.rows}
    assert verdicts == {"chance.a": "within noise", "there.a": "worse", "fine.a": "within noise"}
    assert [order.count(f"this {section}") for section in ("chance", "there", "fine")] == [3, 4, 2]


def test_no_run_begins_after_the_time_is_over(capsys):
    """What was left out is counted and said."""
    order = []
    runs = Alternation(
        Figures("this", order, a=[1.0]), Figures("other", order, a=[1.0]), quick=True, minutes=0
    )
    runs.measure(["a"], 2)
    assert order == []
    assert publish_comparison(runs, {}, quick=True, file=None) == 0
    assert "there was no time: a 2" in capsys.readouterr().out


def test_worse_rows_are_named_and_are_a_failure(capsys):
    """The exit code is 1 where a row is worse or this version has failed."""
    runs = Alternation(Figures("this", [], a=[3.0]), Figures("other", [], a=[1.0]), quick=True)
    runs.measure(["a"], 2)
    assert publish_comparison(runs, {}, quick=False, file=None) == 1
    assert capsys.readouterr().err.endswith("worse: a.a\n")
    runs = Alternation(Figures("this", [], a=[1.0]), Figures("other", [], a=[1.0]), quick=True)
    runs.measure(["a"], 2)
    assert publish_comparison(runs, {}, quick=False, file=None) == 0
    runs.comparison.fail("b", "ended with 1")
    assert publish_comparison(runs, {}, quick=False, file=None) == 1
    assert capsys.readouterr().err.endswith("not measured: b\n")


@pytest.fixture
def older(tmp_path):
    """A checkout like this one, whose measurements know no section `import`."""
    folder = tmp_path / "older"
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=hidden)
    for name in ("disco_client", "disco_server", "examples"):
        (folder / name).symlink_to(ROOT / name)
    program = folder / "benchmarks" / "run.py"
    lines = program.read_text().splitlines(keepends=True)
    program.write_text("".join(line for line in lines if '"import": RowGroup' not in line))
    return folder


def compare(*arguments):
    """Runs the program itself."""
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def runs_of(done):
    said = done.stderr.splitlines()
    return [line for line in said if line.startswith("measuring")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_checkout_is_measured_beside_this_one(older, tmp_path):
    """Both run each section as often, in their own sources; what the other lacks is said."""
    file = tmp_path / "figures.json"
    sections = ("--only", "programs", "--only", "import")
    done = compare("--against", older, "--quick", "--rounds", 2, "--json", file, *sections)
    assert done.returncode in (0, 1), done.stderr  # how long they took is the machine's affair
    content = json.loads(file.read_text())
    assert str(ROOT) in content["this"]
    assert str(older) in content["other"]
    rows = {row["key"]: row for row in content["rows"]}
    assert set(rows) == {
        *("programs.thousand", "programs.ten", "programs.define"),
        *("import.client", "import.server_modules"),
    }
    for key, row in rows.items():
        assert row["what"] in done.stdout
        if key.startswith("import"):
            assert row["note"] == "the other has no section import"
            assert row["verdict"] == "not compared"
            continue
        assert len(row["this"]) == len(row["other"]) >= 2
        assert min(row["this"] + row["other"]) > 0
        assert (row["verdict"] == "worse") <= (key in done.stderr)
    assert len(runs_of(done)) == len(rows["programs.ten"]["this"]) + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_interpreter_stands_for_what_it_has_installed(tmp_path):
    """Counts of the same version are equal, whoever runs it."""
    file = tmp_path / "figures.json"
    done = compare(
        *("--against", sys.executable, "--quick", "--rounds", 2, "--json", file, "--only", "import")
    )
    assert done.returncode in (0, 1), done.stderr
    rows = {row["key"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["import.server_modules"]["verdict"] == "within noise"
    assert rows["import.server_modules"]["this"][:2] == [0.0, 0.0]


def test_a_path_to_nothing_is_refused(tmp_path):
    """The error says what was expected; a Python without Disco is named with what it said."""
    with pytest.raises(NoInstallation, match=r"expected a checkout .* or a Python that has Disco"):
        Installation.at(tmp_path)
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(empty)], check=True)
    with pytest.raises(NoInstallation, match=r"cannot import Disco:\n(.|\n)*disco_client"):
        Installation.at(empty)
    done = compare("--against", tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr


def test_one_round_is_refused():
    """Nothing could be said of the noise."""
    done = compare("--against", ROOT, "--rounds", 1)
    assert done.returncode == 2
    assert "at least 2 rounds" in done.stderr
