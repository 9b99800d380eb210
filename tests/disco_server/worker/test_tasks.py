"""What a node's event loop has done in another thread."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from disco_server.worker.tasks import call_in_thread


def test_it_is_done_in_another_thread():
    """The loop goes on meanwhile, and what it raises is raised where it is awaited."""

    def fail():
        done.append(threading.get_ident())
        raise RuntimeError("no")

    done = []
    assert asyncio.run(call_in_thread(threading.get_ident)) != threading.get_ident()
    with pytest.raises(RuntimeError, match="no"):
        asyncio.run(call_in_thread(fail))
    assert len(done) == 1


def test_where_no_thread_is_to_be_had_it_is_done_here():
    """As at the end of the interpreter, when the pool takes nothing any more."""

    async def play():
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        asyncio.get_running_loop().set_default_executor(pool)
        return await call_in_thread(threading.get_ident)

    assert asyncio.run(play()) == threading.get_ident()
