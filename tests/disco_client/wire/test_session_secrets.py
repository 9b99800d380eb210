"""Which names and values the secrets of a session may have, and that errors show no value."""

from __future__ import annotations

import pytest

from disco_client import ConfigError, ProcessSession, SocketSession, connect
from disco_client.transport.base import Wish
from disco_client.wire.session_secrets import (
    MOST_SECRET_BYTES,
    MOST_SECRETS,
    read_secrets,
    what_is_wrong_with,
)

VALUE = "hush-7f3a"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([("A_TOKEN", VALUE)], "expected secrets as a mapping of names to texts, got.* list"),
        (VALUE, "as a mapping of names to texts, got one of type str"),
        ({7: VALUE}, "expected texts as names of secrets, got one of type int"),
        ({"A_TOKEN": VALUE.encode()}, "a text as the secret A_TOKEN, got one of type bytes"),
        ({"A_TOKEN": None}, "a text as the secret A_TOKEN, got one of type NoneType"),
        ({"A_TOKEN": ""}, "as the secret A_TOKEN, got one with no character"),
        ({"A_TOKEN": f"{VALUE}\0"}, "A_TOKEN, got one with a character that no variable can"),
        ({"A_TOKEN": f"{VALUE}\ud800"}, "A_TOKEN, got one with a character that no variable can"),
        ({"A_TOKEN": VALUE * 10_000}, "at most 64 KiB of secrets, got 90,007 bytes"),
        ({f"A_TOKEN_{n}": VALUE for n in range(65)}, "at most 64 secrets of a session, got 65"),
        ({VALUE: "A_TOKEN"}, "got a text of 9 characters that is no name; .*disco-worker --env"),
        ({"A_TOKEN" * 20: VALUE}, "got a text of 140 characters that is no name"),
        ({"": VALUE}, "got a text of 0 characters that is no name"),
        ({"PATH": VALUE}, "variable of a credential, such as AWS_SECRET_ACCESS_KEY.*, got PATH"),
        ({"LD_AUDIT_TOKEN": VALUE}, "got LD_AUDIT_TOKEN"),
        ({"PYTHON_KEYRING_BACKEND": VALUE}, "got PYTHON_KEYRING_BACKEND"),
        ({"DISCO_TOKEN": VALUE}, "got DISCO_TOKEN"),
        ({"AWS_ENDPOINT_URL": VALUE}, "got AWS_ENDPOINT_URL"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": VALUE}, "got AWS_WEB_IDENTITY_TOKEN_FILE"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": VALUE}, "got AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ({"AZURE_AUTHORITY_HOST": VALUE}, "got AZURE_AUTHORITY_HOST"),
        ({"GOOGLE_APPLICATION_CREDENTIALS": VALUE}, "got GOOGLE_APPLICATION_CREDENTIALS"),
        ({"AWS_REGION": f"{VALUE}.org/"}, "at most 64 letters, digits and hyphens as.*AWS_REGION"),
        ({"AZURE_TENANT_ID": f"{VALUE}/.."}, "letters, digits and hyphens as.*AZURE_TENANT_ID"),
        (
            {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"\\u0067cs_base_url": "http://{VALUE}"}}'},
            "GOOGLE_SERVICE_ACCOUNT_KEY without gcs_base_url",
        ),
    ],
)
def test_what_a_session_cannot_bring_is_refused(given, told):
    """What would load code, read files or lead to other servers as well."""
    with pytest.raises(ConfigError, match=told) as failed:
        read_secrets(given)
    assert VALUE not in str(failed.value)
    assert failed.value.__context__ is None


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"AWS_ACCESS_KEY_ID": VALUE, "AWS_SECRET_ACCESS_KEY": "/+=", "AWS_REGION": "eu-west-1"},
        {"AWS_SESSION_TOKEN": "x" * 2000, "HF_TOKEN": VALUE, "WANDB_API_KEY": VALUE},
        {"AZURE_STORAGE_ACCOUNT_NAME": "models", "AZURE_STORAGE_ACCOUNT_KEY": VALUE},
        {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "-----BEGIN\\n"}', "db_passwd": "\u00e9"},
        {"A_KEY": "x" * (MOST_SECRET_BYTES - 5)},
        {f"A_TOKEN_{n}": "x" for n in range(MOST_SECRETS)},
    ],
)
def test_credentials_of_stores_and_services_are_taken(given):
    """As many, and as large, as there may be."""
    assert read_secrets(given) == (given or {})
    assert what_is_wrong_with(given or {}) is None


@pytest.mark.parametrize(
    "open_session",
    [
        lambda **given: connect("127.0.0.1:1", num_workers=1, **given),
        lambda **given: ProcessSession(1, **given),
        lambda **given: SocketSession(1, 1, 1, "127.0.0.1", 0, **given),
    ],
    ids=["cluster", "processes", "sockets"],
)
def test_every_session_with_processes_refuses_them_first(open_session):
    """Before anything is opened or started."""
    with pytest.raises(ConfigError, match="got PATH"):
        open_session(secrets={"PATH": VALUE})


def test_no_secret_goes_to_another_machine_in_clear():
    """The error says what is missing; a token has the same one."""
    with pytest.raises(ConfigError, match=r"secrets are sent over TLS.*give tls_ca") as e:
        connect("192.0.2.1:7600", num_workers=1, secrets={"HF_TOKEN": VALUE})
    assert VALUE not in str(e.value)


def test_a_wish_does_not_show_its_secrets():
    """In its repr, which a debugger or a traceback with locals prints."""
    wish = Wish(1, 1, "", "", "me", 1.0, secrets={"HF_TOKEN": VALUE})
    assert VALUE not in repr(wish)
