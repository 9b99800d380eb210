"""Takes the picture of docs/dashboard.md: a cluster of this machine that works, in Chromium.

Run as ``python docs/pictures/dashboard.py``; takes a minute, so that the charts are full.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import disco_client

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))

from browser import browsing  # noqa: E402  (from the folder named above)

SECONDS = 50
PROGRAM = """
import disco_server

@disco_server.register_func("report")
def report(step, loss):
    print(f"step {step:4d}  loss {loss:.4f}")
"""


def train(address: str, over: threading.Event) -> None:
    """Something to look at: products, sums over all workers, a line now and then."""
    with disco_client.connect(address, num_workers=4, name="training", logs=False) as session:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(PROGRAM)
            file.flush()
            session.load_vm_module(file.name)
            session.sync_all()
        report, product = session.get_global_func("report"), session.get_global_func("numpy.matmul")
        weights = session.broadcast(np.ones((384, 384), "float32"))
        total = session.empty((384, 384), "float32")
        for step in range(100_000):
            if over.is_set():
                return
            for _ in range(6):
                session.allreduce(product(weights, weights), total)
            if step % 5 == 0:
                report(step, 2.5 / (1 + step / 40))
            session.sync_all()
            time.sleep(0.08)  # so that the timeline has gaps, as programs have


def said(lines: Iterable[str] | None, pattern: str) -> str:
    """What a program's lines say, once they do."""
    found = (re.search(pattern, line) for line in lines or ())
    return next(each[1] for each in found if each)


def main() -> None:
    """Starts a cluster, lets it work, and takes the picture."""
    command = [
        *(sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots", "3"),
        *("--http", "127.0.0.1:0", "--log-level", "info"),
    ]
    over = threading.Event()
    with (
        tempfile.TemporaryDirectory() as profile,
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it,
    ):
        url = said(it.stderr, r"the dashboard at (\S+/)")
        reading = threading.Thread(target=lambda: list(it.stderr or ()))
        reading.start()
        address = said(it.stdout, r"DISCO_ADDRESS=(\S+)")
        working = threading.Thread(target=train, args=(address, over))
        working.start()
        try:
            with browsing(Path(profile)) as page:
                page.open(url)
                while not page.run("document.querySelector('button[data-session]')?.innerText"):
                    time.sleep(0.2)
                page.run("document.querySelector('button[data-session]').click()")
                time.sleep(SECONDS)
                page.screenshot(HERE / "dashboard.png")
        finally:
            over.set()
            working.join()
            it.terminate()
            reading.join()


if __name__ == "__main__":
    main()
