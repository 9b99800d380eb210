"""The channel that is made anew when certificates were replaced."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.credentials import Credentials
from fault_tools.certificates import Pki


class Channel:
    """Notes what is called through it."""

    def __init__(self):
        self.calls = []
        self.closed = False

    def unary_unary(self, path, **codecs):
        return lambda *args, **options: self.calls.append((path, args, options))

    def close(self):
        self.closed = True


@pytest.fixture
def made():
    return []


@pytest.fixture
def make(made):
    def one(_address, _credentials):
        made.append(Channel())
        return made[-1]

    return one


def test_each_call_goes_through_the_channel_of_its_moment(tmp_path, made, make):
    """New certificates make a new channel; the one before lives for the calls that it has."""
    pki = Pki.make(tmp_path)
    line = ReloadingChannel("10.0.0.1:7600", Credentials(ca=pki.ca), make)
    call = line.unary_unary("/a/B")
    call(b"1")
    call(b"2")
    Pki.make(tmp_path)
    call(b"3")
    assert [[args for _, args, _ in channel.calls] for channel in made] == [
        [(b"1",), (b"2",)],
        [(b"3",)],
    ]
    assert not made[0].closed
    line.close()
    assert all(channel.closed for channel in made)


def test_a_token_goes_with_each_call_as_it_is_then(tmp_path, made, make):
    """A file that is gone for a moment does not make a call fail."""
    file = tmp_path / "token"
    file.write_text("the-first-token-of-it")
    line = ReloadingChannel("127.0.0.1:7600", Credentials(token_file=file), make)
    call = line.unary_unary("/a/B")
    call(b"")
    file.write_text("the-next-token-of-it")
    call(b"")
    file.unlink()
    call(b"", timeout=1)
    sent = [options["metadata"][0][1] for _, _, options in made[0].calls]
    assert sent == [f"Bearer the-{which}-token-of-it" for which in ("first", "next", "next")]


def test_without_credentials_nothing_is_added(made, make):
    """As through a plain channel."""
    ReloadingChannel("10.0.0.1:7600", make=make).unary_unary("/a/B")(b"x", timeout=2)
    assert made[0].calls == [("/a/B", (b"x",), {"timeout": 2})]


def test_a_token_in_clear_is_refused_before_there_is_a_channel(made, make):
    """On the way to another machine."""
    with pytest.raises(ConfigError, match="over TLS"):
        ReloadingChannel("10.0.0.1:7600", Credentials(token="x" * 20), make)
    assert made == []
