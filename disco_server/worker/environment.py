"""The environment variables of rank processes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from disco_server.config import WorkerConfig
from disco_server.limits import Account, passes

__all__ = ["PASSED", "rank_environment"]

PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
    *("PYTHON*", "VIRTUAL_ENV", "COVERAGE_*", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME"),
    *("MALLOC_*", "GLIBC_TUNABLES", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "GOTO_*"),
    *("BLIS_*", "NUMEXPR_*", "VECLIB_*"),
    *("CUDA_*", "CUPY_*", "NVIDIA_*", "NCCL_*"),
    *("HIP_*", "HSA_*", "ROCR_*", "ROCM_*", "GPU_*", "RCCL_*"),
    *("MPI4PY_*", "MPICH_*", "MPIR_*", "I_MPI_*", "FI_*", "UCX_*", "TVM_*", "CC", "CXX"),
    *("DISCO_DEBUG", "DISCO_SLOW_S", "DISCO_INIT_TIMEOUT_S", "DISCO_NCCL_TIMEOUT_S"),
    *("DISCO_MPI", "DISCO_TEST_FAULTS"),
)
"""What ranks get of the daemon's environment unless ``--env`` says more."""

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(API_?)?KEY(_|$)")
_NEVER = ("PMI_*", "DISCO_AUTH*", "DISCO_TLS*", "DISCO_TOKEN*")

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def rank_environment(
    config: WorkerConfig, environ: Mapping[str, str] = os.environ, account: Account | None = None
) -> dict[str, str]:
    """The environment of rank processes: what computing needs, and what the settings add.

    Variables whose names speak of secrets are left out unless a setting names them, and
    what belongs to the daemon itself (its tokens, its keys) always is. A rank's numerical
    libraries would each start a thread for every core, which on a node with several ranks
    is far too many; what the person set stands.

    Args:
        config: The settings of the daemon.
        environ: Its environment.
        account: Whose processes the ranks will be, if not the daemon's user's.
    """
    names = [item for item in config.env if "=" not in item]
    given = dict(item.split("=", 1) for item in config.env if "=" in item)
    out = {
        name: value
        for name, value in environ.items()
        if (passes(name, PASSED) and not _SECRET.search(name)) or passes(name, names)
    }
    # Ranks make no spans; their headers may hold a secret, so "*" does not cover them.
    telemetry = [*given, *(item for item in names if item.startswith("OTEL_"))]
    out = {
        name: value
        for name, value in {**out, **given}.items()
        if not passes(name, _NEVER) and (name[:5] != "OTEL_" or passes(name, telemetry))
    }
    if out.get("PYTHONPATH"):
        # Ranks have folders of their own, where other paths than whole ones mislead.
        entries = out["PYTHONPATH"].split(os.pathsep)
        out["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in entries)
    if account is not None:
        out |= {"HOME": str(account.home), "USER": account.name, "LOGNAME": account.name}
    for name in _THREAD_VARIABLES:
        out.setdefault(name, str(config.rank_threads))
    return out
