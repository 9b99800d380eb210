"""``disco run``: a script with a session, as if Python itself had run it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from disco_server.cli.local import LocalCluster
from disco_server.cli.main import main


@pytest.fixture
def run(cluster, tmp_path):
    """Runs a script on one worker."""

    def go(text, *arguments, options=()):
        script = tmp_path / "script.py"
        script.write_text(text)
        (tmp_path / "beside.py").write_text("HERE = 'beside'\n")
        dial = ["--address", cluster.address, "--workers", "1", *options]
        command = ["run", *dial, str(script), *arguments]
        return CliRunner().invoke(main, command, prog_name="disco")

    return go


def test_a_script_has_a_session_and_its_arguments(run, tmp_path):
    """It is the main program, and what lies beside it can be imported."""
    shown = run(
        "import sys, beside\n"
        "print(__name__, __file__ == sys.argv[0], sys.argv[1:], beside.HERE)\n"
        "print(session.num_workers, session.name, sys.modules['__main__'].session is session)\n",
        *("--epochs", "3", "-h"),
    )
    assert shown.exit_code == 0
    assert shown.output == "__main__ True ['--epochs', '3', '-h'] beside\n1 script True\n"


def test_an_exception_is_shown_as_python_shows_it(run, tmp_path):
    """From the script's line on; the exit code is Python's too."""
    text = "def inner():\n    raise ValueError('no good')\n\ninner()\n"
    shown = run(text)
    plain = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)  # noqa: PLW1510  (it fails)
    assert (shown.exit_code, shown.stderr) == (1, plain.stderr)


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [("7", 7, ""), ("", 0, ""), ("'enough'", 1, "enough\n"), ("None", 0, ""), ("256", 0, "")],
)
def test_the_exit_code_is_the_script_s(run, what, code, said):
    """Whatever it gives sys.exit()."""
    shown = run(f"import sys\nsys.exit({what})\n")
    assert (shown.exit_code, shown.stderr) == (code, said)


def test_ctrl_c_in_a_script_is_exit_code_130(run):
    """With its traceback, as of Python."""
    shown = run("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    assert shown.exit_code == 130
    assert shown.stderr.endswith("KeyboardInterrupt\n")


def test_what_a_worker_could_not_do_is_an_error_at_the_end(run):
    """A script that waits for nothing hears of it when its session ends; with the line."""
    shown = run("session.get_global_func('builtins.int')('x')\n")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("disco: ValueError: invalid literal for int()")
    assert 'script.py", line 1' in shown.stderr


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_all_that_workers_have_printed_is_shown(cluster, tmp_path, end, code):
    """Lines come later than answers, and a script may end with the last answer."""
    script = tmp_path / "script.py"
    script.write_text(
        "say = session.get_global_func('builtins.print')\n"
        f"for number in range(30):\n    say('line', number).get_all()\n{end}\n"
    )
    command = ["run", "--workers", "2", "--address", cluster.address, str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "disco_server.cli.main", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    for worker in (0, 1):
        shown = re.findall(rf"^\[worker {worker} [^]]+\] line (\d+)$", done.stderr, re.MULTILINE)
        assert list(map(int, shown)) == list(range(30))


def test_the_session_ends_with_the_script(run, cluster):
    """However that ends; with --json the last line says which one it was."""
    shown = run("raise SystemExit(3)\n", options=["--json", "--name", "brief"])
    told = json.loads(shown.stderr)
    assert (told["name"], told["workers"], told["exit_code"]) == ("brief", 1, 3)
    listed = CliRunner().invoke(main, ["sessions", "--json", "--address", cluster.address])
    ended = ("ended", "ending")
    live = [s["session"] for s in json.loads(listed.stdout) if s["state"] not in ended]
    assert told["session"] not in live


def test_a_script_that_cannot_run_opens_no_session(run, tmp_path):
    """The exit code is 2, and the line is named; all of it with --verbose."""
    shown = run("print(1)\nif:\n")
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert "line 2 is no Python that can be run: invalid syntax" in shown.stderr
    script = str(tmp_path / "script.py")
    everything = CliRunner().invoke(main, ["--verbose", "run", "--workers", "1", script])
    assert "SyntaxError: invalid syntax" in everything.stderr
    missing = CliRunner().invoke(main, ["run", "--workers", "1", str(tmp_path / "nope.py")])
    assert (missing.exit_code, "does not exist" in missing.stderr) == (2, True)


def test_a_script_for_all_workers_is_refused_where_workers_lack_torch(run):
    """The error says what to install, and where; the exit code is 1."""
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed here; tests/interop has scripts that run")
    shown = run("print(1)\n", options=["--torch", "--json"])
    assert (shown.exit_code, json.loads(shown.stderr.splitlines()[-1])["exit_code"]) == (1, 1)
    assert shown.stderr.startswith("disco: torch has no process group on these workers: worker 0")
    assert "pip install torch" in shown.stderr.splitlines()[0]


def test_a_script_for_all_workers_is_refused_where_nothing_may_be_brought(tmp_path):
    """The error names the option of the daemon."""
    script = tmp_path / "script.py"
    script.write_text("print(1)\n")
    with LocalCluster(1, 1, allow_load=(str(tmp_path / "other"),)) as cluster:
        command = ["run", "--torch", "--workers", "1", "--address", cluster.address, str(script)]
        shown = CliRunner().invoke(main, command, prog_name="disco")
    assert shown.exit_code == 1
    assert "start disco-worker with --allow-load uploads" in shown.stderr


def test_a_script_for_all_workers_is_a_python_file(cluster, tmp_path):
    """By its name, as workers tell files by that; the exit code is 2."""
    script = tmp_path / "script"
    script.write_text("print(1)\n")
    command = ["run", "--torch", "--workers", "1", "--address", cluster.address, str(script)]
    shown = CliRunner().invoke(main, command, prog_name="disco")
    assert shown.exit_code == 2
    assert "whose name ends in .py" in shown.stderr
