"""``disco context``: controllers under names, for commands and programs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from disco_client import connect
from disco_server.cli.main import main


@pytest.fixture
def disco(tmp_path, monkeypatch):
    """Runs a command with contexts of its own."""
    monkeypatch.setenv("DISCO_CONTEXTS", str(tmp_path / "contexts.json"))
    monkeypatch.delenv("DISCO_ADDRESS", raising=False)

    def run(*arguments, **options):
        return CliRunner().invoke(main, arguments, prog_name="disco", **options)

    return run


def test_commands_and_programs_find_the_current_one(disco, cluster):
    """And another one where they are told its name."""
    assert disco("context", "add", "mine", "--address", cluster.address, "--use").exit_code == 0
    with connect(num_workers=1, name="found"):
        shown = json.loads(disco("sessions", "--json").stdout)
        assert [session["name"] for session in shown] == ["found"]
    assert disco("context", "add", "away", "--address", "127.0.0.1:1").exit_code == 0
    assert disco("context", "use", "away").output == "context 'away' is used: 127.0.0.1:1\n"
    refused = disco("status")
    assert refused.exit_code == 3
    assert "no controller answers at 127.0.0.1:1" in refused.stderr
    assert disco("status", "--context", "mine").exit_code == 0
    assert disco("status", "--context", "mine", "--address", cluster.address).exit_code == 2


def test_a_list_shows_all_but_tokens(disco, tmp_path):
    """A token is read from standard input; certificates are files of whole paths."""
    kept = disco(
        *("context", "add", "kept", "--address", "localhost:7600", "--token", "--use"),
        input="very-secret\n",
    )
    assert kept.output == "context 'kept' is localhost:7600\n"
    (tmp_path / "token").write_text("secret too")
    more = ("--token-file", str(tmp_path / "token"), "--json")
    added = disco("context", "add", "filed", "--address", "localhost:7601", *more)
    assert json.loads(added.stdout)["token"] == str(tmp_path / "token")
    listed = disco("context", "list")
    assert "kept *" in listed.output
    assert "localhost:7601" in listed.output
    everything = listed.output + disco("context", "list", "--json").output
    assert "secret" not in everything
    assert "very-secret" in (tmp_path / "contexts.json").read_text()


def test_what_cannot_be_is_refused_and_changes_nothing(disco, tmp_path):
    """Names, addresses, tokens twice, files that are not there, no token at all."""
    where = ("--address", "localhost:7600")
    (tmp_path / "token").write_text("t")
    for arguments in (
        ("a b", *where),
        ("a", "--address", "nowhere"),
        ("a", *where, "--tls-cert", "absent.pem"),
        ("a", *where, "--token"),
        ("a", *where, "--token", "--token-file", str(tmp_path / "token")),
    ):
        assert disco("context", "add", *arguments, input="").exit_code == 2, arguments
    assert disco("context", "use", "a").exit_code == 2
    assert disco("context", "remove", "a").exit_code == 2
    assert not (tmp_path / "contexts.json").exists()


def test_a_removed_one_is_gone(disco):
    """Removing the current one leaves none in use."""
    disco("context", "add", "mine", "--address", "127.0.0.1:1", "--use")
    assert disco("context", "remove", "mine").output == "context 'mine' is removed\n"
    assert json.loads(disco("context", "list", "--json").stdout) == []
