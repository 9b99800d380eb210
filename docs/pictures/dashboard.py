"""Takes the pictures of docs/dashboard.md: a cluster of this machine that works, in Chromium.

For ``make dashboard-pictures``; takes some minutes, so that the charts are full. Arguments are
the beginning of the pictures' names, ``dashboard``, and their format, ``webp``.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path

import numpy as np
from playwright.sync_api import Page

import disco_client
from disco_client.errors import DiscoError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))

from chromium import CHROMIUM, browsing  # noqa: E402  (from the folder named above)

SECONDS = 150
QUALITY = 60
VIEWS = ((390, False), (800, False), (1400, False), (1400, True))
PROGRAM = """
import time

import disco_server
import numpy as np

@disco_server.register_func("load_batch")
def load_batch(step):
    time.sleep(0.01 + 0.01 * (disco_server.current_worker().worker_id == 2))
    return np.ones((384, 384), "float32")

@disco_server.register_func("forward")
def forward(batch, weights):
    return batch @ weights

@disco_server.register_func("backward")
def backward(batch, weights):
    return (batch @ weights) @ weights

@disco_server.register_func("report")
def report(step, loss):
    print(f"INFO step {step:4d}  loss {loss:.4f}")
    if step % 20 == 0:
        print(f"WARNING step {step}: the learning rate was halved")

@disco_server.register_func("fail")
def fail():
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextlib.contextmanager
def program(address: str, workers: int, name: str) -> Generator[disco_client.Session]:
    """A session whose workers have the functions above."""
    with (
        disco_client.connect(address, num_workers=workers, name=name, logs=False) as session,
        tempfile.NamedTemporaryFile("w", suffix=".py") as file,
    ):
        file.write(PROGRAM)
        file.flush()
        session.load_vm_module(file.name)
        session.sync_all()
        yield session


def train(address: str, over: threading.Event) -> None:
    """Something to look at: products, sums over all workers, a line now and then."""
    with program(address, 4, "training") as session:
        names = ("load_batch", "forward", "backward", "report")
        load, forward, backward, report = map(session.get_global_func, names)
        weights = session.broadcast(np.ones((384, 384), "float32"))
        total = session.empty((384, 384), "float32")
        for step in range(100_000):
            if over.is_set():
                return
            batch = load(step)
            forward(batch, weights)
            for _ in range(3):
                session.allreduce(backward(batch, weights), total)
            session.allgather(batch, session.empty((4, 384, 384), "float32"))
            if step % 5 == 0:
                report(step, 2.5 / (1 + step / 40))
            session.sync_all()
            time.sleep(0.05)  # so that the timeline has gaps, as programs have


def fail(address: str) -> None:
    """A session that loses its ranks."""
    with contextlib.suppress(DiscoError), program(address, 1, "tokenizer") as session:
        session.get_global_func("fail")()
        session.sync_all()


def evaluate(address: str) -> None:
    """One that ends as it was meant to."""
    with program(address, 2, "evaluation") as session:
        session.sync_all()


def wait(address: str) -> None:
    """One that waits for slots, until the cluster ends."""
    with contextlib.suppress(DiscoError):
        disco_client.connect(address, num_workers=4, name="sweep-17", timeout=600, logs=False)


def said(lines: Iterable[str] | None, pattern: str) -> str:
    """What a program's lines say, once they do."""
    found = (re.search(pattern, line) for line in lines or ())
    return next(each[1] for each in found if each)


def show(page: Page, url: str) -> None:
    """Opens the session that trains, and a node."""
    page.goto(url)
    for name in ("training", "node-0"):
        page.get_by_role("button", name=name, exact=True).click()


def take(page: Page, path: Path, width: int, *, dark: bool) -> None:
    """Takes a picture of the whole page, once its timeline was drawn for that width."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if dark else "light")
    drawn = "[...document.querySelectorAll('#timeline svg')].some(s => s.clientWidth == "
    page.wait_for_function(f"{drawn} s.parentElement.clientWidth)")
    quality = QUALITY if path.suffix == ".webp" else None
    page.screenshot(path=path, full_page=True, quality=quality)


def main(prefix: str = "dashboard", kind: str = "webp", where: str | Path = HERE) -> None:
    """Starts a cluster, lets it work, and takes the pictures."""
    command = [
        *(sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots", "3"),
        *("--http", "127.0.0.1:0", "--log-level", "info"),
    ]
    if not CHROMIUM:
        sys.exit("needs Chromium: `apt-get install chromium` on Debian")
    over = threading.Event()
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        url = said(it.stderr, r"the dashboard at (\S+/)")
        reading = threading.Thread(target=lambda: list(it.stderr or ()))
        reading.start()
        address = said(it.stdout, r"DISCO_ADDRESS=(\S+)")
        evaluate(address)
        fail(address)
        working = threading.Thread(target=train, args=(address, over))
        working.start()
        waiting = threading.Thread(target=wait, args=(address,), daemon=True)
        try:
            with browsing() as browser, browser.new_page() as page:
                show(page, url)
                waiting.start()
                page.wait_for_timeout(SECONDS * 1000)
                for width, dark in VIEWS:
                    name = f"{prefix}-{width}{'-dark' * dark}.{kind}"
                    take(page, Path(where) / name, width, dark=dark)
        finally:
            over.set()
            working.join()
            it.terminate()
            reading.join()


if __name__ == "__main__":
    main(*sys.argv[1:3])
