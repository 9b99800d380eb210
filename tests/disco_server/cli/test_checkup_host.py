"""What a cluster of several machines needs of one: ports, names, the time, certificates."""

from __future__ import annotations

import re
import socket

import pytest

from disco_client.transport.credentials import Credentials
from disco_server.cli import checkup
from disco_server.cli.checkup import (
    look_at_certificates,
    look_at_clock,
    look_at_host_name,
    look_at_ports,
)
from disco_server.ipc.authority import Authority
from disco_server.observe.checks import State


@pytest.fixture
def port(monkeypatch):
    """A port that is taken, in the place of those of the daemons."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setattr(checkup, "PORTS", {number: "--listen"})
        yield number


def test_a_free_port_is_free(port, monkeypatch):
    """And stays so."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        free = found.getsockname()[1]
    monkeypatch.setattr(checkup, "PORTS", {free: "--listen"})
    for _ in range(2):
        (finding,) = look_at_ports()
        assert (finding.state, finding.detail) == (State.OK, "free")


def test_a_port_that_is_taken_is_said_to_be(port, monkeypatch):
    """What has it is not of Disco."""
    monkeypatch.setattr(checkup, "_ANSWER_S", 0.2)
    (finding,) = look_at_ports()
    assert (finding.name, finding.detail) == (f"port {port}", "in use by another program")
    assert "--listen" in finding.hint


def test_a_controller_is_recognised(daemons, monkeypatch):
    """By its answer."""
    number = int(daemons.controller().address.rpartition(":")[2])
    monkeypatch.setattr(checkup, "PORTS", {number: "--listen"})
    (finding,) = look_at_ports()
    assert (finding.detail, finding.facts["controller"]) == ("a controller answers there", True)


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_http_port_of_a_daemon_is_recognised(daemons, monkeypatch, tmp_path, encrypted):
    """By its metrics, also where the certificate is of an authority that nobody here trusts."""
    options = ["--http", "127.0.0.1:0"]
    if encrypted:
        authority = Authority.create(days=1)
        ca, _ = authority.pem().write(tmp_path, "ca")
        cert, key = authority.issue("controller", hosts=("127.0.0.1",), days=1).write(
            tmp_path, "controller"
        )
        options += ["--tls-ca", ca, "--tls-cert", cert, "--tls-key", key]
    daemon = daemons.controller(*options)
    scheme, number = re.search(r"metrics at (https?)://127.0.0.1:(\d+)/", daemon.stderr).groups()
    assert scheme == ("https" if encrypted else "http")
    monkeypatch.setattr(checkup, "PORTS", {int(number): "--http"})
    (finding,) = look_at_ports()
    assert (finding.detail, finding.hint) == ("a daemon serves its metrics there", "")
    assert (finding.facts["metrics"], finding.facts["controller"]) == (True, False)


def test_the_host_name_has_an_address(monkeypatch):
    """Where it has none, the hint is the line that gives it one."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert look_at_host_name().state is State.OK
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    finding = look_at_host_name()
    assert finding.state is State.MISSING
    assert finding.hint == "name it in /etc/hosts: 127.0.1.1 no-such-host.invalid"


def test_the_clock_is_asked_of_the_kernel(monkeypatch):
    """Whether it is kept right, or nobody says so; one before the installation is wrong."""
    assert look_at_clock().state is State.OK
    for found, detail in (
        ((True, 0.012), "kept right within 12 ms"),
        ((False, 16.0), "not synchronised by this kernel"),
        (None, "the kernel does not say whether it is kept right"),
    ):
        monkeypatch.setattr(checkup, "_ask_kernel", lambda found=found: found)
        finding = look_at_clock()
        assert finding.state is State.OK
        assert detail in finding.detail
    monkeypatch.setattr(checkup.time, "time", lambda: 1e9)
    assert look_at_clock().state is State.BROKEN


@pytest.fixture
def issued(tmp_path):
    """Makes an authority and a certificate of it."""

    def make(name, days=365.0):
        folder = tmp_path / name
        folder.mkdir()
        authority = Authority.create(days=days)
        ca, _ = authority.pem().write(folder, "ca")
        cert, key = authority.issue("client", hosts=(), days=days).write(folder, "client")
        return {"ca": ca, "cert": cert, "key": key}

    return make


def test_certificates_that_are_valid_are_well(issued):
    """With the day until which they are; one that ends soon has a hint."""
    for days, hinted in ((365.0, False), (3.0, True)):
        found = look_at_certificates(Credentials(**issued(f"{days:g}", days=days)))
        assert [finding.name for finding in found] == ["authority", "own certificate"]
        for finding in found:
            assert finding.state is State.OK
            assert "valid until" in finding.detail
            assert bool(finding.hint) == hinted


def test_a_certificate_of_another_authority_is_broken(issued):
    """A controller would refuse it, with less to say."""
    first, second = issued("a"), issued("b")
    found = look_at_certificates(Credentials(**{**first, "ca": second["ca"]}))
    assert [finding.state for finding in found] == [State.OK, State.BROKEN]
    assert "is not signed by" in found[1].detail


def test_what_is_over_or_not_yet_is_broken(issued, monkeypatch):
    """With what may be wrong."""
    files = issued("a")

    class Now:
        def __init__(self, year):
            self.year = year

        def now(self, zone):
            return checkup_host_datetime(self.year, 1, 1, tzinfo=zone)

    checkup_host_datetime = checkup.datetime
    for year, detail, hint in (
        (2200, "was valid until", "make another"),
        (2001, "is valid from", "clock"),
    ):
        monkeypatch.setattr(checkup, "datetime", Now(year))
        found = look_at_certificates(Credentials(**files))
        assert {finding.state for finding in found} == {State.BROKEN}
        assert all(detail in finding.detail and hint in finding.hint for finding in found)


def test_files_that_are_none_are_broken(tmp_path):
    """And none at all is nothing to look at."""
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN NOTHING-----\n")
    (finding,) = look_at_certificates(Credentials(ca=ca))
    assert finding.state is State.BROKEN
    (finding,) = look_at_certificates(Credentials())
    assert finding.state is State.NOT_APPLICABLE
