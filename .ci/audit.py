"""Looks at what Disco depends on: known vulnerabilities, and licences.

Exit code 1 where something is found. Advisories come from a service on the web: where it
cannot be reached that is said, and is no failure, because nothing was found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

NAME = "disco-runtime"
EXTRAS = ("server", "examples", "hdf5", "kernels", "netcdf", "otel", "queues", "stores", "zarr")
LIMIT_S = 180
ALLOWED = re.compile(
    r"apache|\bMIT\b|MIT-CMU|\bBSD|\bISC\b|\bPSF|python software foundation|MPL[- ]2"
    r"|mozilla public license 2|unlicense|zlib|0BSD|mpich",
    re.IGNORECASE,
)
"""Licences under which an Apache-2.0 program may be distributed with its dependencies."""


def dependencies() -> dict[str, Distribution]:
    """What an installation with the extras brings, by name."""
    found: dict[str, Distribution] = {}
    open_ = [(NAME, EXTRAS)]
    while open_:
        name, extras = open_.pop()
        try:
            here = distribution(name)
        except PackageNotFoundError:
            continue  # for another system than this one
        if name in found:
            continue
        found[name] = here
        for text in here.requires or ():
            wanted = Requirement(text)
            marker = wanted.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras)):
                open_.append((wanted.name, tuple(wanted.extras)))
    del found[NAME]
    return found


def licence_of(package: Distribution) -> str:
    """What a package says of its licence, in any of the ways of its metadata."""
    facts = package.metadata
    classified = [c for c in facts.get_all("Classifier") or () if c.startswith("License ::")]
    said = [facts.get("License-Expression") or "", *classified, facts.get("License") or ""]
    return " / ".join(part.splitlines()[0][:80] for part in said if part.strip())


def wrong_licences() -> Iterator[str]:
    """One sentence for each dependency whose licence is not known to fit."""
    for name, package in sorted(dependencies().items()):
        licence = licence_of(package)
        if not ALLOWED.search(licence):
            yield f"{name} {package.version}: expected a licence that fits, got {licence!r}"


def vulnerabilities() -> Iterator[str]:
    """One line for each known one; says so where nobody can be asked."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable"]
    command += ["--progress-spinner", "off", "--format", "json", "--timeout", "15"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        told = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        print(f"advisories: the service cannot be asked, so nothing was looked up ({error})")
        return
    looked = [each for each in told["dependencies"] if "vulns" in each]
    if not looked:
        print("advisories: the service knows none of these packages, so nothing was looked up")
        return
    print(f"advisories: {len(looked)} packages looked up")
    for each in looked:
        for found in each["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            yield f"{each['name']} {each['version']}: {found['id']}, fixed in {fixed}"


def main() -> int:
    """Looks at both, and returns the exit code."""
    wrong = list(wrong_licences())
    print(f"licences: {len(dependencies())} dependencies, {len(wrong)} to look at")
    wrong += vulnerabilities()
    for each in wrong:
        print(f"  {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
