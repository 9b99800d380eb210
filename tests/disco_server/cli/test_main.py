"""The command ``disco``: what it lists and what it refuses."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from disco_client.version import __version__
from disco_server.cli.main import main


def test_help_lists_the_commands_with_a_line_each():
    """Whoever types ``disco --help`` or ``-h`` finds what there is."""
    for flag in ("--help", "-h"):
        shown = CliRunner().invoke(main, [flag])
        assert shown.exit_code == 0
        listed = shown.output.partition("Commands:")[2].splitlines()
        texts = {words[0]: words[1] for line in listed if len(words := line.split(None, 1)) == 2}
        assert {"doctor", "local", "status", "trace"} <= set(texts)
        assert all(texts.values())


def test_it_says_its_version():
    """The version is that of the distribution."""
    shown = CliRunner().invoke(main, ["--version"])
    assert shown.output == f"disco, version {__version__}\n"


def test_an_unknown_command_is_refused():
    """The exit code is 2, and the message repeats what was typed."""
    shown = CliRunner().invoke(main, ["frobnicate"])
    assert shown.exit_code == 2
    assert "frobnicate" in shown.output


def test_help_loads_neither_grpc_servers_nor_devices():
    """Help comes quickly, because what runs daemons is loaded when it is needed."""
    program = (
        "import sys\nfrom disco_server.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"mpi4py", "cupy", "disco_server.worker.daemon", "disco_server.controller"}
    assert not loaded & {"grpc", "google.protobuf", "numpy"}
