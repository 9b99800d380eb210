"""What a release's page on a package index shows: where the project lives, and its README.

An index shows the README far from the files beside it, so that what it links to must have
an address of its own. The address of the project is given when a release is built::

    DISCO_PROJECT_URL=https://git.example.org/disco pip wheel --no-deps -w dist .

Links then lead to the files of the release's tag, ``v`` and the version. Without it nothing
is made up: there are no addresses, what was a link is the name of a file, and what was a
picture is left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

_URL = "DISCO_PROJECT_URL"
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")
_PAGES = {
    "Homepage": "",
    "Documentation": "/tree/{tag}/docs",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Issues": "/issues",
}


class PackageMetadata(MetadataHookInterface):
    """Sets the project's addresses and its description."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets ``urls`` and ``readme``.

        Raises:
            ValueError: Where the address of the project is not one of http or https.
        """
        url = os.environ.get(_URL, "").rstrip("/")
        if url and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).netloc):
            raise ValueError(f"{_URL}: expected an address such as https://HOST/PATH, got {url!r}")
        tag = f"v{metadata['version']}"
        pages = _PAGES if url else {}
        metadata["urls"] = {name: url + path.format(tag=tag) for name, path in pages.items()}
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _LINK.sub(lambda link: _absolute(link, url, tag), text),
        }


def _absolute(link: re.Match[str], url: str, tag: str) -> str:
    picture, text, path = link["picture"], link["text"], link["path"]
    if not url:
        return "" if picture else f"`{path}`" if text == path else f"{text} (`{path}`)"
    view = "raw" if picture else "tree" if path.endswith("/") else "blob"
    return f"{picture}[{text}]({url}/{view}/{tag}/{path})"
