"""``disco local``: a cluster of real daemons on this machine, for one command or a while."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import click

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, DiscoError
from disco_server.cli.options import json_option, report_errors
from disco_server.config import LOG_LEVELS
from disco_server.devices.probe import explain
from disco_server.observe.lifetime import PARENT_VARIABLE, die_with
from disco_server.settings import OFF, Address, NoVisibleGpu, cpu_cores, read_devices, refuse

__all__ = ["LocalCluster", "local", "share_devices"]

_READY_S = 60.0
_STOP_S = 10.0
_GRACE_S = 0.25
"""How long a command that may have received the same signal has to end before it is passed on."""
_INTERRUPTED = 128 + signal.SIGINT
_LONGEST_LINE = 256
"""How much the kernel reads of a script to find its interpreter."""


class LocalCluster:
    """A controller and worker daemons as child processes; a context manager.

    They listen on a Unix socket in a folder that only this user can enter, so no
    other user of the machine can run code through them, and what sessions may
    import, read, save and load is not restricted unless ``allow_modules``,
    ``allow_read``, ``allow_save`` or ``allow_load`` say so.

    Args:
        nodes: How many worker daemons.
        slots: How many slots each of them has.
        allow_modules: What sessions may import, besides the functions of numpy and cupy
            that every worker offers; None for anything.
        allow_read: Folders and files that sessions may read; ``*`` for anything.
        allow_save: Folders in which sessions may save; ``*`` for anywhere.
        allow_load: What sessions may load modules from: folders, files, ``uploads``
            or ``*``. Empty for anything where ``allow_modules`` is None, otherwise for
            nothing.
        log_level: Of the daemons' logs, which go to standard error.
        import_path: Folders that the workers' Python searches first.
        listen: Listen on this address instead, ``HOST:PORT``.
        insecure: Whether that may be an address that other machines reach although
            connections are neither encrypted nor authenticated.
        http: Where the controller serves its dashboard and metrics, ``HOST:PORT``; port 0 lets
            the system choose. None or ``off`` for nowhere.
        metrics: Whether the worker daemons serve theirs, at free ports.
        devices: What `WorkerConfig.devices` takes, for all nodes together: GPUs are
            divided in their order, equally many to each node, and are its slots.

    Attributes:
        address: Where the controller listens, once started.
        dashboard: The address of its dashboard, with the token that it asks for; empty for none.
        pids: The processes of the daemons.

    Raises:
        ConfigError: The devices cannot be divided among the nodes, or there are none.
    """

    def __init__(  # noqa: PLR0913  (what a person may say, each by its name)
        self,
        nodes: int = 1,
        slots: int = 2,
        *,
        allow_modules: Sequence[str] | None = None,
        allow_read: Sequence[str] = ("*",),
        allow_save: Sequence[str] = ("*",),
        allow_load: Sequence[str] = (),
        log_level: str = "warning",
        import_path: Sequence[str] = (),
        listen: str | None = None,
        insecure: bool = False,
        devices: str | Sequence[str] = "cpu",
        http: str | None = None,
        metrics: bool = False,
    ) -> None:
        self._shares = share_devices(devices, nodes)
        self._slots = len(self._shares[0]) or slots
        self._allow = ("*",) if allow_modules is None else tuple(allow_modules)
        self._allow_read = tuple(allow_read)
        self._allow_save = tuple(allow_save)
        # A session that may load any file may import anything.
        self._allow_load = tuple(allow_load) or (("*",) if allow_modules is None else ())
        self._log_level = log_level
        if http is None or http.lower() == OFF:
            http = OFF
        self._http = (http, "127.0.0.1:0" if metrics else OFF)
        self._folder = Path(tempfile.mkdtemp(prefix="disco-"))
        self._listen = listen
        self._insecure = ("--insecure",) if insecure else ()
        self._processes: list[subprocess.Popen[str]] = []
        path = [*import_path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self._environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            PARENT_VARIABLE: str(os.getpid()),
        }
        self.address = self.dashboard = ""

    @property
    def pids(self) -> list[int]:
        """The processes of the daemons, the controller first."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Starts every daemon and waits until all are ready.

        Raises:
            ConfigError: The folder for temporary files, TMPDIR, has too long a name for sockets.
            DiscoError: One of them ended or did not become ready.
        """
        private = f"unix:{self._folder}/controller"
        listen = self._listen or str(Address.parse(private, where="TMPDIR"))
        level = ("--log-level", self._log_level)
        link = self._folder / "dashboard"
        http, metrics = self._http
        door = ["--listen", listen, "--http", http, *self._insecure]
        if http != OFF:
            door += ["--http-link-file", str(link)]
        ready = self._run("controller", [*door, "--expect-nodes", str(len(self._shares)), *level])
        self.address = ready.partition(" ready at ")[2]
        self.dashboard = link.read_text().strip() if link.exists() else ""
        threads = max(1, cpu_cores() // (len(self._shares) * self._slots))
        options = ["--controller", self.address, "--slots", str(self._slots), *level]
        options += self._insecure
        options += ["--rank-threads", str(threads), "--http", metrics]
        for pattern in self._allow:
            options += ["--allow-module", pattern]
        if self._allow == ("*",):
            options += ["--env", "*"]
        for path in self._allow_read:
            options += ["--allow-read", path]
        for path in self._allow_save:
            options += ["--allow-save", path]
        for path in self._allow_load:
            options += ["--allow-load", path]
        options += ["--module-cache", str(self._folder / "modules")]
        started = [
            self._spawn(
                "worker",
                [*options, "--devices", ",".join(share) or "cpu", "--name", f"node-{index}"],
            )
            for index, share in enumerate(self._shares)
        ]
        for process in started:
            self._await_ready("worker", process)

    def _run(self, what: str, options: list[str]) -> str:
        return self._await_ready(what, self._spawn(what, options))

    def _spawn(self, what: str, options: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"disco_server.cli.{what}", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environ,
            # Ctrl-C is for the command; the daemons are stopped afterwards.
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def _await_ready(self, what: str, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None  # noqa: S101  (it was asked for above)
        line = _read_line(process.stdout, _READY_S)
        if line is None:
            msg = f"disco-{what} was not ready within {_READY_S:.0f} s; see --log-level debug"
            raise DiscoError(msg)
        if not line:
            status = process.wait()
            msg = f"disco-{what} ended with status {status} before it was ready; its log says why"
            raise DiscoError(msg)
        return line.strip()

    def stop(self) -> None:
        """Ends every daemon: workers first, by SIGTERM, then by SIGKILL; idempotent."""
        processes = self._processes[::-1]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = monotonic() + _STOP_S
        for process in processes:
            try:
                process.wait(max(0.1, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def share_devices(devices: str | Sequence[str], nodes: int) -> list[tuple[str, ...]]:
    """Divides devices among the nodes of one machine, in their order.

    Args:
        devices: What `WorkerConfig.devices` takes.
        nodes: The number of nodes.

    Returns:
        The devices of each node; empty where all are CPUs, which nodes share.

    Raises:
        ConfigError: They cannot be divided evenly, or there are none.
    """
    try:
        found = read_devices(devices, "--devices")
    except NoVisibleGpu as error:
        raise explain(error) from None
    if found == ("cpu",):
        return [()] * nodes
    each, left = divmod(len(found), nodes)
    if left:
        raise refuse(
            "--devices", f"a number of devices that {nodes} nodes divide evenly", ",".join(found)
        )
    return [found[at : at + each] for at in range(0, len(found), each)]


def _read_line(stream: IO[str], timeout: float) -> str | None:
    """Reads one line; empty at the end of the stream, None after the timeout."""
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(timeout)
    return got[0] if got else None


_PYTHON = re.compile(r"python[0-9.]*|disco")
"""What runs the Python file that one of its arguments names."""

_RUNS_FROM_HERE = re.compile(r"-[A-VY-Za-z]*[cm]|-$")
"""Options of Python by which it finds modules in the working folder: -c, -m and -, as in -Bm."""


def _program_path(command: Sequence[str]) -> list[str]:
    """What Python itself puts first on the path of the program that a command runs.

    That program need not be the command's first word: ``env A=1 python script.py``.
    """
    here, found = str(Path.cwd()), list[str]()
    after_python = False
    for word in command:
        if after_python and _RUNS_FROM_HERE.match(word):
            found.append(here)
            after_python = False
        elif _PYTHON.fullmatch(Path(word).name):
            after_python = True
        elif (word.endswith(".py") or after_python) and Path(word).exists():
            return [*found, _path_entry(word)]
    if after_python:  # what it runs comes from standard input
        return [*found, here]
    if not found and command and (program := shutil.which(command[0])):
        with contextlib.suppress(OSError), Path(program).open("rb") as file:
            line = file.readline(_LONGEST_LINE)
            found += [_path_entry(program)] * (line.startswith(b"#!") and b"python" in line)
    return found


def _path_entry(script: str) -> str:
    """The folder of a script; of a folder or archive with a ``__main__`` that itself."""
    path = Path(script).resolve()
    return str(path if pkgutil.get_importer(str(path)) else path.parent)


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Start this many worker daemons.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 256),
    default=None,
    help="Give each of them this many slots.  [default: CPU cores, or one for each GPU]",
)
@click.option(
    "--devices",
    metavar="LIST",
    envvar="DISCO_DEVICES",
    show_envvar=True,
    default="cpu",
    help="Offer these devices: cpu; cuda or rocm for every visible GPU; or cuda:0,1. Several "
    "nodes divide the GPUs among them, in order.  [default: cpu]",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=None,
    help="Listen there instead of on a private Unix socket.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Let --listen be an address that other machines reach, and can run code at.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    default=None,
    help="Serve the dashboard and metrics of the controller there, and those of nodes at free "
    "ports; or off.  [default: the dashboard at a free port of 127.0.0.1]",
)
@click.option(
    "--allow-module",
    "allow_modules",
    multiple=True,
    metavar="PATTERN",
    help="Let sessions import this besides the functions of numpy and cupy; repeatable.  "
    "[default: anything, or nothing beside --listen]",
)
@click.option(
    "--allow-read",
    multiple=True,
    metavar="PATH",
    help="Let sessions read this folder, file or URL; repeatable.  [default: anything]",
)
@click.option(
    "--allow-save",
    multiple=True,
    metavar="DIR",
    help="Let sessions save checkpoints below this folder or URL; repeatable.  [default: anywhere]",
)
@click.option(
    "--allow-load",
    multiple=True,
    metavar="PATH",
    help="Let sessions load modules from this folder or file, or 'uploads'; repeatable.  "
    "[default: anything, or nothing beside --allow-module or --listen]",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    envvar="DISCO_LOG_LEVEL",
    show_envvar=True,
    help="Log nothing less severe than this.  [default: warning]",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Return when the cluster is ready, and let it run; it becomes the context `local`.",
)
@click.option("--stop", "stopped", is_flag=True, help="Stop the cluster that --detach has left.")
@json_option("Print one JSON object when the cluster is ready, if there is no command.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@report_errors
def local(  # noqa: PLR0913  (what a person may say, each by its name)
    *,
    nodes: int,
    slots: int | None,
    devices: str,
    listen: str | None,
    insecure: bool,
    http: str | None,
    log_level: str | None,
    detach: bool,
    stopped: bool,
    as_json: bool,
    command: tuple[str, ...],
    **allow: tuple[str, ...],
) -> None:
    """Run a cluster here: for COMMAND, until Ctrl-C, or detached.

    COMMAND finds the cluster in DISCO_ADDRESS; its exit code becomes this
    one's. Put -- before it:

        disco local --nodes 2 --slots 2 -- python program.py

    A detached cluster goes on when the terminal is closed, and commands and
    programs find it by themselves, as its address is the current context:

        disco local --nodes 2 --slots 2 --detach
        python program.py
        disco local --stop
    """
    if command and (detach or stopped):
        msg = f"expected no command with {'--detach' if detach else '--stop'}, got {command[0]!r}"
        raise ConfigError(msg)
    if stopped:
        _stop_detached(as_json=as_json)
        return
    if detach:
        _detach(_given_options(click.get_current_context()), as_json=as_json)
        return
    if command and shutil.which(command[0]) is None:
        msg = f"expected a command to run, found no program {command[0]!r}"
        raise ConfigError(msg)
    modules = allow.pop("allow_modules")
    if listen is None:  # a port is open to every user of the machine, the private socket is not
        for name in ("allow_read", "allow_save"):
            allow[name] = allow[name] or ("*",)
    each = len(share_devices(devices, nodes)[0])
    if each and slots not in (None, each):
        raise refuse("--slots", f"{each}, one for each device of a node, or none given", slots)
    cluster = LocalCluster(
        nodes,
        slots or cpu_cores(),
        allow_modules=modules if modules or listen is not None else None,
        **allow,
        log_level=log_level or "warning",
        import_path=_program_path(command),
        listen=listen,
        insecure=insecure,
        devices=devices,
        http=http or "127.0.0.1:0",
        metrics=http is not None and http.lower() != OFF,
    )
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with cluster:
            if command:
                if cluster.dashboard:  # standard output is the command's
                    click.echo(f"dashboard at {cluster.dashboard}", err=True)
                code = _run_command(command, cluster.address)
            else:
                code = _idle(cluster, as_json=as_json)
    except KeyboardInterrupt as error:
        code = 128 + signal.SIGTERM if isinstance(error, _Terminated) else _INTERRUPTED
    sys.exit(code)


def _given_options(context: click.Context) -> list[str]:
    """The options that were given, without those of a detached cluster itself."""
    given: list[str] = []
    for option in context.command.params:
        value: Any = context.params.get(option.name or "")
        if option.name in ("detach", "stopped", "as_json", "command") or value in (None, (), False):
            continue
        values: list[Any] = list(value) if option.multiple else [value]
        for each in values:
            given += [option.opts[0]] if each is True else [option.opts[0], str(each)]
    return given


def _detach(options: list[str], *, as_json: bool) -> None:
    from disco_server.cli.detached import DETACHED, start_detached  # --help loads none of it

    found = start_detached(options)
    if as_json:
        click.echo(json.dumps({**found.about, "pid": found.pid, "log": str(found.log)}))
        return
    click.echo(
        f"cluster ready at {found.about['address']}, which is the context {DETACHED!r} now; "
        f"disco local --stop stops it\nits log is {found.log}"
    )
    if found.about["dashboard"]:
        click.echo(f"dashboard at {found.about['dashboard']}")
    if other := os.environ.get("DISCO_ADDRESS"):
        click.echo(f"DISCO_ADDRESS names another one, {other}; unset it to use this one", err=True)


def _stop_detached(*, as_json: bool) -> None:
    from disco_server.cli.detached import stop_detached

    address = stop_detached()
    click.echo(json.dumps({"stopped": address}) if as_json else f"stopped {address}")


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def _terminate(_number: int, _frame: object) -> None:
    raise _Terminated


def _run_command(command: tuple[str, ...], address: str) -> int:
    parent = os.getpid()
    started: list[subprocess.Popen[bytes]] = []
    came: set[int] = set()

    def pass_on_soon(*_: object) -> None:
        if not (started and _in_foreground()):
            signal.setitimer(signal.ITIMER_REAL, _GRACE_S)

    def pass_on(number: int, _frame: object) -> None:
        came.add(number)
        for process in started:
            process.send_signal(signal.SIGINT)
        if not started:
            pass_on_soon()

    # None of these raises: an exception while waiting for the command would lose its status.
    signal.signal(signal.SIGALRM, pass_on)
    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on_soon)
    process = subprocess.Popen(
        command,
        env={**os.environ, "DISCO_ADDRESS": address},
        # The command should not outlive its cluster, however this process ends.
        preexec_fn=lambda: die_with(parent, signal.SIGTERM),  # noqa: PLW1509  (no thread runs here)
    )
    started.append(process)
    status = process.wait()
    code = status if status >= 0 else 128 - status
    # What was passed on is not what has ended this; a command that chose its code keeps it.
    return 128 + signal.SIGTERM if signal.SIGTERM in came and code == _INTERRUPTED else code


def _in_foreground() -> bool:
    """Whether a terminal's Ctrl-C signals the command as well as this process."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _idle(cluster: LocalCluster, *, as_json: bool) -> int:
    page = cluster.dashboard or None
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            about = {"address": cluster.address, "pids": cluster.pids, "dashboard": page}
            click.echo(json.dumps(about))
        else:
            click.echo(f"cluster ready; DISCO_ADDRESS={cluster.address}  (Ctrl-C stops it)")
            if page:
                click.echo(f"dashboard at {page}")
        signal.pause()
    return 0
