"""A real headless Chromium, spoken to over its DevTools protocol.

The protocol: https://chromedevtools.github.io/devtools-protocol/. The server's own
HTTP library speaks it, so no driver has to be installed besides the browser.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

__all__ = ["CHROMIUM", "Browser", "browsing"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_START_S = 60.0
_ANSWER_S = 30.0


class Browser:
    """One window; to be used from one thread.

    Attributes:
        problems: What its console said that is worse than a remark.
        asked: The URLs of everything that it asked for.
    """

    def __init__(self, port: int) -> None:
        self.problems: list[str] = []
        self.asked: list[str] = []
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._connect(port))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_S)

    async def _connect(self, port: int) -> None:
        self._http = aiohttp.ClientSession()
        async with self._http.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [each for each in await answer.json() if each["type"] == "page"]
        where = pages[0]["webSocketDebuggerUrl"]
        self._socket = await self._http.ws_connect(where, max_msg_size=0)
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])

    def _note(self, what: str, told: dict[str, Any]) -> None:
        if what == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"]))
        elif what == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])

    async def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = self._loop.create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await answer

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol."""
        said = self._do(self._ask(method, parameters))
        assert "error" not in said, said
        return said["result"]

    def open(self, url: str) -> None:
        """Goes to a page."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript on the page."""
        said = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """What a person reads of a part of the page; empty where it is hidden."""
        found = f"document.querySelector({selector!r})"
        return self.run(f"(it => it?.checkVisibility() ? it.innerText : '')({found})")

    def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Makes the window that wide, and asks for dark colours or light ones."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=False, **sizes)
        self.call("Emulation.setScrollbarsHidden", hidden=True)  # pictures are without them
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Presses and releases a key, by its name in the standard of events."""
        for kind in ("keyDown", "keyUp"):
            text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
            told = {"text": text} if text and kind == "keyDown" else {}
            code = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}.get(key, 0)
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **told
            )

    def screenshot(self, path: Path) -> None:
        """Writes the whole page as a picture, of the format that the path ends with."""
        kind = path.suffix.removeprefix(".")
        how = {"quality": 60} if kind == "webp" else {}
        said = self.call("Page.captureScreenshot", format=kind, captureBeyondViewport=True, **how)
        path.write_bytes(base64.b64decode(said["data"]))

    def close(self) -> None:
        """Lets go of it."""

        async def end() -> None:
            await self._socket.close()
            await self._http.close()
            self._reading.cancel()

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def browsing(profile: Path, *flags: str) -> Iterator[Browser]:
    """Starts Chromium with an empty profile, and ends it."""
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--remote-debugging-port=0", "--window-size=1280,1100", f"--user-data-dir={profile}"),
        *("--no-first-run", "--disable-background-networking", *flags, "about:blank"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        giving_up = threading.Timer(_START_S, process.kill)
        giving_up.start()
        try:
            told = (re.search(r"ws://[^:]+:(\d+)/", line) for line in process.stderr or ())
            port = next((found[1] for found in told if found), None)
            giving_up.cancel()
            assert port, "Chromium did not start"
            # What it says later must be read, or it stops.
            threading.Thread(target=lambda: list(process.stderr or ()), daemon=True).start()
            browser = Browser(int(port))
            yield browser
            browser.close()
        finally:
            giving_up.cancel()
            process.terminate()
            process.wait(20)
