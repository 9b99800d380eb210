"""The entry points of the commands; they are installed with the client, even without extras."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

__all__ = ["controller", "disco", "worker"]

_MISSING = 2


def disco() -> None:
    """Runs ``disco``."""
    _run("disco", "disco_server.cli.main")


def controller() -> None:
    """Runs ``disco-controller``."""
    _run("disco-controller", "disco_server.cli.controller")


def worker() -> None:
    """Runs ``disco-worker``."""
    _run("disco-worker", "disco_server.cli.worker")


def _run(command: str, module: str) -> None:
    """Runs a command; modules that need an extra are imported when it starts or later."""
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("disco_client", "disco_server"):
            raise  # this package's own modules are always there: a fault, not a missing extra
        _refuse(command, error.name)


def _refuse(command: str, missing: str | None) -> NoReturn:
    extra = "cli" if command == "disco" and missing in ("click", "rich") else "server"
    sys.stderr.write(
        f"{command}: expected what the extra `{extra}` brings, and {missing} is not installed: "
        f"pip install 'disco-runtime[{extra}]'\n"
    )
    sys.exit(_MISSING)
