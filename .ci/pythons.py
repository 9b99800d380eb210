"""Runs the main suite with every Python from 3.11 to 3.14 that is found: what `make pythons` does.

Each has an environment of its own, `.venv-3.12`. An extra or a group for which there are no wheels
for a Python is named and left out; the tests that need it are skipped. Arguments go to pytest.
Exit codes: 0, or 1 where a suite failed or there is no Python.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dist import ROOT, VERSIONS, interpreters

NEEDED = (("--editable", ".[server]"), ("--group", "test"))
WANTED = (
    *(
        ("--editable", f".[{extra}]")
        for extra in (
            *("tvm", "examples", "hdf5", "kernels", "netcdf", "otel", "queues", "stores", "zarr"),
        )
    ),
    ("--group", "lint"),
)


def main(arguments: list[str]) -> int:
    """Runs the suite for each; returns the exit code."""
    found = dict(interpreters())
    failed: list[str] = []
    for version, python in found.items():
        print(f"== Python {version}, {python}", flush=True)
        environment = ROOT / f".venv-{version}"
        if not prepare(python, environment, version) or not passes(environment, arguments):
            failed.append(version)
    missing = [version for version in VERSIONS if version not in found]
    print(f"passed with Python {', '.join(v for v in found if v not in failed) or 'none'}")
    for what, versions in (("failed", failed), ("not found", missing)):
        if versions:
            print(f"{what}: Python {', '.join(versions)}")
    return 1 if failed or not found else 0


def prepare(python: Path, environment: Path, version: str) -> bool:
    """Makes the environment of a Python; whether it has what the suite cannot do without."""
    if not environment.exists():
        subprocess.run([python, "-m", "venv", environment], check=True)
    if not installs(environment, "--upgrade", "pip>=25.1"):
        return False
    for wanted in NEEDED:
        if not installs(environment, *wanted):
            print(f"Python {version}: {wanted[1]} cannot be installed", flush=True)
            return False
    for wanted in WANTED:
        # A source that would have to be compiled is no wheel.
        if not installs(environment, "--only-binary", ":all:", *wanted):
            print(f"Python {version}: left out, for lack of a wheel: {wanted[1]}", flush=True)
    (environment / ".stamp").touch()  # it has what the target needs
    return True


def installs(environment: Path, *wanted: str) -> bool:
    """Installs something; whether it could be."""
    pip = (environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    return (
        subprocess.run([*pip, "install", "--quiet", *wanted], cwd=ROOT, check=False).returncode == 0
    )


def passes(environment: Path, arguments: list[str]) -> bool:
    """Runs the suite; whether it passed."""
    command = ["make", "test", f"VENV={environment}", f"ARGS={' '.join(arguments)}"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
