"""What tests of the chart share, and those of Slurm."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploying.charts import Manifest, render, values_of, variants
from deploying.slurm import NoSlurm, Slurm, slurm
from fault_tools.namespaces import NoNamespaces


@pytest.fixture(scope="session", params=variants())
def variant(request) -> str:
    """The name of each file of values in ci/, and of each example's."""
    return request.param


@pytest.fixture(scope="session")
def manifests(variant) -> list[Manifest]:
    """What the chart makes of it."""
    return render(values_of(variant))


@pytest.fixture(scope="session")
def slurm_nodes() -> Iterator[Slurm]:
    """A Slurm of two nodes, and a login node."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path, since sockets lie in it
    folder.chmod(0o755)
    try:
        with slurm(folder, os.getpid() % 100_000) as started:
            yield started
    except (NoSlurm, NoNamespaces) as lack:
        pytest.skip(str(lack))
    finally:
        shutil.rmtree(folder)
