"""What the commands of the examples have in common: options, and how they report errors."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from cluster.sessions import DEVICES, DeviceRefused
from disco_client import errors

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["InputError", "options_of", "run_command"]


class InputError(Exception):
    """The input of a command cannot be used; the text says what to do."""


def options_of(name: str, description: str, workers: int) -> argparse.ArgumentParser:
    """Makes a parser with the options that every example has.

    Args:
        name: The command's.
        description: What it does.
        workers: How many workers it takes by default.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument(
        "--workers",
        type=int,
        default=workers,
        metavar="N",
        help=f"over how many workers (default: {workers})",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the controller (default: $DISCO_ADDRESS, else 127.0.0.1:7600)",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="what the workers compute on; without an address and $DISCO_ADDRESS, cuda and rocm "
        "take the first N GPUs of this machine (default: cpu)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the controller and for workers (default: 30)",
    )
    return parser


def run_command(name: str, run: Callable[[], int], *refused: type[Exception]) -> int:
    """Runs a command's work; what fails there is a sentence on standard error.

    Args:
        name: The command's.
        run: Returns the exit code.
        *refused: Exceptions that say in their texts what was wrong with the input.

    Returns:
        The exit code: 1 where a cluster failed, 2 where something was refused.
    """
    try:
        return run()
    except (DeviceRefused, InputError, *refused) as error:
        return _complain(name, str(error), 2)
    except errors.DiscoError as error:
        return _complain(name, _explain(name, error), 1)
    except KeyboardInterrupt:
        return _complain(name, "Interrupted.", 130)
    except BrokenPipeError:
        # The reader of the output has seen enough. Python would complain once more
        # when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _explain(name: str, error: errors.DiscoError) -> str:
    """Makes one sentence and a hint of an error."""
    lines = str(error).splitlines() or [type(error).__name__]
    first = lines[0].rstrip(". ")
    if isinstance(error, errors.RemoteError):
        first += f" (on worker {error.worker}{f' of node {error.node}' if error.node else ''})"
    if isinstance(error, errors.ConnectionFailed):
        # What follows the semicolon is advice for programs in general.
        first = first.partition("; ")[0]
    hints: dict[type[errors.DiscoError], str] = {
        errors.ConnectionFailed: (
            "Start a cluster around this command with "
            f"'disco local --nodes 2 --slots 2 -- python examples/{name}.py'."
        ),
        errors.NoSlots: "Use fewer --workers, or start more worker daemons.",
        errors.NotAllowed: _PERMISSIONS.get(
            name,
            "Start the worker daemons with --allow-module 'embedding.*' and with the "
            "examples folder on PYTHONPATH.",
        ),
        errors.CclError: (
            "Each worker needs a GPU of its own; 'disco doctor --gpu' says what is missing."
        ),
        errors.RemoteError: "The model and the examples folder must be present on every worker.",
        errors.SessionLost: "See the logs of the worker daemons.",
    }
    hint = next((text for kind, text in hints.items() if isinstance(error, kind)), "")
    return f"{first}. {hint}".rstrip()


_PERMISSIONS = {
    "chat": "Start the worker daemons with --allow-load uploads, and --allow-read for the model."
}
"""What commands need that do not have their functions where workers can import them."""


def _complain(name: str, message: str, status: int) -> int:
    print(f"{name}: {message}", file=sys.stderr)
    return status
