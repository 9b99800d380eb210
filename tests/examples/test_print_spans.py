"""The example that shows the spans of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "print_spans.py"
PROGRAM = """
import sys
import disco_client

with disco_client.connect(num_workers=2, name="shown") as session:
    session.sync_all()
sys.exit(int(sys.argv[1]))
"""


def show(*command: str) -> tuple[int, list[str]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, SCRIPT, *command], env=environ, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_a_cluster_and_its_program_are_one_tree():
    """Each span stands below the one that caused it; the exit code is the command's."""
    local = (sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots", "1")
    code, lines = show(*local, "--", sys.executable, "-c", PROGRAM, "3")
    assert code == 3
    found = [(line[:17].strip(), line[17:].split("  ")) for line in lines]
    shown = [
        (service, len(words) - len([w for w in words if w]), next(w for w in words if w))
        for service, words in found
    ]
    assert shown[:4] == [
        ("disco-client", 0, "disco.session"),
        ("disco-client", 1, "disco.connect"),
        ("disco-controller", 2, "disco.session.start"),
        ("disco-controller", 3, "disco.session.place"),
    ]
    assert shown.count(("disco-worker", 3, "disco.rank.start")) == 2
    assert ("disco-controller", 3, "disco.session.end") in shown
    assert any("node=node-0" in line and "rank=" in line for line in lines)


def test_a_failure_is_shown_with_its_words():
    """A session that no slots are found for; nothing else is needed to see why."""
    wish = "import disco_client\ndisco_client.connect(num_workers=9, timeout=20.0)"
    local = (sys.executable, "-m", "disco_server.cli.main", "local", "--slots", "1")
    code, lines = show(*local, "--", sys.executable, "-c", wish)
    assert code == 1
    (place,) = [line for line in lines if "disco.session.place" in line]
    assert "ERROR: " in place


def test_without_a_command_it_says_how_to_use_it():
    """The text of its head, and the exit code of wrong usage."""
    code, lines = show()
    assert (code, "Needs the extra" in "\n".join(lines)) == (2, True)
