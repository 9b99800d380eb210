"""Where the commands begin: they are installed with the client, which may be all there is."""

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
    """Runs a command; whatever of it needs an extra imports it when it begins, or when it runs."""
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("disco_client", "disco_server"):
            raise  # ours are always there; this is a fault, not an extra that is missing
        _refuse(command, error.name)


def _refuse(command: str, missing: str | None) -> NoReturn:
    extra = "cli" if command == "disco" and missing in ("click", "rich") else "server"
    sys.stderr.write(
        f"{command}: expected what the extra `{extra}` brings, and {missing} is not installed: "
        f"pip install 'disco-runtime[{extra}]'\n"
    )
    sys.exit(_MISSING)
