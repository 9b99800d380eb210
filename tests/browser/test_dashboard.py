"""The dashboard in a real browser: what a person sees of a cluster that works."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, browsing

import disco_client
from fault_tools.certificates import Pki

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="needs Chromium: `apt-get install chromium` on Debian"
)

EVIL = "<img src=x onerror=alert(1)>"


def url_of(daemon):
    return re.search(r"the dashboard at (\S+/)", daemon.stderr).group(1)


@pytest.fixture(scope="module")
def controller(shared_daemons):
    """A controller with a dashboard, and two nodes of two slots."""
    started = shared_daemons.controller("--http", "127.0.0.1:0")
    for name in ("green", "blue"):
        shared_daemons.worker(started.address, "--slots", "2", "--name", name)
    return started


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("profile"), "--ignore-certificate-errors") as browser:
        yield browser


@pytest.fixture
def page(window, controller):
    """The dashboard of that controller, in a state as if nobody had looked before."""
    window.problems.clear()
    window.asked.clear()
    window.open("about:blank")
    window.open(url_of(controller))
    yield window
    window.open("about:blank")
    assert "Traceback" not in controller.stderr


def work(session):
    """Something to see: output, collectives, memory."""
    session.import_python_module("disco_test_functions")
    ones = session.broadcast(np.ones((256, 256), "float32"))
    total = session.empty((256, 256), "float32")
    for _ in range(20):
        session.allreduce(ones, total)
    session.get_global_func("tests.say")(f"loss 0.25 {EVIL}")
    session.sync_all()


def click(page, name):
    page.run(f"[...document.querySelectorAll('button')].find(b => b.innerText == {name!r}).click()")


def test_nodes_and_sessions_appear_as_they_come(page, controller, eventually):
    """Without a reload; what is gone disappears."""
    eventually(lambda: "green" in page.text("#nodes"), what="the nodes")
    eventually(lambda: "no session" in page.text("#sessions"), what="no session yet")
    with disco_client.connect(controller.address, num_workers=3, name=EVIL, logs=False):
        eventually(lambda: EVIL in page.text("#sessions"), what="the session")
        assert "3 of 4" in page.text("#totals")
        assert page.run("document.querySelectorAll('.slot.used').length") == 3
    eventually(lambda: "no session" in page.text("#sessions"), what="its end")
    assert not page.run("document.querySelectorAll('img').length")


def test_a_session_is_shown_with_its_ranks_timeline_and_output(page, controller, eventually):
    """Live; markup in what others wrote is shown as text."""
    with disco_client.connect(
        controller.address, num_workers=4, name="training", logs=False
    ) as session:
        work(session)
        eventually(lambda: "training" in page.text("#sessions"), what="the session")
        click(page, "training")
        eventually(lambda: page.text("#ranks").count("MiB") >= 4, what="the ranks")
        eventually(lambda: page.text("#logs").count(EVIL) == 4, what="their output")
        session.get_global_func("tests.say")("a line that came later")
        session.sync_all()
        eventually(lambda: "a line that came later" in page.text("#logs"), what="new output")

        def drawn():
            work(session)
            return page.run("document.querySelectorAll('#timeline rect.busy').length")

        eventually(drawn, what="the timeline")
        if where := os.environ.get("DISCO_SCREENSHOT"):
            page.screenshot(Path(where))
    assert not page.problems
    assert all(url.startswith((url_of(controller), "about:", "data:")) for url in page.asked)


@pytest.mark.slow
def test_a_session_that_stands_still_says_why(page, controller, eventually):
    """After ten seconds in one command, in the words of diagnose()."""
    with disco_client.connect(
        controller.address, num_workers=2, name="stuck", logs=False
    ) as session:
        session.import_python_module("disco_test_functions")
        eventually(lambda: "stuck" in page.text("#sessions"), what="the session")
        click(page, "stuck")
        session.get_global_func("tests.sleep")(20.0)  # a look comes every few seconds
        eventually(lambda: "tests.sleep" in page.text("#verdict"), 30, what="the verdict")
        session.sync_all()
        eventually(lambda: not page.text("#verdict"), what="the end of it")


def test_every_picture_and_table_can_be_read_aloud(page, controller, eventually):
    """Charts have labels, columns have headers, the page has a language and a title."""
    with disco_client.connect(
        controller.address, num_workers=2, name="spoken", logs=False
    ) as session:
        work(session)
        eventually(lambda: "spoken" in page.text("#sessions"), what="the session")
        click(page, "spoken")
        eventually(lambda: page.run("document.querySelectorAll('#timeline svg').length"), what="it")
        assert page.run("[...document.querySelectorAll('svg')].every(s => s.ariaLabel)")
        assert page.run("[...document.querySelectorAll('th')].every(h => h.scope == 'col')")
        assert page.run("[document.documentElement.lang, document.title].join()") == "en,Disco"


def test_with_tokens_the_page_asks_for_one_and_shows_what_it_may(
    window, shared_daemons, tmp_path, eventually
):
    """Over TLS: a wrong token is refused in words, an observer sees lists alone."""
    pki = Pki.make(tmp_path / "pki")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"client alice {'a' * 32}\nobserver eye {'e' * 32}\nworker pool {'w' * 32}\n")
    tokens.chmod(0o600)
    mine = tmp_path / "pool"
    mine.write_text("w" * 32)
    mine.chmod(0o600)
    started = shared_daemons.controller(
        *pki.flags("controller"), "--auth-token-file", tokens, "--http", "127.0.0.1:0"
    )
    shared_daemons.worker(
        started.address,
        *("--slots", "1", "--tls-ca", pki.ca, "--auth-token-file", mine),
    )

    def show(token):
        window.run(f"document.querySelector('#token').value = {token!r}")
        click(window, "Show the cluster")

    window.open(url_of(started))
    eventually(lambda: "asks for a token" in window.text("#login"), what="the question")
    show("x" * 32)
    eventually(lambda: "does not know the token" in window.text("#refused"), what="a refusal")
    assert not window.text("#cluster")
    how = {"tls_ca": pki.ca, "token": "a" * 32, "logs": False, "timeout": 30}
    with disco_client.connect(started.address, num_workers=1, name="hers", **how):
        show("e" * 32)
        eventually(lambda: "hers" in window.text("#sessions"), what="the list")
        assert window.run("document.querySelector('button[data-session]').disabled")
        window.run("sessionStorage.clear()")
        window.open("about:blank")
        window.open(url_of(started))
        eventually(lambda: "asks for a token" in window.text("#login"), what="the question")
        show("a" * 32)
        eventually(lambda: "hers" in window.text("#sessions"), what="her list")
        click(window, "hers")
        eventually(lambda: "MiB" in window.text("#ranks"), what="her ranks")


def test_the_page_comes_back_when_the_controller_does(page, controller, daemons, eventually):
    """It says that nobody is there, and goes on by itself."""
    started = daemons.controller("--http", "127.0.0.1:0")
    listen, http = started.address, url_of(started).split("/")[2]
    page.open(url_of(started))
    eventually(lambda: "live" in page.text("#state"), what="the page")
    started.process.kill()
    started.wait()
    eventually(lambda: "not connected" in page.text("#state"), what="the loss")
    daemons.controller("--listen", listen, "--http", http)
    eventually(lambda: "live" in page.text("#state"), what="its return")
