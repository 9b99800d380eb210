"""The process from which ranks are forked, and the keepers of sessions."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import psutil
import pytest
from reentry import in_thread

from disco_client import connect, errors
from disco_client.pb import node_pb2
from disco_client.transport.admin import close_session, list_cluster
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.worker.fork_server import CannotStart, ForkServer

NOT_FOR_ALL = {"mpi4py", "cupy", "tvm", "tvm_ffi", "torch", "grpc"}
DRAWN = {
    "numpy": "float(__import__('numpy').random.rand())",
    "random": "__import__('random').random()",
    "tempfile": "next(__import__('tempfile')._get_candidate_names())",
    "secrets": "__import__('secrets').token_hex()",
    "uuid": "str(__import__('uuid').uuid4())",
}


OPEN = ("--allow-module", "*")


@pytest.fixture(scope="module")
def node(shared_daemons):
    """A node whose sessions may do anything."""
    controller = shared_daemons.controller()
    return controller, shared_daemons.worker(controller.address, "--slots", "4", *OPEN)


def ask(session, code, worker=0):
    """What an expression is in a rank."""
    return session.get_global_func("builtins.eval")(code).debug_get_from_remote(worker)


def server_of(daemon):
    """The process from which a daemon's ranks are forked."""
    (server,) = psutil.Process(daemon.process.pid).children()
    return server


def test_the_server_has_one_task_and_only_what_all_ranks_need(node):
    """A rank has loaded at least what the server has, none of MPI, GPUs, TVM and gRPC."""
    controller, daemon = node
    assert server_of(daemon).num_threads() == 1
    with connect(controller.address, num_workers=1, logs=False) as session:
        (keeper,) = server_of(daemon).children()
        assert keeper.num_threads() == 1
        loaded = ask(session, "list(__import__('sys').modules)")
        assert "disco_server.rank.executor" in loaded
        assert not NOT_FOR_ALL & {name.partition(".")[0] for name in loaded}
        assert ask(session, "__import__('gc').get_freeze_count()") > 10_000


def test_ranks_that_were_forked_draw_differently(node):
    """What libraries draw by chance is drawn in each of four ranks anew."""
    controller, _ = node
    with connect(controller.address, num_workers=4, logs=False) as session:
        for what, code in DRAWN.items():
            assert len({ask(session, code, worker) for worker in range(4)}) == 4, what


def test_nobody_of_their_user_can_look_into_the_server_or_a_keeper(node):
    """The system gives their files in /proc to root; those of a rank are its user's."""
    controller, daemon = node
    with connect(controller.address, num_workers=1, logs=False) as session:
        server = server_of(daemon)
        for process in (server, *server.children()):
            assert Path(f"/proc/{process.pid}/environ").stat().st_uid == 0
        assert Path(f"/proc/{session.workers[0].pid}/environ").stat().st_uid == os.geteuid()
        assert ask(session, "__import__('ctypes').CDLL(None).prctl(3, 0, 0, 0, 0)") == 1


def run(use):
    """Runs a coroutine with a fork server, which is closed then."""

    async def all_of_it():
        server = ForkServer(dict(os.environ))
        try:
            async with asyncio.timeout(50):
                return await use(server)
        finally:
            await server.close()

    return asyncio.run(all_of_it())


def look(pid):
    """What can be seen of a process from outside, apart from its numbers."""
    process = psutil.Process(pid)
    kinds = [str(Path(f"/proc/{pid}/fd/{fd}").readlink()).partition(":")[0] for fd in range(3)]
    words = process.cmdline()
    return {
        "command": words[:4],
        "environment": set(process.environ()) - {"PMI_FD", "DISCO_FLIGHT_FD", "DISCO_PARENT_PID"},
        "descriptors": (process.num_fds(), kinds),
        "folder": process.cwd(),
        "session": os.getsid(pid) == os.getpgid(pid) == pid,
    }


def begin(pid):
    """Where the stack of a process begins, which is at random for each program that is started."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    (stack,) = (line.split()[0] for line in maps if line.endswith("[stack]"))
    return stack.partition("-")[2]


def test_a_rank_looks_the_same_whether_it_was_forked_or_started_afresh():
    """Command line, environment, descriptors, folder, session; both are the keeper's children."""

    async def use(server):
        keeper = await server.keeper(1)
        seen = []
        begins = []
        for fresh in (True, False, True, False):
            handle = await keeper.start_rank(fresh=fresh)
            assigned = asyncio.Event()
            handle.on_envelope = lambda *_, assigned=assigned: assigned.set()
            told = node_pb2.AssignRank(num_workers=1, num_groups=1, device="cpu:0", local_workers=1)
            handle.sender.send(
                frame(envelope(EnvelopeKind.ASSIGN, told.SerializeToString(), session=1))
            )
            await assigned.wait()
            seen.append(look(handle.pid))
            begins.append(begin(handle.pid))
            assert psutil.Process(handle.pid).ppid() == keeper.pid
            handle.kill()
            await handle.exited
            handle.close()
            handle.memory.close()
        assert seen[1:] == seen[:-1]
        assert (begins[0] == begins[2], begins[1] == begins[3]) == (False, True)
        assert await keeper.end()

    run(use)


def test_a_server_that_ended_is_replaced_and_sessions_go_on(daemons, eventually):
    """Ranks live on beside the new one; a session that comes meanwhile waits for it."""
    controller = daemons.controller()
    daemon = daemons.worker(controller.address, "--slots", "2", *OPEN)
    server = server_of(daemon)
    with connect(controller.address, num_workers=1, logs=False) as session:
        server.kill()
        with connect(controller.address, num_workers=1, logs=False, timeout=20) as other:
            assert ask(other, "1 + 1") == 2
            assert ask(session, "2 + 2") == 4
            assert "the process that forks ranks died of SIGKILL" in daemon.stderr
    children = psutil.Process(daemon.process.pid).children
    eventually(lambda: len(children()) == 1, what="the end of both sessions' keepers")
    assert children() != [server]


def test_a_server_that_cannot_start_says_why_each_time(tmp_path):
    """With its exit status and its last words; it is tried again for the next session."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os; print('no luck', flush=True); os._exit(9)"
    )

    async def use():
        server = ForkServer({**os.environ, "PYTHONPATH": str(tmp_path)})
        await server.start()
        for _ in range(2):
            with pytest.raises(CannotStart, match="exited with status 9") as raised:
                await server.keeper(1)
            assert (raised.value.status, raised.value.output) == (9, ["no luck"])
        await server.close()

    asyncio.run(use())


def test_a_killed_keeper_ends_its_session_and_nothing_is_left(node, eventually):
    """The client hears why; what a rank had left behind ends too, and the node goes on."""
    controller, daemon = node
    with connect(controller.address, num_workers=2, logs=False, timeout=20) as session:
        session.import_python_module("disco_test_functions")
        left = session.get_global_func("tests.leave_grandchild")().debug_get_from_remote(1)
        (keeper,) = server_of(daemon).children()
        keeper.kill()
        eventually(lambda: session._core.log.closed is not None, what="the session's end")
        with pytest.raises(errors.WorkerLost, match="process that keeps the ranks"):
            session.sync_all()
    eventually(lambda: not psutil.pid_exists(left), what="the end of what the rank left")
    eventually(lambda: not daemon.ranks(), what="the end of the ranks")
    with connect(controller.address, num_workers=4, logs=False) as session:
        assert ask(session, "6 * 7", 3) == 42


def test_killing_all_that_watches_leaves_nothing_either(daemons, eventually):
    """What was left behind by ranks is then the daemon's child, which ends it."""
    controller = daemons.controller()
    daemon = daemons.worker(controller.address, "--slots", "1", *OPEN)
    with connect(controller.address, num_workers=1, logs=False, timeout=20) as session:
        session.import_python_module("disco_test_functions")
        left = session.get_global_func("tests.leave_grandchild")().debug_get_from_remote(0)
        server = server_of(daemon)
        for process in (server, *server.children()):
            process.kill()
        eventually(lambda: session._core.log.closed is not None, what="the session's end")
        with pytest.raises(errors.WorkerLost):
            session.sync_all()
    eventually(lambda: not psutil.pid_exists(left), what="the end of what the rank left")
    with connect(controller.address, num_workers=1, logs=False, timeout=20) as session:
        assert ask(session, "6 * 7") == 42
    eventually(lambda: len(daemon.family()) == 1, what="the new server to be alone")


def test_a_killed_daemon_takes_along_what_ranks_left_behind(daemons, all_end):
    """Keepers notice its end, and nothing of its sessions lives on."""
    controller = daemons.controller()
    daemon = daemons.worker(controller.address, "--slots", "1", *OPEN)
    session = connect(controller.address, num_workers=1, logs=False)
    session.import_python_module("disco_test_functions")
    left = ask(session, "__import__('disco_test_functions').leave_grandchild()")
    family = [child.pid for child in daemon.family()]
    assert left in family
    daemon.send(signal.SIGKILL)
    all_end(family)
    with pytest.raises(errors.NodeLost):
        session.sync_all()
    session.shutdown()


def test_a_rank_that_a_keeper_does_not_report_is_not_waited_for_for_ever(all_end):
    """A keeper that stands still is killed when its session ends, and its ranks with it."""

    async def use(server):
        keeper = await server.keeper(1)
        handle = await keeper.start_rank(fresh=False)
        os.kill(keeper.pid, signal.SIGSTOP)
        assert not await keeper.end()
        assert await handle.exited == -signal.SIGKILL
        handle.close()
        handle.memory.close()
        return handle.pid

    all_end([run(use)])


def test_a_session_may_end_while_its_first_process_starts(daemons, eventually):
    """The process that forks ranks may hang: it is not waited for."""
    controller = daemons.controller()
    daemon = daemons.worker(controller.address, "--slots", "1", *OPEN)
    server = server_of(daemon)
    server.suspend()

    def open_one():
        with pytest.raises(errors.SessionError):
            connect(controller.address, num_workers=1, name="doomed")

    try:
        opening = in_thread(open_one)
        with grpc.insecure_channel(controller.address) as line:
            eventually(lambda: list_cluster(line).sessions, what="the begin of the session")
            close_session(line, "doomed")
        eventually(lambda: "session ended on" in daemon.stderr, what="the end of the session")
        assert server.is_running()  # it would have been replaced after a while
        opening.join(30)
    finally:
        server.resume()
