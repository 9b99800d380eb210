"""What is encoded on one side is decoded as the same thing on the other."""

from __future__ import annotations

import contextlib
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from disco_client import Device, EncodingError, Opaque, Shape
from disco_client.errors import RemoteFailure
from disco_client.wire.codec import (
    Action,
    ArrayPorter,
    EncodedEnvelope,
    EncodedReply,
    EncodedValue,
    EnvelopeKind,
    FailureKind,
    decode_args,
    decode_failure,
    decode_value,
    encode_failure,
    encode_value,
    envelope,
)
from disco_client.wire.values import INLINE_ARRAY_BYTES, MAX_DEPTH

DTYPES = st.sampled_from(
    [np.dtype(k) for k in "?bBhHiIlLefdFD"] + [np.dtype(ml_dtypes.bfloat16), np.dtype("M8[us]")]
)


@st.composite
def arrays(draw):
    dtype = draw(DTYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    nbytes = dtype.itemsize * math.prod(shape)
    raw = draw(st.binary(min_size=nbytes, max_size=nbytes))
    if dtype.kind == "b":
        return np.asarray(np.frombuffer(raw, np.uint8).reshape(shape) % 2 == 1)
    array = np.frombuffer(raw, dtype).reshape(shape)
    return array.T if draw(st.booleans()) else array


SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.text(),
    st.binary(max_size=50),
    st.builds(Device, st.sampled_from(["cpu", "cuda", "rocm"]), st.integers(0, 100)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(Shape),
    DTYPES,
    st.builds(Opaque, st.text(), st.text()),
    arrays().filter(lambda array: array.size > 0).map(lambda array: array.flat[0]),
)
VALUES = st.recursive(
    SIMPLE | arrays(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def there_and_back(value, porter=None):
    out = EncodedValue()
    encode_value(out, value, *([porter] if porter else []))
    return decode_value(
        EncodedValue.FromString(out.SerializeToString()), *([porter] if porter else [])
    )


def assert_same(got, sent):
    assert type(got) is type(sent)
    if isinstance(sent, np.ndarray):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.tobytes() == sent.tobytes()
        assert got.flags.c_contiguous
        assert got.flags.writeable
    elif isinstance(sent, np.generic):
        assert (got.dtype, got.tobytes()) == (sent.dtype, sent.tobytes())
    elif isinstance(sent, float):
        assert got == sent or (math.isnan(got) and math.isnan(sent))
    elif isinstance(sent, (list, tuple)):
        assert len(got) == len(sent)
        for mine, theirs in zip(got, sent, strict=True):
            assert_same(mine, theirs)
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key, item in sent.items():
            assert_same(got[key], item)
    else:
        assert got == sent


@given(VALUES)
def test_every_value_comes_back_as_it_was(value):
    """Type and content, arrays to the byte and in C order, to any allowed depth."""
    assert_same(there_and_back(value), value)


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.float32, np.dtype("float32")),
        (ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kindred_values_become_the_nearest_of_the_set(sent, got):
    """Buffers arrive as bytes, numpy's texts as Python's."""
    came = there_and_back(sent)
    assert came == got
    assert type(came) is type(got)


def test_values_of_tvm_become_disco_s():
    """Shapes, also with negative numbers, dtypes, devices, texts, bytes."""
    ffi = pytest.importorskip("tvm_ffi")
    sent = [
        ffi.Shape((2, 0)),
        ffi.Shape((-1, 2)),
        ffi.dtype("bfloat16"),
        ffi.device("cuda", 3),
        ffi.core.String("long enough a text"),
        ffi.core.Bytes(b"bytes"),
    ]
    dtype = np.dtype(ml_dtypes.bfloat16)
    got = [Shape((2, 0)), Shape((-1, 2)), dtype, Device("cuda", 3), *sent[4:]]
    came = there_and_back(sent)
    assert came == got
    assert [type(each) for each in came[:2] + came[3:]] == [Shape, Shape, Device, str, bytes]
    for value in (ffi.dtype("float32x4"), ffi.device("metal")):
        with pytest.raises(EncodingError, match="expected"):
            encode_value(EncodedValue(), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5, dtype=">i4"),
        np.arange(6, dtype=">f8").reshape(2, 3),
        np.arange(INLINE_ARRAY_BYTES, dtype=">u2"),
    ],
    ids=["int32", "float64", "large"],
)
def test_an_array_of_the_other_byte_order_keeps_its_values(array):
    """It arrives in the machine's own order."""
    porter = Tickets()
    came = there_and_back(array, porter)
    np.testing.assert_array_equal(came, array)
    assert came.dtype.isnative


REFUSED = {
    "object": object(),
    "set of what cannot travel": {object()},
    "key of another kind": {object(): 2},
    "text": "\ud800",
    "key": {"\ud800": 1},
    "objects": np.array([object()]),
    "records": np.zeros(2, [("a", "i4")]),
    "bare bytes": np.zeros(2, "V8"),
    "buffer": memoryview(np.zeros(2)),
    "number with a unit": type("Metres", (float,), {"unit": "m"})(2.0),
    "times with a unit": np.zeros(2, "m8[s]").view(type("L", (np.ndarray,), {"unit": "m"})),
    "dtype": np.dtype(object),
    "dimension": Shape([1 << 63]),
    "dimension without a text": Shape([10**5000]),
    "function": len,
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_is_not_of_the_set_is_refused_as_such(value):
    """With the one error a caller need catch, wherever in the value it is."""
    with pytest.raises(EncodingError):
        encode_value(EncodedValue(), [value])


def test_a_refusal_says_where_in_a_value_it_is():
    """And of which type that is; what is refused by itself needs no place."""
    with pytest.raises(
        EncodingError, match=r"^at \[1\]\['k'\]\[0\]: a value of type builtins.object "
    ) as told:
        encode_value(EncodedValue(), ["fine", {"j": 1, "k": [object()]}])
    assert told.value.path == "[1]['k'][0]"
    with pytest.raises(EncodingError, match=r"^a value of type builtins.object ") as told:
        encode_value(EncodedValue(), object())
    assert told.value.path == ""


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}], ids=["list", "map"])
def test_values_nest_to_the_limit_and_no_further(wrap):
    """What the encoder lets through, the decoder reads."""
    value = 7
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert there_and_back(value) == value
    with pytest.raises(EncodingError, match=f"{MAX_DEPTH} deep"):
        encode_value(EncodedValue(), wrap(value))


class Tickets(ArrayPorter):
    """Keeps what is offered, as the real ones do elsewhere."""

    def __init__(self):
        self.kept = {}

    def offer(self, array):
        assert array.flags.c_contiguous
        self.kept[len(self.kept) + 1] = array
        return len(self.kept)

    def collect(self, ticket, dtype, shape):
        array = self.kept[ticket]
        assert array.dtype == dtype
        return array.reshape(shape)


def test_large_arrays_go_by_ticket_and_only_they():
    """One byte beyond the limit, the bytes are handed to the porter."""
    porter = Tickets()
    small, large = np.zeros(INLINE_ARRAY_BYTES, "u1"), np.ones(INLINE_ARRAY_BYTES + 1, "u1")
    came = there_and_back([small, large, large.reshape(1, -1)[:, ::-1]], porter)
    assert len(porter.kept) == 2
    assert [part.shape for part in came] == [small.shape, large.shape, (1, large.size)]
    with pytest.raises(EncodingError, match="cannot travel"):
        there_and_back(large)


def test_a_reference_becomes_what_the_register_holds():
    """At the top of the arguments and inside lists and maps."""
    out = EncodedValue()
    encode_value(out, ["first", {"k": len}], register_of=lambda v: 9 if v is len else None)
    direct = EncodedValue(reg=3)
    assert decode_args([direct, out], {3: "three", 9: "nine"}.get) == [
        "three",
        ["first", {"k": "nine"}],
    ]
    with pytest.raises(EncodingError, match="register 3"):
        decode_value(direct)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (EncodedValue(), "empty"),
        (EncodedValue(dtype="float33"), "float33"),
        (EncodedValue(scalar={"dtype": "int32", "data": b"abc"}), "a int32, got 3"),
        (EncodedValue(scalar={"dtype": "<U2", "data": b"a" * 8}), "<U2"),
    ],
)
def test_a_message_that_says_nothing_sensible_is_refused(message, text):
    """A peer's mistake is named as one."""
    with pytest.raises(EncodingError, match=text):
        decode_value(message)


def test_an_array_with_missing_bytes_is_refused():
    """Its shape must account for its bytes."""
    out = EncodedValue()
    encode_value(out, np.arange(4, dtype="i4"))
    out.array.shape[0] = 5
    with pytest.raises(EncodingError, match="expected 20 bytes"):
        decode_value(out)


@given(st.binary(max_size=200))
def test_garbage_is_never_more_than_a_refusal(raw):
    """Whatever bytes come, decoding gives a value or one of two errors."""
    from google.protobuf.message import DecodeError

    with contextlib.suppress(DecodeError, EncodingError):
        decode_value(EncodedValue.FromString(raw))


@given(
    st.sampled_from(FailureKind),
    st.builds(
        RemoteFailure,
        worker=st.integers(0, 4095),
        seq=st.integers(0, 2**63),
        message=st.text(),
        node=st.text(),
        function=st.text(),
        exception=st.text(),
        traceback=st.text(),
        program=st.integers(0, 2**63),
        step=st.integers(0, 2**16),
    ),
)
def test_a_failure_comes_back_whole(kind, failure):
    """All fields but the client's line, which only the client knows."""
    reply = EncodedReply()
    encode_failure(reply.failure, failure, kind)
    assert decode_failure(EncodedReply.FromString(reply.SerializeToString()).failure) == (
        failure,
        kind,
    )


def test_a_failure_of_an_unknown_kind_counts_as_an_exception():
    """A newer worker may know kinds that this client does not."""
    reply = EncodedReply()
    reply.failure.kind = 99  # pyright: ignore[reportAttributeAccessIssue]
    assert decode_failure(reply.failure)[1] is FailureKind.EXCEPTION


def test_an_envelope_names_what_relays_need():
    """Session, kind, rank and the range of commands; rank 0 is not "no rank"."""
    read = EncodedEnvelope.FromString(
        envelope(
            EnvelopeKind.BATCH, b"payload", session=2**64 - 1, worker=0, first_seq=5, last_seq=9
        )
    )
    assert (read.session, read.kind, read.worker_plus_one) == (2**64 - 1, EnvelopeKind.BATCH, 1)
    assert (read.first_seq, read.last_seq, read.payload) == (5, 9, b"payload")
    assert EncodedEnvelope.FromString(envelope(EnvelopeKind.CLOSE)).worker_plus_one == 0


def test_the_numbers_are_those_of_the_messages():
    """Python's enumerations and protobuf's say the same, the original's nine actions first."""
    from disco_client.pb import commands_pb2, envelope_pb2

    for ours, theirs, prefix in (
        (Action, commands_pb2.Action, "ACTION_"),
        (FailureKind, commands_pb2.FailureKind, "FAILURE_KIND_"),
        (EnvelopeKind, envelope_pb2.Kind, "KIND_"),
    ):
        names = {prefix + each.name: each.value for each in ours}
        assert names == {k: v for k, v in theirs.items() if not k.endswith("UNSPECIFIED")}
    assert [action.value for action in Action][:9] == list(range(9))
