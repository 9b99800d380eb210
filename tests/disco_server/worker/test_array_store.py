"""Who gets at the arrays of a node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from disco_client.wire.arrays import encode_head
from disco_server.core.node import NodeSession
from disco_server.worker.array_store import ArrayStore, NotAdmitted


def test_a_client_that_knows_the_secret_is_admitted():
    """And ends with the session; nobody else is, nor where the session ends or is not here."""
    session = SimpleNamespace(
        start=SimpleNamespace(transfer_key=b"key"),
        driver=SimpleNamespace(ranks={0: None}, node=NodeSession((0,), [(0,)], "k")),
        tasks=set(),
        arrays=object(),
    )
    store = ArrayStore({5: session}, None, None)

    async def run():
        assert store.admit(encode_head(5, b"key", 1, 8)) is session.arrays
        assert session.tasks == {asyncio.current_task()}
        for refused in (
            encode_head(5, b"other", 1, 8),
            encode_head(5, b"", 1, 8),
            encode_head(6, b"key", 1, 8),
            encode_head(5, b"key", 1, 8, 1),
        ):
            with pytest.raises(NotAdmitted, match="no such worker, session or key on this node"):
                store.admit(refused)
        session.driver.node.end(0.0)
        with pytest.raises(NotAdmitted):
            store.admit(encode_head(5, b"key", 1, 8))

    asyncio.run(run())
    assert not session.tasks
