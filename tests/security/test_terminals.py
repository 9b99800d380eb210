"""Names and output of others, which do nothing to the terminal that shows them."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios

import grpc
import pytest

from disco_client import attach, connect, errors
from disco_client.connection import owner
from disco_client.pb import envelope_pb2, node_pb2
from disco_client.transport.base import Wish
from disco_client.transport.credentials import Credentials
from disco_client.transport.grpc import GrpcTransport
from disco_client.wire.codec import PROTOCOL, EnvelopeKind

HIDDEN = {
    "ESC": "\x1b]0;mine\x07",
    "NUL": "a\0b",
    "DEL": "a\x7fb",
    "C1": "a\x9b2Jb",
    "line break": "a\nb",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "right-to-left override": "a\u202eb",
    "isolate": "a\u2066b",
    "mark": "a\u200fb",
    "Arabic mark": "a\u061cb",
    "zero width": "a\u200bb",
    "byte order mark": "a\ufeffb",
}
OUTPUT = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;mine\x07",
    "one\r[worker 9 elsewhere] forged",
    "c1 \x9b2J \u202eback\u2029 bell\x07 back\x08space",
    "gr\u00fc\u00dfe \U0001f600\tend",
)
PRINTING = """
import sys
import threading
from disco_client import connect

came = threading.Event()

class Noting:
    def __init__(self, stream):
        self.stream, self.text = stream, ""
    def write(self, text):
        self.text += text
        if "\\tend" in self.text:
            came.set()
        return self.stream.write(text)
    def __getattr__(self, name):
        return getattr(self.stream, name)

sys.stderr = Noting(sys.stderr)
lines = {lines!r}
with connect(sys.argv[1], num_workers=1, name="prints", timeout=60) as session:
    say = session.get_global_func("disco_test_functions.say")
    for line in lines:
        say(line)
    came.wait()  # output is waited for by nobody else
"""
HOW = {"connect_timeout": 20.0, "credentials": Credentials()}
FORBIDDEN = re.compile(
    r"\x1b(?!\[[0-9;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
    r"|\r(?!\n)"
)


@pytest.fixture(scope="module")
def address(shared_daemons):
    """A cluster with room for every test."""
    controller = shared_daemons.controller()
    allowed = ("--allow-module", "disco_test_functions")
    shared_daemons.worker(controller.address, "--slots", "16", *allowed)
    return controller.address


def on_terminal(command: list[str], status: int = 0) -> str:
    """What a command that ends with a status writes to a terminal: output and errors together."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"},
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # how a terminal ends on Linux
        while part := os.read(ours, 65536):
            written += part
    os.close(ours)
    assert process.wait(60) == status, written
    return written.decode()


def piped(command: list[str]) -> str:
    """What a command writes where there is no terminal."""
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return (done.stdout + done.stderr).decode()


def disco(*arguments: str) -> list[str]:
    """The command line of ``disco``."""
    return [sys.executable, "-m", "disco_server.cli.main", *arguments]


@pytest.mark.parametrize("name", HIDDEN.values(), ids=HIDDEN)
def test_a_name_that_hides_something_is_refused_at_once(name):
    """By the client, before it looks for a controller, with the character and its place."""
    with pytest.raises(errors.ConfigError, match=r"session name .* got U\+[0-9A-F]{4}"):
        connect("127.0.0.1:1", num_workers=1, name=name, timeout=5)


@pytest.mark.parametrize("field", ["name", "owner", "ccl"])
@pytest.mark.parametrize("hidden", ["\x1b[2J", "a\u202eb", "a\u2028b"])
def test_the_controller_refuses_what_another_client_lets_through(address, field, hidden):
    """It decides, because not every client is this one."""
    texts = {"name": "", "owner": owner(), "ccl": "", field: hidden}
    wish = Wish(1, 1, texts["ccl"], texts["name"], texts["owner"], 20.0)
    with pytest.raises(errors.ConfigError, match=rf"got U\+{ord(hidden.strip('a')[0]):04X}"):
        GrpcTransport.create(address, wish, on_queued=lambda *_: None, **HOW)


def test_names_of_all_scripts_stay(address):
    """What can be seen may be in a name."""
    name = "Grüße-日本語-עברית-😀 x"
    with connect(address, num_workers=1, name=name, logs=False, timeout=60) as session:
        assert session.name == name
        for command in ("status", "sessions"):
            assert name in piped(disco(command, "--address", address))


def test_who_attaches_has_a_name_that_can_be_seen(address):
    """The owner of a session changes with who attaches to it."""
    session = connect(address, num_workers=1, name="left", logs=False, timeout=60)
    session.detach()
    with pytest.raises(errors.ConfigError, match=r"got U\+001B"):
        GrpcTransport.attach(address, "left", "me\x1b[2J@here:1", **HOW)
    attach("left", address=address).shutdown()


@pytest.mark.parametrize("field", ["name", "host", "version", "host_id", "devices"])
def test_a_node_has_a_name_that_can_be_seen(address, field):
    """What a daemon says of itself is shown to everybody."""
    told = {"name": "n", "host": "h", "version": "0", "host_id": "i", "devices": ["cpu"]}
    told[field] = ["cpu\x1b[2J"] if field == "devices" else "a\x1b[2J"
    info = node_pb2.RegisterNode(protocol=PROTOCOL, incarnation=1, **told)
    first = envelope_pb2.Envelope(kind=EnvelopeKind.REGISTER, payload=info.SerializeToString())
    with grpc.insecure_channel(address) as channel:
        register = channel.stream_stream(
            "/disco.v1.NodeService/Register",
            request_serializer=envelope_pb2.Envelope.SerializeToString,
            response_deserializer=envelope_pb2.Envelope.FromString,
        )
        answer = next(iter(register(iter([first]), timeout=20)))
    assert answer.kind == EnvelopeKind.REFUSED
    assert "got U+001B" in node_pb2.Refused.FromString(answer.payload).message


def test_what_ranks_print_is_harmless_on_a_terminal(address):
    """At the client and in ``disco logs``: colours stay, the rest is shown, no line is forged."""
    program = [sys.executable, "-c", PRINTING.format(lines=OUTPUT), address]
    for text in (on_terminal(program), on_terminal(disco("logs", "prints", "--address", address))):
        lines = text.rstrip().split("\r\n")
        assert not FORBIDDEN.search(text), ascii(FORBIDDEN.findall(text))
        assert all(line.startswith("[worker 0 ") for line in lines), ascii(text)
        shown = [line.partition("] ")[2] for line in lines]
        assert shown[0].startswith("\x1b[31mred\x1b[0m")
        assert shown[1] == r"\x1b]0;mine\x07"
        assert shown[2] == r"one\r[worker 9 elsewhere] forged"
        assert shown[3] == r"c1 \x9b2J \u202eback\u2029 bell\x07 back\x08space"
        assert shown[4].expandtabs() == OUTPUT[4].expandtabs()


def test_pipes_get_what_ranks_print(address):
    """Every byte of it, also the escape sequences of colours."""
    program = [sys.executable, "-c", PRINTING.format(lines=OUTPUT), address]
    for text in (piped(program), piped(disco("logs", "prints", "--address", address))):
        assert [part.partition("] ")[2] for part in text.rstrip("\n").split("\n")] == [*OUTPUT]


def test_what_ranks_do_is_harmless_in_tables(address, tmp_path):
    """The name of a program, which its author chooses, in all that looks at a session."""
    gate = tmp_path / "gate"
    with connect(address, num_workers=1, name="looked-at", logs=False, timeout=60) as session:
        wait = session.get_global_func("disco_test_functions.wait_for_file_on")
        with session.capture("\x1b]0;mine\x07\u202e") as program:
            wait(0, str(gate))
        program()
        shown = ""
        for status, *command in (
            (1, "doctor", "--session", "looked-at"),
            (0, "sessions", "looked-at"),
            (0, "top", "--once"),
        ):
            text = on_terminal(disco(*command, "--address", address), status)
            assert not re.search(r"\x1b\]0;mine|\u202e", text), ascii(text)
            shown += text
        gate.touch()
    assert r"\x1b]0;mine\x07\u202e" in shown
