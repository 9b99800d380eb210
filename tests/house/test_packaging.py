"""What a release says of itself on a package index."""

from __future__ import annotations

import email
import email.message
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
URL = "https://git.example.org/disco"
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def build(tmp_path: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Lets the builder write the metadata of a wheel."""
    program = f"""
import hatchling.build
print(hatchling.build.prepare_metadata_for_build_wheel({str(tmp_path)!r}))"""
    environment = {**os.environ, "DISCO_PROJECT_URL": url}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def metadata(tmp_path: Path, url: str) -> email.message.Message:
    done = build(tmp_path, url)
    assert done.returncode == 0, done.stderr
    return email.message_from_string(
        (tmp_path / done.stdout.strip() / "METADATA").read_text(encoding="utf-8")
    )


def headings(page: Path) -> set[str]:
    """The names by which links lead to the headings of a page."""
    found = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found}


def test_a_release_names_its_places_and_authors(tmp_path):
    """Homepage, documentation, changelog and issues are below the address that was given."""
    found = metadata(tmp_path, URL + "/")
    places = dict(each.split(", ") for each in found.get_all("Project-URL"))
    assert places["Homepage"] == URL
    assert places["Documentation"] == f"{URL}/tree/v{found['Version']}/docs"
    assert places["Changelog"] == f"{URL}/blob/v{found['Version']}/CHANGELOG.md"
    assert places["Issues"] == f"{URL}/issues"
    assert found["Author"] == "The Disco authors"
    newest = "Programming Language :: Python :: 3.14"
    assert newest in found.get_all("Classifier")


def test_links_and_pictures_of_the_description_have_addresses(tmp_path):
    """Every one leads to a file that the tree has, and a picture to its bytes."""
    found = metadata(tmp_path, URL)
    text = found.get_payload()
    links = [(picture, target) for picture, target in LINK.findall(text) if URL in target]
    assert len(links) > 20
    assert any(picture for picture, _ in links)
    for picture, target in links:
        kind, tag, path = target.removeprefix(URL + "/").split("/", 2)
        assert kind == ("raw" if picture else "blob")
        assert tag == f"v{found['Version']}"
        file, _, heading = path.partition("#")
        assert (ROOT / file).exists(), path
        assert not heading or heading in headings(ROOT / file), path
    assert all(target.startswith("https://") for _, target in LINK.findall(text))


def test_without_an_address_there_are_no_dead_links(tmp_path):
    """A wheel that was made in a checkout makes up no place where the project would be."""
    found = metadata(tmp_path, "")
    assert found.get_all("Project-URL") is None
    text = found.get_payload()
    assert all(target.startswith("https://") for _, target in LINK.findall(text))
    assert "`docs/gpu.md`" in text


@pytest.mark.parametrize("url", ["git.example.org/disco", "file:///disco"])
def test_an_address_that_is_none_ends_the_build(tmp_path, url):
    """It says which variable, what was expected and what came."""
    done = build(tmp_path, url)
    assert done.returncode != 0
    assert f"DISCO_PROJECT_URL: expected an address such as https://HOST/PATH, got '{url}'" in (
        done.stderr
    )


def test_the_server_asks_for_nothing_that_it_does_not_import(tmp_path):
    """Safetensors files are read and written by Disco itself."""
    found = metadata(tmp_path, "")
    wanted = [each for each in found.get_all("Requires-Dist") if "extra == 'server'" in each]
    assert wanted
    assert not [each for each in wanted if each.startswith("safetensors")]
    cli = [each for each in found.get_all("Requires-Dist") if "extra == 'cli'" in each]
    assert sorted(each.split(">")[0] for each in cli) == ["click", "rich"]
