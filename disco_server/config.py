"""What the daemons can be told, and where from.

A setting comes from the command line, else from the environment (``DISCO_``
and its name in capitals), else from a TOML file (tables ``[controller]`` and
``[worker]``), else from the defaults below. Each way ends in the same
constructor, so a value is checked by the same code wherever it came from, and
a refusal always names the place where the person wrote it.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast

from disco_client.errors import ConfigError
from disco_client.transport.credentials import Credentials
from disco_server.security import CERTIFICATE_PREFIX, GUARD_READERS, Guard, check_dial, read_prefix
from disco_server.settings import (
    AUTO,
    OFF,
    UPLOADS,
    Address,
    Reader,
    cpu_cores,
    did_you_mean,
    file_allowed,
    module_allowed,
    one_of,
    read_cache,
    read_devices,
    read_dial,
    read_folders,
    read_http,
    read_listen,
    read_loads,
    read_node_name,
    read_optional_listen,
    read_path,
    read_patterns,
    read_seconds,
    refuse,
    whole,
)

__all__ = [
    "AUTO",
    "DEFAULT_ADDRESS",
    "LEAST_MEMORY",
    "LOG_FORMATS",
    "LOG_LEVELS",
    "MAX_CONNECTIONS",
    "MAX_REGISTERS",
    "ON_OFF",
    "UPLOADS",
    "Account",
    "Address",
    "ControllerConfig",
    "Settings",
    "WorkerConfig",
    "file_allowed",
    "machine_memory",
    "module_allowed",
    "passes",
    "read_environment",
    "read_size",
    "read_user",
    "size_text",
]


# Reading the settings of what a session's processes may use: memory, environment, user.


LEAST_MEMORY: Final = 256 << 20
"""With less, a rank could not even start."""

MAX_REGISTERS: Final = 1 << 20
"""How many registers a session may have unless the node's settings say otherwise."""

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
    """The user as whom ranks run.

    Attributes:
        name: Its name.
        uid: Its number.
        gid: Its first group.
        groups: All of its groups, those that may use the machine's GPUs among them.
        home: Its folder.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Path

    @property
    def cache(self) -> Path:
        """Where its processes may keep what is of use later."""
        owned = self.home.is_dir() and self.home.stat().st_uid == self.uid
        base = self.home / ".cache" if owned else Path(tempfile.gettempdir(), f"disco-{self.uid}")
        return base / "disco" / "modules"

    @classmethod
    def find(cls, name: str | None) -> Self | None:
        """Finds the account that ranks run as; None where that is this process's own.

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


# Where settings come from: command line, environment, file, and whose word counts.
#
# The classes of `disco_server.config` say what there is to set; this says how a value is
# found, read by the same code wherever it came from, and refused at the place where a
# person wrote it.


_TABLES: Final = ("controller", "worker")
_SINGULAR: Final = {"allow_modules": "allow_module", "allow_functions": "allow_function"}


class Settings:
    """What both configurations share: checking and loading.

    `_READERS` has one reader a field; it turns what a person wrote into the
    field's type, and takes its own results back unchanged.
    """

    __slots__ = ()

    _TABLE: ClassVar[str]
    _READERS: ClassVar[Mapping[str, Reader]]
    _RETIRED: ClassVar[Mapping[str, str]] = {}
    """Settings that an earlier release had and this one ignores, each with the reason."""

    def __post_init__(self) -> None:
        for name, read in self._READERS.items():
            # Frozen for everybody else; this is still the construction.
            object.__setattr__(self, name, read(getattr(self, name), name))
        self._complete()

    def _complete(self) -> None:
        """Chooses what was left to choose and checks settings against each other."""

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object | None] | None = None,
        environ: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> Self:
        """Gathers the settings: flags before environment before file before default.

        Args:
            flags: Settings from the command line by field name; None and the
                empty tuple mean that the flag was not given.
            environ: The environment; by default this process's. An empty
                variable counts as absent.
            file: A TOML file with tables ``[controller]`` and ``[worker]``.

        Raises:
            ConfigError: A value is wrong, or the file cannot be read or names
                a setting that does not exist.
        """
        flags = flags or {}
        environ = os.environ if environ is None else environ
        table: Mapping[str, object] = {}
        if file is not None:
            table = _read_table(file, cls._TABLE, (*cls._READERS, *cls._RETIRED))
        for name in flags:
            if name not in cls._READERS and name not in cls._RETIRED:
                raise ConfigError(
                    f"{_flag(name)}: no such setting{did_you_mean(name, cls._READERS)}"
                )
        chosen: dict[str, Any] = {}
        for name, read in cls._READERS.items():
            variable = f"DISCO_{name.upper()}"
            if flags.get(name) not in (None, ()):
                value, where = flags[name], _flag(name)
            elif environ.get(variable):
                value, where = environ[variable], variable
            elif name in table:
                value, where = table[name], f"[{cls._TABLE}] {name} in {file}"
            else:
                continue
            chosen[name] = read(value, where)
        return cls(**chosen)

    @classmethod
    def retired(
        cls,
        flags: Mapping[str, object | None] | None = None,
        environ: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> list[str]:
        """Says, a line each, which given settings :meth:`load` ignores, and why.

        Args:
            flags: As for :meth:`load`.
            environ: As for :meth:`load`.
            file: As for :meth:`load`.

        Raises:
            ConfigError: The file cannot be read.
        """
        flags = flags or {}
        environ = os.environ if environ is None else environ
        known = (*cls._READERS, *cls._RETIRED)
        table: Mapping[str, object] = {}
        if file is not None:
            table = _read_table(file, cls._TABLE, known)
        lines: list[str] = []
        for name, why in cls._RETIRED.items():
            variable = f"DISCO_{name.upper()}"
            places = [_flag(name)] if flags.get(name) is not None else []
            places += [variable] if environ.get(variable) else []
            places += [f"[{cls._TABLE}] {name} in {file}"] if name in table else []
            lines += [
                f"{where} is ignored, and will be refused by the next release: {why}"
                for where in places
            ]
        return lines


def _flag(name: str) -> str:
    """What a setting is called on the command line, where it is given once a value."""
    return f"--{_SINGULAR.get(name, name).replace('_', '-')}"


def _read_table(file: Path, table: str, known: Iterable[str]) -> Mapping[str, object]:
    """Returns one table of a TOML file, empty where the file has none of that name."""
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


DEFAULT_ADDRESS: Final = "127.0.0.1:7600"
ON_OFF: Final = ("on", "off")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

MAX_CONNECTIONS: Final = 4096

_MOST: Final = 1_000_000
_MAX_SLOTS: Final = 4096
_MAX_CACHE_MIB: Final = 1 << 30
_LEAST_REGISTERS: Final = 1 << 10
_MOST_REGISTERS: Final = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(Settings):
    """The settings of a controller daemon.

    Attributes:
        listen: Where it takes connections: ``HOST:PORT`` (port 0: the system
            chooses), ``[IPV6]:PORT`` or ``unix:/path``.
        port_file: Where it writes its port once it is ready; None for nowhere.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``text`` or ``json``.
        session_lease_s: Seconds a session outlives its client's connection, and its
            workers the controller; within them either may come back.
        node_lease_s: Seconds after which a silent node counts as lost; at
            least two heartbeats.
        node_return_s: Seconds in which a node whose connection broke may come back
            before its sessions end.
        heartbeat_s: Seconds between a node's signs of life.
        drain_s: Seconds running sessions are given when it is told to end.
        tls_cert: The daemon's certificate, a PEM file; with its key, connections are encrypted.
            The files are read again when they change.
        tls_key: The key of that.
        tls_ca: Who may sign the certificates of clients and worker daemons.
        require_client_cert: Whether peers must show a certificate of that authority.
        auth_token_file: The tokens that clients and worker daemons may show, one
            ``ROLE NAME TOKEN`` a line; read again when it changes.
        insecure: Whether other machines may be spoken with although connections are not
            encrypted, or nobody is asked who he is.
        audit_log: A file for the audit log, one JSON object a line; None for the log.
        tls_id_prefix: What a URI in a peer's certificate begins with that says its role, as
            in ``disco://client/alice``.
        max_connections: How many connections of clients and nodes it takes at a time;
            further ones are closed as soon as they are made.
        max_sessions: How many sessions it takes, those that wait for slots included.
        max_client_sessions: How many of them one client may have: one token or certificate,
            or, where nobody is asked who he is, one process as it names itself.
        expect_nodes: How many nodes there will ever be: once they are there, a session that
            would not fit on all of them is refused, and not kept waiting. 0: nobody knows.
        http: Where it serves its metrics and health over HTTP, as `listen` is written, or
            ``off``. None: port 7601 of the loopback address, or a free one.

    Raises:
        ConfigError: A setting is not as described.
    """

    listen: str = DEFAULT_ADDRESS
    port_file: Path | None = None
    log_level: str = "info"
    log_format: str = "text"
    session_lease_s: float = 60.0
    node_lease_s: float = 10.0
    node_return_s: float = 2.0
    heartbeat_s: float = 2.0
    drain_s: float = 30.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    require_client_cert: bool = False
    auth_token_file: Path | None = None
    insecure: bool = False
    audit_log: Path | None = None
    tls_id_prefix: str = CERTIFICATE_PREFIX
    max_connections: int = MAX_CONNECTIONS
    max_sessions: int = 1024
    max_client_sessions: int = 256
    expect_nodes: int = 0
    http: str | None = None

    _TABLE: ClassVar[str] = "controller"
    _READERS: ClassVar[Mapping[str, Reader]] = {
        "listen": read_listen,
        "port_file": read_path,
        "log_level": one_of(LOG_LEVELS),
        "log_format": one_of(LOG_FORMATS),
        "session_lease_s": read_seconds,
        "node_lease_s": read_seconds,
        "node_return_s": read_seconds,
        "heartbeat_s": read_seconds,
        "drain_s": read_seconds,
        **GUARD_READERS,
        "tls_id_prefix": read_prefix,
        "max_connections": whole(1, _MOST),
        "max_sessions": whole(1, _MOST),
        "max_client_sessions": whole(1, _MOST),
        "expect_nodes": whole(0, _MOST),
        "http": read_http,
    }

    def _complete(self) -> None:
        if self.node_lease_s < 2 * self.heartbeat_s:
            raise ConfigError(
                f"node_lease_s: expected at least two heartbeats "
                f"({2 * self.heartbeat_s:g} s), got {self.node_lease_s:g}"
            )
        self.guard.check_listen(self.listen_address, "listen")
        if self.http_address is not None:
            self.guard.check_door(self.http_address, "http")

    @property
    def guard(self) -> Guard:
        """How its door is guarded."""
        return _guard(self, auth_token_file=self.auth_token_file, tls_id_prefix=self.tls_id_prefix)

    @property
    def http_address(self) -> Address | None:
        """`http`, taken apart; None for the default or none."""
        return _http_address(self.http)

    @property
    def listen_address(self) -> Address:
        """`listen`, taken apart."""
        return Address.parse(self.listen, where="listen", any_port=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(Settings):
    """The settings of a worker daemon.

    Attributes:
        controller: Where the controller is: ``HOST:PORT``, ``[IPV6]:PORT`` or
            ``unix:/path``.
        slots: How many ranks this node takes at a time, 1 to 4096. AUTO: one
            for each CPU core, or one for each device of a device list.
        devices: The device of each slot, after construction exactly `slots`
            names: ``cpu``, ``cuda:N`` or ``rocm:N``. Before it also a text:
            ``cpu`` is every slot's device, ``cuda`` all visible GPUs, and
            ``cuda:0,1`` these two.
        device_check: Whether a daemon that offers GPUs tries them when it starts, ``on``
            or ``off``.
        name: What this node is called; by default its host name.
        allow_modules: Patterns of modules that sessions may import and call as a whole
            (see `module_allowed`), besides the functions of numpy and cupy that
            every worker offers (see `disco_server.rank.numpy_functions`).
        allow_functions: Patterns of other functions of numpy and cupy that sessions may
            call, such as ``numpy.load`` (see `disco_server.rank.functions`).
        allow_read: Folders and files that sessions may read weights from (see
            `file_allowed`); ``*`` for everything.
        allow_save: Folders in which sessions may save checkpoints (see
            `file_allowed`); ``*`` for everything.
        allow_load: Folders and files from which sessions may load modules, native
            code and Python files among them (see `file_allowed`); UPLOADS for the
            files that clients bring; ``*`` for everything.
        module_cache: Where modules that clients bring are kept. None: ``disco/modules``
            in the user's folder for caches.
        module_cache_mib: How many MiB of them are kept; the longest unused go first.
        rank_threads: Threads a rank's numerical libraries may use. AUTO: an
            equal share of the cores.
        env: What ranks get of this process's environment besides what computing needs:
            names, patterns, or ``NAME=VALUE``.
        max_memory: How many bytes a rank may allocate; 0 for no limit.
        core_dumps: Whether ranks that crash may leave their memory in a file, ``on`` or
            ``off``.
        user: As whom ranks run, where this process is root; None for its own user.
        work_dir: Where the working folders of ranks are made; None for the system's
            folder of temporary files.
        max_registers: How many registers a session may have.
        max_array_mib: How many MiB a host array that a client brings may have. AUTO: as
            many as this machine has of memory.
        array_listen: Where clients may bring and fetch host arrays without the
            detour through the controller, over gRPC: like `ControllerConfig.listen`.
            None: in shared memory where the controller is on this machine, otherwise
            a free port of the address from which the controller is reached; where
            `tls_ca` is given without `tls_cert` there is no such port.
        http: As for the controller.
        tls_cert: The daemon's certificate, a PEM file; with its key, connections are encrypted.
            The files are read again when they change.
        tls_key: The key of that.
        tls_ca: Who may sign the certificate of the controller; with it the connection to
            the controller is encrypted.
        require_client_cert: Whether peers must show a certificate of that authority.
        auth_token_file: A file with the daemon's own token.
        insecure: Whether other machines may be spoken with although connections are not
            encrypted, or nobody is asked who he is.
        audit_log: A file for the audit log, one JSON object a line; None for the log.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``text`` or ``json``.

    Raises:
        ConfigError: A setting is not as described.
    """

    controller: str = DEFAULT_ADDRESS
    slots: int = AUTO
    devices: tuple[str, ...] = ("cpu",)
    device_check: str = "on"
    name: str = field(default_factory=socket.gethostname)
    allow_modules: tuple[str, ...] = ()
    allow_functions: tuple[str, ...] = ()
    allow_read: tuple[str, ...] = ()
    allow_save: tuple[str, ...] = ()
    allow_load: tuple[str, ...] = ()
    module_cache: Path | None = None
    module_cache_mib: int = 10240
    rank_threads: int = AUTO
    env: tuple[str, ...] = ()
    max_memory: int = 0
    core_dumps: str = "off"
    user: str | None = None
    work_dir: Path | None = None
    max_registers: int = MAX_REGISTERS
    max_array_mib: int = AUTO
    array_listen: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    require_client_cert: bool = False
    auth_token_file: Path | None = None
    insecure: bool = False
    audit_log: Path | None = None
    http: str | None = None
    log_level: str = "info"
    log_format: str = "text"

    _TABLE: ClassVar[str] = "worker"
    _RETIRED: ClassVar[Mapping[str, str]] = {
        "warm": "workers are forked from one process that is always ready; leave it out"
    }
    _READERS: ClassVar[Mapping[str, Reader]] = {
        "controller": read_dial,
        "slots": whole(1, _MAX_SLOTS, auto=True),
        "devices": read_devices,
        "device_check": one_of(ON_OFF),
        "name": read_node_name,
        "allow_modules": read_patterns,
        "allow_functions": read_patterns,
        "allow_read": read_folders,
        "allow_save": read_folders,
        "allow_load": read_loads,
        "module_cache": read_cache,
        "module_cache_mib": whole(1, _MAX_CACHE_MIB),
        "rank_threads": whole(1, _MAX_SLOTS, auto=True),
        "env": read_environment,
        "max_memory": read_size,
        "core_dumps": one_of(ON_OFF),
        "user": read_user,
        "work_dir": read_path,
        "max_registers": whole(_LEAST_REGISTERS, _MOST_REGISTERS),
        "max_array_mib": whole(1, _MAX_CACHE_MIB, auto=True),
        "array_listen": read_optional_listen,
        **GUARD_READERS,
        "http": read_http,
        "log_level": one_of(LOG_LEVELS),
        "log_format": one_of(LOG_FORMATS),
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
            self.guard.check_door(self.array_address, "array_listen")
        if self.http_address is not None:
            self.guard.check_door(self.http_address, "http")
        if self.max_array_mib == AUTO:
            object.__setattr__(self, "max_array_mib", machine_memory() >> 20)

    @property
    def guard(self) -> Guard:
        """How its door for arrays is guarded."""
        return _guard(self)

    @property
    def credentials(self) -> Credentials:
        """With what it dials the controller."""
        return Credentials(
            ca=self.tls_ca,
            cert=self.tls_cert,
            key=self.tls_key,
            token_file=self.auth_token_file,
            role="worker",
        )

    @property
    def http_address(self) -> Address | None:
        """`http`, taken apart; None for the default or none."""
        return _http_address(self.http)

    @property
    def controller_address(self) -> Address:
        """`controller`, taken apart."""
        return Address.parse(self.controller, where="controller")

    @property
    def array_address(self) -> Address | None:
        """`array_listen`, taken apart."""
        if self.array_listen is None:
            return None
        return Address.parse(self.array_listen, where="array_listen", any_port=True)


def _guard(config: ControllerConfig | WorkerConfig, **more: Any) -> Guard:
    """A guard by the settings that both daemons have, and more."""
    return Guard(
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        tls_ca=config.tls_ca,
        require_client_cert=config.require_client_cert,
        insecure=config.insecure,
        **more,
    )


def _http_address(text: str | None) -> Address | None:
    if text in (None, OFF):
        return None
    return Address.parse(text, where="http", any_port=True)
