"""GGUF files: real ones from the format's own library, shares of their blocks, and damaged ones."""

from __future__ import annotations

import itertools
import struct
import sys

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_server.storage.files import FileError
from disco_server.storage.model_files import open_checkpoint

RANDOM = np.random.default_rng(3)
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def write_model(path, tensors, **metadata):
    """Writes arrays under their names; one with a kind is stored in blocks of that."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "\u00e9"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    if "alignment" in metadata:
        writer.add_custom_alignment(metadata["alignment"])
    for name, (array, kind) in tensors.items():
        if kind is None:
            writer.add_tensor(name, array)
        else:
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def whole(array, kind):
    """What the format's own library reads back."""
    if kind is None:
        return array
    kind = gguf.GGMLQuantizationType[kind]
    return gguf.dequantize(gguf.quantize(array, kind), kind)


def open_all(path):
    opened = open_checkpoint(str(path), ("*",))
    return opened, {record.name: record for record in opened.records}


@pytest.fixture
def model(tmp_path):
    tensors = {kind: (RANDOM.random((6, 96), np.float32), kind) for kind in KINDS}
    tensors |= {
        "norm.weight": (RANDOM.random(7, np.float32), None),
        "half": (RANDOM.random((2, 3)).astype(np.float16), None),
        "ids": (np.arange(4, dtype=np.int32), None),
        "deep": (RANDOM.random((2, 3, 64), np.float32), "Q8_0"),
    }
    return write_model(tmp_path / "model.gguf", tensors), tensors


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_what_the_library_wrote_is_read(tmp_path, model, alignment):
    """Names, shapes and numbers, of blocks too; metadata are no tensors, and a folder will do."""
    _, tensors = model
    folder = tmp_path / "folder"
    folder.mkdir()
    write_model(folder / "any-name.gguf", tensors, alignment=alignment)
    opened, records = open_all(folder)
    assert records.keys() == tensors.keys()
    arrays = opened.read([(record, None) for record in opened.records])
    for record, array in zip(opened.records, arrays, strict=True):
        wanted = whole(*tensors[record.name])
        assert record.dtype == wanted.dtype.name
        assert array.dtype == wanted.dtype
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("axis", "pieces"),
    [
        (0, ((1, 3),)),
        (0, ((0, 1), (4, 6))),
        (0, ()),
        (1, ((0, 32),)),
        (1, ((32, 96),)),
        (1, ((5, 6),)),
        (1, ((3, 40), (50, 70), (90, 96))),
        (1, ((7, 7),)),
    ],
)
def test_a_share_is_what_the_whole_has_there(model, kind, axis, pieces):
    """Along any axis, also where it cuts blocks, and in another dtype."""
    path, tensors = model
    opened, records = open_all(path)
    wanted = np.concatenate(
        [np.empty((6, 96), np.float32)[:0] if axis == 0 else np.empty((6, 0), np.float32)]
        + [whole(*tensors[kind])[(slice(None),) * axis + (slice(*each),)] for each in pieces],
        axis,
    )
    part = (axis, pieces)
    array, half = (opened.read([(records[kind], part)], dtype)[0] for dtype in ("", "float16"))
    np.testing.assert_array_equal(array, wanted)
    np.testing.assert_array_equal(half, wanted.astype(np.float16))


def test_only_the_blocks_of_a_share_are_read(tmp_path):
    """Rows, and columns where the rows are long: of half of it, half of the bytes."""
    array = RANDOM.random((64, 65536), np.float32)
    path = write_model(tmp_path / "wide.gguf", {"w": (array, "Q8_0")})
    for part in ((0, ((0, 32),)), (1, ((0, 32768),))):
        opened, records = open_all(path)
        opened.read([(records["w"], part)])
        assert opened.bytes_read == records["w"].nbytes // 2


def test_without_the_package_the_plain_tensors_have_to_do(model, tmp_path, monkeypatch):
    """A file with blocks is refused with what to install; one without is read."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(FileError, match=r"pip install 'disco-runtime\[gguf\]'"):
        open_all(model[0])
    monkeypatch.undo()
    plain = {"norm": (RANDOM.random(7, np.float32), None)}
    path = write_model(tmp_path / "plain.gguf", plain)
    monkeypatch.setitem(sys.modules, "gguf", None)
    opened, records = open_all(path)
    np.testing.assert_array_equal(opened.read([(records["norm"], None)])[0], plain["norm"][0])


# Damaged ones ---------------------------------------------------------------------------


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def tensor(name="w", shape=(2,), kind=0, offset=0):
    extents = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return text(name) + extents + struct.pack("<IQ", kind, offset)


def gguf_bytes(*tensors, metadata=(), version=3, data=b"", count=None):
    """A file of the format, whatever is in it."""
    head = b"GGUF" + struct.pack(
        "<IQQ", version, len(tensors) if count is None else count, len(metadata)
    )
    raw = head + b"".join(metadata) + b"".join(tensors)
    return raw + b"\0" * (-len(raw) % 32) + data


ALIGNMENT = text("general.alignment")
NESTED = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 12


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gguf_bytes(tensor(), version=1, data=bytes(8)), "version 2 or 3"),
        (gguf_bytes(tensor(), version=3 << 24, data=bytes(8)), "little-endian"),
        (gguf_bytes(tensor(), data=bytes(7)), "expected bytes between"),
        (gguf_bytes(tensor(), count=2), "cut off"),
        (gguf_bytes(tensor(), count=1 << 60), "cut off"),
        (gguf_bytes(tensor(), tensor(), data=bytes(8)), "twice"),
        (gguf_bytes(tensor(), tensor("v", offset=32), data=bytes(16)), "expected bytes between"),
        (gguf_bytes(tensor(shape=(16,)), tensor("v"), data=bytes(64)), "overlap"),
        (gguf_bytes(tensor(offset=4), data=bytes(16)), "32 divides"),
        (gguf_bytes(tensor(kind=77), data=bytes(8)), "type 77"),
        (gguf_bytes(tensor(kind=4), data=bytes(8)), "type 4"),
        (gguf_bytes(tensor(kind=3, shape=(2, 33)), data=bytes(80)), "blocks of 32 for Q4_1"),
        (gguf_bytes(tensor(kind=3, shape=()), data=bytes(80)), "blocks of 32 for Q4_1"),
        (gguf_bytes(tensor(shape=(1, 1, 1, 1, 1)), data=bytes(8)), "at most 4 axes"),
        (gguf_bytes(tensor(shape=(1 << 40, 1 << 40)), data=bytes(8)), "expected a shape"),
        (gguf_bytes(tensor(name=""), data=bytes(8)), "expected a name"),
        (gguf_bytes(tensor(name=b"\xff"), data=bytes(8)), "UTF-8"),
        (gguf_bytes(metadata=[text("k") + struct.pack("<I", 13)]), "type of metadata"),
        (gguf_bytes(metadata=[text("k") + struct.pack("<IQ", 8, 1 << 62)]), "cut off"),
        (gguf_bytes(metadata=[text("k") + struct.pack("<IIQ", 9, 4, 1 << 61)]), "cut off"),
        (gguf_bytes(metadata=[text("k") + struct.pack("<IIQ", 9, 8, 1 << 61)]), "cut off"),
        (gguf_bytes(metadata=[text("k") + NESTED]), "type of metadata"),
        (gguf_bytes(metadata=[ALIGNMENT + struct.pack("<II", 4, 3)]), "power of two"),
        (gguf_bytes(metadata=[ALIGNMENT + struct.pack("<II", 4, 0)]), "power of two"),
        (gguf_bytes(metadata=[ALIGNMENT + struct.pack("<IQ", 10, 32)]), "power of two"),
        (b"GGUF", "cut off"),
    ],
    ids=itertools.count(),
)
def test_a_damaged_file_is_refused_with_what_is_wrong(write, content, words):
    """Before anything of a size that it says is allocated."""
    with pytest.raises(FileError, match=words):
        open_all(write(content, "model.gguf"))


def test_blocks_that_the_package_cannot_read_are_refused_by_name(write):
    """When the tensor is read: the others of the file may be wanted."""
    content = gguf_bytes(tensor("a", (32,), 9), tensor("b", offset=64), data=bytes(72))
    opened, records = open_all(write(content, "model.gguf"))
    assert opened.read([(records["b"], None)])[0].tolist() == [0, 0]
    with pytest.raises(FileError, match=r"tensor 'a': the package gguf .* cannot read Q8_1"):
        opened.read([(records["a"], None)])


def test_a_file_that_shrinks_is_refused(model):
    """After its header was read."""
    path, _ = model
    opened, records = open_all(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(FileError, match="the file has"):
        opened.read([(record, None) for record in records.values()])


SEED = gguf_bytes(
    tensor("a", (2, 32), 3),
    tensor("b", (4,), offset=64),
    metadata=[text("general.architecture") + struct.pack("<I", 8) + text("llama")],
    data=bytes(96),
)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return tmp_path_factory.mktemp("gguf") / "model.gguf"


@settings(deadline=None, max_examples=100)
@given(st.integers(0, len(SEED) - 1), st.binary(min_size=1, max_size=9))
def test_whatever_is_damaged_nothing_else_is_raised(damaged, at, put):
    """Each byte of a header, and of what it says of blocks, may be anything."""
    path = damaged
    path.write_bytes(SEED[:at] + put + SEED[at + len(put) :])
    try:
        opened, records = open_all(path)
        opened.read([(record, None) for record in records.values()])
    except FileError:
        pass
