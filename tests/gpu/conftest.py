"""How the tests on GPUs get sessions: of processes, each worker on a GPU of its own."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import disco_client as di

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"


@pytest.fixture
def open_session(need_gpus, monkeypatch):
    """Opens a session of so many workers on the first GPUs; where some are named, on none yet."""
    monkeypatch.syspath_prepend(str(WORKER_MODULES))
    with contextlib.ExitStack() as stack:

        def open_one(count, devices=None):
            need_gpus(count if devices is None else len(set(devices)))
            session = stack.enter_context(di.ProcessSession(count))
            session.import_python_module("disco_gpu_functions")
            if devices is None:
                session.init_ccl("nccl", *range(count))
            return session

        yield open_one
