"""Whether MPI works here, found out in a child process: starting it has effects."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Final

from disco_client.errors import ConfigError
from disco_server.observe.checks import CheckResult, State, ask, first_line, tell

__all__ = ["probe_mpi"]

_PROBE_S: Final = 30.0
_INSTALL: Final = "pip install 'disco-runtime[server]'"
_HINT: Final = (
    f"{_INSTALL} brings mpi4py and MPICH; the packages mpich and impi-rt overwrite each other's"
    " files, so only one of them may be there"
)
_LAUNCHERS: Final = ("PMI_", "PMIX_", "HYDI_", "OMPI_")


def probe_mpi(environ: Mapping[str, str] | None = None) -> CheckResult:
    """Starts MPI alone in a child process, with the library that a rank would load.

    Args:
        environ: The child's environment; by default this process's.
    """
    inherited = os.environ if environ is None else environ
    # A launcher's variables would let it look for the other ranks of that launch.
    alone = {name: value for name, value in inherited.items() if not name.startswith(_LAUNCHERS)}
    module = "disco_server.collectives.mpi_probe"
    (found,) = ask(module, checks={"mpi": _HINT}, timeout=_PROBE_S, environ=alone)
    return found


def look() -> CheckResult:
    """Starts MPI in this process and ends it."""
    if find_spec("mpi4py") is None:
        return CheckResult("mpi", State.MISSING, "mpi4py is not installed", _INSTALL)
    # They load numpy, which may be what is broken in the calling process.
    from disco_server.collectives.mpi_library import load_mpi, version_text
    from disco_server.collectives.types import UnavailableError

    version = metadata.version("mpi4py")
    facts = {"mpi4py": version}
    try:
        mpi, known, started = load_mpi("", oversubscribed=False)
    except (UnavailableError, ConfigError) as error:
        cause = error.__cause__ or error
        hint = _HINT if error.__cause__ else "see the variable DISCO_MPI"
        return CheckResult(
            "mpi", State.BROKEN, f"mpi4py {version}: {first_line(cause)}", hint, facts
        )
    shown = version_text(mpi)
    if started:
        mpi.Finalize()
    facts |= {"library": known.name, "library_version": shown}
    return CheckResult("mpi", State.OK, f"mpi4py {version}, {shown}", facts=facts)


if __name__ == "__main__":
    sys.exit(tell([("mpi", look)]))
