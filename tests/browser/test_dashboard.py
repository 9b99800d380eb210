"""The dashboard in a real browser: what a person sees of a cluster that works."""

from __future__ import annotations

import itertools
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, browsing
from disco_bench.child import Child

import disco_client
from fault_tools.certificates import Pki

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="needs Chromium: `apt-get install chromium` on Debian"
)

NUMBERS = itertools.count(1)
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
            return page.run("document.querySelectorAll('#timeline path.call').length")

        eventually(drawn, what="the timeline")
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


@pytest.fixture
def shown(page, controller, eventually):
    """A session of four workers that has worked, open on the page; none before had its name."""
    name = f"shown-{next(NUMBERS)}"
    with disco_client.connect(controller.address, num_workers=4, name=name, logs=False) as session:
        work(session)
        eventually(lambda: name in page.text("#sessions"), what="the session")
        click(page, name)
        eventually(
            lambda: page.run("document.querySelectorAll('#timeline path').length"), what="it"
        )
        yield session


def test_every_picture_and_table_can_be_read_aloud(page, shown, eventually):
    """Charts have labels, columns have headers, what is pressed has a name."""
    click(page, "green")
    eventually(
        lambda: page.run("document.querySelectorAll('#node svg').length") >= 3, what="charts"
    )
    assert page.run("[...document.querySelectorAll('svg')].every(s => s.ariaLabel)")
    assert page.run("[...document.querySelectorAll('th')].every(h => h.scope == 'col')")
    assert page.run("[document.documentElement.lang, document.title].join()") == "en,Disco"
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "searchbox", "combobox", "checkbox", "spinbutton", "table"}
    silent = [
        node
        for node in tree
        if not node["ignored"]
        and node["role"]["value"] in roles
        and not node.get("name", {}).get("value")
    ]
    assert not silent


def test_nodes_show_what_their_machines_do(page, controller, eventually):
    """Figures and the last hour of each; a click shows it larger, another closes it."""
    eventually(lambda: page.text("#nodes").count("%") >= 4, 30, what="the first samples")
    eventually(lambda: page.run("document.querySelectorAll('#nodes .spark').length") >= 8, 30)
    label = page.run("document.querySelector('#nodes .figure svg').ariaLabel")
    assert re.match(r"processor: now \d+ %, at most \d+ %", label)
    assert re.search(r"processor\s+\d+ %", page.text("#totals"))
    click(page, "blue")
    eventually(lambda: "cores" in page.text("#node-facts"), what="its facts")
    eventually(lambda: page.text("#node-charts").count("at most") == 3, what="its charts")
    assert "GPU" not in page.text("#nodes-table")
    click(page, "blue")
    eventually(lambda: not page.text("#node"), what="that it closes")


def test_what_waits_and_what_ended_say_why(page, controller, eventually):
    """A session without slots, and one whose rank died."""
    with disco_client.connect(
        controller.address, num_workers=4, name="holds", logs=False
    ) as session:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(
                disco_client.connect, controller.address, num_workers=2, name="waits", timeout=60
            )
            eventually(lambda: "needs 2" in page.text("#waiting"), what="why it waits")
            assert "needs 2, 0 of 4 slots free" in page.text("#waiting")
            session.import_python_module("disco_test_functions")
            session.get_global_func("tests.kill_on")(0)
            with pytest.raises(disco_client.SessionError):
                session.sync_all()
            with waiting.result():
                eventually(lambda: "rank lost" in page.text("#over"), what="why it ended")
        assert "SIGKILL" in page.text("#over")
        eventually(lambda: not page.text("#queue"), what="that none waits")


def test_a_rank_shows_its_stack_on_a_click(page, shown, eventually):
    """By the keyboard too: the stack gets the focus, and can be had again."""
    page.run("document.querySelector('[aria-label=\"stack of rank 2\"]').focus()")
    page.press("Enter")
    eventually(lambda: 'File "' in page.text("#stack-text"), what="the stack")
    assert "Stack of rank 2 on" in page.text("#stack-title")
    assert page.run("document.activeElement.id") == "stack-title"
    click(page, "Again")
    eventually(lambda: 'File "' in page.text("#stack-text"), what="another look")


def test_the_timeline_is_coloured_paused_and_looked_into(page, shown, eventually):
    """By function, with a legend; zoomed by keys and by the pointer, and let go again."""
    legend = page.text("#legend")
    assert "runtime.disco.allreduce" in legend
    assert "waiting for other ranks" in legend
    assert page.run("document.querySelectorAll('#timeline path.call').length") >= 4
    assert "allreduce(sum)" in page.text("#operations")
    assert "iB/s" in page.text("#operations")
    page.run("document.querySelector('#timeline').focus()")
    page.press(" ")
    eventually(lambda: page.text("#pause") == "Go on", what="the pause")
    eventually(lambda: "pause" in page.text("#timeline"), what="what is kept")
    whole = page.text("#timeline")
    page.press("+")
    page.press("ArrowLeft")
    eventually(lambda: page.text("#timeline") != whole, what="another part of it")
    page.press("0")
    eventually(lambda: page.text("#timeline") == whole, what="all of it")
    box = page.run(
        "(t => { t.scrollIntoView(); const b = t.getBoundingClientRect();"
        " return [b.left, b.top + 10, b.width]; })(document.querySelector('#timeline'))"
    )
    for kind, part in (("mousePressed", 0.4), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
        at = {"x": box[0] + part * box[2], "y": box[1], "button": "left", "clickCount": 1}
        page.call("Input.dispatchMouseEvent", type=kind, **at)
    eventually(lambda: page.text("#timeline") != whole, what="what was chosen")
    page.press("0")
    eventually(lambda: page.text("#timeline") == whole, what="all of it once more")
    page.run("document.querySelector('.entry').click()")
    assert page.run("document.querySelector('.entry').ariaPressed") == "true"
    assert page.run("document.querySelectorAll('#timeline .faded').length")
    click(page, "Go on")
    eventually(lambda: "now" in page.text("#timeline"), what="the present")


def open_part(page, name):
    page.run(f"document.querySelector('#{name} > summary').click()")


@pytest.fixture
def captured(shown):
    """A program of that session: it adds and sums up, so often that it does not fit at once."""
    add, ones = shown.get_global_func("numpy.add"), shown.broadcast(np.ones((64, 64)))
    with shown.capture(f"layer {EVIL}") as program:
        x = program.input("x")
        for _ in range(30):
            total = add(x, ones)
            shown.allreduce(total, total)
            x = add(total, x)
        program.output(x)

    def run():
        program(ones)
        shown.sync_all()
        return True

    run()
    return run


def test_a_captured_program_is_a_graph_with_times(page, shown, captured, eventually):
    """Ranks are asked once that part is open; some of the steps are drawn, and who reads what."""
    assert not any("/programs?" in url for url in page.asked)
    open_part(page, "programs")
    eventually(lambda: EVIL in page.text("#programs-rows"), what="the program")
    assert "90" in page.text("#programs-rows")
    assert not page.text("#graph")
    click(page, f"layer {EVIL}")
    eventually(lambda: "1 to 40 of 90" in page.text("#graph-pages"), what="its steps")
    eventually(lambda: captured() and "for a run" in page.text("#graph-facts"), what="times")
    steps = "document.querySelectorAll('#graph-steps button')"
    assert page.run(f"{steps}.length") == 40
    eventually(lambda: "%" in page.run(f"{steps}[0].innerText"), what="its share")
    assert "numpy.add" in page.text("#graph-legend")
    colours = page.run(
        "[...document.querySelectorAll('#graph-legend button'), ..."
        f"{steps}].map(b => [b.dataset.name ?? b.querySelector('.what').innerText,"
        " b.querySelector('.key').className].join())"
    )
    assert len(set(colours)) == 2  # a function has one colour, also when another takes longer
    assert "reads #1, the session" not in page.run(f"{steps}[0].innerText")
    assert "reads input 1, the session" in page.run(f"{steps}[0].innerText")
    assert page.run("document.querySelectorAll('#graph-edges .edge').length") >= 40
    page.run(f"{steps}[1].focus()")
    page.press("Enter")
    what = page.text("#graph-what")
    assert "Step 2: runtime.disco.allreduce" in what
    assert "reads #1" in what
    assert "read by #3" in what
    assert page.run("document.querySelectorAll('#graph-edges .near').length") == 2
    eventually(lambda: page.run(f"document.activeElement === {steps}[1]"), what="the focus")
    page.run("document.querySelector('#graph-legend button').click()")
    assert page.run("document.querySelectorAll('#graph-steps .faded').length")
    page.run("document.querySelector('#graph-pages button:last-child').click()")
    eventually(lambda: "41 to 80 of 90" in page.text("#graph-pages"), what="the next ones")
    assert page.run("document.querySelectorAll('#graph-edges .outside').length")
    page.run("document.querySelector('#graph-close').click()")
    assert not page.text("#graph")
    open_part(page, "programs")
    assert not page.problems
    assert not page.run("document.querySelectorAll('img').length")


def test_a_published_tensor_is_drawn_with_its_layout(page, shown, eventually):
    """As a picture, which runs nothing, and in rows; until it is gone."""
    name = f"weights {EVIL}"
    shown.publish(name, shown.distribute(np.ones((8, 6), "float32"), placement="S[0]"))
    shown.sync_all()
    open_part(page, "tensors")
    eventually(lambda: EVIL in page.text("#tensors-rows"), what="the tensor")
    assert "(8, 6)" in page.text("#tensors-rows")
    click(page, name)
    eventually(lambda: "[6:8, 0:6]" in page.text("#layout-rows"), what="its parts")
    picture = "document.querySelector('#layout-picture img')"
    eventually(lambda: page.run(f"{picture}.naturalWidth") > 100, what="the picture")
    assert "S[0]" in page.run(f"{picture}.alt")
    shown.unpublish(name)
    eventually(lambda: "none is published" in page.text("#tensors-rows"), what="that it is gone")
    assert not page.text("#layout")
    assert not page.problems


@pytest.mark.parametrize(("width", "dark"), [(390, False), (800, False), (1400, True)])
def test_graph_and_layout_fit_too(page, shown, captured, width, dark, eventually):
    """Nothing is wider than the window, and all that can be pressed has a name."""
    shown.publish("w", shown.distribute(np.ones((8, 6), "float32"), placement="S[0]"))
    page.size(width, dark=dark)
    for part in ("programs", "tensors"):
        open_part(page, part)
    eventually(lambda: page.text("#programs-rows td button"), what="the program")
    page.run("document.querySelector('#programs-rows button').click()")
    eventually(lambda: page.text("#tensors-rows td button"), what="the tensor")
    page.run("document.querySelector('#tensors-rows button').click()")
    eventually(lambda: captured() and "%" in page.text("#graph-steps"), what="the graph")
    eventually(lambda: page.run("!!document.querySelector('#layout img')?.naturalWidth"))
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run(
        "[...document.querySelectorAll('#session button')].every(b => b.innerText || b.ariaLabel)"
    )
    shown.unpublish("w")
    if where := os.environ.get("DISCO_SCREENSHOT"):
        page.screenshot(Path(where) / f"graph-{width}{'-dark' * dark}.png")
    page.size(1280)


def test_output_is_searched_by_text_level_rank_and_time(page, shown, eventually):
    """At once, in what is there; new lines as they come."""
    say = shown.get_global_func("tests.say")
    for line in ("ERROR no memory", "WARNING slow", "INFO fine", "KeyError: 'x'"):
        say(line)
    shown.sync_all()
    eventually(lambda: page.text("#logs").count("no memory") == 4, what="the lines")

    def choose(field, value):
        page.run(
            f"(it => {{ it.value = {value!r}; it.dispatchEvent(new Event('input')); }})"
            f"(document.getElementById({field!r}))"
        )
        return page.text("#logs")

    errors = choose("logs-level", "error")
    assert (errors.count("no memory"), errors.count("KeyError"), errors.count("slow")) == (4, 4, 0)
    assert choose("logs-level", "warning").count("slow") == 4
    assert choose("rank", "1").count("slow") == 1
    assert choose("logs-find", "MEMORY").count("\n") == 0
    say("ERROR more memory")
    shown.sync_all()
    eventually(lambda: "more memory" in page.text("#logs"), what="a new one that fits")
    assert page.text("#logs-count") == "2 lines"
    assert "memory" in choose("logs-since", "60")
    choose("rank", "3")
    eventually(lambda: page.text("#logs").count("memory") == 2, what="those of another rank")
    assert choose("logs-level", "stderr") == ""
    for field in ("logs-find", "logs-level", "rank"):
        choose(field, "")
    choose("logs-since", "0")


def test_a_session_is_stopped_after_its_name_was_typed(page, controller, eventually):
    """Not by a click alone, and not under another name; Escape leaves it."""
    session = disco_client.connect(controller.address, num_workers=1, name="doomed", logs=False)
    eventually(lambda: "doomed" in page.text("#sessions"), what="the session")
    click(page, "doomed")
    eventually(lambda: page.text("#stop"), what="the button")
    click(page, "Stop …")
    assert "Stop session doomed?" in page.text("#sure")
    assert page.run("document.querySelector('#sure-yes').disabled")
    page.press("Escape")
    assert not page.text("#sure")
    click(page, "Stop …")
    for letter in "doome":
        page.press(letter)
    page.press("Enter")
    assert page.run("document.querySelector('#sure-yes').disabled")
    session.sync_all()
    page.press("d")
    page.press("Enter")
    eventually(lambda: "stopped" in page.text("#over"), what="its end")
    assert not page.text("#sure")
    with pytest.raises(disco_client.SessionError, match="closed on request"):
        session.sync_all()


def test_a_node_is_drained_and_taken_back(page, controller, eventually):
    """After its name was typed; what runs goes on, and nothing new begins there."""
    eventually(lambda: "blue" in page.text("#nodes"), what="the node")
    click(page, "blue")

    def confirm(button):
        eventually(lambda: page.text("#drain") == button, what="the button")
        click(page, button)
        for letter in "blue":
            page.press(letter)
        page.press("Enter")

    confirm("Drain …")
    eventually(lambda: "drained: on request" in page.text("#node-facts"), what="that it drains")
    assert "draining" in page.text("#nodes")
    confirm("Take back …")
    eventually(lambda: "draining" not in page.text("#nodes"), what="that it is back")


def test_trace_and_output_are_saved_as_files(page, shown, eventually, tmp_path):
    """Under the session's name."""
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    click(page, "Download trace")
    name = page.text("#session-title").removeprefix("Session ")
    trace = tmp_path / f"{name}.trace.json"
    eventually(trace.exists, what="the trace")
    eventually(lambda: json.loads(trace.read_text())["traceEvents"], what="all of it")
    click(page, "Download logs")
    eventually((tmp_path / f"{name}.log").exists, what="the output")
    eventually(lambda: f"was saved as {name}.log" in page.text("#said"), what="that it says so")
    assert "loss 0.25" in (tmp_path / f"{name}.log").read_text()


@pytest.mark.parametrize(
    ("width", "dark"), [(390, False), (800, False), (1400, False), (1400, True)]
)
def test_it_fits_a_telephone_a_tablet_and_a_desk(page, shown, width, dark, eventually):
    """Nothing is wider than the window; dark where that is wanted; text can be told from ground."""
    page.size(width, dark=dark)
    eventually(lambda: page.run("document.querySelector('#timeline svg').clientWidth") <= width)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    luminance = (
        "(c => (([r, g, b]) => .2126 * r + .7152 * g + .0722 * b)(c.match(/\\d+/g).map(Number)))"
    )
    style = "getComputedStyle(document.body)"
    text, ground = (page.run(f"{luminance}({style}.{it})") for it in ("color", "backgroundColor"))
    assert (text > ground) is dark
    assert abs(text - ground) > 150
    if where := os.environ.get("DISCO_SCREENSHOT"):
        page.screenshot(Path(where) / f"dashboard-{width}{'-dark' * dark}.png")
    page.size(1280)


def test_with_a_thousand_nodes_and_sessions_the_page_stays_small(window, daemons, eventually):
    """So many elements and no more; what is looked for among them is found."""
    started = daemons.controller("--http", "127.0.0.1:0", "--node-lease", "120")
    peers = Child(["-m", "disco_scale.peers", started.address])
    try:
        for command in ("nodes 1000 2", "clients 1000 1", "queue 20 2000", "sample"):
            assert "error" not in peers.ask(command, 120)
        window.problems.clear()
        window.open(url_of(started))
        eventually(lambda: "1000" in window.text("#totals"), 60, what="all nodes")
        eventually(lambda: "1 to 25 of 1000" in window.text("#sessions-pages"), 60, what="sessions")
        eventually(lambda: window.run("document.querySelectorAll('.spark').length") > 100, 60)
        most = window.run("document.querySelectorAll('*').length")
        assert most < 2500
        assert "needs 2000, 1000 of 2000 slots free" in window.text("#waiting")
        click(window, "Next")
        eventually(lambda: "26 to 50 of 1000" in window.text("#nodes-pages"), what="the next page")
        window.run(
            "(it => { it.value = 'node-777'; it.dispatchEvent(new Event('input')); })"
            "(document.querySelector('#nodes-find'))"
        )
        eventually(lambda: window.text("#nodes").startswith("node-777"), what="the one")
        assert window.run("document.querySelectorAll('#nodes tr').length") == 1
        assert window.run("document.querySelectorAll('*').length") <= most
        assert not window.problems
    finally:
        window.open("about:blank")
        peers.close()


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
