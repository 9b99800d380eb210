"""The site of the pages: built without a warning, it needs no network; what is broken fails."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import expect

from chromium import CHROMIUM, Noticed, browsing

ROOT = Path(__file__).parents[2]
FETCHED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "script": "src",
    "source": "src",
}
"""What a browser fetches by itself, and the attribute that says from where."""


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds a site as `make docs` does; `--quiet` would have warnings counted as none."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "--config-file", config, "--site-dir", site],
        cwd=config.parent,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


class FetchedParts(HTMLParser):
    """Collects the addresses that a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        address = dict(attrs).get(FETCHED.get(tag, ""))
        if address:
            self.addresses.append(address)


pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def checkout(tmp_path):
    """A copy of all from which the site is made, to be broken."""
    for name in ("docs", "disco_client"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for path in ROOT.iterdir():
        if not (tmp_path / path.name).exists() and path.name not in (".git", "build"):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_the_site_has_a_page_for_each_of_the_repository(site):
    """Those in docs/, and those that stand elsewhere."""
    for page in (ROOT / "docs").rglob("*.md"):
        name = "index.html" if page.stem == "README" else f"{page.stem}.html"
        assert (site / page.relative_to(ROOT / "docs").with_name(name)).is_file()
    for name in ("benchmarks", "changelog", "contributing", "examples", "security"):
        assert (site / "repository" / f"{name}.html").is_file()


def test_every_public_name_is_in_the_reference(site):
    """With its example."""
    text = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    assert 'id="disco_client.connect"' in text
    assert 'id="disco_client.Session.allreduce"' in text
    assert text.count("&gt;&gt;&gt;") > 100


def test_no_page_fetches_anything_from_elsewhere(site):
    """Neither fonts nor scripts nor pictures; links that people follow may lead anywhere."""
    seen = 0
    for page in site.rglob("*.html"):
        found = FetchedParts()
        found.feed(page.read_text("utf-8"))
        seen += len(found.addresses)
        assert not [each for each in found.addresses if re.match(r"(https?:)?//", each)], page
    assert seen > 100
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text("utf-8")), sheet


def test_every_picture_of_the_site_is_of_the_project(site):
    """Drawn by docs/pictures/make.py, or taken of the dashboard."""
    own = {each.name for each in (ROOT / "docs" / "pictures").iterdir()}
    for page in site.rglob("*.html"):
        found = FetchedParts()
        found.feed(page.read_text("utf-8"))
        for address in found.addresses:
            name = address.rpartition("/")[2]
            if name.endswith((".png", ".svg", ".jpg")) and "assets/" not in address:
                assert name in own, page


def test_what_is_broken_fails(checkout):
    """Links to a page, to a part of one and to a file, and a public name without a docstring."""
    page = checkout / "docs" / "modules.md"
    links = ("no-such-page.md", "cli.md#no-such-command", "../disco_client/no_such_file.py")
    page.write_text("".join([page.read_text("utf-8"), *(f"[gone]({link})\n" for link in links)]))
    file = checkout / "disco_client" / "wire" / "values.py"
    text = file.read_text("utf-8")
    changed = re.sub(r'(def rocm\([^\n]*\n) +""".*?"""\n', r"\1", text, flags=re.DOTALL)
    assert changed != text
    file.write_text(changed, "utf-8")

    done = build(checkout / "mkdocs.yml", checkout / "site")

    assert done.returncode != 0
    for said in (*links, "disco_client.rocm is public and wants a docstring"):
        assert said in done.stdout + done.stderr


@pytest.fixture
def served(site):
    """The site at an address of this machine."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: `apt-get install chromium` on Debian")
def test_a_browser_shows_the_site_at_any_width_and_finds_words(served):
    """Nothing is wider than a telephone, nothing is asked of others, and the search answers."""
    pages = ("index", "tasks/waiting", "coming-from-ray", "settings", "reference/errors")
    with browsing() as chromium, chromium.new_page() as window:
        noticed = Noticed(window)
        for width in (390, 1400):
            window.set_viewport_size({"width": width, "height": 900})
            for page in pages:
                window.goto(f"{served}{page}.html")
                wide = window.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, page
        window.locator("[data-md-component=search-query]").focus()
        window.keyboard.type("allreduce")  # the search listens to keys, not to what they change
        found = window.locator(".md-search-result__link").first
        expect(found).to_have_attribute("href", re.compile("."))
        assert not noticed.problems
        assert noticed.asked
        assert all(url.startswith((served, "about:", "data:")) for url in noticed.asked)
