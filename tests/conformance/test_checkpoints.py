"""Checkpoints and files on every kind of session."""

from __future__ import annotations

import numpy as np

from disco_client.distributed import from_npy

ARRAY = np.arange(15, dtype="float32").reshape(5, 3)


def test_what_was_saved_is_loaded(session, tmp_path):
    """Lying in another way, and saved again in its own place."""
    x = session.distribute(ARRAY, None, "S[0]")
    for times in (1, 2, 4):
        session.save(tmp_path / "c", {"x": x, "sum": x.sum(axis=0)})
        loaded = session.load(tmp_path / "c", placements={"x": "S[1]", "sum": "S[0]"})
        assert np.array_equal(loaded["x"].numpy(), ARRAY * times)
        assert np.array_equal(loaded["sum"].numpy(), (ARRAY * times).sum(axis=0))
        x = loaded["x"] * 2
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_workers_read_files(session, tmp_path):
    """Each its own part."""
    np.save(tmp_path / "a.npy", ARRAY)
    x = session.distribute(from_npy(tmp_path / "a.npy"), None, "S[1]")
    assert np.array_equal((x + 1).numpy(), ARRAY + 1)
