"""The configurations of the daemons, and the sources of their settings.

A setting comes from the command line, else from the environment (``DISCO_``
and its name in capitals), else from a TOML file (tables ``[controller]`` and
``[worker]``), else from the defaults below. Each way ends in the same
constructor, so a value is checked by the same code wherever it came from, and
a refusal always names the place where it was written.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast

from disco_client.errors import ConfigError
from disco_client.transport.address import DEFAULT_ADDRESS
from disco_client.transport.credentials import Credentials
from disco_client.wire.limits import (
    LEAST_WINDOW,
    MAX_WORKERS,
    MOST_WINDOW,
    MOST_WORKERS,
    WINDOW_COMMANDS,
)
from disco_server.security import CERTIFICATE_PREFIX, Guard, check_dial
from disco_server.settings import (
    AUTO,
    HASH_SEED,
    MAX_REGISTERS,
    OFF,
    Address,
    OneOf,
    Setting,
    cpu_cores,
    did_you_mean,
    read_cache,
    read_devices,
    read_dial,
    read_folders,
    read_http,
    read_limit,
    read_listen,
    read_loads,
    read_node_name,
    read_optional_listen,
    read_path,
    read_patterns,
    read_prefix,
    read_seconds,
    read_switch,
    refuse,
    setting,
    whole,
)

__all__ = [
    "AUTO",
    "LEAST_MEMORY",
    "LOG_FORMATS",
    "LOG_LEVELS",
    "MAX_CONNECTIONS",
    "ON_OFF",
    "PRIORITIES",
    "Account",
    "Address",
    "ControllerConfig",
    "DaemonConfig",
    "Settings",
    "WorkerConfig",
    "machine_memory",
    "passes",
    "read_environment",
    "read_guard",
    "read_size",
    "read_user",
    "size_text",
]


# Readers of the settings for a session's processes: memory, environment, user.


LEAST_MEMORY: Final = 256 << 20
"""With less, a rank could not even start."""

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*(?:([kmgt])(?:ib)?)?", re.IGNORECASE)
_MOST_BYTES: Final = 1 << 60
_VARIABLE: Final = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")


def read_size(value: object, where: str) -> int:
    """Reads a size in bytes, such as ``800MiB`` or ``4g``; 0 is none at all."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = -1
    if match is not None:
        size = int(match[1]) * _UNITS[(match[2] or "").lower()]
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if size == 0 or LEAST_MEMORY <= size <= _MOST_BYTES:
        return size
    raise refuse(where, f"a size from {size_text(LEAST_MEMORY)} up, such as 4GiB, or 0", value)


def size_text(nbytes: int) -> str:
    """A size in words, in the largest unit that has no fraction."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} bytes"


def read_environment(value: object, where: str) -> tuple[str, ...]:
    """Reads names and patterns of environment variables, and ``NAME=VALUE``."""
    expected = "names of variables (* and ? allowed) or NAME=VALUE"
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise refuse(where, expected, value)
    read: list[str] = []
    for item in cast("Iterable[object]", items):
        name, _, content = item.partition("=") if isinstance(item, str) else ("", "", "")
        if not _VARIABLE.fullmatch(name.strip()) or "\0" in content:
            raise refuse(where, expected, item)
        if name.strip() == HASH_SEED and content.strip() != "0":
            raise refuse(where, f"no {HASH_SEED}, which is 0 for the workers of every node", item)
        read.append(str(item).strip())
    return tuple(dict.fromkeys(read))


def passes(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of some patterns matches the name of a variable."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def read_user(value: object, where: str) -> str | None:
    """Reads the name of a user; None stays None."""
    if value is None or (isinstance(value, str) and re.fullmatch(r"[\w.-]{1,64}\$?", value)):
        return value
    raise refuse(where, "the name of a user of this machine", value)


def machine_memory() -> int:
    """How many bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True)
class Account:
    """The user that ranks run as.

    Attributes:
        name: Its name.
        uid: Its number.
        gid: Its first group.
        groups: All of its groups, including those that may use the machine's GPUs.
        home: Its folder.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Path

    @property
    def cache(self) -> Path:
        """The cache folder of its processes."""
        owned = self.home.is_dir() and self.home.stat().st_uid == self.uid
        base = self.home / ".cache" if owned else Path(tempfile.gettempdir(), f"disco-{self.uid}")
        return base / "disco" / "modules"

    @classmethod
    def find(cls, name: str | None) -> Self | None:
        """Finds the account that ranks run as; None if that is this process's own.

        Raises:
            ConfigError: There is no such user, or this process may not become it.
        """
        if name is None:
            return None
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise refuse("--user", "a user of this machine", name) from None
        if os.geteuid() == entry.pw_uid:
            return None
        if os.geteuid():
            raise ConfigError(
                f"--user: only a daemon that runs as root can run ranks as {name!r}; this one runs "
                f"as user {os.geteuid()}"
            )
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return cls(name, entry.pw_uid, entry.pw_gid, groups, Path(entry.pw_dir))


# Where settings come from: command line, environment, file, and which takes precedence.
#
# The fields of a configuration are the only table of the settings: options,
# variables, names in files, help and the page `docs/settings.md` all come from it.


_TABLES: Final = ("controller", "worker")
_RETIREMENT: Final = "{} is ignored, and will be refused by the next release: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Base of the configurations: checking and loading; each field is made by `setting`."""

    _TABLE: ClassVar[str]
    _RETIRED: ClassVar[Mapping[str, str]] = {}
    """Settings that an earlier release had and this one ignores, each with the reason."""

    def __post_init__(self) -> None:
        for name, row in self.table().items():
            # Frozen afterwards; this is still the construction.
            object.__setattr__(self, name, row.read(getattr(self, name), name))
        self._complete()

    def _complete(self) -> None:
        """Fills in settings that were left open, and checks settings against each other."""

    @classmethod
    def table(cls) -> dict[str, Setting]:
        """The settings by name, its own before those that it shares."""
        rows = [_row(each.name, **each.metadata) for each in fields(cls)]
        own = [row for row in rows if row.name in cls.__dict__]
        return {row.name: row for row in (*own, *rows)}

    @classmethod
    def retired(cls) -> list[Setting]:
        """Settings that are still accepted, and do nothing."""
        return [_row(name, read=_anything, text=text) for name, text in cls._RETIRED.items()]

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object | None] | None = None,
        environ: Mapping[str, str] | None = None,
        file: Path | None = None,
        on_retired: Callable[[str], None] = lambda _line: None,
    ) -> Self:
        """Gathers the settings: flags before environment before file before default.

        Args:
            flags: Settings from the command line by field name; None and the
                empty tuple mean that the flag was not given.
            environ: The environment; by default this process's. An empty
                variable counts as absent.
            file: A TOML file with tables ``[controller]`` and ``[worker]``.
            on_retired: Called with a line for each given setting that is ignored, and why.

        Raises:
            ConfigError: A value is wrong, or the file cannot be read or names
                a setting that does not exist.
        """
        flags = flags or {}
        environ = os.environ if environ is None else environ
        settings, retired = cls.table(), cls.retired()
        known = [*settings, *(row.name for row in retired)]
        table: Mapping[str, object] = {}
        if file is not None:
            table = _read_table(file, cls._TABLE, known)
        for name in flags:
            if name not in known:
                raise ConfigError(f"{name}: no such setting{did_you_mean(name, settings)}")

        def in_file(name: str) -> str:
            return f"[{cls._TABLE}] {name} in {file}"

        where = flags, environ, table, in_file
        chosen: dict[str, Any] = {}
        for row in settings.values():
            for value, place in row.places(*where):
                chosen[row.name] = row.read(value, place)
                break
        for row in retired:
            for _, place in row.places(*where):
                on_retired(_RETIREMENT.format(place, row.text))
        return cls(**chosen)


def _anything(value: object, _where: str) -> object:
    return value


def _row(name: str, *, option: str | None = "", **columns: Any) -> Setting:
    if option == "":
        option = f"--{name.replace('_', '-')}"
    return Setting(name=name, option=option or "", **columns)


def _read_table(file: Path, table: str, known: Iterable[str]) -> Mapping[str, object]:
    """Returns one table of a TOML file, empty if the file has none of that name."""
    try:
        with file.open("rb") as stream:
            content: dict[str, object] = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{file}: expected a readable file, got: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: expected TOML, got: {error}") from error
    for name in content:
        if name not in _TABLES:
            raise ConfigError(f"{file}: no table or setting {name!r}{did_you_mean(name, _TABLES)}")
    values = content.get(table, {})
    if not isinstance(values, dict):
        raise refuse(f"{table} in {file}", f"a table [{table}]", values)
    settings = cast("dict[str, object]", values)
    known = list(known)
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"[{table}] in {file}: no setting {name!r}{did_you_mean(name, known)}"
            )
    return settings


ON_OFF: Final = ("on", "off")
PRIORITIES: Final = ("low", "normal", "high")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

MAX_CONNECTIONS: Final = 4096

_MOST: Final = 1_000_000
_MAX_PORT: Final = 65_535
_MAX_SLOTS: Final = 4096
_MAX_CACHE_MIB: Final = 1 << 30
_LEAST_REGISTERS: Final = 1 << 10
_MOST_REGISTERS: Final = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig(Settings):
    """The settings that both daemons have."""

    tls_cert: Path | None = setting(
        None,
        read_path,
        "This daemon's certificate; with --tls-key, connections are encrypted.",
        metavar="FILE",
    )
    tls_key: Path | None = setting(None, read_path, "The key of --tls-cert.", metavar="FILE")
    tls_ca: Path | None = setting(
        None, read_path, "The CA certificate that verifies its peers.", metavar="FILE"
    )
    require_client_cert: bool = setting(
        False, read_switch, "Accept only peers with a certificate that --tls-ca signed."
    )
    auth_token_file: Path | None = setting(
        None,
        read_path,
        "The accepted tokens, ROLE NAME TOKEN a line; for a worker daemon, its own token.",
        metavar="FILE",
    )
    insecure: bool = setting(
        False, read_switch, "Serve other machines although any process there could run code here."
    )
    audit_log: Path | None = setting(
        None,
        read_path,
        "Where the audit log is written, a JSON object a line.",
        metavar="FILE",
        shown="the log",
    )
    http: str | None = setting(
        None,
        read_http,
        "Where /metrics, /healthz and /readyz are served, or off.",
        metavar="HOST:PORT",
        shown="127.0.0.1:7601, or a free port where that is taken",
    )
    window: int = setting(
        WINDOW_COMMANDS,
        whole(LEAST_WINDOW, MOST_WINDOW),
        "How many commands of a session may be under way that not all of its workers have"
        " executed; its client waits there, and beyond one and a half of it the session ends.",
        metavar="COUNT",
    )
    command_limit_s: float = setting(
        0.0,
        read_limit,
        "After how long a command fails that a worker executes; 0 for never. The shorter one of the"
        " controller's and the node's counts.",
        metavar="SECONDS",
        option="--command-limit",
    )
    log_level: str = setting("info", OneOf(LOG_LEVELS), "The least severe level that is logged.")
    log_format: str = setting(
        "text", OneOf(LOG_FORMATS), "Lines for people, or one JSON object a line."
    )

    @property
    def http_address(self) -> Address | None:
        """`http`, parsed; None for the default or none."""
        if self.http in (None, OFF):
            return None
        return Address.parse(self.http, where="http", any_port=True)

    def _guarded(self, **more: Any) -> Guard:
        """A guard from the settings that both daemons have, and more."""
        return Guard(
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_ca=self.tls_ca,
            require_client_cert=self.require_client_cert,
            insecure=self.insecure,
            **more,
        )


def read_guard(given: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Guard:
    """Makes a guard of the given settings, and the rest from the environment, as daemons do.

    Args:
        given: Settings of `DaemonConfig` by name; None for what was not given.
        environ: The environment; by default this process's.

    Raises:
        ConfigError: A value is wrong, or they do not belong together.
    """
    environ = os.environ if environ is None else environ
    table = DaemonConfig.table()
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            chosen[name] = table[name].read(value, name)
        elif text := environ.get(table[name].variable):
            chosen[name] = table[name].read(text, table[name].variable)
    return Guard(**chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(DaemonConfig):
    """The settings of a controller daemon.

    Raises:
        ConfigError: A setting is not as its reader asks, or two do not belong together.
    """

    listen: str = setting(
        DEFAULT_ADDRESS,
        read_listen,
        "Where to listen; port 0 picks a free one.",
        metavar="HOST:PORT",
    )
    port_file: Path | None = setting(
        None, read_path, "Write the port here once ready.", metavar="PATH"
    )
    http_link_file: Path | None = setting(
        None,
        read_path,
        "Write the dashboard's address here. Where callers are asked for nothing, the page asks for"
        " a token, which is made at each start and is part of that address.",
        metavar="PATH",
    )
    frames: str = setting(
        "on",
        OneOf(ON_OFF),
        "Whether sessions and nodes that reach a second port use that, which costs less than gRPC.",
    )
    frames_port: int = setting(
        0,
        whole(0, _MAX_PORT),
        "That port, on the host of --listen; 0 picks a free one.",
        metavar="PORT",
    )
    session_lease_s: float = setting(
        60.0,
        read_seconds,
        "How long a session outlives a connection that may come back.",
        metavar="SECONDS",
        option="--session-lease",
    )
    node_lease_s: float = setting(
        10.0,
        read_seconds,
        "After how long a silent node is lost.",
        metavar="SECONDS",
        option="--node-lease",
    )
    node_return_s: float = setting(
        3.0,
        read_seconds,
        "How long a node whose connection broke is waited for.",
        metavar="SECONDS",
        option="--node-return",
    )
    heartbeat_s: float = setting(
        2.0, read_seconds, "Seconds between a node's signs of life.", option=None
    )
    drain_s: float = setting(
        30.0, read_seconds, "How long sessions may go on when it is told to end.", option=None
    )
    tls_id_prefix: str = setting(
        CERTIFICATE_PREFIX,
        read_prefix,
        "What a URI in a certificate begins with that says its role.",
        metavar="URI",
    )
    max_connections: int = setting(
        MAX_CONNECTIONS,
        whole(1, _MOST),
        "How many connections it takes at a time; each costs it 50 KiB and an open file.",
        metavar="COUNT",
    )
    max_sessions: int = setting(
        1024,
        whole(1, _MOST),
        "How many sessions it takes, waiting ones included; each costs it 50 KiB.",
        metavar="COUNT",
    )
    max_client_sessions: int = setting(
        256, whole(1, _MOST), "How many of them one client may have.", metavar="COUNT"
    )
    max_workers: int = setting(
        MAX_WORKERS,
        whole(1, MOST_WORKERS),
        "How many workers a session may have; each costs 0.6 KiB, and 5 us of a wait for all.",
        metavar="COUNT",
    )
    max_client_slots: int = setting(
        0,
        whole(0, _MOST),
        "How many slots the sessions of one client may hold at a time; 0 for any number.",
        metavar="COUNT",
    )
    session_limit_s: float = setting(
        0.0,
        read_limit,
        "After how long a session ends that holds slots; 0 for never.",
        metavar="SECONDS",
        option="--session-limit",
    )
    idle_limit_s: float = setting(
        0.0,
        read_limit,
        "After how long a session ends whose connected client does nothing; 0 for never.",
        metavar="SECONDS",
        option="--idle-limit",
    )
    limit_warning_s: float = setting(
        60.0,
        read_seconds,
        "How long before that its client is warned; at most half of the limit.",
        metavar="SECONDS",
        option="--limit-warning",
    )
    client_priority: str = setting(
        "normal",
        OneOf(PRIORITIES),
        "The highest priority that clients may ask for: low, normal or high.",
        metavar="CLASS",
    )
    quota_file: Path | None = setting(
        None,
        read_path,
        "What single owners may have instead, a table [owner.NAME] each.",
        metavar="FILE",
    )
    expect_nodes: int = setting(
        0,
        whole(0, _MOST),
        "How many nodes there will ever be; 0 if that is not known.",
        metavar="COUNT",
    )
    kubernetes_account: Path | None = setting(
        None,
        read_path,
        "A Kubernetes service account's folder, with which pods of nodes with ranks ask to stay.",
        metavar="DIR",
    )

    _TABLE: ClassVar[str] = "controller"

    def _complete(self) -> None:
        if self.node_lease_s < 2 * self.heartbeat_s:
            raise ConfigError(
                f"node_lease_s: expected at least two heartbeats "
                f"({2 * self.heartbeat_s:g} s), got {self.node_lease_s:g}"
            )
        if self.quota_file and not (self.auth_token_file or self.require_client_cert):
            raise ConfigError(
                "quota_file: expected --auth-token-file or --require-client-cert with it; without"
                " them the controller does not know whose a session is"
            )
        self.guard.check_listen(self.listen_address, "listen")
        if self.http_address is not None:
            self.guard.check_listener(self.http_address, "http")
        if self.http_link_file is not None and self.http == OFF:
            raise ConfigError("http_link_file: expected an address as --http with it, got off")

    @property
    def guard(self) -> Guard:
        """How its port is guarded."""
        return self._guarded(auth_token_file=self.auth_token_file, tls_id_prefix=self.tls_id_prefix)

    @property
    def listen_address(self) -> Address:
        """`listen`, parsed."""
        return Address.parse(self.listen, where="listen", any_port=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(DaemonConfig):
    """The settings of a worker daemon.

    After construction `devices` has exactly `slots` names: ``cpu``, ``cuda:N`` or ``rocm:N``.

    Raises:
        ConfigError: A setting is not as its reader asks, or two do not belong together.
    """

    controller: str = setting(
        DEFAULT_ADDRESS, read_dial, "The controller to join.", metavar="HOST:PORT"
    )
    slots: int = setting(
        AUTO,
        whole(1, _MAX_SLOTS, auto=True),
        "How many workers fit here.",
        metavar="N",
        shown="CPU cores, or one for each of --devices",
    )
    devices: tuple[str, ...] = setting(
        ("cpu",),
        read_devices,
        "cpu; cuda or rocm for every visible GPU; or numbered GPUs such as cuda:0,1. A GPU is one"
        " slot.",
        metavar="LIST",
        shown="cpu",
    )
    device_check: str = setting(
        "on",
        OneOf(ON_OFF),
        "Whether GPUs are tried before they are offered; off starts a second earlier.",
    )
    name: str = setting(
        socket.gethostname,
        read_node_name,
        "This node's name, unique in the cluster.",
        metavar="NAME",
        shown="host name",
    )
    once: bool = setting(
        False, read_switch, "Take one session, and leave when it has ended, with exit status 0."
    )
    drain_s: float = setting(
        0.0,
        read_limit,
        "How long sessions may go on when it is told to end, which their programs see in"
        " session.draining; a second signal ends that.",
        metavar="SECONDS",
        option="--drain",
    )
    allow_modules: tuple[str, ...] = setting(
        (),
        read_patterns,
        "What sessions may import and call as a whole, besides the functions of numpy and cupy"
        " that workers offer; repeatable.",
        metavar="PATTERN",
        option="--allow-module",
    )
    allow_functions: tuple[str, ...] = setting(
        (),
        read_patterns,
        "Other functions of numpy and cupy that sessions may call, such as numpy.load; repeatable.",
        metavar="PATTERN",
        option="--allow-function",
        shown="none",
    )
    allow_read: tuple[str, ...] = setting(
        (),
        read_folders,
        "A folder, file or URL that sessions may read weights from; repeatable.",
        metavar="PATH",
        shown="none",
    )
    allow_save: tuple[str, ...] = setting(
        (),
        read_folders,
        "A folder or URL below which sessions may save checkpoints; repeatable.",
        metavar="DIR",
        shown="none",
    )
    allow_load: tuple[str, ...] = setting(
        (),
        read_loads,
        "A folder, file or URL that sessions may load modules from, or 'uploads' for what clients"
        " bring; repeatable.",
        metavar="PATH",
        shown="none",
    )
    module_cache: Path | None = setting(
        None,
        read_cache,
        "Where uploaded modules are kept.",
        metavar="DIR",
        shown="~/.cache/disco/modules",
    )
    module_cache_mib: int = setting(
        10240,
        whole(1, _MAX_CACHE_MIB),
        "How many MiB of them are kept.",
        metavar="N",
    )
    rank_threads: int = setting(
        AUTO,
        whole(1, _MAX_SLOTS, auto=True),
        "Threads of a worker's numerical libraries.",
        metavar="N",
        shown="an equal share of the cores",
    )
    env: tuple[str, ...] = setting(
        (),
        read_environment,
        "A variable that workers get besides what computing needs; * and ? match; repeatable.",
        metavar="NAME[=VALUE]",
    )
    max_memory: int = setting(
        0,
        read_size,
        "How much memory a worker may allocate, such as 4GiB.",
        metavar="SIZE",
        shown="no limit",
    )
    core_dumps: str = setting(
        "off", OneOf(ON_OFF), "Whether workers that crash may leave a core dump."
    )
    user: str | None = setting(
        None,
        read_user,
        "The user that workers run as, where the daemon is root.",
        metavar="NAME",
        shown="the daemon's",
    )
    work_dir: Path | None = setting(
        None,
        read_path,
        "Where workers get folders of their own.",
        metavar="DIR",
        shown="the system's temporary folder",
    )
    max_registers: int = setting(
        MAX_REGISTERS,
        whole(_LEAST_REGISTERS, _MOST_REGISTERS),
        "How many references a session may hold.",
        metavar="N",
    )
    max_array_mib: int = setting(
        AUTO,
        whole(1, _MAX_CACHE_MIB, auto=True),
        "How large a host array may be that a client brings.",
        metavar="N",
        shown="this machine's memory",
    )
    array_listen: str | None = setting(
        None,
        read_optional_listen,
        "Where clients bring and fetch host arrays.",
        metavar="HOST:PORT",
        shown="in shared memory if the controller is on this machine, otherwise a free port",
    )

    _TABLE: ClassVar[str] = "worker"
    _RETIRED: ClassVar[Mapping[str, str]] = {
        "warm": "workers are forked from one process that is always ready; leave it out"
    }

    def _complete(self) -> None:
        cores = cpu_cores()
        if self.devices == ("cpu",):
            slots = cores if self.slots == AUTO else self.slots
            object.__setattr__(self, "devices", ("cpu",) * slots)
        elif self.slots in (AUTO, len(self.devices)):
            slots = len(self.devices)
        else:
            raise ConfigError(
                f"slots: expected {len(self.devices)}, one for each of the devices "
                f"{','.join(self.devices)}, or none given, got {self.slots}"
            )
        object.__setattr__(self, "slots", slots)
        if self.rank_threads == AUTO:
            object.__setattr__(self, "rank_threads", max(1, cores // slots))
        check_dial(self.credentials, self.controller_address, insecure=self.insecure)
        if self.array_address is not None:
            self.guard.check_listener(self.array_address, "array_listen")
        if self.http_address is not None:
            self.guard.check_listener(self.http_address, "http")
        if self.max_array_mib == AUTO:
            object.__setattr__(self, "max_array_mib", machine_memory() >> 20)

    @property
    def guard(self) -> Guard:
        """How its port for arrays is guarded."""
        return self._guarded()

    @property
    def credentials(self) -> Credentials:
        """The credentials with which it connects to the controller."""
        return Credentials(
            ca=self.tls_ca,
            cert=self.tls_cert,
            key=self.tls_key,
            token_file=self.auth_token_file,
            role="worker",
        )

    @property
    def controller_address(self) -> Address:
        """`controller`, parsed."""
        return Address.parse(self.controller, where="controller")

    @property
    def array_address(self) -> Address | None:
        """`array_listen`, parsed."""
        if self.array_listen is None:
            return None
        return Address.parse(self.array_listen, where="array_listen", any_port=True)
