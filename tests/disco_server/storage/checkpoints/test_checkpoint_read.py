"""Reading checkpoints: any part of a tensor, only its bytes, and no other file."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_server.storage.checkpoint_read import StoredCheckpoint
from disco_server.storage.files import FileError, FileNotAllowed

A = np.arange(7 * 4 * 3, dtype=np.int16).reshape(7, 4, 3)


@settings(max_examples=40)
@given(workers=st.integers(1, 4), cuts=st.tuples(*[st.tuples(*[st.integers(0, 7)] * 2)] * 3))
def test_any_part_can_be_read(tmp_path, write_checkpoint, workers, cuts):
    """Whatever parts it was written in."""
    write_checkpoint(tmp_path, {"a": A, "one": np.ones(1)}, workers=workers)
    bounds = tuple(
        tuple(sorted(min(at, extent) for at in cut))
        for cut, extent in zip(cuts, A.shape, strict=True)
    )
    (part,) = StoredCheckpoint(str(tmp_path), ("*",)).read([(0, bounds)])
    assert part.dtype == A.dtype
    assert np.array_equal(part, A[tuple(slice(*each) for each in bounds)])


def test_only_the_bytes_of_a_part_are_read(tmp_path, write_checkpoint):
    """And the headers of the files in which it is."""
    large = np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, 1 << 10)
    write_checkpoint(tmp_path, {"a": large}, workers=4)
    stored = StoredCheckpoint(str(tmp_path), ("*",))
    (part,) = stored.read([(0, ((250, 260), (0, 1024)))])
    assert np.array_equal(part, large[250:260])
    assert part.nbytes <= stored.bytes_read < part.nbytes + 2048
    before = stored.bytes_read
    (part,) = stored.read([(0, ((0, 256), (0, 256)))])
    assert part.nbytes <= stored.bytes_read - before < part.nbytes * 4


def test_files_are_told_from_others(tmp_path, write_checkpoint):
    """Missing, cut short, of another worker, of another checkpoint, no safetensors at all."""
    write_checkpoint(tmp_path / "c", {"a": A, "b": A}, workers=2, generation=f"generation-{5:016x}")
    write_checkpoint(tmp_path / "d", {"a": A, "b": A}, workers=2)
    folder = tmp_path / "c" / f"generation-{5:016x}"
    (other,) = (tmp_path / "d").glob("generation-*")
    file = folder / "worker-00001.safetensors"
    good = file.read_bytes()
    stored = StoredCheckpoint(str(tmp_path / "c"), ("*",))
    for content, text in (
        (None, "there is no such file here"),
        (good[:-1], f"expected a file of {len(good)} bytes, got {len(good) - 1}"),
        (
            (folder / "worker-00000.safetensors").read_bytes()[: len(good)],
            "expected a file|damaged",
        ),
        ((other / file.name).read_bytes(), "it was damaged or replaced"),
        (good[:20] + b"?" + good[21:], "it was damaged or replaced"),
        (b"\xff" * len(good), "expected a header within"),
    ):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(FileError, match=text) as raised:
            stored.read([(0, tuple((0, extent) for extent in A.shape))])
        assert file.name in str(raised.value)
        # What does not need the file is read all the same.
        assert np.array_equal(stored.read([(1, ((0, 1), (0, 4), (0, 3)))])[0], A[:1])


def test_a_checkpoint_that_is_replaced_meanwhile_says_so(tmp_path, write_checkpoint):
    """Not that a file is missing."""
    write_checkpoint(tmp_path, {"a": A})
    stored = StoredCheckpoint(str(tmp_path), ("*",))
    write_checkpoint(tmp_path, {"a": A})
    with pytest.raises(FileError, match="another save replaced it while it was read"):
        stored.read([(0, ((0, 1), (0, 4), (0, 3)))])
    assert StoredCheckpoint(str(tmp_path), ("*",)).fingerprint != stored.fingerprint


def test_an_index_that_was_changed_is_found_out(tmp_path, write_checkpoint):
    """By parts that are not those of its files."""
    write_checkpoint(tmp_path, {"a": np.arange(4)})
    (index,) = tmp_path.glob("disco-checkpoint-*.json")
    content = json.loads(index.read_text())
    content["tensors"]["a"]["parts"][1]["bounds"] = [[0, 3]]
    content["tensors"]["a"]["parts"][0]["bounds"] = [[3, 4]]
    index.write_text(json.dumps(content))
    with pytest.raises(
        FileError, match=r"expected int64 \[1\], as disco-checkpoint-0000000001.json says"
    ):
        StoredCheckpoint(str(tmp_path), ("*",)).read([(0, ((0, 4),))])


def test_what_is_no_checkpoint_is_refused(tmp_path, write_checkpoint):
    """A folder without an index, no folder, a path that is not allowed."""
    with pytest.raises(FileError, match=r"expected a checkpoint .*, found no disco-checkpoint"):
        StoredCheckpoint(str(tmp_path), ("*",))
    with pytest.raises(FileError, match="there is no such file"):
        StoredCheckpoint(str(tmp_path / "none"), ("*",))
    write_checkpoint(tmp_path / "c", {"a": A})
    with pytest.raises(FileNotAllowed, match="--allow-read"):
        StoredCheckpoint(str(tmp_path / "c"), (str(tmp_path / "other"),))
    # A link leads out of what is allowed.
    (generation,) = (tmp_path / "c").glob("generation-*")
    shutil.move(generation, tmp_path / "moved")
    generation.symlink_to(tmp_path / "moved")
    stored = StoredCheckpoint(str(tmp_path / "c"), (str(tmp_path / "c"),))
    with pytest.raises(FileNotAllowed):
        stored.read([(0, ((0, 1), (0, 4), (0, 3)))])
