"""The report of `make gpu`: on the stand-in, which it names as one, and where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import gpu_report
import pytest
from disco_bench.gpu_pages import GpuMachine, PartOutcome, render

ROOT = Path(__file__).parents[2]
STANDIN = ROOT / "tests" / "standin"


def run(*arguments, gpus, program=("benchmarks/gpu_report.py",)):
    hidden = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    path = os.pathsep.join(filter(None, (str(STANDIN), os.environ.get("PYTHONPATH"))))
    # The check of daemons asks the driver, not the stand-in.
    environ |= {"PYTHONPATH": path, "STANDIN_GPUS": str(gpus), "DISCO_DEVICE_CHECK": "off"}
    return subprocess.run(
        [*program, *arguments] if len(program) > 1 else [sys.executable, *program, *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_report_of_the_standin_says_that_it_is_none_of_a_gpu(tmp_path):
    """In its name, its title and above all that it shows; what needs more GPUs is named."""
    parts = ("doctor", "basics", "figures")
    only = [word for part in parts for word in ("--only", part)]
    done = run(*only, "--quick", "--output", str(tmp_path), gpus=1)
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-stand-in-1\.md", file.name)
    assert done.stdout == f"{file}\n"
    page = file.read_text()
    assert page.startswith("# Disco on 1 pretended GPUs of a STAND-IN\n\n**No GPU was used.**")
    headings = re.findall("^## (.*)$", page, re.MULTILINE)
    assert headings == ["GPUs", *(f"{part.capitalize()}, ON THE STAND-IN" for part in parts)]

    assert done.returncode == 1, done.stderr  # the doctor finds no driver
    assert "| doctor | `python -m disco_server.cli.main doctor --gpu --json` | FAILED" in page
    assert "| gpu | driver | missing |" in page
    assert re.search(r"^\| basics \|.*\| passed \|", page, re.MULTILINE), page
    assert re.search(r"^\d+ passed, 0 failed, \d+ skipped\.$", page, re.MULTILINE)
    reason = "needs 4 GPUs, of which 1 are here"
    (skipped,) = re.findall(f"^- skipped, {reason}: (.*)$", page, re.MULTILINE)
    assert "`tests/gpu/test_compute.py::test_moving_collectives_are_exact` x 2" in skipped
    assert re.search(r"^\| figures \|.*--quick` \| passed \|", page, re.MULTILINE), page
    assert "several ranks need several GPUs, of which there is one here" in page
    assert "algorithm bandwidth" in page
    assert str(ROOT) not in page


def test_a_report_of_the_standin_is_not_kept_with_those_of_gpus():
    """Unless it is told where else, nothing is run."""
    done = run(gpus=2)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "cupy is a stand-in here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_gpu_of_the_standin_there_is_no_report(tmp_path):
    """One line says what is missing, also from the script that make runs."""
    done = run("--output", str(tmp_path), gpus=0, program=(".ci/gpu", sys.executable))
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
    (line,) = done.stderr.splitlines()
    assert "no GPU that cupy can use" in line
    assert "cudaErrorInsufficientDriver" in line


TESTS = """
import pytest

def test_one(): pass

@pytest.mark.skip(reason="no room")
def test_two(): pass

def test_three():
    assert 1 == 2, "three"

def test_four():
    raise KeyboardInterrupt

def test_five(): pass
"""


def page_of(outcome):
    machine = GpuMachine(["NVIDIA H100"], False, datetime(2026, 11, 24, tzinfo=UTC), "", "", "")
    return render(machine, [outcome], ROOT)


@pytest.mark.timeout(120)
def test_tests_that_are_interrupted_show_what_they_had(tmp_path):
    """Those that ended before are in the report, and the one under way does not count as passed."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    files = [str(tmp_path / name) for name in ("pytest.ini", "test_some.py")]
    arguments = ("-m", "pytest", "-c", *files, "--junitxml=FILE")
    outcome = gpu_report._run(
        gpu_report._ReportPart("some", 1, arguments, "xml"), 100, tmp_path, quick=False
    )
    assert not outcome.passed
    page = page_of(outcome)
    assert "1 passed, 1 failed, 1 skipped, 2 not run to their end." in page
    assert "test_some.py::test_three`: AssertionError: three" in page
    assert "- skipped, no room: `" in page
    assert "| FAILED, exit code 2 |" in page
    assert "KeyboardInterrupt" in page


def test_a_part_whose_time_is_over_is_interrupted(tmp_path, monkeypatch):
    """And ended where it does not stop then; the report says so."""
    monkeypatch.setattr(gpu_report, "_GRACE_S", 0.5)
    program = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    part = gpu_report._ReportPart("endless", 1, ("-c", program), "xml")
    outcome = gpu_report._run(part, 2, tmp_path, quick=False)
    assert outcome.interrupted
    assert not outcome.passed
    page = page_of(outcome)
    assert re.search(r"interrupted after \d+ of 2 s, with what it had", page)
    assert "It left nothing." in page


def test_a_page_of_gpus_names_them_and_not_the_machine():
    """Versions, topology and figures; neither the host's addresses nor where the sources are."""
    machine = GpuMachine(
        ["NVIDIA H100", "NVIDIA H100"],
        standin=False,
        when=datetime(2026, 11, 24, 13, 5, tzinfo=UTC),
        commit="abc123",
        topology="GPU0 NV18",
        driver="0, NVIDIA H100, 580.65.06",
    )
    checks = (
        f'[{{"section": "machine", "name": "python", "state": "ok", "detail": "{ROOT}/a|b"}},'
        '{"section": "network", "name": "host name", "state": "ok", "detail": "gpu-a is 10.0.0.1"}]'
    )
    doctor = PartOutcome(
        "doctor", "doctor", "", 2.0, 10.0, 0, False, f'{{"checks": {checks}}}', 0, ""
    )
    lost = PartOutcome("figures", "gpu.py", "json", 9.0, 10.0, -9, True, "", 0, "Killed")
    cut = replace(lost, data='{"rows": [')
    page = render(machine, [doctor, lost, cut], ROOT)
    assert machine.file_name == "2026-11-24-2-x-nvidia-h100.md"
    assert page.startswith("# Disco on 2 x NVIDIA H100\n\nMade by `make gpu` of commit abc123, ")
    assert "| machine | python | ok | a\\|b |" in page
    assert "10.0.0.1" not in page
    assert "GPU0 NV18" in page
    assert "It left nothing." in page
    assert "What it left cannot be read." in page
    assert "Killed" in page
    assert "STAND-IN" not in page
