"""The command ``disco``: what it lists and what it refuses."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from disco_client.version import __version__
from disco_server.cli.controller import main as controller_command
from disco_server.cli.main import main
from disco_server.cli.worker import main as worker_command
from disco_server.config import ControllerConfig, WorkerConfig


def test_help_lists_the_commands_with_a_line_each():
    """Whoever types ``disco --help`` or ``-h`` finds what there is."""
    for flag in ("--help", "-h"):
        shown = CliRunner().invoke(main, [flag])
        assert shown.exit_code == 0
        listed = shown.output.partition("Commands:")[2].splitlines()
        texts = {words[0]: words[1] for line in listed if len(words := line.split(None, 1)) == 2}
        assert {"doctor", "local", "status", "top", "trace"} <= set(texts)
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


def commands(group, path=(), *, groups=False):
    """Every command with the words that lead to it, or also those that have others below them."""
    for name, command in group.commands.items():
        above = isinstance(command, click.Group)
        if above:
            yield from commands(command, (*path, name), groups=groups)
        if groups or not above:
            yield (*path, name), command


def test_each_command_speaks_json_and_is_described():
    """Help has an example or at least a sentence, and a line for each option."""
    for path, command in commands(main):
        shown = CliRunner().invoke(main, [*path, "--help"])
        assert shown.exit_code == 0, path
        assert any("--json" in parameter.opts for parameter in command.params), path
        silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
        assert not silent, path
        assert command.help, path


VERBS = frozenset(
    re.findall(
        "[A-Z][a-z]+",
        "AddAskBeginCheckDivideEndFailGiveGoKeepLetListLogLookMakeMeasureNameOfferOpenPrintReachRead"
        "RemoveReturnRunSayServeShowStartStopUseVerifyWaitWriteListen",
    )
)
"""What help begins with: what a command does, or an option has it do."""

DAEMONS = (("disco-controller", controller_command), ("disco-worker", worker_command))


def helps():
    """Every command and group, the daemons among them, with its name."""
    yield "disco", main
    for path, command in commands(main, groups=True):
        yield " ".join(("disco", *path)), command
    yield from DAEMONS


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in helps()])
def test_help_is_in_the_imperative_and_in_whole_sentences(name, command):
    """Of the command and of its options; those of daemons are settings, and say what they are."""
    paragraphs = inspect.cleandoc(command.help).split("\n\n")
    assert paragraphs[0].split()[0] in VERBS
    for each, following in itertools.pairwise([*paragraphs, ""]):
        end = ":" if following.startswith("\b") else "."
        assert each.startswith("\b") or each.endswith(end), each
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        text = option.help.partition("  [")[0]
        assert text.endswith("."), text
        assert (name, command) in DAEMONS or text.split()[0] in VERBS, text


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in helps()])
def test_help_fits_80_columns_and_names_variables(name, command, monkeypatch):
    """The lines of examples are kept as they are."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(command, ["--help"], prog_name=name, terminal_width=80).output
    assert max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    for option in command.params:
        if option.envvar:
            assert f"env var: {option.envvar}" in words, option.opts
    for text in (command.help or "").split("\n\n"):
        if text.startswith("\b\n"):
            assert set(text.splitlines()[1:]) <= {line[2:] for line in shown.splitlines()}


def test_whatever_takes_a_variable_says_which():
    """Each setting of a daemon, and what names a controller."""
    for kind, (_, command) in zip((ControllerConfig, WorkerConfig), DAEMONS, strict=True):
        named = {option.name: option.envvar for option in command.params}
        rows = [row for row in kind.table().values() if row.option]
        assert {row.name: row.variable for row in rows}.items() <= named.items()
    options = {option.name: option.envvar for option in main.commands["status"].params}
    for name in ("address", "context", "tls_ca", "tls_cert", "tls_key", "token_file"):
        assert options[name] == f"DISCO_{name.upper()}"


def test_a_variable_that_help_names_is_read_in_its_own_place(monkeypatch):
    """By click it is not: a context stays one although there is an address."""
    monkeypatch.setenv("DISCO_ADDRESS", "host:1")
    monkeypatch.setenv("DISCO_CONTEXT", "none-of-this-name")
    shown = CliRunner().invoke(main, ["status", "--context", "other"])
    assert (shown.exit_code, "expected a context, got 'other'" in shown.stderr) == (2, True)


def test_each_command_has_a_line_that_is_not_cut(monkeypatch):
    """On a screen of 80 columns; of the groups too."""
    monkeypatch.setenv("COLUMNS", "80")
    for path in ([], ["certs"]):
        shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).output
        _, commands = shown.split("Commands:\n")
        assert [line for line in commands.splitlines() if line.endswith("...")] == []


def test_the_help_lists_the_exit_codes():
    """They are the same for all commands."""
    shown = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    for text in (
        "0 done",
        "1 failed",
        "2 an option",
        "3 no controller",
        "4 ",
        "5 there is no such",
    ):
        assert text in shown


@pytest.fixture
def faulty(monkeypatch):
    """A command with a fault in it, or that is interrupted."""

    @click.command()
    @click.option("--interrupt", is_flag=True)
    def broken(interrupt):
        raise KeyboardInterrupt if interrupt else ZeroDivisionError("oh\nno")

    monkeypatch.setitem(main.commands, "broken", broken)


def test_a_fault_of_the_program_is_one_line(faulty):
    """With --verbose there is a traceback as well, and Ctrl-C is none."""
    shown = CliRunner().invoke(main, ["broken"])
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr == (
        "disco: a fault of this program: ZeroDivisionError: oh; disco --verbose ... shows where\n"
    )
    for arguments, env in ((["--verbose", "broken"], {}), (["broken"], {"DISCO_VERBOSE": "1"})):
        shown = CliRunner().invoke(main, arguments, env=env)
        assert shown.stderr.startswith("Traceback (most recent call last):")
        assert "in broken" in shown.stderr
    shown = CliRunner().invoke(main, ["broken", "--interrupt"])
    assert (shown.exit_code, shown.stderr.strip()) == (130, "")


def test_an_error_is_shown_whole_with_verbose(tmp_path):
    """Where it came from, and then the sentence."""
    arguments = ["certs", "issue", str(tmp_path), "client", "alice"]
    brief, long = (CliRunner().invoke(main, [*v, *arguments]) for v in ([], ["-v"]))
    assert (brief.exit_code, brief.stderr.count("\n")) == (2, 1)
    assert long.stderr.startswith("Traceback")
    assert long.stderr.endswith(brief.stderr)


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
