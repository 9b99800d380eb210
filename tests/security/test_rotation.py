"""Certificates and tokens that are replaced while sessions run."""

from __future__ import annotations

import numpy as np
import pytest

import disco_client
from disco_client import errors
from fault_tools.certificates import Pki
from fault_tools.proxy import Proxy


@pytest.fixture
def pki(tmp_path):
    """An authority of the test's own: it is replaced."""
    return Pki.make(tmp_path / "pki")


def test_new_connections_use_new_certificates_and_old_ones_live(daemons, pki, connect, eventually):
    """Daemons and clients read them again when they connect; nothing is started anew."""
    patient = ("--session-lease", "30", "--node-return", "30")
    controller = daemons.controller(*patient, "--require-client-cert", *pki.flags("controller"))
    with Proxy(controller.address, controller.frames) as proxy:
        worker = daemons.worker(proxy.address, "--slots", "1", *pki.flags("worker"))
        session = connect(proxy.address, **pki.files("client"))
        array = session.broadcast(np.arange(4.0))
        before = Pki.make(pki.folder / "before")  # nobody knows this one
        Pki.make(pki.folder)  # a new authority, and new certificates, in the same files
        # Streams that are there do not notice.
        assert array.numpy().tolist() == [0, 1, 2, 3]
        # What connects now shows the new ones, and so do both that were there before.
        proxy.cut()
        proxy.heal()
        assert array.numpy().tolist() == [0, 1, 2, 3]
    assert "new certificate" in controller.stderr
    with pytest.raises(errors.AccessDenied):
        disco_client.connect(controller.address, num_workers=1, **before.files("client"))
    assert worker.process.poll() is None
