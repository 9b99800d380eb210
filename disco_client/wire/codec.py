"""Values and commands to protobuf and back; the only place that knows both.

The hot paths are :func:`encode_value` on the client and :func:`decode_args` on
the workers: both dispatch on a type or field name through one table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from disco_client.errors import ConfigError, EncodingError, RemoteFailure
from disco_client.pb import commands_pb2, envelope_pb2, values_pb2
from disco_client.wire.array_likes import loss_of, refuse_loss
from disco_client.wire.dlpack import speaks_dlpack
from disco_client.wire.host_arrays import as_host_array
from disco_client.wire.record_parts import RecordParts, is_named
from disco_client.wire.records import make_record, parts_of
from disco_client.wire.values import (
    INLINE_ARRAY_BYTES,
    MAX_DEPTH,
    ArrayPorter,
    Device,
    Opaque,
    Shape,
    as_device,
    dtype_from_name,
    dtype_name,
    ffi_shape,
    is_array,
    is_int64,
    shown,
)

__all__ = [
    "INTERRUPTIBLE",
    "PROTOCOL",
    "Action",
    "EncodedBatch",
    "EncodedCommand",
    "EncodedEnvelope",
    "EncodedProgram",
    "EncodedReply",
    "EncodedValue",
    "EnvelopeKind",
    "FailureKind",
    "InterruptedAt",
    "decode_args",
    "decode_failure",
    "decode_value",
    "encode_failure",
    "encode_names",
    "encode_value",
    "envelope",
    "envelopes_in",
    "inner_values",
    "is_of_bytes",
    "is_shape",
    "join_envelopes",
    "mismatch",
    "record_of",
    "registers_in",
    "split_keywords",
    "tickets_in",
    "type_name",
]


EncodedValue: TypeAlias = values_pb2.Value
EncodedCommand: TypeAlias = commands_pb2.Command
EncodedBatch: TypeAlias = commands_pb2.Batch
EncodedProgram: TypeAlias = commands_pb2.Program
EncodedReply: TypeAlias = commands_pb2.Reply
EncodedEnvelope: TypeAlias = envelope_pb2.Envelope


class Action(enum.IntEnum):
    """What a command does; the first nine are those of the original's DiscoAction."""

    SHUT_DOWN = 0
    KILL_REG = 1
    GET_GLOBAL_FUNC = 2
    CALL_PACKED = 3
    SYNC_WORKER = 4
    COPY_FROM_WORKER0 = 5
    COPY_TO_WORKER0 = 6
    DEBUG_GET_FROM_REMOTE = 7
    DEBUG_SET_REGISTER = 8
    DEFINE_PROGRAM = 9
    RUN_PROGRAM = 10


INTERRUPTIBLE = frozenset((Action.CALL_PACKED, Action.COPY_TO_WORKER0, Action.RUN_PROGRAM))
"""What is left out where the program has interrupted it; all else takes no time, or is asked."""


class EnvelopeKind(enum.IntEnum):
    """What an envelope's payload holds."""

    BATCH = 1
    REPLY = 2
    LOG = 3
    CREATE = 10
    QUEUED = 11
    READY = 12
    CLOSE = 13
    ENDED = 14
    HEARTBEAT = 15
    ATTACH = 16
    DETACH = 17
    RESUME = 18
    RECEIVED = 19
    REGISTER = 20
    REGISTERED = 21
    START_RANKS = 22
    RANKS_READY = 23
    RANK_EXITED = 24
    END_SESSION = 25
    SESSION_GONE = 26
    FETCH = 27
    DRAIN = 28
    REFUSED = 29
    PUSH = 30
    HAVE = 31
    CORDON = 32
    EXPIRING = 33
    INTERRUPT = 34
    ASSIGN = 40
    ASSIGNED = 41
    ARRAY_IN = 42
    ARRAY_OUT = 43
    OPEN_CCL = 44
    ARRAY_BACK = 45
    ARRAY_MORE = 46
    PUT_KEY = 50
    GET_KEY = 51
    KEY = 52
    FENCE = 53
    FENCED = 54
    INSPECT = 60
    INSPECTED = 61
    CCL_OPENED = 70
    AUDIT = 80
    ASK_HOLDINGS = 81
    HOLDINGS = 82
    JOINED = 90


class FailureKind(enum.IntEnum):
    """The families of failures that a client distinguishes."""

    EXCEPTION = 1
    NOT_FOUND = 2
    NOT_ALLOWED = 3
    BAD_ARGUMENT = 4
    MISMATCH = 5
    ABORTED = 6
    CCL = 7
    FILE = 8
    LEFT_OUT = 9
    STALE = 10
    INTERRUPTED = 11
    TIME_LIMIT = 12


class InterruptedAt(enum.IntEnum):
    """How far workers had come with a command when they were interrupted."""

    NOT = 0
    BEFORE = 1
    WITHIN = 2


_NO_PORTER = ArrayPorter()
RegisterOf: TypeAlias = Callable[[object], int | None]


def _no_register(_value: object) -> int | None:
    return None


def envelope(
    kind: int,
    payload: bytes = b"",
    *,
    session: int = 0,
    worker: int | None = None,
    first_seq: int = 0,
    last_seq: int = 0,
) -> bytes:
    """Encodes one envelope."""
    return envelope_pb2.Envelope(
        session=session,
        kind=kind,  # type: ignore[arg-type]  (the enum's numbers are ours)
        worker_plus_one=0 if worker is None else worker + 1,
        first_seq=first_seq,
        last_seq=last_seq,
        payload=payload,
    ).SerializeToString()


def join_envelopes(envelopes: Sequence[bytes]) -> bytes:
    """Encodes one message of a daemon's stream from what waits to be written to it."""
    if len(envelopes) == 1:
        return envelopes[0]
    kind: Any = EnvelopeKind.JOINED
    return envelope_pb2.Envelope(kind=kind, joined=envelopes).SerializeToString()


def envelopes_in(message: bytes) -> Iterator[tuple[bytes, EncodedEnvelope]]:
    """Yields what one message of a daemon's stream holds: envelopes, encoded and decoded.

    Raises:
        google.protobuf.message.DecodeError: The message, or a part of it, is no envelope.
    """
    received = EncodedEnvelope.FromString(message)
    if received.kind != EnvelopeKind.JOINED:
        yield message, received
    for raw in received.joined:
        yield raw, EncodedEnvelope.FromString(raw)


# Encoding -----------------------------------------------------------------


def encode_value(
    out: EncodedValue,
    value: object,
    porter: ArrayPorter = _NO_PORTER,
    register_of: RegisterOf = _no_register,
    depth: int = 0,
) -> None:
    """Writes a value into a protobuf message.

    Args:
        out: The message to fill.
        value: Any value of :mod:`disco_client.wire.values`.
        porter: Takes the arrays larger than ``INLINE_ARRAY_BYTES``.
        register_of: Returns the register that an object stands for, or None.
        depth: How many lists and maps surround the value.

    Raises:
        EncodingError: The value, or one inside it, may not travel; it says where that is.
    """
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        simple(out, value)
        return
    register = register_of(value)
    if register is not None:
        out.reg = register
        return
    if is_array(value) or porter.knows(value):
        _encode_array(out, value, porter)
    elif isinstance(value, enum.Enum) and (parts := parts_of(value)) is not None:
        _check_depth(depth)  # before lists and the like, as a member may be a number or a tuple
        _encode_record(out, parts, porter, register_of, depth)
    elif isinstance(value, tuple) and is_shape(cast("tuple[Any, ...]", value)):
        _encode_shape(out, value)
    elif isinstance(value, (list, tuple)):
        _check_depth(depth)
        _encode_list(out, cast("Sequence[Any]", value), porter, register_of, depth)
    elif isinstance(value, dict):
        _check_depth(depth)
        _encode_map(out, cast("dict[Any, Any]", value), porter, register_of, depth)
    elif speaks_dlpack(value):
        shared = porter.from_device(value)
        _encode_array(out, as_host_array(value) if shared is None else shared, porter)
    elif (parts := parts_of(value)) is not None:
        _check_depth(depth)
        _encode_record(out, parts, porter, register_of, depth)
    else:
        _encode_other(out, value)


def encode_names(command: EncodedCommand, names: Iterable[str]) -> None:
    """Writes the names of a call's last arguments.

    Raises:
        EncodingError: One is no text that may travel.
    """
    for name in names:
        try:
            command.keywords.append(name)
        except (ValueError, UnicodeEncodeError):
            msg = f"expected keywords that UTF-8 can encode, got {name!r}"
            raise EncodingError(msg) from None


def split_keywords(args: list[Any], names: Sequence[str]) -> dict[str, Any]:
    """Takes the arguments with names off the end of a call's arguments.

    Args:
        args: All arguments; those without names are left.
        names: The names of the last ones.

    Raises:
        EncodingError: There are more names than arguments, or one occurs twice.
    """
    plain = len(args) - len(names)
    found = dict(zip(names, args[plain:], strict=True)) if plain >= 0 else {}
    if len(found) != len(names):
        msg = f"expected a name of its own for each of {len(args)} arguments, got {list(names)}"
        raise EncodingError(msg)
    del args[plain:]
    return found


def is_shape(value: Sequence[Any]) -> bool:
    """Whether it is a shape, of this library or of TVM's."""
    if isinstance(value, Shape):
        return True
    kind = ffi_shape()
    return kind is not None and isinstance(value, kind)


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        msg = f"lists and maps may nest {MAX_DEPTH} deep, these go deeper"
        raise EncodingError(msg)


def _encode_none(out: EncodedValue, _value: Any) -> None:
    out.none.SetInParent()


def _encode_bool(out: EncodedValue, value: Any) -> None:
    out.bool = bool(value)


def _encode_int(out: EncodedValue, value: Any) -> None:
    number = int(value)
    if is_int64(number):
        out.int = number
    else:
        _encode_record(out, cast("RecordParts", parts_of(number)))


def _encode_float(out: EncodedValue, value: Any) -> None:
    out.float = float(value)


def _encode_str(out: EncodedValue, value: Any) -> None:
    try:
        out.str = str.__str__(value)  # what a subclass prints may be something else
    except (ValueError, UnicodeEncodeError):
        msg = f"expected text that UTF-8 can encode, got {value!r}"
        raise EncodingError(msg) from None


def _encode_bytes(out: EncodedValue, value: Any) -> None:
    out.bytes = bytes(value)


def _encode_buffer(out: EncodedValue, value: memoryview) -> None:
    if not is_of_bytes(value):
        msg = (
            f"expected a memoryview of bytes, got one of {value.ndim} axes and format "
            f"{value.format!r}, which would arrive as its bytes alone; give numpy.asarray of it"
        )
        raise EncodingError(msg)
    out.bytes = value.tobytes()


def is_of_bytes(value: memoryview) -> bool:
    """Whether a buffer is a row of bytes; what others mean is lost with their format and axes."""
    return value.format in ("B", "b", "c") and value.ndim == 1


def _encode_dtype(out: EncodedValue, value: Any) -> None:
    try:
        out.dtype = dtype_name(value)
    except ConfigError as error:
        raise EncodingError(str(error)) from None


def _encode_device(out: EncodedValue, value: Any) -> None:
    out.device.kind = value.kind
    out.device.index = value.index


def _encode_shape(out: EncodedValue, value: Any) -> None:
    out.shape.SetInParent()
    try:
        out.shape.dims.extend(value)
    except ValueError:
        msg = f"expected dimensions that are signed integers of 64 bits, got {shown(value)}"
        raise EncodingError(msg) from None


def _encode_opaque(out: EncodedValue, value: Any) -> None:
    out.opaque.type = value.type
    out.opaque.text = value.text


def _encode_scalar(out: EncodedValue, value: np.generic[Any]) -> None:
    if type(value) is not value.dtype.type:
        msg = (
            f"a value of type {type_name(value)} cannot travel, as it would arrive as a plain "
            f"numpy.{value.dtype.type.__name__}; convert it to that first"
        )
        raise EncodingError(msg)
    try:
        out.scalar.dtype = dtype_name(value.dtype)
    except ConfigError as error:
        raise EncodingError(str(error)) from None
    out.scalar.data = value.tobytes()


_SIMPLE: dict[type, Callable[[EncodedValue, Any], None]] = {
    type(None): _encode_none,
    bool: _encode_bool,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    bytearray: _encode_bytes,
    memoryview: _encode_buffer,
    Device: _encode_device,
    Shape: _encode_shape,
    Opaque: _encode_opaque,
    **{np.dtype(code).type: _encode_scalar for code in np.typecodes["All"] if code not in "SUVO"},
    np.str_: _encode_str,
    np.bytes_: _encode_bytes,
}


def _encode_other(out: EncodedValue, value: Any) -> None:
    if isinstance(value, np.dtype):
        _encode_dtype(out, cast("np.dtype[Any]", value))
    elif isinstance(value, np.generic) and not isinstance(value, (str, bytes)):
        _encode_scalar(out, cast("np.generic[Any]", value))
    elif isinstance(value, type) and issubclass(value, np.generic):
        _encode_dtype(out, np.dtype(cast("type[np.generic[Any]]", value)))
    elif isinstance(value, str) and hasattr(value, "lanes"):
        _encode_dtype(out, _decode_dtype(str(value)))  # of TVM, where a dtype is a text
    else:
        for kind in (bool, int, float, str, bytes):
            if isinstance(value, kind):
                refuse_loss(value)  # such as a number with a unit
                _SIMPLE[kind](out, value)
                return
        _encode_foreign_device(out, value)


def _encode_foreign_device(out: EncodedValue, value: Any) -> None:
    try:
        device = as_device(value)
    except ConfigError as error:
        raise EncodingError(str(error)) from None
    if device is None:
        msg = loss_of(value) or (
            f"a value of type {type_name(value)} cannot travel; "
            "expected None, a number, str, bytes, a date or time, a path, dtype, Device, Shape, "
            "ndarray, what speaks DLPack, DRef, a dataclass or an enum, or a list, tuple, set or "
            "dict of these"
        )
        raise EncodingError(msg)
    _encode_device(out, device)


def _encode_list(
    out: EncodedValue,
    value: Sequence[Any],
    porter: ArrayPorter,
    register_of: RegisterOf,
    depth: int,
) -> None:
    if is_named(value):
        _encode_record(out, cast("RecordParts", parts_of(value)), porter, register_of, depth)
        return
    out.list.SetInParent()
    if isinstance(value, tuple):
        out.list.is_tuple = True
    items = out.list.items
    number = -1
    try:
        for number, item in enumerate(value):  # noqa: B007  (where it stopped)
            encode_value(items.add(), item, porter, register_of, depth + 1)
    except EncodingError as error:
        raise error.within(f"[{number}]") from error.__cause__


def _encode_map(
    out: EncodedValue,
    value: dict[Any, Any],
    porter: ArrayPorter,
    register_of: RegisterOf,
    depth: int,
) -> None:
    if not all(map(_is_text, set(map(type, value)))):
        parts = cast("RecordParts", parts_of(dict(value)))
        _encode_record(out, parts, porter, register_of, depth)
        return
    out.map.SetInParent()
    items = out.map.items
    for key, item in value.items():
        entry = items.add()
        try:
            entry.key = str.__str__(key)
        except (ValueError, UnicodeEncodeError):
            msg = f"expected keys that UTF-8 can encode, got {key!r}"
            raise EncodingError(msg) from None
        try:
            encode_value(entry.value, item, porter, register_of, depth + 1)
        except EncodingError as error:
            raise error.within(f"[{key!r}]") from error.__cause__


def _is_text(kind: type) -> bool:
    """Whether keys of a type are texts and nothing more, as members of a StrEnum are."""
    return kind is str or (issubclass(kind, str) and not issubclass(kind, enum.Enum))


def _encode_record(
    out: EncodedValue,
    parts: RecordParts,
    porter: ArrayPorter = _NO_PORTER,
    register_of: RegisterOf = _no_register,
    depth: int = 0,
) -> None:
    record = out.record
    record.type, record.of = parts.type, parts.of
    record.fields.extend(parts.fields)
    for number, item in enumerate(parts.items):
        try:
            encode_value(record.items.add(), item, porter, register_of, depth + 1)
        except EncodingError as error:
            raise error.within(parts.step(number)) from error.__cause__


def _encode_array(out: EncodedValue, value: Any, porter: ArrayPorter) -> None:
    refuse_loss(value)
    encoded = out.array
    if not value.dtype.isnative:  # names of dtypes do not say the order of bytes
        value = value.astype(value.dtype.newbyteorder("="))
    try:
        encoded.dtype = dtype_name(value.dtype)
    except ConfigError as error:
        raise EncodingError(loss_of(value) or str(error)) from None
    encoded.shape.extend(value.shape)
    if value.nbytes <= INLINE_ARRAY_BYTES:
        encoded.inline = porter.content(value)
    else:
        encoded.ticket = porter.offer(np.ascontiguousarray(value) if is_array(value) else value)


def type_name(value: object) -> str:
    """The qualified name of a value's type."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


# Decoding -----------------------------------------------------------------


def decode_args(
    args: Iterable[EncodedValue], registers: Callable[[int], Any], porter: ArrayPorter = _NO_PORTER
) -> list[Any]:
    """Turns a command's arguments into objects; registers become their content."""
    out: list[Any] = []
    for arg in args:
        kind = arg.WhichOneof("kind")
        if kind == "reg":
            out.append(registers(arg.reg))
        elif kind in _DIRECT:
            out.append(getattr(arg, kind))
        else:
            out.append(decode_value(arg, porter, registers))
    return out


_DIRECT = frozenset(("int", "float", "str", "bytes", "bool"))


def _refuse_register(register: int) -> Any:
    msg = f"a reference to register {register} means nothing here"
    raise EncodingError(msg)


def decode_value(  # noqa: PLR0911  (one return for each kind of value)
    value: EncodedValue,
    porter: ArrayPorter = _NO_PORTER,
    registers: Callable[[int], Any] = _refuse_register,
    depth: int = 0,
) -> Any:
    """Reads a value from a protobuf message.

    Raises:
        EncodingError: The message holds no value, nests too deep, or an array's
            bytes do not fit its shape.
    """
    kind = value.WhichOneof("kind")
    if kind in _DIRECT:
        return getattr(value, kind)
    if kind == "none":
        return None
    if kind == "scalar":
        return _decode_scalar(value.scalar)
    if kind == "reg":
        return registers(value.reg)
    if kind == "shape":
        return Shape(value.shape.dims)
    if kind == "array":
        return _decode_array(value.array, porter)
    if kind == "dtype":
        return _decode_dtype(value.dtype)
    if kind == "device":
        return Device(value.device.kind, value.device.index)
    if kind == "list":
        _check_depth(depth)
        items = [decode_value(item, porter, registers, depth + 1) for item in value.list.items]
        return _list_of(items, value.list)
    if kind == "map":
        _check_depth(depth)
        return {
            entry.key: decode_value(entry.value, porter, registers, depth + 1)
            for entry in value.map.items
        }
    if kind == "record":
        _check_depth(depth)
        record = value.record
        items = [decode_value(item, porter, registers, depth + 1) for item in record.items]
        return record_of(record, items)
    return _decode_opaque(value)


def _decode_opaque(value: EncodedValue) -> Opaque:
    if value.WhichOneof("kind") == "opaque":
        return Opaque(value.opaque.type, value.opaque.text)
    msg = "expected a value, got an empty message"
    raise EncodingError(msg)


def record_of(encoded: values_pb2.Record, items: Sequence[Any]) -> Any:
    """Makes a value of what it is made of, which is decoded.

    Args:
        encoded: It, as it came.
        items: What it is made of.

    Raises:
        EncodingError: There is no such type here, or these are no parts of its values.
    """
    return make_record(RecordParts(encoded.type, items, encoded.of, encoded.fields))


def _list_of(items: list[Any], encoded: values_pb2.ValueList) -> list[Any] | tuple[Any, ...]:
    return tuple(items) if encoded.is_tuple else items


def _decode_dtype(name: str) -> np.dtype[Any]:
    try:
        return dtype_from_name(name)
    except ConfigError as error:
        raise EncodingError(str(error)) from None


def _decode_scalar(encoded: values_pb2.Scalar) -> np.generic[Any]:
    dtype = _decode_dtype(encoded.dtype)
    if dtype.kind in "SU" or len(encoded.data) != dtype.itemsize:
        msg = f"expected the bytes of a {dtype}, got {len(encoded.data)}"
        raise EncodingError(msg)
    scalar: np.generic[Any] = np.frombuffer(encoded.data, dtype)[0]
    return scalar


def _decode_array(encoded: values_pb2.Array, porter: ArrayPorter) -> Any:
    dtype = _decode_dtype(encoded.dtype)
    shape = tuple(encoded.shape)
    if encoded.WhichOneof("data") == "ticket":
        return porter.collect(encoded.ticket, dtype, shape)
    expected = dtype.itemsize
    for dim in shape:
        expected *= dim
    if expected != len(encoded.inline):
        msg = f"expected {expected} bytes for {dtype}{list(shape)}, got {len(encoded.inline)}"
        raise EncodingError(msg)
    try:
        held = np.frombuffer(encoded.inline, dtype).reshape(shape)
    except ValueError as error:  # nothing in it, and yet dimensions beyond all numbers
        msg = f"no array can be {dtype}{list(shape)}: {error}"
        raise EncodingError(msg) from None
    # A copy, because what frombuffer returns is read-only.
    return porter.arrived(held.copy())


# Failures -----------------------------------------------------------------


def encode_failure(out: commands_pb2.Failure, failure: RemoteFailure, kind: FailureKind) -> None:
    """Writes a failure into a protobuf message."""
    out.seq = failure.seq
    out.worker = failure.worker
    out.kind = int(kind)  # type: ignore[assignment]  (the enum's numbers are ours)
    out.function = failure.function
    out.exception = failure.exception
    out.message = failure.message
    out.traceback = failure.traceback
    out.node = failure.node
    out.program, out.step = failure.program, failure.step
    out.missing = failure.missing


def decode_failure(encoded: commands_pb2.Failure) -> tuple[RemoteFailure, FailureKind]:
    """Reads a failure; a kind from a newer peer counts as an exception."""
    try:
        kind = FailureKind(encoded.kind)
    except ValueError:
        kind = FailureKind.EXCEPTION
    failure = RemoteFailure(
        worker=encoded.worker,
        seq=encoded.seq,
        message=encoded.message,
        node=encoded.node,
        function=encoded.function,
        exception=encoded.exception,
        traceback=encoded.traceback,
        program=encoded.program,
        step=encoded.step,
        missing=encoded.missing,
    )
    return failure, kind


# What is inside encoded values.


def inner_values(value: EncodedValue) -> Iterable[EncodedValue]:
    """The values that an encoded value is made of, in order; none of one that is simple."""
    kind = value.WhichOneof("kind")
    if kind == "list":
        return value.list.items
    if kind == "record":
        return value.record.items
    return (entry.value for entry in value.map.items) if kind == "map" else ()


def tickets_in(values: Iterable[EncodedValue]) -> Iterator[int]:
    """Yields the tickets of the arrays in encoded values, those inside others included."""
    for value in values:
        if value.WhichOneof("kind") != "array":
            yield from tickets_in(inner_values(value))
        elif value.array.WhichOneof("data") == "ticket":
            yield value.array.ticket


def registers_in(values: Iterable[EncodedValue]) -> Iterator[int]:
    """Yields the registers that encoded values stand for, those inside others included."""
    for value in values:
        if value.WhichOneof("kind") == "reg":
            yield value.reg
        else:
            yield from registers_in(inner_values(value))


# The version of the protocol, and the error for two versions that do not match.


PROTOCOL = 9
"""Raised by one whenever a peer of the former version would misunderstand."""


def mismatch(mine: str, my_protocol: int, theirs: str, their_protocol: int) -> str | None:
    """Says why two peers cannot communicate, or None when they can.

    Args:
        mine: The side that judges, with its release: ``"controller 0.1.0"``.
        my_protocol: The protocol it speaks.
        theirs: The other side, likewise.
        their_protocol: The protocol that the other side speaks.
    """
    if my_protocol == their_protocol:
        return None
    older = mine if my_protocol < their_protocol else theirs
    return (
        f"{mine} speaks protocol {my_protocol}, {theirs} speaks protocol {their_protocol}; "
        f"upgrade the {older.split()[0]} so that both are the same"
    )
