"""Makes what an upload needs, and tries it as those will who install it: what `make release` does.

What dist.py does comes first. Then the metadata is read by the libraries with which indexes read
it, and all files of an installation are served by an index of this program's own (PEP 503). pip is
told of no other one: it makes the same wheel of the packed sources, and installs the server by name
into an empty environment, where README's first program prints what README shows. What that
environment has is the bill of materials, which lies in dist/ beside sources and wheel.

Arguments are those of dist.py. Exit codes: 0, or 1 where something is wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from dist import DIST, Checks, Failed, built_and_tried, counted, metadata_of, run
from packaging.metadata import Metadata
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version
from readme_renderer import markdown
from trove_classifiers import classifiers

NAME = "disco-runtime"
EXTRA = "server"
CYCLONEDX = SchemaVersion.V1_6
"""The version of the format of the bill of materials, which ECMA-424 describes."""

PROGRAM = re.compile(
    r"```python\n(?P<text># (?P<file>\w+\.py)\n.*?)```\n+"
    r"```console\n\$ (?P<command>[^\n]*)\n(?P<shown>.*?)```",
    re.DOTALL,
)
SESSION = re.compile(r"session-[0-9a-f]{6}")

# What somebody has installed, and whether it came by its name.
INSTALLED = f"""
import importlib.metadata, json
found = {{each.name: each.version for each in importlib.metadata.distributions()}}
print(json.dumps([found, importlib.metadata.distribution({NAME!r}).read_text("direct_url.json")]))
"""


def main(models: list[str]) -> int:
    """Builds and tries it, and returns the exit code."""
    return counted(lambda checks: release(checks, models))


def release(checks: Checks, models: list[str]) -> None:
    """Builds a release, tries it, and writes its bill of materials."""
    source, wheel = built_and_tried(checks, models)
    try:
        about = Metadata.from_email(metadata_of(wheel), validate=True)
    except ExceptionGroup as wrong:
        raise Failed(f"the metadata has the form that indexes expect: {wrong.exceptions}") from None
    check_description(checks, about)
    check_for_index(checks, about, source, wheel)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_index(folder, source, wheel)
        with served(folder) as (address, asked):
            check_rebuilt(checks, folder, address, about.version, wheel)
            installed = install_by_name(checks, folder, address, about.version)
        checks.expect(
            f"/simple/{NAME}/" in asked and f"/files/{wheel.name}" in asked,
            f"pip asked the index for {NAME}, and for {len(asked)} addresses in all",
            "\n".join(asked),
        )
        run_first_program(checks, folder, about)
        write_sbom(checks, folder, installed, [source, wheel])


# What an index looks at --------------------------------------------------------------------


def check_for_index(checks: Checks, about: Metadata, source: Path, wheel: Path) -> None:
    """Looks at what indexes refuse, as they do; `Metadata` has looked at the form of all fields."""
    unknown = sorted(set(about.classifiers or ()) - set(classifiers))
    checks.expect(
        about.classifiers and not unknown,
        f"all {len(about.classifiers or ())} classifiers are known",
        ", ".join(unknown),
    )
    named = parse_sdist_filename(source.name), parse_wheel_filename(wheel.name)[:2]
    checks.expect(
        {*named} == {(canonicalize_name(about.name), about.version)} and not about.version.local,
        "both files are named for the release, whose version an index takes",
        str(named),
    )
    elsewhere = [str(each) for each in about.requires_dist or () if each.url]
    checks.expect(not elsewhere, "all dependencies are found by their names", str(elsewhere))


def check_description(checks: Checks, about: Metadata) -> None:
    """Shows the description as an index does, which must keep its programs, tables and links."""
    text = about.description or ""
    page = markdown.render(text) or ""
    blocks, tables = len(re.findall(r"^```\w", text, re.MULTILINE)), text.count("\n| ---")
    found = page.count("<pre"), page.count("<table")
    targets: list[str] = re.findall(r'(?:href|src)="([^"]*)"', page)
    dead = [
        each
        for each in targets
        if not each.startswith("https://") and f'id="{each.removeprefix("#")}"' not in page
    ]
    checks.expect(
        about.description_content_type == "text/markdown"
        and found == (blocks, tables)
        and not dead,
        f"README is shown with {blocks} blocks, {tables} tables and {len(targets)} links",
        f"{about.description_content_type} {found} {dead}",
    )


# An index ----------------------------------------------------------------------------------


def write_index(folder: Path, source: Path, wheel: Path) -> None:
    """Gathers the files of an installation, and writes the pages of an index with their hashes."""
    files, pages = folder / "files", folder / "simple"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:")
    run(*pip, "--dest", files, f"{wheel}[{EXTRA}]")
    shutil.copy(source, files)
    projects: dict[str, list[Path]] = {}
    for file in sorted(files.iterdir()):
        parse = parse_wheel_filename if file.suffix == ".whl" else parse_sdist_filename
        projects.setdefault(parse(file.name)[0], []).append(file)
    write_page(pages, {f"{name}/": name for name in projects})
    for name, its_files in projects.items():
        links = {f"../../files/{each.name}#sha256={sha256(each)}": each.name for each in its_files}
        write_page(pages / name, links)


def write_page(folder: Path, links: dict[str, str]) -> None:
    """Writes one page of an index."""
    folder.mkdir()
    lines = [f'<a href="{html.escape(to)}">{text}</a><br>' for to, text in links.items()]
    page = "\n".join(["<!DOCTYPE html>", "<html><body>", *lines, "</body></html>"])
    (folder / "index.html").write_text(page, "utf-8")


def sha256(file: Path) -> str:
    """The hash of a file, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves a folder at a free port; gives the address of its index, and what was asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            asked.append(self.path)

    make = partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/", asked
        finally:
            server.shutdown()
            thread.join()


# What pip does with it ---------------------------------------------------------------------


def pip(address: str, command: str, *arguments: str | Path, python: Path | None = None) -> None:
    """Lets pip do something; it knows of one index alone, and of nothing that it did before."""
    where = ("--python", python) if python else ()
    options = ("--isolated", "--no-cache-dir", "--disable-pip-version-check", "--quiet")
    variables = {"PIP_CONFIG_FILE": os.devnull, "no_proxy": "127.0.0.1"}
    run(
        *(sys.executable, "-m", "pip", *where, *options),
        *(command, "--index-url", address, *arguments),
        variables=variables,
    )


def check_rebuilt(
    checks: Checks, folder: Path, address: str, version: Version, wheel: Path
) -> None:
    """Makes the wheel anew of the packed sources, as a system does that takes no wheels."""
    options = ("--no-deps", "--no-build-isolation", "--no-binary", NAME)
    again = folder / "again"
    pip(address, "wheel", *options, "--wheel-dir", again, f"{NAME}=={version}")
    (made,) = again.iterdir()
    checks.expect(
        (made.name, sha256(made)) == (wheel.name, sha256(wheel)),
        f"the sources of the index give the same wheel, sha256 {sha256(wheel)[:12]}...",
        f"{made.name} {sha256(made)}, not {wheel.name} {sha256(wheel)}",
    )


def install_by_name(checks: Checks, folder: Path, address: str, version: Version) -> dict[str, str]:
    """Installs the server into an empty environment; returns what that has, with versions."""
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    pip(address, "install", f"{NAME}[{EXTRA}]", python=environment)
    said = run(environment / "bin" / "python", "-c", INSTALLED)
    found, direct = json.loads(said)
    checks.expect(
        found.get(NAME) == str(version) and direct is None,
        f"`pip install '{NAME}[{EXTRA}]'` brings {len(found)} packages into an empty environment",
        said,
    )
    return found


def run_first_program(checks: Checks, folder: Path, about: Metadata) -> None:
    """Runs the first program of the description with what is installed, as it is written there."""
    first = PROGRAM.search(about.description or "")
    if first is None:
        raise Failed("README has no program, followed by how it is run and what it prints")
    here = folder / "program"
    here.mkdir()
    (here / first["file"]).write_text(first["text"], "utf-8")
    scripts = str(folder / "environment" / "bin")
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    said = run(
        *("sh", "-c", f"{first['command']} 2>errors || {{ cat errors; exit 1; }}"),
        cwd=here,
        variables={"PATH": path, "HOME": str(here)},
    )
    shown, printed = (SESSION.sub("session", text) for text in (first["shown"], said))
    checks.expect(
        shown == printed, f"`{first['command']}` prints what README shows", f"{said}\n{shown}"
    )


# What it is made of ------------------------------------------------------------------------


def write_sbom(
    checks: Checks, folder: Path, installed: dict[str, str], artifacts: list[Path]
) -> None:
    """Writes what an installation of the server consists of, in CycloneDX's format."""
    tool, file = Path(sys.executable).with_name("cyclonedx-py"), folder / "sbom.json"
    version = CYCLONEDX.to_version()
    options = ("--gather-license-texts", "--spec-version", version, "--output-file", file)
    run(tool, "environment", *options, folder / "environment")
    bom = json.loads(file.read_text("utf-8"))
    (own,) = (each for each in bom["components"] if each["name"] == NAME)
    # The tool knows of packages only, one of which this is about.
    bom["components"].remove(own)
    own.setdefault("externalReferences", []).extend(
        {
            "type": "distribution",
            "url": each.name,
            "hashes": [{"alg": "SHA-256", "content": sha256(each)}],
        }
        for each in artifacts
    )
    bom["metadata"]["component"] = own
    text = json.dumps(bom, indent=2) + "\n"
    sbom = DIST / f"{artifacts[0].name.removesuffix('.tar.gz')}.cdx.json"
    sbom.write_text(text, "utf-8")
    wrong = JsonStrictValidator(CYCLONEDX).validate_str(text)
    checks.expect(not wrong, f"{sbom.name} is CycloneDX {version}", str(wrong))
    check_sbom(checks, bom, installed)


def check_sbom(checks: Checks, bom: dict[str, Any], installed: dict[str, str]) -> None:
    """Looks whether it names all packages, with their licences, and why each of them is there."""
    own = bom["metadata"]["component"]
    components = {each["bom-ref"]: each for each in [own, *bom["components"]]}
    named = {each["name"]: each["version"] for each in components.values()}
    checks.expect(named == installed, f"it has all {len(named)} packages", f"{named} {installed}")
    bare = [name for name, each in components.items() if not each.get("licenses")]
    unplaced = [name for name, each in components.items() if not each.get("purl")]
    checks.expect(not bare and not unplaced, "each with licence and address", f"{bare} {unplaced}")
    needs = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    reached, open_ = set[str](), [own["bom-ref"]]
    while open_:
        ref = open_.pop()
        if ref not in reached:
            reached.add(ref)
            open_ += needs.get(ref, [])
    lone = sorted(components.keys() - reached)
    checks.expect(not lone, "each is needed by another one, or by Disco", ", ".join(lone))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
