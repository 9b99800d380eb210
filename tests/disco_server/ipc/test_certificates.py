"""Certificates of doors: read at the start, and again when they change."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_server.ipc.certificates import CertificateFiles
from disco_server.ipc.grpc_server import warn_of_open_listener
from disco_server.security import Guard
from fault_tools.certificates import Pki


@pytest.fixture
def pki(tmp_path):
    return Pki.make(tmp_path)


def guarded(pki, **options):
    return Guard(**{**pki.files("controller"), "require_client_cert": True, **options})


def test_files_are_read_again_only_when_they_have_changed(pki):
    """None tells gRPC that those before are good still."""
    files = CertificateFiles(guarded(pki))
    assert files.changed() is None
    pki.issue("controller", hosts=("localhost",))
    assert files.changed() is not None
    assert files.changed() is None


def test_files_that_do_not_fit_together_leave_the_old_ones_in_place(pki, caplog):
    """As in the moment between the copies of certificate and key; the next change counts."""
    files = CertificateFiles(guarded(pki))
    key = pki.files("controller")["tls_key"]
    whole = key.read_bytes()
    key.write_bytes(pki.files("worker")["tls_key"].read_bytes())
    assert files.changed() is None
    assert "serve on" in caplog.text
    key.write_bytes(whole + b"\n")
    assert files.changed() is not None


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("controller.pem", b"no certificate", "expected a certificate and its key"),
        ("controller.key", b"", "expected a certificate and its key"),
        ("ca.pem", b"nothing", "tls_ca: expected a PEM file"),
    ],
)
def test_a_daemon_does_not_start_with_files_that_are_none(pki, name, content, told):
    """The error names the setting or the files, and shows nothing of them."""
    (pki.folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        CertificateFiles(guarded(pki))


@pytest.mark.parametrize(("days", "told"), [(-1.0, "has expired"), (2.0, "expires on")])
def test_the_end_of_a_certificate_is_warned_of(pki, caplog, days, told):
    """A week before, and after."""
    pki.issue("controller", hosts=("localhost",), days=days)
    CertificateFiles(guarded(pki))
    assert told in caplog.text


def test_an_open_door_is_warned_of(caplog):
    """Each time, and only where a person said so."""
    import logging

    warn_of_open_listener(logging.getLogger("disco.test"), Guard())
    assert caplog.text == ""
    warn_of_open_listener(logging.getLogger("disco.test"), Guard(insecure=True))
    assert "can run code on this cluster" in caplog.text
