"""Saves a checkpoint again and again, and is killed one line of the writer later each time.

Prints for each line at which it was killed what the checkpoint was then: old or new.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from disco_server import storage
from disco_server.storage.checkpoint_read import StoredCheckpoint

HERE = Path(__file__).parent
CODE = str(Path(storage.__file__).parent)
OLD, NEW, NEXT = ({"a": np.full((7, 2), v, "f4"), "b": np.full(1, v, "i8")} for v in (1, 2, 3))


def helpers():
    spec = importlib.util.spec_from_file_location("helpers", HERE / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def killed_after(lines):
    """Traces this process, and kills it when so many lines of the writer have begun."""
    left = lines

    def trace(frame, event, _arg):
        nonlocal left
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def content(folder, whole):
    """What the checkpoint is: all of it of one kind, or this program fails."""
    stored = StoredCheckpoint(str(folder), ("*",))
    values = {float(value) for name in "ab" for value in whole(stored, name).reshape(-1)}
    (value,) = values
    return {1.0: "old", 2.0: "new", 3.0: "next"}[value]


def main(folder, first, step):
    tools = helpers()

    def save(tensors, generation):
        for _ in tools.save_steps(folder, tensors, generation=f"generation-{generation:016x}"):
            pass

    lines = first
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        save(OLD, 1)
        child = os.fork()
        if not child:
            killed_after(lines)
            save(NEW, 2)
            sys.settrace(None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert status == 0, status
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        print(lines, content(folder, tools.whole), flush=True)
        save(NEXT, 3)
        assert content(folder, tools.whole) == "next"
        left = sorted(path.name for path in folder.iterdir())
        assert left[0].endswith(".json"), left
        assert left[1:] == [f"generation-{3:016x}"], left
        lines += step
    print("done", content(folder, tools.whole))


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
