"""Loaded tensors are distributed tensors, and know their shapes."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from safetensors.numpy import save_file

import disco_client
from disco_client import ConfigError
from disco_client.distributed import DTensor, PlacementSpec


def test_a_weight_knows_what_each_worker_holds(open_session, tmp_path):
    """Whole shape, dtype and split, and each part's shape without a round trip."""
    save_file({"a": np.zeros((6, 4), np.float32)}, tmp_path / "m.safetensors")
    session = open_session(4)
    issued = session.statistics()["issued"]
    (weight,) = session.load_weights(tmp_path, {"a": PlacementSpec.sharding(0)}).values()
    assert isinstance(weight, DTensor)
    assert (weight.name, weight.shape, weight.dtype) == ("a", (6, 4), "float32")
    assert weight.mesh == session.mesh()
    assert str(weight.placement) == "S[0]"
    assert repr(weight) == (
        "DTensor('a', (6, 4), float32, 'S[0]' on DeviceMesh((4,), range(0, 4)),"
        " parts of (2, 4) or (1, 4))"
    )
    shapes = [weight.shape_on(worker) for worker in range(4)]
    assert shapes == [(2, 4), (2, 4), (1, 4), (1, 4)]
    assert shapes == [weight.shard(worker).shape for worker in range(4)]
    assert session.statistics()["issued"] > issued
    with pytest.raises(ConfigError):
        weight.shape_on(4)


KV_HEADS = {
    2: [(0, 4), (2, 8)],
    3: [(0, 4), [(0, 2), (4, 6)], (4, 8)],
}


@pytest.mark.parametrize("workers", KV_HEADS)
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_that_overlap_are_read_gathered_and_saved(open_session, tmp_path, workers, axis):
    """Two workers hold the same rows; the whole, other placements and checkpoints are right."""
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    save_file({"kv": whole}, tmp_path / "m.safetensors")
    session = open_session(workers)
    parts = KV_HEADS[workers]
    spec = PlacementSpec.explicit(axis, parts)
    kv = session.load_weights(tmp_path, {"kv": spec})["kv"]
    for worker, pieces in enumerate(parts):
        rows = np.r_[tuple(slice(*each) for each in np.reshape(pieces, (-1, 2)))]
        expected = whole.take(rows, axis)
        assert np.array_equal(kv.shard(worker), expected)
        assert kv.shape_on(worker) == expected.shape
    assert np.array_equal(kv.numpy(), whole)
    for text in ("R", "S[0]", "S[1]"):
        moved = kv.redistribute(text)
        assert str(moved.placement) == text
        assert np.array_equal(moved.numpy(), whole)
    with pytest.raises(ConfigError, match=r"hold the same indices; redistribute it first, to 'S"):
        kv + 1
    assert np.array_equal((kv.redistribute("R") + 1).numpy(), whole + 1)
    session.save(tmp_path / "saved", {"kv": kv})
    loaded = session.load(tmp_path / "saved")["kv"]
    assert loaded.placement == kv.placement
    for worker in range(workers):
        assert np.array_equal(loaded.shard(worker), kv.shard(worker))


def test_parts_of_which_none_overlap_are_computed_with(open_session, tmp_path):
    """They are brought where the function needs them, like any others."""
    whole = np.arange(24, dtype=np.float32).reshape(12, 2)
    save_file({"qkv": whole}, tmp_path / "m.safetensors")
    plan = {"qkv": PlacementSpec.fused(0, parts=(6, 3, 3))}
    qkv = open_session(3).load_weights(tmp_path, plan)["qkv"]
    assert str(qkv.placement) == "S[0: 0-2+6-7+9-10, 2-4+7-8+10-11, 4-6+8-9+11-12]"
    assert np.array_equal((qkv * 2).numpy(), whole * 2)
    assert np.array_equal(qkv.T.numpy(), whole.T)


def test_old_names_say_what_is_to_be_used(open_session, tmp_path):
    """Each with one warning, for one release."""
    save_file({"a": np.arange(8, dtype=np.float32)}, tmp_path / "m.safetensors")
    with pytest.warns(DeprecationWarning, match="is disco_client.distributed.DTensor") as seen:
        kind = disco_client.Weight
    assert (kind, len(seen)) == (DTensor, 1)
    with pytest.warns(DeprecationWarning, match=r"distributed\.PlacementSpec\.fused") as seen:
        split = disco_client.Split(0, parts=2)
    assert (split, len(seen)) == (PlacementSpec.fused(0, 2), 1)
    session = open_session(2)
    weight = session.load_weights(tmp_path, {"a": split})["a"]
    old = {
        "placement": (lambda: weight.split, weight.placement.dim_specs[0]),
        "shard.worker.": (lambda: weight.numpy(1).tolist(), [2, 3, 6, 7]),
        "shard": (lambda: weight.debug_get_from_remote(0).tolist(), [0, 1, 4, 5]),
        "ref.reg_id": (lambda: weight.reg_id, weight.ref.reg_id),
        "ref.session": (lambda: weight.session, session),
    }
    for new, (get, expected) in old.items():
        with pytest.warns(DeprecationWarning, match=f"is {new} and goes") as seen:
            assert get() == expected
        assert (len(seen), seen[0].filename) == (1, __file__)


def test_dead_weights_free_their_registers(open_session, tmp_path):
    """Like any reference, with nothing else left of the loading."""
    save_file({f"t{i}": np.zeros(4) for i in range(50)}, tmp_path / "m.safetensors")
    session = open_session(2)

    def registers():
        session.load_weights(tmp_path, {"*": "R"})
        gc.collect()
        return session.statistics()["registers"]

    registers()
    used = registers()
    assert 50 < used < 100
    assert [registers() for _ in range(5)] == [used] * 5
