"""Controllers under names: which one is used, and that nothing of it goes elsewhere."""

from __future__ import annotations

import json
import stat

import pytest

from disco_client.errors import ConfigError
from disco_client.transport.address import DEFAULT_ADDRESS
from disco_client.transport.contexts import Context, Contexts, contexts_file, find_controller


@pytest.fixture
def environ(tmp_path):
    """An environment with a file of contexts, of which none is there yet."""
    return {"DISCO_CONTEXTS": str(tmp_path / "settings" / "contexts.json")}


@pytest.fixture
def kept(environ):
    """Two contexts, the first of them in use."""
    contexts = Contexts()
    contexts.add("prod", Context("localhost:1", token="first"))
    contexts.add("test", Context("localhost:2", token="second"))
    contexts.current = "prod"
    contexts.write(contexts_file(environ))
    return environ


def test_what_is_written_is_read_again_by_its_owner_alone(kept):
    """Also the folder is the owner's; tokens are in no text that shows a context."""
    path = contexts_file(kept)
    found = Contexts.read(path)
    assert (found.current, list(found.entries)) == ("prod", ["prod", "test"])
    assert found.get("test") == Context("localhost:2", token="second")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert "second" not in repr(found)


@pytest.mark.parametrize(
    ("given", "more", "address", "token"),
    [
        ({}, {}, "localhost:1", "first"),
        ({"context": "test"}, {}, "localhost:2", "second"),
        ({}, {"DISCO_CONTEXT": "test"}, "localhost:2", "second"),
        ({"context": "prod"}, {"DISCO_CONTEXT": "test"}, "localhost:1", "first"),
        ({"token": "mine"}, {}, "localhost:1", "mine"),
        # Whoever names an address gets nothing that belongs to another one.
        ({"address": "localhost:3"}, {}, "localhost:3", ""),
        ({}, {"DISCO_ADDRESS": "localhost:4"}, "localhost:4", ""),
        ({}, {"DISCO_ADDRESS": "localhost:4", "DISCO_CONTEXT": "test"}, "localhost:4", ""),
        ({"context": "test"}, {"DISCO_ADDRESS": "localhost:4"}, "localhost:2", "second"),
        ({}, {"DISCO_ADDRESS": "localhost:4", "DISCO_TOKEN": "its"}, "localhost:4", "its"),
        # Nor does a context get what the environment has for another one.
        ({}, {"DISCO_TOKEN": "its"}, "localhost:1", "first"),
    ],
)
def test_the_address_decides_whose_credentials_are_used(kept, given, more, address, token):
    """A context is used as a whole, and only where nobody names an address."""
    found, credentials = find_controller(**given, environ={**kept, **more})
    assert (found, credentials.token) == (address, token)


def test_without_contexts_nothing_changes(environ):
    """The default address, and the environment's credentials."""
    found, credentials = find_controller(environ={**environ, "DISCO_TOKEN": "its"})
    assert (found, credentials.token) == (DEFAULT_ADDRESS, "its")


def test_a_token_file_that_is_given_replaces_a_token_that_is_kept(kept, tmp_path):
    """The two exclude each other, wherever they come from."""
    file = tmp_path / "token"
    file.write_text("from a file\n")
    _, credentials = find_controller(token_file=file, environ=kept)
    assert (credentials.token, credentials.token_file) == ("", file)


def test_a_file_that_others_read_is_refused(kept):
    """With the command that helps."""
    contexts_file(kept).chmod(0o640)
    with pytest.raises(ConfigError, match="others may read it: chmod 600 "):
        find_controller(environ=kept)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"current": "a", "contexts": {}}',
        b'{"current": "", "contexts": {"a b": {"address": "localhost:1"}}}',
        b'{"current": "", "contexts": {"a": {"address": "nowhere"}}}',
        b'{"current": "", "contexts": {"a": {"address": "localhost:1", "more": ""}}}',
        b'{"current": "", "contexts": {"a": {"address": "localhost:1", "token": 5}}}',
        b"[" * 100_000,
    ],
)
def test_damaged_files_are_refused_by_their_name(environ, content):
    """Whatever is in them."""
    path = contexts_file(environ)
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"contexts\.json"):
        Contexts.read(path)


def test_names_that_there_are_not_are_said_with_those_that_there_are(kept):
    """And an address beside a context is one too many."""
    with pytest.raises(ConfigError, match="got 'other'; there are: prod, test"):
        find_controller(context="other", environ=kept)
    with pytest.raises(ConfigError, match="expected an address or a context"):
        find_controller("localhost:1", context="prod", environ=kept)


def test_a_removed_context_is_not_in_use_any_more(kept):
    """The other one stays, and is not taken instead."""
    contexts = Contexts.read(contexts_file(kept))
    contexts.remove("prod")
    contexts.write(contexts_file(kept))
    assert json.loads(contexts_file(kept).read_text())["current"] == ""
    assert find_controller(environ=kept)[0] == DEFAULT_ADDRESS
