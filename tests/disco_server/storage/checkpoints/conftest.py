"""Saves by workers that are no processes, for the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest

from disco_server.storage.checkpoint_read import Entry
from disco_server.storage.checkpoint_write import Save

GENERATIONS = iter(range(1 << 32))


def entries_of(tensors, workers=2):
    """Each tensor split along its first axis."""
    found = []
    for name, array in tensors.items():
        parts, start = [], 0
        for worker, piece in enumerate(np.array_split(array, workers)):
            rest = tuple((0, extent) for extent in array.shape[1:])
            parts.append((worker, ((start, start + len(piece)), *rest)))
            start += len(piece)
        layout = {"mesh": {"shape": [workers], "names": [], "workers": [*range(workers)]}}
        found.append(
            Entry(name, array.shape, array.dtype, layout | {"placement": "S[0]"}, tuple(parts))
        )
    return found


def save_steps(path, tensors, *, workers=2, allowed=("*",), generation=None):
    """Saves step by step, and yields between the steps the saves of the workers."""
    generation = generation or f"generation-{next(GENERATIONS):016x}"
    saves = []
    try:
        for worker in range(workers):
            saves.append(Save(str(path), allowed, generation, worker, leads=not worker))
            yield "begun", saves
        entries = entries_of(tensors, workers)
        for save in saves:
            save.add(entries)
            save.start()
            yield "started", saves
        in_order = sorted(enumerate(tensors.values()), key=lambda each: -each[1].dtype.itemsize)
        for worker, save in enumerate(saves):
            for number, array in in_order:
                piece = np.ascontiguousarray(np.array_split(array, workers)[worker])
                data = memoryview(piece.reshape(-1).view(np.uint8))
                save.write(number, [data[:5], data[5:]])
                yield "written", saves
        for save in saves:
            save.finish()
            yield "finished", saves
        for save in reversed(saves):
            save.commit()
            yield "committed", saves
    finally:
        for save in saves:
            save.close()


@pytest.fixture
def write_checkpoint():
    """Saves tensors, each split along its first axis among two workers."""

    def write(path, tensors, **options):
        for _ in save_steps(path, tensors, **options):
            pass

    return write


@pytest.fixture
def steps():
    """Saves step by step."""
    return save_steps


def whole(stored, name):
    """A tensor of a checkpoint that was opened."""
    number = [entry.name for entry in stored.entries].index(name)
    bounds = tuple((0, extent) for extent in stored.entries[number].shape)
    return stored.read([(number, bounds)])[0]


@pytest.fixture
def read_whole():
    """Reads a tensor of a checkpoint."""
    return whole
