"""The service of the language model as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
if str(EXAMPLES) not in sys.path:  # as Python does with the folder of a script
    sys.path.insert(0, str(EXAMPLES))

ALLOWED = ("--allow-load", "uploads", "--allow-read", "*")
"""What worker daemons have to permit."""


class Server:
    """``examples/serve.py``; its output goes to files.

    Args:
        folder: For these files.
        eventually: Waits until something is true.
        address: The controller's.
        options: Of the program.
        within: What stands before its command.
        environ: Added to its environment.

    Attributes:
        process: The child.
        url: Where it listens.
    """

    def __init__(
        self,
        folder: Path,
        eventually: Callable[..., object],
        address: str,
        *options: object,
        within: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._out, self._err, self._eventually = folder / "out", folder / "err", eventually
        program = [sys.executable, EXAMPLES / "serve.py", "--address", address, "--port", 0]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*within, *map(str, program), *map(str, options)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(environ or {})},
            )
        self.url = str(eventually(self._listening, 30, lambda: self.stderr))

    def _listening(self) -> str:
        found = re.search(r"listening at (\S+)", self.stderr)
        return found[1] if found else ""

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def await_ready(self) -> Server:
        """Waits for the line that is promised."""
        self._eventually(lambda: self.stdout, 50, lambda: self.stderr)
        return self

    def get(self, path: str) -> str:
        """What a path answers, whatever its status."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as response:
                return response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    def metric(self, name: str) -> float:
        """One of its measurements; 0 for one whose label has not occurred."""
        found = re.search(
            rf"^disco_llm_{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE
        )
        assert found or "{" in name, name
        return float(found[1]) if found else 0.0

    def end(self) -> int:
        """Ends it in order, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)
