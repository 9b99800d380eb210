"""``disco local``: a cluster for one command, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

import psutil
import pytest

from disco_client import connect, errors
from disco_server.cli.local import LocalCluster, share_devices

SHOW_FAMILY = """
import json, os, psutil, sys
import disco_client
above = psutil.Process(os.getppid())
with disco_client.connect(num_workers=2) as session:
    session.sync_all()
    pids = [child.pid for child in above.children(recursive=True) if child.pid != os.getpid()]
    print(json.dumps([os.environ["DISCO_ADDRESS"], session.num_workers, pids]))
sys.exit(7)
"""
# A signal that comes before `signal.pause` is entered would be waited for without an end.
WAIT = """
import signal, sys
try:
    print("waiting", flush=True)
    while True:
        signal.sigtimedwait((), 1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


class Local:
    """One ``disco local`` as a child process that leads a process group."""

    def __init__(self, *arguments: str, **more: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("DISCO_")} | more
        self.process = subprocess.Popen(
            [sys.executable, "-m", "disco_server.cli.main", "local", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )

    def line(self) -> str:
        return self.process.stdout.readline()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self, typed: str = "") -> tuple[int, str, str]:
        out, err = self.process.communicate(typed, timeout=40)
        return self.process.returncode, out, err


@pytest.fixture
def local():
    """Starts ``disco local``; what still runs after the test is ended."""
    started = []

    def start(*arguments, **more):
        started.append(Local(*arguments, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.fixture
def crowded_out():
    """Leaves a process hardly any time of a core for a while."""

    @contextlib.contextmanager
    def crowd(pid):
        core = {min(os.sched_getaffinity(0))}
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            for hog in hogs:
                os.sched_setaffinity(hog.pid, core)
            os.sched_setaffinity(pid, core)
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
            yield
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()

    return crowd


def test_the_command_runs_on_the_cluster_and_its_code_is_passed_on(local, all_end):
    """It finds the cluster in DISCO_ADDRESS; afterwards no process and no folder is left."""
    run = local("--nodes", "2", "--slots", "1", "--", sys.executable, "-c", SHOW_FAMILY)
    code, out, err = run.finish()
    assert code == 7, err
    address, workers, pids = json.loads(out)
    assert workers == 2
    assert len(pids) >= 5  # a controller, two daemons, two ranks
    all_end(pids)
    path = address.removeprefix("unix:")
    assert not os.path.exists(os.path.dirname(path))  # noqa: PTH110, PTH120  (it was a text)


def test_a_command_that_a_signal_ended_gives_the_shell_s_code(local):
    """As in a shell, the code is 128 and the signal's number."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    run = local("--slots", "1", "--", sys.executable, "-c", program)
    assert run.finish()[0] == 128 + signal.SIGKILL


def test_ctrl_c_is_the_command_s_and_then_everything_stops(local, all_end):
    """A terminal signals the whole group: the command decides, the cluster ends after it."""
    run = local("--nodes", "2", "--slots", "1", "--", sys.executable, "-c", WAIT)
    assert run.line() == "waiting\n"
    family = run.family()
    os.killpg(run.process.pid, signal.SIGINT)
    code, out, err = run.finish()
    assert (code, out) == (5, "interrupted\n")
    assert "Traceback" not in err
    assert len(family) >= 4
    all_end(family)


def test_ctrl_c_keeps_the_code_of_a_command_that_ends_first(local, crowded_out):
    """It stands although the command is gone before the signal is taken note of."""
    run = local("--slots", "1", "--", sys.executable, "-c", WAIT)
    assert run.line() == "waiting\n"
    command = next(each for each in run.family() if WAIT in each.cmdline())
    with crowded_out(run.process.pid):
        os.killpg(run.process.pid, signal.SIGINT)
        ended = time.monotonic() + 30
        with contextlib.suppress(psutil.NoSuchProcess):
            while command.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < ended
                time.sleep(0.001)
    code, out, err = run.finish()
    assert (code, out) == (5, "interrupted\n")
    assert "Traceback" not in err


def test_more_workers_than_it_can_ever_have_are_refused_at_once(local):
    """Nobody waits out the timeout for slots that cannot come."""
    code = "import disco_client; disco_client.connect(num_workers=3, timeout=600)"
    started = local("--nodes", "2", "--slots", "1", "--", sys.executable, "-c", code)
    _, printed = started.process.communicate(timeout=60)
    assert started.process.returncode == 1
    assert "NoSlots: no room for 3 workers: the cluster has 2 slots on 2 nodes, and" in printed
    assert "start it with more nodes or slots, or ask for fewer workers" in printed


NEVER_READY = """
import os, sys, time
if "disco_server.cli.controller" in sys.orig_argv:
    while os.getppid() == int(os.environ["DISCO_PARENT_PID"]):
        time.sleep(0.05)
    os._exit(1)
"""
PAUSE = """
import signal
print("waiting", flush=True)
while True:
    signal.sigtimedwait((), 1)
"""


@pytest.mark.parametrize(("program", "code"), [(PAUSE, 143), (WAIT, 5)])
def test_sigterm_ends_the_command_by_ctrl_c(local, program, code, all_end):
    """The exit code says what ended it, unless the command has one of its own."""
    run = local("--slots", "1", "--", sys.executable, "-c", program)
    assert run.line() == "waiting\n"
    family = run.family()
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[0] == code
    all_end(family)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_starts_ends_it_with_the_code_of_that(
    local, tmp_path, number, eventually, all_end
):
    """Whatever was started by then ends too."""
    (tmp_path / "sitecustomize.py").write_text(NEVER_READY)
    run = local("--slots", "1", PYTHONPATH=str(tmp_path))
    (controller,) = eventually(run.family, what="a controller that never is ready")
    run.process.send_signal(number)
    assert run.finish()[0] == 128 + number
    all_end([controller])


def test_the_temporary_folder_may_have_any_name(local):
    """Spaces, and what has a meaning in addresses, are a part of it."""
    program = (
        "import disco_client, numpy\n"
        "with disco_client.connect(num_workers=2, logs=False) as session:\n"
        "    array = session.broadcast(numpy.arange(300_000.0))\n"
        "    print(session.allreduce(array).numpy()[-1])\n"
    )
    with tempfile.TemporaryDirectory(prefix="a b%41#?é") as folder:
        run = local(
            *("--nodes", "2", "--slots", "1", "--", sys.executable, "-c", program), TMPDIR=folder
        )
        code, out, err = run.finish()
    assert (code, out) == (0, "599998.0\n"), err


def test_a_temporary_folder_with_too_long_a_name_is_refused(local, tmp_path):
    """One line says by how much, before anything is started; nothing is left there."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    code, out, err = local("--slots", "1", TMPDIR=str(folder)).finish()
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "TMPDIR: expected a path of at most 100 bytes for a Unix socket" in line
    assert re.search(r"got one of \d+: ", line)
    assert not list(folder.iterdir())


def test_killed_by_force_it_takes_its_daemons_along(local, all_end):
    """After SIGKILL neither the daemons nor their interpreters remain."""
    run = local("--nodes", "2", "--slots", "2")
    ready = run.line()
    assert re.match(r"cluster ready; DISCO_ADDRESS=unix:\S+  \(Ctrl-C stops it\)\n", ready)
    family = run.family()
    assert len(family) >= 3
    run.process.kill()
    all_end(family)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_command_it_runs_until_it_is_told_to_stop(local, number, all_end):
    """Either signal ends the cluster in order, with the exit code 0; programs get JSON."""
    as_json = number == signal.SIGTERM
    run = local("--slots", "1", *["--json"] * as_json)
    line = run.line()
    assert line.startswith("cluster ready") or json.loads(line)["address"].startswith("unix:")
    family = run.family()
    assert not as_json or set(json.loads(line)["pids"]) <= {each.pid for each in family}
    run.process.send_signal(number)
    code, _, err = run.finish()
    assert code == 0
    assert "Traceback" not in err
    all_end(family)


SHOW_PAGE = """
import os, subprocess, sys
disco = [sys.executable, "-m", "disco_server.cli.main"]
said = subprocess.run([*disco, "dashboard"], text=True, capture_output=True, check=True).stdout
print(said.splitlines()[0])
input()
"""


def test_its_dashboard_wants_the_token_of_the_printed_address(local, tmp_path):
    """Other users reach the port, so only those who have read the address get data."""
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {tmp_path}/opened\n")
    browser.chmod(0o755)
    run = local("--slots", "1", "--", sys.executable, "-c", SHOW_PAGE, BROWSER=f"{browser} %s")
    printed = run.process.stderr.readline()
    assert run.line() == printed  # the command's output has no other line
    page, _, token = printed.strip().removeprefix("dashboard at ").partition("#token=")
    assert page.startswith("http://127.0.0.1:")
    for shown, status in (("", 401), (token[1:], 401), (token, 200)):
        headers = {"Authorization": f"Bearer {shown}"} if shown else {}
        door = http.client.HTTPConnection(urlsplit(page).netloc, timeout=20)
        with contextlib.closing(door):
            door.request("GET", "/events", headers=headers)
            answer = door.getresponse()
            assert answer.status == status, shown
            assert status == 200 or token not in answer.read().decode()
    code, out, _ = run.finish("\n")
    assert (code, out) == (0, "")
    assert not (tmp_path / "opened").exists()


def test_an_unknown_command_is_refused_before_anything_starts(local):
    """The exit code is 2, and one line repeats the program's name."""
    code, out, err = local("--", "no-such-program-here", "--flag").finish()
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "no-such-program-here" in line


def test_a_port_is_opened_only_with_a_list_of_what_may_be_imported(local):
    """With --listen the workers import numpy alone, unless --allow-module adds to it."""
    program = (
        "import os, disco_client\n"
        "with disco_client.connect(num_workers=1, logs=False) as s:\n"
        "    print(os.environ['DISCO_ADDRESS'])\n"
        "    s.get_global_func('numpy.add'); s.sync_all()\n"
        "    s.import_python_module('subprocess')\n"
        "    try:\n        s.sync_all()\n"
        "    except disco_client.errors.NotAllowed as error:\n        print('refused')\n"
    )
    run = local("--listen", "127.0.0.1:0", "--slots", "1", "--", sys.executable, "-c", program)
    code, out, err = run.finish()
    assert code == 0, err
    address, verdict = out.split()
    assert re.fullmatch(r"127\.0\.0\.1:[1-9][0-9]*", address)
    assert verdict == "refused"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "missing"),
        (("--listen", "127.0.0.1:0"), "refused"),
        (("--listen", "127.0.0.1:0", "--allow-read", "/nowhere"), "missing"),
        (("--allow-read", "/elsewhere"), "refused"),
    ],
)
def test_a_port_lets_nothing_be_read_that_is_not_named(local, options, told):
    """The private socket lets everything be read, unless --allow-read says what."""
    program = (
        "import disco_client\n"
        "with disco_client.connect(num_workers=1) as s:\n"
        "    try:\n        s.load_weights('/nowhere/model', {'*': 'R'})\n"
        "    except disco_client.NotAllowed:\n        print('refused')\n"
        "    except disco_client.BadFile:\n        print('missing')\n"
    )
    code, out, err = local(*options, "--slots", "1", "--", sys.executable, "-c", program).finish()
    assert (code, out) == (0, f"{told}\n"), err


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ((), "loaded"),
        (("--allow-module", "numpy"), "refused"),
        (("--listen", "127.0.0.1:0"), "refused"),
        (("--listen", "127.0.0.1:0", "--allow-load", "*"), "loaded"),
        (("--allow-module", "numpy", "--allow-load", "{folder}"), "loaded"),
    ],
)
def test_files_are_loaded_where_anything_may_be(local, tmp_path, options, verdict):
    """As soon as something is restricted, a folder of modules has to be named."""
    (tmp_path / "model.py").write_text("def f(): return 'loaded'\n")
    program = (
        "import disco_client\n"
        "with disco_client.connect(num_workers=1, logs=False) as s:\n"
        f"    try:\n        m = s.load_vm_module({str(tmp_path / 'model.py')!r})\n"
        "        print(m['f']().debug_get_from_remote(0))\n"
        "    except disco_client.errors.NotAllowed as error:\n        print('refused')\n"
    )
    given = [option.format(folder=tmp_path) for option in options]
    code, out, err = local(*given, "--slots", "1", "--", sys.executable, "-c", program).finish()
    assert (code, out) == (0, f"{verdict}\n"), err


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ((), "saved"),
        (("--allow-save", "{folder}"), "saved"),
        (("--allow-save", "/nowhere"), "refused"),
        (("--listen", "127.0.0.1:0"), "refused"),
    ],
)
def test_checkpoints_are_saved_where_that_is_allowed(local, tmp_path, options, verdict):
    """Anywhere, unless a folder is named or others could come in."""
    program = (
        "import disco_client\n"
        "with disco_client.connect(num_workers=1, logs=False) as s:\n"
        f"    try:\n        s.save({str(tmp_path / 'c')!r}, {{'x': s.distribute([1.0])}})\n"
        "        print('saved')\n"
        "    except disco_client.errors.NotAllowed as error:\n        print('refused')\n"
    )
    given = [option.format(folder=tmp_path) for option in options]
    code, out, err = local(*given, "--slots", "1", "--", sys.executable, "-c", program).finish()
    assert (code, out) == (0, f"{verdict}\n"), err


BESIDE = """#!{python}
import disco_client
with disco_client.connect(num_workers=1, logs=False) as session:
    session.import_python_module("beside")
    print(session.get_global_func("beside.word")().debug_get_from_remote(0))
"""


@pytest.mark.parametrize(
    "command",
    [
        ("{python}", "script.py"),
        ("env", "A=1", "{python}", "-u", "script.py", "beside.py"),
        ("{python}", "-m", "pkg.main", "there/script.py"),
        ("{python}", "-Bc", "import pkg.main"),
        ("{python}", "there/plain"),
        ("there/plain",),
        ("{python}", "there"),
        ("disco", "run", "--workers", "1", "there/plain"),
    ],
    ids=" ".join,
)
def test_workers_import_what_is_beside_the_program(local, tmp_path, monkeypatch, command):
    """As Python finds it for the program: by the script's folder, or the one it is started in."""
    program = BESIDE.format(python=sys.executable)
    there = tmp_path / "there"
    for folder in (tmp_path, there, tmp_path / "pkg"):
        folder.mkdir(exist_ok=True)
        (folder / "beside.py").write_text(f"def word(): return {folder.name!r}\n")
    for name in ("script.py", "pkg/main.py", "there/script.py", "there/plain", "there/__main__.py"):
        (tmp_path / name).write_text(program)
    (there / "plain").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # noqa: PTH120
    given = [word.format(python=sys.executable) for word in command]
    code, out, err = local("--slots", "2", "--", *given, PATH=path).finish()
    first = tmp_path if "-m" in command or "there" not in " ".join(command) else there
    assert (code, out) == (0, f"{first.name}\n"), err


def test_the_socket_is_its_user_s_alone(cluster):
    """Nobody else can enter the folder of the socket through which code can be run."""
    folder = os.path.dirname(cluster.address.removeprefix("unix:"))  # noqa: PTH120
    assert os.stat(folder).st_mode & 0o077 == 0  # noqa: PTH116


def test_in_a_program_it_is_a_context_manager(tmp_path, all_end):
    """LocalCluster runs within the with block; a daemon that cannot start is an error."""
    with LocalCluster(1, 1, allow_modules=[]) as running:
        pids = running.pids
        assert len(pids) == 2
        with connect(running.address, num_workers=1) as session:
            session.sync_all()
    all_end(pids)
    with (
        pytest.raises(errors.DiscoError, match="disco-controller ended with status 2"),
        LocalCluster(1, 1, listen="nonsense"),
    ):
        pytest.fail("there is no cluster")


@pytest.mark.parametrize(
    ("devices", "nodes", "shares"),
    [
        ("cpu", 2, [(), ()]),
        ("cuda:0,1,2,3", 2, [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]),
        ("cpu,cpu", 1, [("cpu", "cpu")]),
        (["rocm:1"], 1, [("rocm:1",)]),
    ],
)
def test_devices_are_divided_among_the_nodes(devices, nodes, shares):
    """Each node has as many, in their order; the CPU is everybody's."""
    assert share_devices(devices, nodes) == shares


def test_gpus_are_the_nodes_slots(local):
    """Two nodes with one GPU each, which nobody looks at here."""
    program = (
        "import json, subprocess, sys\nstatus = [sys.executable, '-m', 'disco_server.cli.main']"
    )
    program += "\nprint(subprocess.check_output([*status, 'status', '--json'], text=True))"
    command = ("--", sys.executable, "-c", program)
    run = local("--nodes", "2", "--devices", "cuda:0,1", *command, DISCO_DEVICE_CHECK="off")
    code, out, err = run.finish()
    assert code == 0, err
    nodes = sorted(json.loads(out)["nodes"], key=lambda node: node["name"])
    assert [node["devices"] for node in nodes] == [["cuda:0"], ["cuda:1"]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nodes", "2", "--devices", "cuda:0,1,2"), "that 2 nodes divide evenly"),
        (("--devices", "cuda:0,1", "--slots", "3"), "--slots: expected 2, one for each device"),
        (("--devices", "tpu"), "--devices: expected cpu, cuda, rocm"),
        (("--devices", "cuda"), "expected a machine with a visible cuda device, found none: "),
    ],
)
def test_devices_that_do_not_fit_are_refused(local, machine, options, said):
    """Exit code 2 and one line, before anything is started."""
    machine.cupy("raise ModuleNotFoundError('no', name='cupy')")
    machine.set(CUDA_VISIBLE_DEVICES="")
    code, out, err = local(*options).finish()
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert said in line
