"""Every decoder, with what it may raise and inputs that it takes."""

from __future__ import annotations

import datetime as dt
import json
import os
import struct
import tempfile
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from google.protobuf.message import DecodeError
from travelling import classes

from disco_client.arrays.memory_messages import pack, unpack
from disco_client.command_log import CommandLog
from disco_client.distributed.placement import Placement
from disco_client.errors import ConfigError, EncodingError
from disco_client.locks import make_lock
from disco_client.pb import commands_pb2, controller_pb2, memory_pb2
from disco_client.replies import Inbox
from disco_client.tracing.ring import MAGIC, NAMES_AT, RING_BYTES, read_flight
from disco_client.tracing.ring_cuts import FlightDelta, cut_memory
from disco_client.wire.arrays import chunk_data, encode_chunk, encode_end
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedReply,
    EncodedValue,
    decode_value,
    encode_value,
)
from disco_client.wire.framing import frame
from disco_client.wire.overview import decode_overview
from disco_client.wire.reports import decode_inspection
from disco_client.wire.values import Device, Opaque, Shape
from disco_server.config import ControllerConfig, WorkerConfig
from disco_server.core.pmi import MeetNodes, PmiExchange
from disco_server.ipc.framing import FrameReader, frame_of_progress, progress_in
from disco_server.observe.flight import FlightRecorder
from disco_server.rank.executor import Executor
from disco_server.rank.worker import Worker, set_current_worker
from disco_server.settings import Address
from disco_server.storage.checkpoint_read import decode_index
from disco_server.storage.files import FileError
from disco_server.storage.model_files import open_checkpoint, open_npy, read_tensor_cache
from fakes import Replies
from fuzzing.services import SERVICE_ERRORS, client_stream, controller_seeds, node_stream
from fuzzing.target import Target

FOLDER = Path(tempfile.mkdtemp(prefix="disco-fuzz-"))
SOMEWHERE = Path("/somewhere/index.json")


# The wire codec ---------------------------------------------------------------------------


def values():
    """Encoded values of every kind."""
    examples = [
        *(None, True, -5, 1.5, "text", b"bytes", np.dtype("float32"), Device("cuda", 1)),
        *(Shape((2, 3)), Opaque("t", "x"), [1, [2, [3, "x"]]], {"a": {"b": None}}),
        *(np.arange(6.0).reshape(2, 3), np.zeros((0, 4), "int8"), np.array(["a", "bc"])),
        *((1, "x"), {1, ("y",)}, frozenset(), 1 << 70, 1.5j, Decimal("1.50"), Path("a/b")),
        *(dt.datetime(2026, 1, 31, tzinfo=ZoneInfo("Europe/Berlin")), dt.timedelta(1)),
        *(classes.Order("a", [classes.Point(1, classes.Colour.RED)]), classes.Access.READ),
        *(classes.Level.HIGH, {1: "a", (2, "b"): [None], classes.Word.LONG: {}}),
    ]
    for example in examples:
        value = EncodedValue()
        encode_value(value, example)
        yield value


def decode_one_value(data):
    return decode_value(EncodedValue.FromString(data))


def run_batch(data):
    """Runs a batch as a rank does that allows nothing."""
    worker = Worker(0, 1, 1, open_groups=no_communicator, node="n", max_registers=4096)
    set_current_worker(worker)
    cores = os.sched_getaffinity(0)
    try:
        replies = Replies()
        Executor(worker, replies).run_batch(1, data)
        replies.take()
    finally:
        set_current_worker(None)
        os.sched_setaffinity(0, cores)  # a function that every worker has may change that


def no_communicator(_worker, _ccl):
    """What opens no communicator, as where the library is missing."""
    msg = "there is none here"
    raise OSError(msg)


def batches():
    batch = EncodedBatch()
    for name in ("runtime.disco.empty", "runtime.disco.get_item", "numpy.add", "no.such"):
        command = batch.commands.add(action=int(Action.GET_GLOBAL_FUNC), reg=len(batch.commands))
        encode_value(command.args.add(), name)
    call = batch.commands.add(action=int(Action.CALL_PACKED), func=1, reg=9)
    for value in (Shape((2, 2)), "float32", None):
        encode_value(call.args.add(), value)
    batch.commands.add(action=int(Action.SYNC_WORKER), released=[3])
    batch.commands.add(action=int(Action.DEBUG_GET_FROM_REMOTE), reg=9)
    yield batch.SerializeToString()
    define = EncodedBatch()
    made = define.commands.add(action=int(Action.DEFINE_PROGRAM), reg=2)
    made.program.name = "p"
    made.program.inputs.append(1)
    made.program.outputs.append(1)
    inner = commands_pb2.Batch()
    inner.commands.add(action=int(Action.GET_GLOBAL_FUNC), reg=2)
    encode_value(inner.commands[0].args.add(), "runtime.disco.get_item")
    inner.commands.add(action=int(Action.CALL_PACKED), func=2, reg=3)
    made.program.batches.append(inner.SerializeToString())
    run = define.commands.add(action=int(Action.RUN_PROGRAM), func=2, results=[5])
    encode_value(run.args.add(), 7)
    yield define.SerializeToString()
    yield EncodedBatch(calls=[0, 1, 9, 2, 2, 4, 0, 1, 10, 1, 19]).SerializeToString()


def receive_reply(data):
    lock = make_lock("session")
    log = CommandLog(1, lock=lock)
    Inbox(log, lock=lock).receive(0, EncodedReply.FromString(data))


def replies():
    reply = EncodedReply(seq=3, ack=3)
    encode_value(reply.value, [1, "x"])
    yield reply.SerializeToString()
    failed = EncodedReply(ack=4)
    failed.failure.message, failed.failure.seq = "no", 4
    yield failed.SerializeToString()


def inspections():
    result = controller_pb2.InspectResult(session=1, name="s", num_workers=2)
    rank = result.ranks.add(worker=0, state="running", flight=b"x")
    rank.current.seq, rank.collective.number = 1, 2
    yield result.SerializeToString()


# Bytes between processes --------------------------------------------------------------------


def cut_frames(data):
    """Feeds bytes whole and in pieces; both must give the same frames."""
    size, data = (data[0] % 32 + 1, data[1:]) if data else (1, data)
    whole, pieces = FrameReader(), FrameReader()
    got = [raw for at in range(0, len(data), size) for raw in pieces.feed(data[at : at + size])]
    expected = whole.feed(data)
    assert got == expected
    for raw in expected:
        progress_in(raw)
    return len(expected)


def knock(data):
    raw = unpack(data)
    return None if raw is None else memory_pb2.MemoryRequest.FromString(raw)


def speak_pmi(data):
    """Says lines to the PMI of two ranks in turn, on a node of two."""
    exchange = PmiExchange(ranks=(0, 1), nodes=[[0, 1], [2]], kvsname="k")
    for number, line in enumerate(data.splitlines(keepends=True)):
        for effect in exchange.receive(number % 2, line):
            if isinstance(effect, MeetNodes):
                exchange.met({**effect.puts, "other": b"value"})


PMI = b"""cmd=init pmi_version=1 pmi_subversion=1
cmd=get_maxes
cmd=get_my_kvsname
cmd=put kvsname=k key=P0-businesscard value=a b c
cmd=get kvsname=k key=PMI_process_mapping
cmd=barrier_in
cmd=barrier_in
mcmd=spawn
nprocs=1
endcmd
cmd=abort exitcode=3
cmd=finalize
"""


def flights():
    ring = bytearray(RING_BYTES)
    struct.pack_into("<8Q", ring, 0, MAGIC, 17_000, 3, 12, 0, 0, 0, 0)
    ring[NAMES_AT : NAMES_AT + 12] = b"\x03\0abc\x05\0" + b"0,1,2"
    return [bytes(ring[:4096]), bytes(ring[:128])]


def cuts():
    """Of a rank that has run commands and collectives, whole and from a place within."""
    recorder = FlightRecorder()
    for seq in range(1, 40):
        recorder.begin(seq)
        recorder.kinds[seq] = recorder.label_of(3, "f")
        recorder.enter(recorder.describe("allreduce", "float32", 4, (0, 1), (3,)), seq, seq, 0)
        recorder.meet()
        recorder.leave()
        recorder.stamp(seq)
    return [cut_memory(recorder.read, seq, seq) for seq in (0, 30)]


def overviews():
    found = controller_pb2.OverviewResult(version="0.1", taken_s=4.0)
    node = found.nodes.add(latency_s=0.001).info
    node.name, node.slots, node.free_slots, node.devices[:] = "n", 2, 1, ("cpu", "cpu")
    session = found.sessions.add(yours=True, issued=9, executed=7)
    session.info.session, session.info.name, session.info.state = 1, "s", "running"
    session.info.ranks.add(worker=0, node="n", pid=1, device="cpu")
    report = session.ranks.add(commands_per_s=2.0).report
    report.pid, report.state, report.finished.seq = 1, "running", 7
    report.current.seq, report.current.action, report.current.name = 8, 3, "f"
    yield found.SerializeToString()


# Text and files -------------------------------------------------------------------------------


def read_placement(data):
    text = data.decode("utf-8", "replace")
    return str(Placement.from_text(text))


def read_words(data):
    """The other texts that people and programs write: devices, addresses."""
    text = data.decode("utf-8", "replace")
    for read in (Device.parse, Address.parse):
        try:
            read(text)
        except ConfigError:
            continue


def load_settings(data):
    """Reads a file of settings, and the same bytes as variables."""
    file = FOLDER / "settings.toml"
    file.write_bytes(data)
    text = data.decode("utf-8", "replace").replace("\0", "")
    for name in WorkerConfig.table():
        try:
            WorkerConfig.load({}, {f"DISCO_{name.upper()}": text})
        except ConfigError:
            continue
    for kind in (ControllerConfig, WorkerConfig):
        kind.load({}, {}, file)


def in_file(name, read):
    """Makes a decoder of a file's content."""

    def decode(data):
        path = FOLDER / name
        path.write_bytes(data)
        return read(str(path), (str(FOLDER),))

    return decode


def safetensors():
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"w": entry, "__metadata__": {}}).encode()
    return [struct.pack("<Q", len(header)) + header + bytes(8)]


def ggufs():
    axes = struct.pack("<IQQ", 2, 32, 2)
    plain = struct.pack("<Q", 1) + b"b" + struct.pack("<IQIQ", 1, 4, 0, 64)
    blocks = struct.pack("<Q", 1) + b"a" + axes + struct.pack("<IQ", 3, 0)
    text = struct.pack("<Q", 4) + b"name" + struct.pack("<IQ", 8, 2) + b"ab"
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 1) + text + blocks + plain
    return [head + bytes(-len(head) % 32 + 80), head]


def npys():
    file = FOLDER / "seed.npy"
    np.save(file, np.arange(6.0).reshape(2, 3))
    return [file.read_bytes()]


def tensor_caches():
    tensor = {"name": "w", "shape": [2], "dtype": "float32", "format": "raw"}
    record = {"dataPath": "p.bin", "format": "raw-shard", "nbytes": 8}
    records = [{**record, "records": [{**tensor, "byteOffset": 0, "nbytes": 8}]}]
    return [json.dumps({"records": records}).encode()]


def weight_indexes():
    return [
        b'{"weight_map": {"w": "a.safetensors"}}',
        b'{"weight_map": {"w": "../../etc/passwd"}}',
        *tensor_caches(),
    ]


def manifests():
    part = {"file": "worker-00000.safetensors", "bounds": [[0, 2]]}
    layout = {"mesh": {"shape": [1], "names": ["x"], "workers": [0]}, "placement": "S[0]"}
    content = {
        "format": "disco-checkpoint",
        "version": 1,
        "generation": "generation-5f0c7a91d2e4b836",
        "files": {"worker-00000.safetensors": {"nbytes": 184, "header": "ab"}},
        "tensors": {"w": {"shape": [2], "dtype": "float32", "layout": layout, "parts": [part]}},
    }
    return [json.dumps(content).encode()]


TARGETS = {
    target.name: target
    for target in (
        Target(
            "value",
            decode_one_value,
            (DecodeError, EncodingError),
            lambda: [value.SerializeToString() for value in values()],
        ),
        Target("batch", run_batch, (DecodeError, EncodingError), lambda: list(batches())),
        Target("reply", receive_reply, (DecodeError,), lambda: list(replies())),
        Target(
            "inspection",
            lambda data: decode_inspection(controller_pb2.InspectResult.FromString(data)),
            (DecodeError,),
            lambda: list(inspections()),
        ),
        Target("flight", read_flight, (ValueError,), flights),
        Target("flight_cut", lambda data: FlightDelta.of(data).record(), (ValueError,), cuts),
        Target(
            "overview",
            lambda data: decode_overview(controller_pb2.OverviewResult.FromString(data)),
            (DecodeError,),
            lambda: list(overviews()),
        ),
        Target(
            "frames",
            cut_frames,
            (ValueError,),
            lambda: [b"\x02" + frame(b"envelope") + frame_of_progress(7) + frame(b"")],
        ),
        Target(
            "memory_door",
            knock,
            (ValueError, DecodeError),
            lambda: [pack(memory_pb2.MemoryRequest(done=True))],
        ),
        Target(
            "chunk",
            chunk_data,
            (EncodingError, OSError),
            lambda: [encode_chunk(memoryview(b"data")), encode_end("gone")],
        ),
        Target("pmi", speak_pmi, (), lambda: [PMI]),
        Target("placement", read_placement, (ConfigError,), lambda: [b"S[0], R", b"P[max] R"]),
        Target("words", read_words, (), lambda: [b"S[1]", b"cuda:1", b"[::1]:80", b"unix:/a"]),
        Target(
            "settings",
            load_settings,
            (ConfigError,),
            lambda: [
                b'[worker]\nslots = 2\nenv = ["A"]\n[controller]\nlisten = "127.0.0.1:1"\n',
                b"8GiB",
            ],
        ),
        Target("safetensors", in_file("f.safetensors", open_checkpoint), (FileError,), safetensors),
        Target("gguf", in_file("f.gguf", open_checkpoint), (FileError,), ggufs),
        Target("npy", in_file("f.npy", open_npy), (FileError,), npys),
        Target(
            "tensor_cache",
            lambda data: read_tensor_cache(SOMEWHERE, data),
            (FileError,),
            tensor_caches,
        ),
        Target(
            "weight_index",
            in_file("model.json", open_checkpoint),
            (FileError, PermissionError),
            weight_indexes,
        ),
        Target("checkpoint", lambda data: decode_index(SOMEWHERE, data), (FileError,), manifests),
        Target("client_stream", client_stream, SERVICE_ERRORS, controller_seeds),
        Target("node_stream", node_stream, SERVICE_ERRORS, controller_seeds),
    )
}
