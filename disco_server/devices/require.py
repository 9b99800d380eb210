"""Refuses, when a daemon starts, devices that its sessions could not use.

Asking costs a child process and some seconds, and spares every session on such a
node its failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from disco_client.errors import ConfigError
from disco_server.devices.driver import KINDS
from disco_server.devices.probe import probe_gpus
from disco_server.observe.findings import Finding, State
from disco_server.settings import NoVisibleGpu

__all__ = ["explain", "require_devices"]

_START_S: Final = 30.0
"""A machine that works answers in a few seconds; only a driver that hangs needs all."""


def require_devices(
    devices: Sequence[str], *, where: str = "devices", environ: Mapping[str, str] | None = None
) -> None:
    """Makes sure that ranks can use devices; of the CPU nothing is asked.

    Args:
        devices: Names, ``cpu``, ``cuda:N`` or ``rocm:N``.
        where: Where they were given, for the error.
        environ: The environment that the ranks will have; by default this process's.

    Raises:
        ConfigError: They cannot; it names what is missing and what to do.
    """
    for kind in KINDS:
        wanted = [name for name in devices if name.startswith(f"{kind}:")]
        if not wanted:
            continue
        numbers = [int(name.partition(":")[2]) for name in wanted]
        found = probe_gpus(kind, numbers, timeout=_START_S, environ=environ)
        problems = [each for each in found if each.state is not State.OK]
        if problems:
            named = f"{wanted[0]} to {wanted[-1]}" if len(wanted) > 1 else wanted[0]
            raise ConfigError(_message(where, f"{named} cannot be used on this machine", problems))


def explain(error: NoVisibleGpu) -> ConfigError:
    """Makes the error of a machine without a visible GPU say what is missing."""
    found = probe_gpus(error.kind, timeout=_START_S)
    problems = [each for each in found if each.state is not State.OK]
    expected = f"expected a machine with a visible {error.kind} device, found none"
    if not problems:
        # WSL and some containers reach a GPU without the files that were looked for.
        many = next(len(each.facts["gpus"]) for each in found if each.name == "gpus")
        names = f"{error.kind}:{','.join(map(str, range(many)))}"
        return ConfigError(
            f"{error.where}: {expected} in the file system, but the driver sees {many};"
            f" name them: --devices {names}"
        )
    return ConfigError(_message(error.where, expected, problems))


def _message(where: str, what: str, problems: Iterable[Finding]) -> str:
    """One line: every cause, what to do about the first, and who tells the rest."""
    causes = [each for each in problems if each.state is not State.NOT_APPLICABLE]
    said = "; ".join(each.detail for each in causes)
    return (
        f"{where}: {what}: {said}. What to do: {causes[0].hint};"
        " `disco doctor --gpu` shows every check"
    )
