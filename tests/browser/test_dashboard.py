"""The dashboard in a real browser: what a person sees of a cluster that works."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from disco_bench.child import Child
from playwright.sync_api import expect

import disco_client
from chromium import CHROMIUM, WAIT_S, Noticed, browsing
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
def chromium():
    with browsing() as browser:
        yield browser


@pytest.fixture
def window(chromium):
    """An empty page of somebody who has not looked before."""
    with chromium.new_context(ignore_https_errors=True) as context:
        yield context.new_page()


@pytest.fixture
def noticed(window):
    return Noticed(window)


@pytest.fixture
def page(window, noticed, controller):
    """The dashboard of that controller."""
    window.goto(url_of(controller))
    yield window
    window.goto("about:blank")
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
    page.get_by_role("button", name=name, exact=True).click()


def reads(page, selector, text, seconds=WAIT_S):
    """Waits until a person reads that in a part of the page; what is hidden nobody reads."""
    part = page.locator(selector).filter(visible=True)
    expect(part).to_contain_text(text, use_inner_text=True, timeout=seconds * 1000)


def has(page, selector, least=1, seconds=WAIT_S):
    """Waits until the page has so many of these elements, or more."""
    expect(page.locator(selector).nth(least - 1)).to_be_attached(timeout=seconds * 1000)


def lines(page, text=""):
    """The lines of output that are shown, and have this in them."""
    return page.locator("#logs > div").filter(has_text=text, visible=True)


def test_nodes_and_sessions_appear_as_they_come(page, controller):
    """Without a reload; what is gone disappears."""
    reads(page, "#nodes", "green")
    reads(page, "#sessions", "no session")
    with disco_client.connect(controller.address, num_workers=3, name=EVIL, logs=False):
        reads(page, "#sessions", EVIL)
        reads(page, "#totals", "3 of 4")
        expect(page.locator(".slot.used")).to_have_count(3)
    reads(page, "#sessions", "no session")
    expect(page.locator("img")).to_have_count(0)


def test_a_session_is_shown_with_its_ranks_timeline_and_output(
    page, noticed, controller, eventually
):
    """Live; markup in what others wrote is shown as text."""
    with disco_client.connect(
        controller.address, num_workers=4, name="training", logs=False
    ) as session:
        work(session)
        click(page, "training")
        reads(page, "#ranks", re.compile("(MiB.*){4}", re.DOTALL))
        expect(lines(page, EVIL)).to_have_count(4)
        session.get_global_func("tests.say")("a line that came later")
        session.sync_all()
        reads(page, "#logs", "a line that came later")

        def drawn():
            work(session)
            return page.locator("#timeline path.call").count()

        eventually(drawn, what="the timeline")
    assert not noticed.problems
    assert noticed.asked
    assert all(url.startswith((url_of(controller), "about:", "data:")) for url in noticed.asked)


@pytest.mark.slow
def test_a_session_that_stands_still_says_why(page, controller):
    """After ten seconds in one command, in the words of diagnose()."""
    with disco_client.connect(
        controller.address, num_workers=2, name="stuck", logs=False
    ) as session:
        session.import_python_module("disco_test_functions")
        click(page, "stuck")
        session.get_global_func("tests.sleep")(20.0)  # a look comes every few seconds
        reads(page, "#verdict", "tests.sleep", 30)
        session.sync_all()
        expect(page.locator("#verdict")).to_be_hidden()


@pytest.fixture
def shown(page, controller):
    """A session of four workers that has worked, open on the page; none before had its name."""
    name = f"shown-{next(NUMBERS)}"
    with disco_client.connect(controller.address, num_workers=4, name=name, logs=False) as session:
        work(session)
        click(page, name)
        has(page, "#timeline path")
        yield session


def test_every_picture_and_table_can_be_read_aloud(page, shown):
    """Charts have labels, columns have headers, what is pressed has a name."""
    click(page, "green")
    has(page, "#node svg", 3)
    assert page.evaluate("[...document.querySelectorAll('svg')].every(s => s.ariaLabel)")
    assert page.evaluate("[...document.querySelectorAll('th')].every(h => h.scope == 'col')")
    expect(page).to_have_title("Disco")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "searchbox", "combobox", "checkbox", "spinbutton", "table"}
    found = [node for node in tree if not node["ignored"] and node["role"]["value"] in roles]
    assert found
    assert not [node for node in found if not node.get("name", {}).get("value")]


def test_nodes_show_what_their_machines_do(page, controller):
    """Figures and the last hour of each; a click shows it larger, another closes it."""
    reads(page, "#nodes", re.compile("(%.*){4}", re.DOTALL), 30)
    has(page, "#nodes .spark", 8, 30)
    label = re.compile(r"^processor: now \d+ %, at most \d+ %")
    expect(page.locator("#nodes .figure svg").first).to_have_attribute("aria-label", label)
    reads(page, "#totals", re.compile(r"processor\s+\d+ %"))
    click(page, "blue")
    reads(page, "#node-facts", "cores")
    expect(page.locator("#node-charts figure").filter(has_text="at most")).to_have_count(3)
    expect(page.locator("#nodes-table")).not_to_contain_text("GPU", use_inner_text=True)
    click(page, "blue")
    expect(page.locator("#node")).to_be_hidden()


def test_what_waits_and_what_ended_say_why(page, controller):
    """A session without slots, and one whose rank died."""
    with disco_client.connect(
        controller.address, num_workers=4, name="holds", logs=False
    ) as session:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(
                disco_client.connect, controller.address, num_workers=2, name="waits", timeout=60
            )
            reads(page, "#waiting", "needs 2")
            session.import_python_module("disco_test_functions")
            session.get_global_func("tests.kill_on")(0)
            with pytest.raises(disco_client.SessionError):
                session.sync_all()
            with waiting.result():
                reads(page, "#over", "rank lost")
        reads(page, "#over", "SIGKILL")
        expect(page.locator("#queue")).to_be_hidden()


def test_a_rank_shows_its_stack_on_a_click(page, shown):
    """By the keyboard too: the stack gets the focus, and can be had again."""
    page.get_by_role("button", name="stack of rank 2", exact=True).focus()
    page.keyboard.press("Enter")
    reads(page, "#stack-text", 'File "')
    reads(page, "#stack-title", "Stack of rank 2 on")
    expect(page.locator("#stack-title")).to_be_focused()
    click(page, "Again")
    reads(page, "#stack-text", 'File "')


def test_the_timeline_is_coloured_paused_and_looked_into(page, shown):
    """By function, with a legend; zoomed by keys and by the pointer, and let go again."""
    timeline = page.locator("#timeline")
    reads(page, "#legend", "runtime.disco.allreduce")
    reads(page, "#legend", "waiting for other ranks")
    has(page, "#timeline path.call", 4)
    reads(page, "#operations", "allreduce(sum)")
    reads(page, "#operations", "iB/s")
    timeline.focus()
    page.keyboard.press("Space")
    expect(page.locator("#pause")).to_have_text("Go on")
    reads(page, "#timeline", "pause")
    whole = timeline.inner_text()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    expect(timeline).not_to_have_text(whole, use_inner_text=True)
    page.keyboard.press("0")
    expect(timeline).to_have_text(whole, use_inner_text=True)
    timeline.scroll_into_view_if_needed()
    box = timeline.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 10)
    page.mouse.up()
    expect(timeline).not_to_have_text(whole, use_inner_text=True)
    page.keyboard.press("0")
    expect(timeline).to_have_text(whole, use_inner_text=True)
    entry = page.locator(".entry").first
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "true")
    has(page, "#timeline .faded")
    click(page, "Go on")
    reads(page, "#timeline", "now")


def open_part(page, name):
    page.locator(f"#{name} > summary").click()


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


def test_a_captured_program_is_a_graph_with_times(page, noticed, shown, captured, eventually):
    """Ranks are asked once that part is open; some of the steps are drawn, and who reads what."""
    assert not any("/programs?" in url for url in noticed.asked)
    open_part(page, "programs")
    reads(page, "#programs-rows", EVIL)
    reads(page, "#programs-rows", "90")
    expect(page.locator("#graph")).to_be_hidden()
    click(page, f"layer {EVIL}")
    reads(page, "#graph-pages", "1 to 40 of 90")
    facts, steps = page.locator("#graph-facts"), page.locator("#graph-steps button")
    eventually(lambda: captured() and "for a run" in facts.inner_text(), what="times")
    expect(steps).to_have_count(40)
    expect(steps.first).to_contain_text("%")
    reads(page, "#graph-legend", "numpy.add")
    keys = page.locator("#graph-legend button, #graph-steps button").evaluate_all(
        "all => all.map(b => [b.dataset.name ?? b.querySelector('.what').innerText,"
        " b.querySelector('.key').className].join())"
    )
    assert len(set(keys)) == 2  # a function has one colour, also when another takes longer
    expect(steps.first).not_to_contain_text("reads #1, the session")
    expect(steps.first).to_contain_text("reads input 1, the session")
    has(page, "#graph-edges .edge", 40)
    steps.nth(1).focus()
    page.keyboard.press("Enter")
    for text in ("Step 2: runtime.disco.allreduce", "reads #1", "read by #3"):
        reads(page, "#graph-what", text)
    expect(page.locator("#graph-edges .near")).to_have_count(2)
    expect(steps.nth(1)).to_be_focused()
    page.locator("#graph-legend button").first.click()
    has(page, "#graph-steps .faded")
    page.locator("#graph-pages button").last.click()
    reads(page, "#graph-pages", "41 to 80 of 90")
    has(page, "#graph-edges .outside")
    page.locator("#graph-close").click()
    expect(page.locator("#graph")).to_be_hidden()
    open_part(page, "programs")
    expect(page.locator("img")).to_have_count(0)
    assert not noticed.problems


def test_a_published_tensor_is_drawn_with_its_layout(page, noticed, shown):
    """As a picture, which runs nothing, and in rows; until it is gone."""
    name = f"weights {EVIL}"
    shown.publish(name, shown.distribute(np.ones((8, 6), "float32"), placement="S[0]"))
    shown.sync_all()
    open_part(page, "tensors")
    reads(page, "#tensors-rows", EVIL)
    reads(page, "#tensors-rows", "(8, 6)")
    click(page, name)
    reads(page, "#layout-rows", "[6:8, 0:6]")
    picture = page.locator("#layout-picture img")
    expect(picture).to_have_attribute("alt", re.compile(r"S\[0\]"))
    expect(picture).to_have_js_property("complete", value=True)
    assert picture.evaluate("image => image.naturalWidth") > 100
    shown.unpublish(name)
    reads(page, "#tensors-rows", "none is published")
    expect(page.locator("#layout")).to_be_hidden()
    assert not noticed.problems


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (800, "light"), (1400, "dark")])
def test_graph_and_layout_fit_too(page, shown, captured, width, scheme, eventually):
    """Nothing is wider than the window, and all that can be pressed has a name."""
    shown.publish("w", shown.distribute(np.ones((8, 6), "float32"), placement="S[0]"))
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    for part in ("programs", "tensors"):
        open_part(page, part)
        page.locator(f"#{part}-rows td button").first.click()
    steps = page.locator("#graph-steps")
    eventually(lambda: captured() and "%" in steps.inner_text(), what="the graph")
    expect(page.locator("#layout-picture img")).to_have_js_property("complete", value=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#session button").evaluate_all(
        "all => all.every(b => b.innerText || b.ariaLabel)"
    )
    shown.unpublish("w")
    if where := os.environ.get("DISCO_SCREENSHOT"):
        page.screenshot(path=Path(where) / f"graph-{width}-{scheme}.png", full_page=True)


def test_output_is_searched_by_text_level_rank_and_time(page, shown):
    """At once, in what is there; new lines as they come."""
    find, level = page.locator("#logs-find"), page.locator("#logs-level")
    rank, since = page.locator("#rank"), page.locator("#logs-since")
    say = shown.get_global_func("tests.say")
    for line in ("ERROR no memory", "WARNING slow", "INFO fine", "KeyError: 'x'"):
        say(line)
    shown.sync_all()
    for line in ("no memory", "slow", "fine", "KeyError"):
        expect(lines(page, line)).to_have_count(4)

    level.select_option("error")
    for line, count in (("no memory", 4), ("KeyError", 4), ("slow", 0)):
        expect(lines(page, line)).to_have_count(count)
    level.select_option("warning")
    expect(lines(page, "slow")).to_have_count(4)
    rank.fill("1")
    expect(lines(page, "slow")).to_have_count(1)
    find.fill("MEMORY")
    expect(lines(page)).to_have_count(1)
    say("ERROR more memory")
    shown.sync_all()
    reads(page, "#logs", "more memory")
    expect(page.locator("#logs-count")).to_have_text("2 lines")
    since.select_option("60")
    reads(page, "#logs", "memory")
    rank.fill("3")
    expect(lines(page, "memory")).to_have_count(2)
    level.select_option("stderr")
    expect(lines(page)).to_have_count(0)


def test_a_session_is_stopped_after_its_name_was_typed(page, controller):
    """Not by a click alone, and not under another name; Escape leaves it."""
    sure, yes = page.locator("#sure"), page.locator("#sure-yes")
    session = disco_client.connect(controller.address, num_workers=1, name="doomed", logs=False)
    click(page, "doomed")
    click(page, "Stop …")
    reads(page, "#sure", "Stop session doomed?")
    expect(yes).to_be_disabled()
    page.keyboard.press("Escape")
    expect(sure).to_be_hidden()
    click(page, "Stop …")
    page.keyboard.type("doome")
    page.keyboard.press("Enter")
    expect(page.locator("#sure-name")).to_have_value("doome")
    expect(yes).to_be_disabled()
    session.sync_all()
    page.keyboard.type("d")
    page.keyboard.press("Enter")
    reads(page, "#over", "stopped")
    expect(sure).to_be_hidden()
    with pytest.raises(disco_client.SessionError, match="closed on request"):
        session.sync_all()


def test_a_session_is_interrupted_after_its_name_was_typed(page, controller):
    """What it executes ends, its program is told, and the page says that it was done."""
    with disco_client.connect(
        controller.address, num_workers=1, name="endless", logs=False
    ) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.sleep")(600)
        click(page, "endless")
        click(page, "Interrupt …")
        reads(page, "#sure", "Interrupt session endless?")
        page.keyboard.type("endless")
        page.keyboard.press("Enter")
        reads(page, "#said", "session endless was interrupted")
        with pytest.raises(disco_client.Interrupted):
            session.sync_all()


def test_a_node_is_drained_and_taken_back(page, controller):
    """After its name was typed; what runs goes on, and nothing new begins there."""
    click(page, "blue")

    def confirm(button):
        expect(page.locator("#drain")).to_have_text(button)
        click(page, button)
        page.keyboard.type("blue")
        page.keyboard.press("Enter")

    confirm("Drain …")
    reads(page, "#node-facts", "drained: on request")
    reads(page, "#nodes", "draining")
    confirm("Take back …")
    expect(page.locator("#nodes")).not_to_contain_text("draining")


def test_trace_and_output_are_saved_as_files(page, shown):
    """Under the session's name."""
    name = page.locator("#session-title").inner_text().removeprefix("Session ")
    with page.expect_download() as trace:
        click(page, "Download trace")
    assert trace.value.suggested_filename == f"{name}.trace.json"
    assert json.loads(trace.value.path().read_text())["traceEvents"]
    with page.expect_download() as logs:
        click(page, "Download logs")
    assert logs.value.suggested_filename == f"{name}.log"
    reads(page, "#said", f"was saved as {name}.log")
    assert "loss 0.25" in logs.value.path().read_text()


@pytest.mark.parametrize(
    ("width", "dark"), [(390, False), (800, False), (1400, False), (1400, True)]
)
def test_it_fits_a_telephone_a_tablet_and_a_desk(page, shown, width, dark):
    """Nothing is wider than the window; dark where that is wanted; text can be told from ground."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if dark else "light")
    drawn = "width => document.querySelector('#timeline svg').clientWidth <= width"
    page.wait_for_function(drawn, arg=width)
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    luminance = (
        "(c => (([r, g, b]) => .2126 * r + .7152 * g + .0722 * b)(c.match(/\\d+/g).map(Number)))"
    )
    style = "getComputedStyle(document.body)"
    of = (f"{luminance}({style}.{it})" for it in ("color", "backgroundColor"))
    text, ground = map(page.evaluate, of)
    assert (text > ground) is dark
    assert abs(text - ground) > 150
    if where := os.environ.get("DISCO_SCREENSHOT"):
        path = Path(where) / f"dashboard-{width}{'-dark' * dark}.png"
        page.screenshot(path=path, full_page=True)


def test_with_a_thousand_nodes_and_sessions_the_page_stays_small(window, noticed, daemons):
    """So many elements and no more; what is looked for among them is found."""
    started = daemons.controller("--http", "127.0.0.1:0", "--node-lease", "120")
    peers = Child(["-m", "disco_scale.peers", started.address])
    elements = window.locator("*")
    try:
        for command in ("nodes 1000 2", "clients 1000 1", "queue 20 2000", "sample"):
            assert "error" not in peers.ask(command, 120)
        window.goto(url_of(started))
        reads(window, "#totals", "1000", 60)
        reads(window, "#sessions-pages", "1 to 25 of 1000", 60)
        has(window, ".spark", 101, 60)
        most = elements.count()
        assert most < 2500
        reads(window, "#waiting", "needs 2000, 1000 of 2000 slots free")
        window.locator("#nodes-pages").get_by_role("button", name="Next").click()
        reads(window, "#nodes-pages", "26 to 50 of 1000")
        window.locator("#nodes-find").fill("node-777")
        expect(window.locator("#nodes tr")).to_have_count(1)
        reads(window, "#nodes", re.compile("^node-777"))
        assert elements.count() <= most
        assert not noticed.problems
    finally:
        window.goto("about:blank")
        peers.close()


def test_with_tokens_the_page_asks_for_one_and_shows_what_it_may(window, shared_daemons, tmp_path):
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
        window.locator("#token").fill(token)
        click(window, "Show the cluster")

    window.goto(url_of(started))
    reads(window, "#login", "asks for a token")
    show("x" * 32)
    reads(window, "#refused", "does not know the token")
    expect(window.locator("#cluster")).to_be_hidden()
    how = {"tls_ca": pki.ca, "token": "a" * 32, "logs": False, "timeout": 30}
    with disco_client.connect(started.address, num_workers=1, name="hers", **how):
        show("e" * 32)
        reads(window, "#sessions", "hers")
        expect(window.locator("button[data-session]")).to_be_disabled()
        window.evaluate("sessionStorage.clear()")
        window.reload()
        reads(window, "#login", "asks for a token")
        show("a" * 32)
        reads(window, "#sessions", "hers")
        click(window, "hers")
        reads(window, "#ranks", "MiB")


LOOKED_AT = """
import disco_client
with disco_client.connect(num_workers=1, name="mine", logs=False) as session:
    session.sync_all()
    print("open", flush=True)
    input()
"""


def test_the_address_that_disco_local_prints_shows_its_sessions(window):
    """With the token in it; it is kept for a reload, and is no longer in the address."""
    command = [sys.executable, "-m", "disco_server.cli.main", "local", "--slots", "1"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [*command, "--", sys.executable, "-c", LOOKED_AT], text=True, **pipes
    ) as local:
        address = local.stderr.readline().strip().removeprefix("dashboard at ")
        assert local.stdout.readline() == "open\n"
        window.goto(address)
        reads(window, "#sessions", "mine")
        click(window, "mine")
        reads(window, "#ranks", "MiB")
        assert "token" not in window.url
        window.reload()
        reads(window, "#session-title", "mine")
        window.evaluate("sessionStorage.clear()")
        window.reload()
        reads(window, "#login", "asks for a token")
        local.communicate("\n", timeout=40)
    assert local.returncode == 0


def test_the_page_comes_back_when_the_controller_does(window, daemons):
    """It says that nobody is there, and goes on by itself."""
    started = daemons.controller("--http", "127.0.0.1:0")
    listen, http = started.address, url_of(started).split("/")[2]
    window.goto(url_of(started))
    reads(window, "#state", "live")
    started.process.kill()
    started.wait()
    reads(window, "#state", "not connected")
    daemons.controller("--listen", listen, "--http", http)
    reads(window, "#state", "live")
