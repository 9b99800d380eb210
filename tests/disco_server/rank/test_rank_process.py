"""One rank process, spoken to directly over its socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque

import psutil
import pytest

from disco_client.pb import node_pb2
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedEnvelope,
    EncodedReply,
    EnvelopeKind,
    decode_failure,
    decode_value,
    encode_value,
    envelope,
)
from disco_client.wire.framing import frame
from disco_server.ipc.framing import FrameReader, receive
from disco_server.observe.lifetime import PARENT_VARIABLE

SESSION = 4711


class Rank:
    """A rank process and the daemon's end of its socket."""

    def __init__(self, **env):
        ours, theirs = socket.socketpair()
        self.sock = ours
        self.sock.settimeout(30)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "disco_server.rank.process",
                str(theirs.fileno()),
            ],
            pass_fds=(theirs.fileno(),),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid()), **env},
        )
        theirs.close()
        self._reader = FrameReader()
        self._came = deque()
        self._seq = 0

    def send(self, kind, payload=b"", **fields):
        self.sock.sendall(frame(envelope(kind, payload, session=SESSION, **fields)))

    def assign(self, worker=0, workers=1, allow=("numpy", "numpy.*")):
        assign = node_pb2.AssignRank(
            worker=worker,
            num_workers=workers,
            num_groups=1,
            node="here",
            device="cpu:0",
            session_name="direct",
            allow_modules=allow,
            local_workers=workers,
        )
        self.send(EnvelopeKind.ASSIGN, assign.SerializeToString())
        told = self.next()
        assert (told.kind, told.session) == (EnvelopeKind.ASSIGNED, SESSION)
        assert told.worker_plus_one == worker + 1

    def run(self, *commands):
        """Sends commands as one batch: (action, reg, func, args) each."""
        batch = EncodedBatch()
        first = self._seq + 1
        for action, reg, func, args in commands:
            command = batch.commands.add(action=int(action), reg=reg, func=func)
            for arg in args:
                encode_value(command.args.add(), arg)
            self._seq += 1
        payload = batch.SerializeToString()
        self.send(EnvelopeKind.BATCH, payload, first_seq=first, last_seq=self._seq)

    def next(self):
        while not self._came:
            frames = receive(self.sock, self._reader)
            assert frames is not None, self.process.communicate()
            came = map(EncodedEnvelope.FromString, frames)
            self._came.extend(each for each in came if each.kind != EnvelopeKind.AUDIT)
        return self._came.popleft()

    def reply(self):
        came = self.next()
        assert came.kind == EnvelopeKind.REPLY
        return EncodedReply.FromString(came.payload)

    def wait(self):
        self.out, self.err = self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def rank():
    started = Rank()
    yield started
    started.sock.close()
    if started.process.poll() is None:
        started.process.kill()
    started.process.communicate()


def test_it_executes_commands_once_it_knows_who_it_is(rank):
    """It says that it is assigned, runs a batch in order, and answers what is asked."""
    rank.assign()
    rank.run(
        (Action.GET_GLOBAL_FUNC, 1, 0, ["numpy.add"]),
        (Action.CALL_PACKED, 2, 1, [40, 2]),
        (Action.DEBUG_GET_FROM_REMOTE, 2, 0, []),
    )
    reply = rank.reply()
    assert (reply.seq, reply.ack) == (3, 3)
    assert decode_value(reply.value) == 42


def test_an_error_is_told_and_the_next_command_runs(rank):
    """The failure names the rank, the node and the function; the process goes on."""
    rank.assign(worker=0)
    rank.run((Action.GET_GLOBAL_FUNC, 1, 0, ["os.getpid"]), (Action.SYNC_WORKER, 0, 0, []))
    failure, _ = decode_failure(rank.reply().failure)
    assert (failure.worker, failure.node, failure.seq) == (0, "here", 1)
    assert "os" in failure.message
    assert rank.reply().seq == 2


@pytest.mark.parametrize("assigned", [False, True])
def test_it_leaves_when_its_daemon_is_gone(rank, assigned):
    """A closed socket ends it in order, whether it has been given work or not."""
    if assigned:
        rank.assign()
    rank.sock.close()
    assert rank.wait() == 0
    assert rank.err == ""


def test_it_leaves_when_the_session_ends(rank):
    """END_SESSION is its goodbye; a SHUT_DOWN command is another."""
    rank.assign()
    rank.send(EnvelopeKind.END_SESSION)
    assert rank.wait() == 0


def test_a_shut_down_command_is_the_last_that_it_runs(rank):
    """The exit code is 0, and nothing is answered after it."""
    rank.assign()
    rank.run((Action.SHUT_DOWN, 0, 0, []))
    assert rank.wait() == 0


def test_ctrl_c_at_the_terminal_is_not_for_it(rank):
    """SIGINT goes to the client, which decides; the rank works on."""
    rank.assign()
    rank.process.send_signal(signal.SIGINT)
    rank.run((Action.SYNC_WORKER, 0, 0, []))
    assert rank.reply().seq == 1


def test_an_exit_in_a_function_is_its_exit_code(rank):
    """What a function prints before is not lost."""
    rank.assign(allow=("sys", "builtins"))
    rank.run(
        (Action.GET_GLOBAL_FUNC, 1, 0, ["builtins.print"]),
        (Action.CALL_PACKED, 2, 1, ["last words"]),
        (Action.GET_GLOBAL_FUNC, 3, 0, ["sys.exit"]),
        (Action.CALL_PACKED, 4, 3, [9]),
    )
    assert rank.wait() == 9
    assert rank.out == "last words\n"


def test_it_knows_its_place_and_loads_no_grpc(rank):
    """PMI and Disco's variables tell who it is; gRPC, unsafe beside CUDA, stays unloaded."""
    rank.assign(worker=1, workers=2, allow=("*",))
    names = ("PMI_RANK", "PMI_SIZE", "DISCO_WORKER_ID", "DISCO_NUM_WORKERS")
    loaded = "'grpc' in __import__('sys').modules, __import__('threading').active_count()"
    code = f"[__import__('os').environ[name] for name in {names}] + [{loaded}]"
    rank.run(
        (Action.GET_GLOBAL_FUNC, 1, 0, ["builtins.eval"]),
        (Action.CALL_PACKED, 2, 1, [code]),
        (Action.DEBUG_GET_FROM_REMOTE, 2, 0, []),
    )
    assert list(decode_value(rank.reply().value)) == ["1", "2", "1", "2", False, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel tells")
def test_it_is_killed_with_its_parent():
    """Even one that is busy and reads nothing ends when the daemon is killed."""
    program = (
        "import os, socket, subprocess, sys\n"
        "ours, theirs = socket.socketpair()\n"
        "p = subprocess.Popen([sys.executable, '-m', 'disco_server.rank.process',\n"
        "    str(theirs.fileno())], pass_fds=[theirs.fileno(), ours.fileno()],\n"
        "    env={**os.environ, 'DISCO_PARENT_PID': str(os.getpid())})\n"
        "print(p.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone
