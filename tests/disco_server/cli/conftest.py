"""What tests of commands share."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from disco_server.cli.main import main


@pytest.fixture
def disco(cluster):
    """Runs a command on the cluster."""

    def run(*arguments):
        options = ["--address", cluster.address]
        return CliRunner().invoke(main, [*arguments, *options], prog_name="disco")

    return run
