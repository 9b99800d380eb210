"""What the commands share: options, and how they fail."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from disco_client.errors import (
    AccessDenied,
    ConfigError,
    ConnectionFailed,
    NoSlots,
    NoSuchSession,
)
from disco_server.cli.options import report_errors, setting_options
from disco_server.config import DaemonConfig


@pytest.fixture
def run():
    """Runs a command that shows its options, or raises what it is told to."""

    def invoke(*args: str, error: Exception | None = None, env: dict[str, str] | None = None):
        @click.command("disco-thing")
        @setting_options(DaemonConfig)
        @report_errors
        def command(config: Path | None, **given: object) -> None:
            if error is not None:
                raise error
            names = ("http", "log_level", "log_format")
            click.echo(" ".join(str(each) for each in (config, *map(given.get, names))))

        return CliRunner().invoke(command, args, env=env, prog_name="disco-thing")

    return invoke


def test_options_that_are_not_given_are_none(run):
    """So that the environment and the file can still speak."""
    assert run().output == "None None None None\n"


def test_the_options_arrive_under_their_names(run):
    """A path, an address, a level and a format, the latter two in small letters."""
    options = ("--http", "off", "--log-level", "DEBUG", "--log-format", "json")
    assert run("--config", "a.toml", *options).output == "a.toml off debug json\n"


def test_the_file_can_be_named_in_the_environment(run):
    """DISCO_CONFIG stands for --config."""
    assert run(env={"DISCO_CONFIG": "b.toml"}).output == "b.toml None None None\n"


def test_an_unknown_level_is_refused_by_the_command_line(run):
    """With the choices, and the exit code of a usage error."""
    result = run("--log-level", "loud")
    assert result.exit_code == 2
    assert "'debug', 'info', 'warning', 'error'" in result.output


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *((NoSlots, 1), (ConfigError, 2), (ConnectionFailed, 3)),
        *((AccessDenied, 4), (NoSuchSession, 5)),
    ],
)
def test_an_error_of_this_library_is_one_sentence_and_the_exit_code_of_its_kind(run, kind, code):
    """On standard error, with the command's name and without a traceback."""
    result = run(error=kind("slots: too many"))
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == "disco-thing: slots: too many\n"


def test_only_the_first_line_of_a_long_error_is_shown(run):
    """Remote tracebacks belong in logs."""
    assert run(error=ConfigError("first\nsecond")).stderr == "disco-thing: first\n"
    assert run(error=ConfigError()).stderr == "disco-thing: ConfigError\n"


def test_other_errors_pass(run):
    """A fault of the program itself keeps its traceback."""
    result = run(error=ZeroDivisionError("oh"))
    assert isinstance(result.exception, ZeroDivisionError)
    assert result.exit_code == 1
