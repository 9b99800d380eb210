"""Whether MPI works, looked at in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest

from disco_server.collectives.mpi_probe import probe_mpi
from disco_server.observe.checks import State


@pytest.fixture
def hiding(tmp_path):
    """Makes the environment of a child that finds other modules first."""

    def environ(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return {**os.environ, "PYTHONPATH": str(tmp_path)}

    return environ


def test_the_library_is_named_with_its_version():
    """It is the one that ranks would load, and it has been started."""
    found = probe_mpi()
    assert found.state is State.OK, found
    assert found.facts["mpi4py"] == metadata.version("mpi4py")
    assert found.facts["library"] in ("mpich", "impi", "other")
    assert found.detail.startswith(f"mpi4py {found.facts['mpi4py']}, ")


def test_the_process_that_asks_loads_nothing():
    """Importing MPI has effects, so the child has them."""
    program = (
        "import sys\nfrom disco_server.collectives.mpi_probe import probe_mpi\n"
        "print(probe_mpi().state, 'mpi4py' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"ok False\n"


def test_a_launcher_s_variables_do_not_matter():
    """The child starts alone also where this process is one of several ranks."""
    environ = {**os.environ, "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "99"}
    assert probe_mpi(environ).state is State.OK


def test_a_wrong_choice_is_shown():
    """DISCO_MPI is the only thing that may be wrong then."""
    found = probe_mpi({**os.environ, "DISCO_MPI": "lam"})
    assert found.state is State.BROKEN
    assert "no MPI library is called 'lam'" in found.detail
    assert found.hint == "see the variable DISCO_MPI"


def test_an_mpi_that_cannot_be_loaded_is_broken(hiding):
    """With a broken mpi4py in front; the hint says how the two packages get on."""
    found = probe_mpi(hiding("mpi4py/__init__.py", "raise ImportError('half installed')"))
    assert found.state is State.BROKEN
    assert "half installed" in found.detail
    assert "mpich and impi-rt overwrite" in found.hint


def test_an_mpi_that_crashes_is_broken(hiding):
    """With an mpi4py in front that ends the process; this one goes on."""
    found = probe_mpi(hiding("mpi4py/__init__.py", "import os; os.abort()"))
    assert found.state is State.BROKEN
    assert "ended the process with SIGABRT" in found.detail


def test_a_missing_mpi4py_is_missing(hiding):
    """With mpi4py hidden, the extra that brings it is named."""
    text = "import sys\nsys.modules['mpi4py'] = None\n"
    found = probe_mpi(hiding("sitecustomize.py", text))
    assert (found.state, found.hint) == (
        State.MISSING,
        "pip install 'disco-runtime[server]'",
    )
