"""The environment of the daemons in jobs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

__all__ = ["for_script", "inherited"]

_NEEDED = re.compile(
    r"DISCO_|PATH$|PYTHON|VIRTUAL_ENV$|LD_LIBRARY_PATH$|OMP_|MKL_|OPENBLAS_|LC_|LANG$"
)

# What was meant for this program, and not for the daemons of another cluster.
_LEFT_OUT = re.compile(
    r"SLURM_(?!CONF$|CLUSTERS$)"
    r"|DISCO_(ADDRESS|CONTEXT|CONTROLLER|LISTEN|NAME|PORT_FILE|SLOTS|TLS_|TOKEN)"
)
# Whoever has the certificates of the cluster is the user who started it, as with `disco local`.
_ALLOWED = {
    "DISCO_ALLOW_LOAD": "*",
    "DISCO_ALLOW_MODULES": "*",
    "DISCO_ALLOW_READ": "*",
    "DISCO_ALLOW_SAVE": "*",
    "DISCO_ENV": "*",
}


def inherited() -> dict[str, str]:
    """The environment of jobs: this program's, and this Python's commands on the PATH."""
    kept = {name: value for name, value in os.environ.items() if not _LEFT_OUT.match(name)}
    path = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath)))
    return {**_ALLOWED, **kept, "PATH": path}


def for_script() -> dict[str, str]:
    """What of it a job needs whose batch system hands down no environment."""
    return {name: value for name, value in inherited().items() if _NEEDED.match(name)}
