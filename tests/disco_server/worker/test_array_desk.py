"""Who is let through to the arrays of a node."""

from __future__ import annotations

import pytest

from disco_client.wire.arrays import encode_head
from disco_server.worker.array_streams import NotAdmitted, admit


class Desk:
    """Knows one secret."""

    def knows(self, transfer):
        return transfer.transfer_key == b"key"


def test_whoever_knows_the_secret_is_let_through():
    """And gets the desk; nobody else does, nor anybody while there is none."""
    desk = Desk()
    assert admit(desk, encode_head(5, b"key", 1, 8)) is desk
    for nobody, key in ((desk, b"other"), (desk, b""), (None, b"key")):
        with pytest.raises(NotAdmitted, match="no such worker, session or key on this node"):
            admit(nobody, encode_head(5, key, 1, 8))
