"""A headless Chromium of this machine, driven by playwright, for tests and for pictures.

The browser is the system's, such as Debian's; playwright downloads none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

__all__ = ["CHROMIUM", "WAIT_S", "Noticed", "browsing"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
WAIT_S = 20
"""How long ``expect()`` waits, unless it is told otherwise."""


class Noticed:
    """What a page said and asked for since this was made.

    Attributes:
        problems: What its console said that is worse than a remark.
        asked: The URLs of everything that it asked for.
    """

    def __init__(self, page: Page) -> None:
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)


@contextlib.contextmanager
def browsing() -> Generator[Browser]:
    """Starts Chromium with an empty profile, and ends it.

    It runs without its sandbox, which neither root nor a container may have; the pages are ours.
    It leaves folders where temporary files go, so it gets such a place of its own.
    """
    expect.set_options(timeout=WAIT_S * 1000)
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=False, env={**os.environ, "TMPDIR": folder}
        ) as browser,
    ):
        yield browser
