"""Shell completion: the scripts, and the names of sessions."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from disco_client import connect
from disco_server.cli.main import main


def completed(*words, **env):
    """What is offered for the last word."""
    complete = ShellComplete(main, {}, "disco", "_DISCO_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell):
    """Which asks the command itself; shells that are here find nothing wrong with it."""
    shown = CliRunner().invoke(main, ["completion", shell])
    assert shown.exit_code == 0
    assert f"_DISCO_COMPLETE={shell}_complete" in shown.output
    told = json.loads(CliRunner().invoke(main, ["completion", shell, "--json"]).stdout)
    assert (told["shell"], told["script"] + "\n") == (shell, shown.output)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=shown.output, text=True, check=True)


def test_another_shell_is_a_usage_error():
    """With those that there are."""
    shown = CliRunner().invoke(main, ["completion", "cmd"])
    assert shown.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in shown.output


def test_commands_and_options_are_completed():
    """As click does it."""
    assert completed("st") == ["stack", "status", "stop"]
    assert "--follow" in completed("logs", "--f")


def test_sessions_are_completed_by_their_names(cluster, monkeypatch, tmp_path):
    """Where the controller answers; where it does not, nothing is offered."""
    monkeypatch.setenv("DISCO_ADDRESS", cluster.address)
    with connect(cluster.address, num_workers=1, name="completed"):
        for command in ("logs", "stop", "sessions", "top", "trace"):
            assert completed(command, "comp") == ["completed"]
        assert completed("stop", "completed", "comp") == ["completed"]
        assert completed("logs", "x") == []
        monkeypatch.delenv("DISCO_ADDRESS")
        assert completed("logs", "--address", cluster.address, "comp") == ["completed"]
        assert completed("logs", "--address", f"unix:{tmp_path}/nobody", "comp") == []
