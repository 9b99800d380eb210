"""Secrets that a session brings for its workers: which names and values they may have.

Workers have them as variables of their environment. So a name is one of a credential, and never
one that changes what a process loads, which files it reads, or with which server it speaks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, cast

from disco_client.errors import ConfigError

__all__ = ["MOST_SECRETS", "MOST_SECRET_BYTES", "is_secret", "read_secrets", "what_is_wrong_with"]

MOST_SECRETS: Final = 64
MOST_SECRET_BYTES: Final = 64 << 10
"""How many secrets a session may have, and how many bytes their names and values together."""

_SECRET: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|KEYRING"
    r"|(^|_)((API_?)?KEYS?|PASS|PWD|PAT|CREDS?|JWT)(_|$)",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ACTING: Final = re.compile(
    r"^(LD_|PYTHON|DISCO_|PMI|OTEL_)|APPLICATION_CREDENTIALS$"
    r"|_(FILE|FILES|PATH|DIR|SOCK|URL|URI|HOST|ENDPOINT|PROVIDER|BACKEND)$",
    re.IGNORECASE,
)
"""What sounds like a secret, and names a file, a server or a program to use."""

_BESIDE: Final = (
    *("AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_CLIENT_ID", "AZURE_TENANT_ID"),
)
"""No secrets, but of no use without one; the clients of stores put them into the names of hosts."""

_WORD: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_GOOGLE_KEY: Final = "GOOGLE_SERVICE_ACCOUNT_KEY"


def is_secret(name: str) -> bool:
    """Whether the name of a variable suggests that its value is a secret."""
    return _SECRET.search(name) is not None


def read_secrets(given: object) -> dict[str, str]:
    """Reads the secrets that a program gives; None for none.

    Raises:
        ConfigError: They are no mapping of such names to texts. No value is shown.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise ConfigError(
            f"expected secrets as a mapping of names to texts, got one of type {kind}"
        )
    items = dict(cast("Mapping[object, object]", given))
    for name, value in items.items():
        if not isinstance(name, str):
            kind = type(name).__name__
            raise ConfigError(f"expected texts as names of secrets, got one of type {kind}")
        if not isinstance(value, str):
            where, kind = _shown(name), type(value).__name__
            raise ConfigError(f"expected a text as the secret {where}, got one of type {kind}")
    secrets = cast("dict[str, str]", items)
    if (problem := what_is_wrong_with(secrets)) is not None:
        raise ConfigError(problem)
    return secrets


def what_is_wrong_with(secrets: Mapping[str, str]) -> str | None:
    """Says why a session may not have these secrets, without a value; None where it may."""
    if len(secrets) > MOST_SECRETS:
        return f"expected at most {MOST_SECRETS} secrets of a session, got {len(secrets)}"
    # Characters for bytes where some cannot be encoded, which is refused below.
    sizes = (len(text.encode(errors="replace")) for item in secrets.items() for text in item)
    if (size := sum(sizes)) > MOST_SECRET_BYTES:
        return f"expected at most {MOST_SECRET_BYTES >> 10} KiB of secrets, got {size:,} bytes"
    problems = (_wrong_item(name, value) for name, value in secrets.items())
    return next((problem for problem in problems if problem is not None), None)


def _wrong_item(name: str, value: str) -> str | None:
    where = f"the secret {_shown(name)}"
    if name not in _BESIDE and (
        not _NAME.fullmatch(name) or not is_secret(name) or _ACTING.search(name)
    ):
        return (
            "expected as the name of a secret the variable of a credential, such as"
            f" AWS_SECRET_ACCESS_KEY or HF_TOKEN, got {_shown(name)}; other variables are given to"
            " workers by disco-worker --env"
        )
    if not value or "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        lack = "no character" if not value else "a character that no variable can hold"
        return f"expected a text as {where}, got one with {lack}"
    if name in _BESIDE and not _WORD.fullmatch(value):
        return f"expected at most 64 letters, digits and hyphens as {where}, got others"
    if name == _GOOGLE_KEY and "gcs_base_url" in _members(value):
        return f"expected {where} without gcs_base_url: the daemon says with which server it speaks"
    return None


def _members(text: str) -> Mapping[str, object]:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else {}


def _shown(name: str) -> str:
    """A name for a message, unless it may be a value that was given in its place."""
    return name if _NAME.fullmatch(name) else f"a text of {len(name)} characters that is no name"
