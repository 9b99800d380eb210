"""Two processes save into one place again and again, and one is killed at a random moment.

Usage: two_savers.py PLACE TIMES [SEED]. After each kill, the checkpoint must be a whole one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

from disco_server.storage.checkpoint_read import StoredCheckpoint
from disco_server.storage.files import FileError

ELEMENTS = 1 << 16


def helpers():
    spec = importlib.util.spec_from_file_location(
        "helpers", Path(__file__).with_name("conftest.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save_for_ever(place, saver):
    """Saves, and says after each time that it did; or that the other one was faster."""
    tools, count = helpers(), 0
    while True:
        count += 1
        generation = f"generation-{saver:08x}{count:08x}"
        tensors = {"a": np.full(ELEMENTS, saver * 1_000_000 + count, "i8"), "b": np.ones(3, "i1")}
        said = b"s"
        try:
            for _ in tools.save_steps(place, tensors, generation=generation):
                pass
        except FileError as error:
            if "another session saved here meanwhile" not in str(error):
                raise
            said = b"l"
        os.write(1, said)


def start(place, saver):
    """Starts a saver as a process that knows nothing of this one."""
    command = [sys.executable, __file__, place, "saver", str(saver)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def value_at(place, tools):
    """The value of all elements of the checkpoint, or this program fails."""
    while True:
        stored = StoredCheckpoint(place, ("*",))
        try:
            (value,) = np.unique(tools.whole(stored, "a"))
        except FileError as error:
            if "another save replaced it" not in str(error):
                raise
            continue  # the other saver goes on meanwhile
        return int(value)


def main(place, times, seed):
    tools, chance = helpers(), random.Random(seed)
    for _ in tools.save_steps(place, {"a": np.zeros(ELEMENTS, "i8"), "b": np.ones(3, "i1")}):
        pass
    number = 0
    for _ in range(times):
        savers = [start(place, number + 1), start(place, number + 2)]
        number += 2
        # Both are under way from the first thing that each says.
        for saver in savers:
            assert saver.stdout.read(1) in (b"s", b"l")
        victim = savers[chance.randrange(2)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            victim.wait(chance.random() * 0.4)
        victim.kill()
        print("whole", value_at(place, tools), flush=True)
        for saver in savers:
            saver.kill()
            saver.wait()
            saver.stdout.close()
        value_at(place, tools)


if sys.argv[2] == "saver":
    save_for_ever(sys.argv[1], int(sys.argv[3]))
else:
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
