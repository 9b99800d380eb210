"""One setting: its name, what may be written for it, and the value that it becomes.

A reader takes a value and the name of the place where it was written. It
returns the value in the type that the configurations keep, accepts its own
results unchanged, and refuses everything else with a `ConfigError` that
says where, what was expected and what was given.
"""

from __future__ import annotations

import math
import os
import platform
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast
from urllib.parse import unquote

from disco_client.errors import ConfigError
from disco_client.transport.address import Address
from disco_client.wire.limits import MAX_NAME

__all__ = [
    "AUTO",
    "DEBUG",
    "GPU_LIBRARIES",
    "HASH_SEED",
    "INIT_TIMEOUT_S",
    "MAX_REGISTERS",
    "MPI",
    "NCCL_TIMEOUT_S",
    "OBJECT_SCHEMES",
    "OFF",
    "RANK_VARIABLES",
    "SLOW_S",
    "UPLOADS",
    "Address",
    "NoVisibleGpu",
    "OneOf",
    "Reader",
    "Setting",
    "Variable",
    "check_system",
    "cpu_cores",
    "did_you_mean",
    "file_allowed",
    "is_object",
    "keeps_order",
    "machine_library",
    "module_allowed",
    "normal_place",
    "read_cache",
    "read_devices",
    "read_dial",
    "read_folders",
    "read_http",
    "read_limit",
    "read_listen",
    "read_loads",
    "read_node_name",
    "read_path",
    "read_patterns",
    "read_prefix",
    "read_seconds",
    "read_switch",
    "refuse",
    "setting",
    "visible_gpus",
    "whole",
]

GPU_LIBRARIES: Final = {"nccl": "cuda", "rccl": "rocm"}
"""The collective libraries of GPUs, and the kind of device whose arrays each moves."""

AUTO: Final = -1
"""Stands for "choose for me" in the settings that say so."""

OFF: Final = "off"
"""Instead of an address: there is no such port."""

UPLOADS: Final = "uploads"
"""Stands for the files that clients upload, in the setting of what may be loaded."""

MAX_REGISTERS: Final = 1 << 20
"""How many registers a session may have unless the node's settings say otherwise."""

_GPU_KINDS: Final = ("cuda", "rocm")

Reader = Callable[[object, str], object]
"""Takes what was written and where; returns the field's value or refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a daemon.

    Attributes:
        name: The name of the field, and in a file.
        read: Reads a value as it was written.
        text: What it is, in a sentence.
        option: The option of the command line; "" if there is none.
        default: The default, in words; "" if there is none to show.
        metavar: What a value is called where the option is described.
        repeats: Whether the option may be given several times.
    """

    name: str
    read: Reader
    text: str
    option: str
    default: str = ""
    metavar: str = ""
    repeats: bool = False

    @property
    def variable(self) -> str:
        """The variable of the environment."""
        return f"DISCO_{self.name.upper()}"

    def places(
        self,
        flags: Mapping[str, object | None],
        environ: Mapping[str, str],
        table: Mapping[str, object],
        in_file: Callable[[str], str],
    ) -> Iterator[tuple[object, str]]:
        """Where it was given: the value and the name of each place; the first one applies.

        Args:
            flags: Options by field name; None and the empty tuple stand for none.
            environ: The environment, in which an empty variable counts as absent.
            table: What a file says.
            in_file: Says where a setting of that name stands in the file.
        """
        if flags.get(self.name) not in (None, ()):
            yield flags[self.name], self.option or self.name
        if environ.get(self.variable):
            yield environ[self.variable], self.variable
        if self.name in table:
            yield table[self.name], in_file(self.name)


def setting(
    default: object,
    read: Reader,
    text: str,
    *,
    metavar: str = "",
    shown: str | None = None,
    option: str | None = "",
) -> Any:
    """Makes the field of a configuration; see `Setting`.

    Args:
        default: The default, or what makes it. The option of one whose default is the
            empty tuple may be given several times.
        read: Reads a value.
        text: What it is.
        metavar: What a value is called.
        shown: The default in words, if the value itself does not say it.
        option: The option, if it is not the field's name; None if there is none.
    """
    if shown is None:
        silent = default is None or default is False or default == ()
        shown = "" if silent else f"{default:g}" if isinstance(default, float) else str(default)
    row = {"read": read, "text": text, "metavar": metavar, "default": shown, "option": option}
    if callable(default):
        return field(default_factory=default, metadata={**row, "repeats": False})
    return field(default=default, metadata={**row, "repeats": default == ()})


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: what may have been meant."""
    import difflib  # needed only for a message

    known = list(known)
    near = difflib.get_close_matches(name.replace("-", "_").lower(), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


# --- what may be imported ----------------------------------------------------


def module_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Says whether the allow-list lets sessions import a module.

    A pattern is a dotted name in which ``*``, ``?`` and ``[...]`` match as in
    file names, dots included. A pattern also covers the modules inside what it
    names: ``pkg`` allows ``pkg.sub``, and not ``pkgs``.

    Args:
        name: A full dotted module name; anything else is never allowed.
        patterns: The allow-list.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


OBJECT_SCHEMES: Final = ("s3", "gs", "az", "https", "http")
"""The schemes of URLs by which workers reach objects: stores, and web servers."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)


def is_object(place: str | os.PathLike[str]) -> bool:
    """Whether a place in its normal form is an object, or what the names of objects begin with."""
    return os.fspath(place).startswith(tuple(f"{scheme}://" for scheme in OBJECT_SCHEMES))


def normal_place(text: str) -> str:
    """Reads where a file is: a path, or a URL such as ``s3://bucket/name`` or ``file:///name``.

    Returns:
        The path, or the URL of an object without a slash at its end.

    Raises:
        ValueError: It is a URL of something else, or one that no object can have.
    """
    match = _URL.match(text)
    if match is None:
        return text
    scheme, host, name = match[1].lower(), match[2], match[3].rstrip("/")
    if scheme == "file" and host in ("", "localhost"):
        return unquote(match[3])
    if scheme not in OBJECT_SCHEMES:
        known = ", ".join(f"{each}://" for each in ("file", *OBJECT_SCHEMES))
        msg = f"expected a path, or a URL that begins with {known}, got {text!r}"
        raise ValueError(msg)
    web = scheme.startswith("http")
    parts = (unquote(name) if web else name).split("/")[1:]
    if (
        not host
        or "\0" in text
        or any(part in ("", ".", "..") for part in parts)
        or "@" in host
        or (web and any(mark in text for mark in "?#"))
    ):
        # What follows a ? or stands before an @ may be a secret, and this is shown.
        msg = (
            f"expected a URL such as {scheme}://{'host' if web else 'bucket'}/name with a name that"
            " has no empty part and neither '.' nor '..', without user, query and fragment"
        )
        raise ValueError(msg)
    return f"{scheme}://{host.lower() if web else host}{name}"


def _is_normal(url: str) -> bool:
    try:
        return normal_place(url) == url
    except ValueError:
        return False


def file_allowed(path: str | os.PathLike[str], allowed: Iterable[str]) -> bool:
    """Says whether sessions may read a file.

    What counts is its real path: neither ``..`` nor a link leads out of an allowed
    folder. Of the URL of an object, whole parts of the name are compared.

    Args:
        path: The file, or an object's URL (see `normal_place`).
        allowed: Folders with everything below them, single files, URLs of the same
            kind, or ``*`` for everything.
    """
    is_url = is_object(path)
    real = os.fspath(path) if is_url else os.path.realpath(path)
    if is_url and not _is_normal(real):
        return False  # what a manifest names, such as ../other
    for entry in allowed:
        if entry == "*":
            return True
        if is_object(entry) != is_url:
            continue
        root = entry if is_url else os.path.realpath(entry)
        if real == root or real.startswith(root.rstrip(os.sep) + os.sep):
            return True
    return False


# --- what the machine has ----------------------------------------------------


def cpu_cores() -> int:
    """Counts the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_system(what: str) -> None:
    """Makes sure that this machine and process have what starting ranks takes.

    Args:
        what: What starts them, for the message.

    Raises:
        ConfigError: Something is missing; the message says what.
    """
    problem = ""
    if sys.platform != "linux":
        problem = f"Linux, this is {sys.platform}"
    elif not hasattr(select, "epoll"):
        problem = (
            "select.epoll, which something has taken away: unpatched select is needed, with"
            " gevent monkey.patch_all(select=False)"
        )
    elif not hasattr(os, "pidfd_open"):
        problem = "os.pidfd_open, which this Python was built without"
    elif not Path("/proc/self/stat").exists():
        problem = "/proc, which is not mounted here: mount -t proc proc /proc"
    if problem:
        raise ConfigError(f"{what} needs {problem}")


def keeps_order() -> bool:
    """Whether other processors see stores in the order in which they were made.

    x86 promises it (Intel SDM 3A, 8.2.2; AMD APM 2, 7.2).
    """
    return platform.machine().lower() in {"x86_64", "amd64", "i686"}


class NoVisibleGpu(ConfigError):
    """All GPUs of a kind were asked for, and this machine shows none.

    Attributes:
        where: Where they were asked for.
        kind: ``cuda`` or ``rocm``.
    """

    def __init__(self, where: str, kind: str) -> None:
        super().__init__(
            f"{where}: expected a machine with a visible {kind} device, found none;"
            " `disco doctor --gpu` says what is missing"
        )
        self.where = where
        self.kind = kind


def visible_gpus(
    kind: str, environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> tuple[str, ...]:
    """Lists the GPUs a process started now would see, without loading a driver.

    Args:
        kind: ``"cuda"`` or ``"rocm"``.
        environ: The environment, in which ``CUDA_VISIBLE_DEVICES`` or
            ``HIP_VISIBLE_DEVICES`` may hide some.
        root: Where the file system starts.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES" if kind == "cuda" else "HIP_VISIBLE_DEVICES")
    if chosen is not None:
        names = [part for part in chosen.split(",") if part.strip() not in ("", "-1")]
        return tuple(f"{kind}:{i}" for i in range(len(names)))
    if kind == "cuda":
        found = [p for p in root.glob("dev/nvidia*") if re.fullmatch(r"nvidia[0-9]+", p.name)]
    else:
        # A node of the KFD topology is a GPU where it names a gfx target.
        targets = root.glob("sys/class/kfd/kfd/topology/nodes/*/gfx_target_version")
        found = [p for p in targets if p.read_text().strip() not in ("", "0")]
    return tuple(f"{kind}:{i}" for i in range(len(found)))


def machine_library() -> str:
    """The collective library of sessions without a cluster on this machine, by its GPUs."""
    found = (name for name, kind in GPU_LIBRARIES.items() if visible_gpus(kind))
    return next(found, "mpi")


# --- reading one value -------------------------------------------------------


def refuse(where: str, expected: str, got: object) -> ConfigError:
    """Makes the error for a value: where it was written, what was expected, what was given."""
    return ConfigError(f"{where}: expected {expected}, got {got!r}")


def whole(lowest: int, highest: int, *, auto: bool = False) -> Reader:
    """Makes a reader of whole numbers; with `auto` it also accepts AUTO."""

    def read(value: object, where: str) -> int:
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,9}", text):
            text = int(text)
        if isinstance(text, int) and not isinstance(text, bool):
            if lowest <= text <= highest:
                return text
            # Only the dataclass's own default may be AUTO; a user leaves the setting out.
            if auto and text == AUTO and not where.startswith(("-", "DISCO_", "[")):
                return text
        raise refuse(where, f"a whole number from {lowest} to {highest}", value)

    return read


def read_seconds(value: object, where: str) -> float:
    """Reads a duration: seconds, above 0 and finite."""
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
    if not 0 < number < math.inf:
        raise refuse(where, "a number of seconds above 0", value)
    return number


def read_limit(value: object, where: str) -> float:
    """Reads a time that may be none: seconds, or 0."""
    number = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
    if not 0 <= number < math.inf:
        raise refuse(where, "a number of seconds, or 0 for none", value)
    return number


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one word out of a few, in any case."""

    choices: tuple[str, ...]

    def __call__(self, value: object, where: str) -> str:
        """Reads a value, as every reader does."""
        if isinstance(value, str) and value.lower() in self.choices:
            return value.lower()
        raise refuse(where, f"one of {', '.join(self.choices)}", value)


def read_switch(value: object, where: str) -> bool:
    """Reads a boolean."""
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise refuse(where, "1 or 0", value)


def read_prefix(value: object, where: str) -> str:
    """Reads the prefix of the URIs in certificates.

    It ends with a slash, so that ``spiffe://example.org/`` is not the beginning of
    ``spiffe://example.org.evil/``.
    """
    if isinstance(value, str) and "://" in value and value.endswith("/"):
        return value
    raise refuse(where, "the beginning of a URI that ends with a slash", value)


def read_path(value: object, where: str) -> Path | None:
    """Reads the path of a file; None stays None."""
    if value is None:
        return None
    if isinstance(value, (str, Path)) and str(value):
        return Path(value)
    raise refuse(where, "the path of a file", value)


def read_listen(value: object, where: str) -> str:
    """Reads an address to listen at, in the form that gRPC takes."""
    return str(Address.parse(value, where=where, any_port=True))


def read_optional_listen(value: object, where: str) -> str | None:
    """Reads the address to listen on, which may be none."""
    return None if value is None else read_listen(value, where)


def read_http(value: object, where: str) -> str | None:
    """Reads the address of an HTTP port, which may be ``off`` or none."""
    if value is None or (isinstance(value, str) and value.lower() == OFF):
        return value if value is None else OFF
    return read_listen(value, where)


def read_dial(value: object, where: str) -> str:
    """Reads an address to connect to, in the form that gRPC takes."""
    return str(Address.parse(value, where=where))


def read_node_name(value: object, where: str) -> str:
    """Reads a name that is safe in logs, metrics and file names."""
    form = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}"
    if isinstance(value, str) and re.fullmatch(form, value):
        return value
    expected = "letters, digits, dots, dashes and underscores"
    raise refuse(where, f"a name of at most {MAX_NAME} {expected}", value)


def _items(value: object) -> Sequence[object]:
    if isinstance(value, str):
        return value.split(",")
    return cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else ()


def _words(value: object, where: str, expected: str) -> list[str]:
    """Splits a comma-separated text or a list of texts."""
    items = _items(value)
    words = [item.strip() for item in items if isinstance(item, str)]
    if words and all(words) and len(words) == len(items):
        return words
    raise refuse(where, expected, value)


def read_patterns(value: object, where: str) -> tuple[str, ...]:
    """Reads patterns of module names (see `module_allowed`), each once."""
    expected = "dotted module names, * and ? allowed"
    words = _words(value, where, expected) if value not in ((), []) else []
    for word in words:
        if not re.fullmatch(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)*", word):
            raise refuse(where, expected, word)
    return tuple(dict.fromkeys(words))


def _whole_place(text: str, where: str) -> str:
    try:
        place = normal_place(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return place if is_object(place) else str(_whole_path(place, where))


def _whole_path(text: str, where: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # ~name, and there is no such user
        raise refuse(where, "a path, or one below ~ or ~USER", text) from None


def read_folders(value: object, where: str) -> tuple[str, ...]:
    """Reads folders, files and URLs (see `file_allowed`), each once and with its whole path."""
    expected = "folders, files, or * for everything"
    words = _words(value, where, expected) if value not in ((), []) else []
    if any("\0" in word for word in words):
        raise refuse(where, expected, value)
    paths = (word if word == "*" else _whole_place(word, where) for word in words)
    return tuple(dict.fromkeys(paths))


def read_loads(value: object, where: str) -> tuple[str, ...]:
    """Reads what `read_folders` does, and the word UPLOADS."""
    expected = f"folders, files, {UPLOADS}, or * for everything"
    words = _words(value, where, expected) if value not in ((), []) else []
    folders = read_folders([word for word in words if word != UPLOADS], where)
    return (*folders, UPLOADS) if UPLOADS in words else folders


def read_cache(value: object, where: str) -> Path:
    """Reads the folder of a cache; None is the user's own folder for such."""
    if value is not None:
        return _whole_path(str(read_path(value, where)), where)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:  # a user without a home
            import tempfile

            base = Path(tempfile.gettempdir(), f"disco-cache-{os.getuid()}")
    return base / "disco" / "modules"


def read_devices(value: object, where: str) -> tuple[str, ...]:
    """Reads ``cpu``, ``cuda``, ``cuda:0,1``, ``cuda:0,cuda:1`` or a list of such."""
    expected = "cpu, cuda, rocm, or numbered devices such as cuda:0,1"
    kind = ""
    devices: list[str] = []
    for word in _words(value, where, expected):
        if word == "cpu":
            devices.append(word)
        elif word in _GPU_KINDS:
            found = visible_gpus(word)
            if not found:
                raise NoVisibleGpu(where, word)
            devices.extend(found)
        elif match := re.fullmatch(r"(?:(cuda|rocm):)?([0-9]{1,4})", word):
            kind = match[1] or kind
            if not kind:
                raise refuse(where, expected, value)
            devices.append(f"{kind}:{int(match[2])}")
        else:
            raise refuse(where, expected, value)
    twice = {d for d in devices if d != "cpu" and devices.count(d) > 1}
    if twice:
        raise refuse(where, f"each GPU once ({', '.join(sorted(twice))} is repeated)", value)
    return tuple(devices)


# --- variables of ranks ------------------------------------------------------


HASH_SEED: Final = "PYTHONHASHSEED"
"""The variable by which an interpreter learns, at its start alone, how it hashes texts."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Variable(Generic[_T]):
    """An environment variable of ranks, which a daemon passes on to its ranks.

    Attributes:
        name: Its name.
        read: Reads its text.
        default: The value if it is absent or empty.
        text: What it is, in a sentence.
    """

    name: str
    read: Callable[[str, str], _T]
    default: _T
    text: str

    def value(self, environ: Mapping[str, str] | None = None) -> _T:
        """Its value, by default in the environment of this process.

        Raises:
            ConfigError: Its text is not valid.
        """
        text = (os.environ if environ is None else environ).get(self.name, "")
        return self.read(text, self.name) if text else self.default


def _limit(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise refuse(where, "a number of seconds", text)
    return value


def _flag(text: str, where: str) -> bool:
    if text not in ("0", "1"):
        raise refuse(where, "0 or 1", text)
    return text == "1"


DEBUG: Final = Variable(
    "DISCO_DEBUG", _flag, default=False, text="Whether collectives compare the shapes of arrays."
)
SLOW_S: Final = Variable(
    "DISCO_SLOW_S", _limit, 30.0, "After how long it is said that a collective waits; 0 for never."
)
INIT_TIMEOUT_S: Final = Variable(
    "DISCO_INIT_TIMEOUT_S",
    _limit,
    120.0,
    "How long opening a communicator may take once all ranks have begun; 0 for ever.",
)
NCCL_TIMEOUT_S: Final = Variable(
    "DISCO_NCCL_TIMEOUT_S",
    _limit,
    0.0,
    "After how long an operation of NCCL or RCCL has failed; 0 for never.",
)
MPI: Final = Variable(
    "DISCO_MPI", lambda text, _: text, "", "Which MPI library is loaded: mpich or impi."
)
RANK_VARIABLES: Final[tuple[Variable[Any], ...]] = (
    DEBUG,
    SLOW_S,
    INIT_TIMEOUT_S,
    NCCL_TIMEOUT_S,
    MPI,
)
