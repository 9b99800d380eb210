"""``disco dashboard``: where it is, how one gets there, and what it asks for."""

from __future__ import annotations

import json
import urllib.request

import pytest
from click.testing import CliRunner

from disco_server.cli.dashboard import page_at
from disco_server.cli.main import main


def disco(*arguments, **env):
    return CliRunner().invoke(main, ["dashboard", *arguments], env=env, prog_name="disco")


@pytest.fixture(scope="module")
def controller(shared_daemons):
    """One that serves its dashboard on a free port."""
    return shared_daemons.controller(DISCO_HTTP="127.0.0.1:0")


@pytest.fixture
def browser(tmp_path):
    """A browser that writes down what it was to open."""
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
    program.chmod(0o755)
    return f"{program} %s", tmp_path / "opened"


def test_it_prints_the_address_and_opens_it(controller, browser, eventually):
    """The page is there; with --no-open nothing is opened."""
    command, opened = browser
    shown = disco("--address", controller.address, "--no-open", BROWSER=command)
    address = shown.output.removeprefix("dashboard at ").strip()
    assert shown.output == f"dashboard at {address}\n"
    with urllib.request.urlopen(address, timeout=20) as answer:
        assert b"<html" in answer.read()
    about = json.loads(disco("--address", controller.address, "--json", "--no-open").stdout)
    assert about == {"url": address, "tunnel": "", "opened": False}
    assert not opened.exists()


def test_a_machine_without_a_screen_opens_nothing(controller, monkeypatch):
    """It prints the address, and that is no failure."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("webbrowser.open", pytest.fail)
    monkeypatch.setattr("sys.platform", "linux")
    shown = disco("--address", controller.address)
    assert shown.exit_code == 0
    assert shown.output.startswith("dashboard at http://127.0.0.1:")


def test_a_screen_gets_the_page(controller, monkeypatch):
    """The browser that Python finds is asked for the address, without a token in it."""
    opened = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) is None)
    about = json.loads(disco("--address", controller.address, "--json").stdout)
    assert about["opened"]
    assert opened == [about["url"]]


def test_a_token_is_printed_only_on_request(controller, tmp_path):
    """Else where it is."""
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    options = ("--address", controller.address, "--token-file", str(file), "--no-open")
    shown = disco(*options).output
    assert f"it asks for your token, which is in {file}\n" in shown
    assert "0123456789abcdef" not in shown
    assert disco(*options, "--show-token").output.endswith("\n0123456789abcdef\n")
    assert json.loads(disco(*options, "--show-token", "--json").stdout)["token"] == (
        "0123456789abcdef"
    )
    kept = disco("--address", controller.address, "--no-open", DISCO_TOKEN="0123456789abcdef")
    assert "--show-token prints" in kept.output


def test_a_controller_without_one_says_how_to_have_it(cluster):
    """Exit code 1."""
    shown = disco("--address", cluster.address)
    assert shown.exit_code == 1
    assert "serves no dashboard; start it with --http HOST:PORT" in shown.stderr


@pytest.mark.parametrize(
    ("served", "address", "url", "tunnel"),
    [
        ("http://127.0.0.1:7601", "127.0.0.1:7600", "http://127.0.0.1:7601/", ""),
        ("http://127.0.0.1:7601", "unix:/run/disco", "http://127.0.0.1:7601/", ""),
        ("http://127.0.0.1:7/#token=x", "unix:/run/disco", "http://127.0.0.1:7/#token=x", ""),
        ("https://0.0.0.0:7601", "head:7600", "https://head:7601/", ""),
        ("https://[::]:7601", "[fd00::7]:7600", "https://[fd00::7]:7601/", ""),
        ("https://0.0.0.0:7601", "unix:/run/disco", "https://localhost:7601/", ""),
        ("https://10.0.0.1:7601", "head:7600", "https://10.0.0.1:7601/", ""),
        (
            *("http://127.0.0.1:7601", "head:7600", "http://127.0.0.1:7601/"),
            "ssh -N -L 7601:127.0.0.1:7601 head",
        ),
        (
            *("unix:/run/http", "unix:/run/disco", "http://127.0.0.1:7601/"),
            "socat TCP-LISTEN:7601,bind=127.0.0.1,fork UNIX-CONNECT:/run/http",
        ),
    ],
)
def test_it_is_found_from_here(served, address, url, tunnel):
    """At the host at which the controller is reached, or by what has to be run first."""
    assert page_at(served, address) == (url, tunnel)
