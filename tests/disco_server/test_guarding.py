"""What of the guard's settings is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from disco_client.errors import ConfigError
from disco_client.transport.credentials import Credentials
from disco_server.config import ControllerConfig, WorkerConfig, read_guard
from disco_server.security import Guard, check_dial
from disco_server.settings import Address, read_prefix, read_switch

CERT = {"tls_cert": Path("c.pem"), "tls_key": Path("c.key")}
FAR = Address("10.0.0.1", 7600)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tls_cert": Path("c")}, "tls_key: expected it beside tls_cert"),
        ({"tls_key": Path("c")}, "tls_cert: expected it beside tls_key"),
        ({"require_client_cert": True, "tls_ca": Path("ca")}, "expected --tls-cert and --tls-key"),
        ({"require_client_cert": True, **CERT}, "expected --tls-ca"),
    ],
)
def test_what_does_not_belong_together_is_refused(options, told):
    """Each setting names what it needs beside it."""
    with pytest.raises(ConfigError, match=told):
        Guard(**options)


@pytest.mark.parametrize("near", ["127.0.0.1:0", "localhost:0", "[::1]:0", "unix:/run/x"])
def test_on_this_machine_nothing_is_needed(near):
    """Whoever is there already may be there."""
    Guard().check_listen(Address.parse(near, any_port=True), "listen")


def test_other_machines_need_encryption_and_a_name():
    """By tokens or by certificates; one of both halves is not enough."""
    Guard(auth_token_file=Path("t"), **CERT).check_listen(FAR, "listen")
    Guard(require_client_cert=True, tls_ca=Path("ca"), **CERT).check_listen(FAR, "listen")
    Guard(insecure=True).check_listen(FAR, "listen")
    for guard in (Guard(), Guard(**CERT), Guard(auth_token_file=Path("t"))):
        with pytest.raises(ConfigError, match=r"listen: 10\.0\.0\.1:7600 can be reached"):
            guard.check_listen(FAR, "listen")


def test_a_door_for_arrays_needs_encryption_alone():
    """Who comes there is asked for the secret of a session."""
    Guard(**CERT).check_listener(FAR, "array_listen")
    with pytest.raises(ConfigError, match="array_listen: 10"):
        Guard().check_listener(FAR, "array_listen")


def test_a_controller_elsewhere_has_to_show_who_it_is():
    """Otherwise whoever answers could run code here."""
    check_dial(Credentials(ca=Path("ca")), FAR, insecure=False)
    check_dial(Credentials(), FAR, insecure=True)
    check_dial(Credentials(), Address("127.0.0.1", 7600), insecure=False)
    with pytest.raises(ConfigError, match="expected --tls-ca"):
        check_dial(Credentials(), FAR, insecure=False)


def test_both_configurations_are_checked_wherever_they_come_from():
    """Flags, the environment and the constructor alike."""
    with pytest.raises(ConfigError, match="listen"):
        ControllerConfig.load({}, {"DISCO_LISTEN": "0.0.0.0:7600"})
    loaded = ControllerConfig.load({}, {"DISCO_LISTEN": "0.0.0.0:7600", "DISCO_INSECURE": "1"})
    assert loaded.guard.insecure
    with pytest.raises(ConfigError, match="controller"):
        WorkerConfig(controller="10.0.0.1:7600")
    with pytest.raises(ConfigError, match="array_listen"):
        WorkerConfig(array_listen="0.0.0.0:0")


def test_a_guard_takes_what_is_not_given_from_the_environment():
    """As the daemons do, and with the same words."""
    environ = {"DISCO_TLS_CERT": "c.pem", "DISCO_TLS_KEY": "c.key", "DISCO_INSECURE": "1"}
    given = {"tls_cert": "mine.pem", "tls_key": None, "insecure": False}
    guard = read_guard(given, environ)
    assert (guard.tls_cert, guard.tls_key) == (Path("mine.pem"), Path("c.key"))
    assert not guard.insecure


@pytest.mark.parametrize(
    ("value", "found"),
    [(True, True), ("1", True), ("on", True), ("FALSE", False), ("0", False), (False, False)],
)
def test_a_switch_has_a_few_words(value, found):
    """In any case."""
    assert read_switch(value, "here") is found


@pytest.mark.parametrize("value", ["yes please", "", 1, None])
def test_any_other_word_is_no_switch(value):
    """It is not taken for no."""
    with pytest.raises(ConfigError, match="here: expected 1 or 0"):
        read_switch(value, "here")


@pytest.mark.parametrize("value", ["spiffe://example.org", "example.org/", "", 7])
def test_the_beginning_of_an_identity_ends_with_a_slash(value):
    """Otherwise a longer domain would begin with it too."""
    assert read_prefix("spiffe://example.org/disco/", "here")
    with pytest.raises(ConfigError, match="ends with a slash"):
        read_prefix(value, "here")
