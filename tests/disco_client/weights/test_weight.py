"""References of loaded tensors know their shapes."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from safetensors.numpy import save_file

from disco_client import ConfigError, DRef, Split


def test_a_weight_knows_what_each_worker_holds(open_session, tmp_path):
    """Whole shape, dtype and split, and each part's shape without a round trip."""
    save_file({"a": np.zeros((6, 4), np.float32)}, tmp_path / "m.safetensors")
    session = open_session(4)
    issued = session.statistics()["issued"]
    (weight,) = session.load_weights(tmp_path, {"a": Split(0, uneven=True)}).values()
    assert isinstance(weight, DRef)
    assert (weight.name, weight.shape, weight.dtype) == ("a", (6, 4), "float32")
    assert repr(weight) == "<Weight 'a': float32[6, 4] S[0] (uneven)>"
    shapes = [weight.shape_on(worker) for worker in range(4)]
    assert shapes == [(2, 4), (2, 4), (1, 4), (1, 4)]
    assert shapes == [weight.numpy(worker).shape for worker in range(4)]
    assert session.statistics()["issued"] > issued
    with pytest.raises(ConfigError):
        weight.shape_on(4)


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
