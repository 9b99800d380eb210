"""Loads compiled TVM libraries: Relax executables for its virtual machine, and plain ones."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from disco_client.errors import ConfigError, EncodingError
from disco_client.wire.array_likes import refuse_loss
from disco_client.wire.arrays import ALIGNMENT, empty_array
from disco_client.wire.dlpack import DlpackError, exported, view
from disco_client.wire.values import (
    Device,
    Shape,
    dtype_from_name,
    dtype_name,
    is_array,
    is_extension,
)
from disco_server.modules.base import FileRefused, Functions, LoadedModule
from disco_server.modules.unfinished import refuse_unfinished

__all__ = [
    "DiscoLibrary",
    "ModuleFunctions",
    "TvmFunction",
    "find_global",
    "from_tvm",
    "load",
    "own_library",
    "runtime",
    "serve",
    "served",
    "start_machine",
    "to_tvm",
]


# TVM's runtime in this process: loaded when first needed, without its compiler.
#
# The package ``tvm`` itself is not imported: its runtime library, loaded beside the
# small package ``tvm_ffi``, is all that compiled modules need, and takes a few
# milliseconds instead of a second.


_runtime_lock = threading.Lock()
_served: set[str] = set()
_OWN = "runtime.disco."
_PRIVATE = "runtime.disco._"
_STATED = ("worker_rank", "world_size", "device")


@dataclass(frozen=True, slots=True)
class DiscoLibrary:
    """TVM's library with its own Disco.

    Attributes:
        handle: The loader's handle of it.
        functions: What TVM itself had in its registry to ask a worker for what it is, by the
            names without their prefix.
    """

    handle: int
    functions: Mapping[str, Any]


_library: DiscoLibrary | None = None


@functools.cache
def _load() -> Any:
    from importlib.util import find_spec

    try:
        ffi: Any = import_module("tvm_ffi")
    except ImportError:
        return None
    found = find_spec("tvm")
    if found is None or found.origin is None:
        return None
    folder = Path(os.environ.get("TVM_LIBRARY_PATH") or Path(found.origin).parent / "lib")
    suffix = ".dylib" if os.uname().sysname == "Darwin" else ".so"
    # What is loaded already, as where a program imported tvm, stays as it is.
    ctypes.CDLL(str(folder / f"libtvm_runtime{suffix}"), ctypes.RTLD_GLOBAL)
    # It has Disco's names. If `import tvm` loaded it when `serve` has registered them,
    # the process would be ended.
    with contextlib.suppress(OSError):
        extra = ctypes.CDLL(str(folder / f"libtvm_runtime_extra{suffix}"))
        theirs = {name: ffi.get_global_func(_OWN + name, allow_missing=True) for name in _STATED}
        global _library  # noqa: PLW0603  (it is loaded once)
        _library = DiscoLibrary(extra._handle, theirs)  # noqa: SLF001  (no public name for it)
    _lock_tensor_cache(ffi)
    return ffi


def own_library() -> DiscoLibrary | None:
    """TVM's library with its own Disco; None where TVM has none, or was not needed yet."""
    return _library


_TENSOR_CACHE = (
    *(f"vm.builtin.tensor_cache.{each}" for each in ("get", "update", "remove", "clear", "load")),
    *("vm.builtin.param_array_from_cache", "vm.builtin.param_array_from_cache_by_name"),
    *("vm.builtin.param_array_from_cache_by_name_unpacked", "vm.builtin.param_module_from_cache"),
    "vm.builtin.param_module_from_cache_by_name",
)
"""What reads or writes TVM's cache of tensors, one for the process, which has no lock."""

_cache_lock = threading.RLock()


def _lock_tensor_cache(ffi: Any) -> None:
    """Lets one thread at a time use TVM's cache of tensors: several workers may be threads."""
    for name in _TENSOR_CACHE:
        theirs = ffi.get_global_func(name, allow_missing=True)
        if theirs is not None:
            ffi.register_global_func(name, _one_at_a_time(theirs), override=True)


def _one_at_a_time(func: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with _cache_lock:
            return func(*args)

    return call


def runtime() -> Any:
    """The module ``tvm_ffi``, with TVM's runtime library behind it.

    Raises:
        FileRefused: TVM is not installed here.
    """
    with _runtime_lock:
        ffi = _load()
    if ffi is None:
        msg = (
            "this needs TVM, which is not installed on this worker: "
            "pip install 'disco-runtime[tvm]'"
        )
        raise FileRefused(msg)
    return ffi


def find_global(name: str) -> Callable[..., Any] | None:
    """Finds a function of TVM's registry; None where there is none, or no TVM."""
    with _runtime_lock:
        ffi = _load()
    func = None if ffi is None else ffi.get_global_func(name, allow_missing=True)
    if func is None:
        return None

    return TvmFunction(func)


def serve(functions: Functions) -> None:
    """Registers functions of this process for compiled modules to call by name.

    TVM's registry is one for the process, and a module looks names up when it
    starts. The collectives of ``runtime.disco`` replace what TVM may have under
    these names; of the others, those that TVM has stay TVM's. The calling thread
    identifies the rank. Names that begin with an underscore are not for modules.

    Args:
        functions: The functions by name, looked up anew in each call.
    """
    ffi = runtime()

    with _runtime_lock:
        for name in functions:
            if name in _served or name.startswith(_PRIVATE):
                continue
            own = name.startswith(_OWN)
            if own or ffi.get_global_func(name, allow_missing=True) is None:
                ffi.register_global_func(
                    name, served(lambda name=name: functions[name]), override=own
                )
                _served.add(name)


# Values between this process's functions and TVM's; arrays are shared, not copied.
#
# ======================= ===========================================
# here                    in TVM
# ======================= ===========================================
# ``numpy.ndarray``       ``Tensor`` of the same memory
# ``Shape``               ``Shape``
# ``numpy.dtype``         ``dtype``
# ``Device``              ``Device``
# ``list``, ``tuple``     ``Array``; comes back as ``list``
# ``dict``                ``Map``; comes back as ``dict``
# a function              ``Function``
# ======================= ===========================================
#
# None, bool, int, float, str and bytes are the same on both sides; other objects of
# TVM, such as the state of a cache, stay what they are and can be passed on.


Array = np.ndarray[Any, Any]
_Copies = list[tuple[Array, Array]]
_local = threading.local()


class _Raised:
    """An exception that is kept outside TVM, which passes on only a text.

    TVM would call its ``__str__``, and end the process where that raises.
    """

    _count = itertools.count()

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.sign = (
            f"{type(error).__name__} in a function that was called back, #{next(self._count)}."
        )


class TvmFunction:
    """A function of TVM, called with values of this process."""

    __slots__ = ("func",)

    def __init__(self, func: Any) -> None:
        self.func = func

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        """Calls it, and raises what a function of this process raised within."""
        if keywords:
            given = ", ".join(keywords)
            raise EncodingError(f"functions of TVM take no keyword arguments; got {given}")
        copies: _Copies = []
        _local.raised = None
        try:
            result = self.func(*[to_tvm(arg, copies) for arg in args])
        except RuntimeError as error:
            stashed: _Raised | None = _local.raised
            if stashed is not None and stashed.sign in str(error):
                raise stashed.error from None
            raise
        finally:
            _local.raised = None
        for array, copy in copies:
            array[...] = copy
        return from_tvm(result)


def served(find: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Wraps a function of this process as one that TVM can call.

    Args:
        find: Returns the function, anew for each call.
    """

    def call(*args: Any) -> Any:
        try:
            result = find()(*map(from_tvm, args))
            refuse_unfinished(result)
            return to_tvm(result, [])
        except Exception as error:  # noqa: BLE001  (it bypasses TVM)
            _local.raised = stashed = _Raised(error)
            raise RuntimeError(stashed.sign) from None

    return call


def to_tvm(value: Any, copies: _Copies) -> Any:
    """Converts a value to TVM's type.

    Args:
        value: Any value that a register may hold.
        copies: Is filled with the arrays whose copies TVM works on, and these copies:
            arrays whose memory layout compiled code does not accept.

    Raises:
        EncodingError: TVM has no such dtype or device.
    """
    if is_array(value):
        refuse_loss(value)
        return _tensor(value, copies)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    ffi = runtime()
    if isinstance(value, Shape):
        return ffi.Shape(value)
    if isinstance(value, (list, tuple, dict)):
        return ffi.convert(_items(cast("Any", value), copies))
    if isinstance(value, np.generic):
        return _number(cast("np.generic[Any]", value))
    return _special(ffi, value)


def _number(value: np.generic[Any]) -> Any:
    """A scalar of numpy as TVM has it: as a number of Python's, of at most 64 bits."""
    dtype = value.dtype
    if dtype.kind == "f":
        return float(value)
    number: Any = value.item()
    if dtype.kind == "b" or is_extension(dtype.name):
        return number
    if dtype.kind not in "iu" or number > _LARGEST:
        msg = f"{value!r} cannot be passed to TVM, whose numbers are int64 and float64"
        raise EncodingError(msg)
    return number


_LARGEST = (1 << 63) - 1


def _items(value: Any, copies: _Copies) -> Any:
    if isinstance(value, dict):
        return {key: to_tvm(item, copies) for key, item in cast("Any", value).items()}
    return [to_tvm(item, copies) for item in value]


def _special(ffi: Any, value: Any) -> Any:
    if isinstance(value, np.dtype):
        try:
            return ffi.dtype(dtype_name(cast("np.dtype[Any]", value)))
        except (ConfigError, ValueError, RuntimeError):
            msg = f"TVM has no dtype {value}"
            raise EncodingError(msg) from None
    if isinstance(value, Device):
        return ffi.device(value.kind, value.index)
    if isinstance(value, TvmFunction):
        return value.func
    if isinstance(value, LoadedModule):
        return getattr(value.functions, "module", value)
    if callable(value) and not isinstance(value, ffi.Object):
        return ffi.convert(served(lambda: value))
    return value


def _tensor(array: Array, copies: _Copies) -> Any:
    ffi = runtime()
    name = dtype_name(array.dtype)
    if array.dtype.kind not in "biuf" and not is_extension(name):
        msg = f"an array of {name} cannot be passed to TVM"
        raise EncodingError(msg)
    lent = array
    flags = array.flags
    # Compiled code reads whole vectors and ends the process where they are not aligned.
    if (
        not (flags.c_contiguous and flags.writeable and array.dtype.isnative)
        or array.ctypes.data % ALIGNMENT
    ):
        lent = empty_array(array.shape, array.dtype.newbyteorder("="))
        lent[...] = array
        if flags.writeable:
            copies.append((array, lent))
    return ffi.from_dlpack(exported(lent))


def from_tvm(value: Any) -> Any:  # noqa: PLR0911  (one return a kind)
    """Converts a value of TVM to one of this process."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    ffi = runtime()
    if isinstance(value, ffi.Tensor):
        return _array(value)
    if isinstance(value, ffi.Shape):
        return Shape(value)
    if isinstance(value, (ffi.Array, ffi.List)):
        return [from_tvm(item) for item in value]
    if isinstance(value, (ffi.Map, ffi.Dict)):
        items = {from_tvm(key): from_tvm(item) for key, item in value.items()}
        return items if all(isinstance(key, str) for key in items) else value
    if isinstance(value, ffi.dtype):
        try:
            return dtype_from_name(str(value))
        except ConfigError:
            return str(value)  # such as "handle"
    if isinstance(value, ffi.Device):
        kind = value.type
        return Device(kind, value.index) if kind in ("cpu", "cuda", "rocm") else value
    if isinstance(value, ffi.Function):
        return TvmFunction(value)
    if isinstance(value, ffi.Module):
        return LoadedModule(value.kind, ModuleFunctions(value, ()))
    if isinstance(value, str):
        return str(value)
    return bytes(value) if isinstance(value, bytes) else value


def _array(tensor: Any) -> Any:
    """The memory of a tensor as an array; the tensor itself where numpy cannot access it."""
    if tensor.device.type != "cpu":
        return tensor
    try:
        return view(tensor) if is_extension(str(tensor.dtype)) else np.from_dlpack(tensor)
    except (BufferError, RuntimeError, DlpackError):
        return tensor


_CPU = 1
_POOLED = 2
_HOST = (_CPU, 0, _POOLED)
_START = "vm_load_executable"
_COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
_SOURCES = (".o", ".c", ".cc", ".cpp")

_lock = threading.Lock()
_libraries: dict[tuple[Path, str], tuple[Any, tuple[str, ...]]] = {}
_digests: dict[Path, str] = {}


class ModuleFunctions(Mapping[str, Callable[..., Any]]):
    """The functions of a module of TVM.

    Attributes:
        module: The module itself.
    """

    def __init__(self, module: Any, names: Sequence[str]) -> None:
        """Takes a module and the names to list; it may have further functions."""
        self.module = module
        self._names = tuple(names)

    def __getitem__(self, name: str) -> TvmFunction:
        found = self.find(name, imports=False)
        if found is None:
            raise KeyError(name)
        return found

    def find(self, name: str, *, imports: bool) -> TvmFunction | None:
        """Finds a function; None where there is none of that name.

        Args:
            name: Its name.
            imports: Whether modules that this one imports are searched too: what is no function
                of the virtual machine is in one, such as those that split parameters.
        """
        found = runtime().get_global_func("ffi.ModuleGetFunction")(self.module, name, imports)
        return None if found is None else TvmFunction(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load(path: Path, digest: str, device: Device, functions: Functions) -> Functions:
    """Loads a library once in this process, and starts a virtual machine for this rank.

    Args:
        path: A ``.so``, or a ``.tar`` of object files that is linked first.
        digest: The SHA-256 of its content, in hexadecimal.
        device: Where it runs.
        functions: What it may call by name, the collectives among them.

    Raises:
        FileRefused: It is no library of TVM, or needs functions that are not there,
            or TVM or a linker is missing, or the device is a GPU.
    """
    if device.kind != "cpu":
        msg = (
            f"{path.name} is a library of TVM, which runs on CPUs here, and this worker computes"
            f" on {device}; load it in a session whose slots are CPUs"
        )
        raise FileRefused(msg)
    ffi = runtime()
    serve(functions)
    with _lock:
        known = _libraries.get((path, digest))
        if known is None:
            known = _open(ffi, path, digest)
            # Never unloaded: its memory may outlive every reference to it.
            _libraries[path, digest] = known
    library, names = known
    if not library.implements_function(_START):
        return ModuleFunctions(library, names)
    try:
        return ModuleFunctions(start_machine(library), names)
    except Exception as error:
        msg = f"cannot start {path.name}: {error}"
        raise FileRefused(msg) from error


def start_machine(library: Any) -> Any:
    """Starts a virtual machine on the CPU for an executable of TVM's; its errors are TVM's."""
    machine = library.get_function(_START)()
    machine.get_function("vm_initialization")(*_HOST, *_HOST)
    return machine


def _open(ffi: Any, path: Path, digest: str) -> tuple[Any, tuple[str, ...]]:
    """Loads a library into the process; returns it and the names of its functions.

    The system's loader takes a path it has loaded before for the same library,
    whatever is in the file by now, so that another content is loaded from a copy.
    """
    from shutil import copyfile  # with what it imports, these are much for a rank that loads none
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="disco-load-") as folder:
        library = path
        if path.suffix == ".tar":
            library = _link(path, Path(folder))
        elif _digests.setdefault(path, digest) != digest:
            library = Path(folder, f"{digest}.so")
            copyfile(path, library)
        try:
            module = ffi.load_module(str(library))
        except (RuntimeError, OSError, ValueError) as error:
            msg = f"expected a library that TVM compiled in {str(path)!r}, got: {error}"
            raise FileRefused(msg) from error
        return module, _names_of(module, library)


def _link(path: Path, folder: Path) -> Path:
    """Makes a shared library of the object files in an archive."""
    import tarfile  # a megabyte, which no other rank needs

    parts: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None and member.name.endswith(_SOURCES):
                    # By number: names in an archive may lead anywhere.
                    part = folder / f"{len(parts)}{Path(member.name).suffix}"
                    part.write_bytes(content.read())
                    parts.append(str(part))
    except (tarfile.TarError, EOFError, OSError) as error:
        msg = f"expected an archive of object files in {str(path)!r}, got: {error}"
        raise FileRefused(msg) from error
    if not parts:
        msg = f"expected object files in {str(path)!r}, found none"
        raise FileRefused(msg)
    library = folder / "linked.so"
    _run_linker([_compiler(path), "-shared", "-fPIC", "-o", str(library), *parts], path)
    return library


def _run_linker(command: Sequence[str], path: Path) -> None:
    import subprocess

    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip()[-1000:]
        msg = f"cannot link {str(path)!r}: {command[0]} exited with {done.returncode}: {said}"
        raise FileRefused(msg)


def _compiler(path: Path) -> str:
    from shutil import which

    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else _COMPILERS:
        found = which(name)
        if found:
            return found
    msg = (
        f"linking {str(path)!r} needs a compiler on this worker, found none of "
        f"{', '.join(_COMPILERS)}; export the module as .so instead"
    )
    raise FileRefused(msg)


def _names_of(library: Any, path: Path) -> tuple[str, ...]:
    """The names of a library's functions, for messages."""
    if library.implements_function("as_text"):
        text = str(library.get_function("as_text")())
        return tuple(re.findall(r"^@(\S+):$", text, re.MULTILINE))
    # Functions of plain libraries are symbols with this prefix.
    names = re.findall(rb"\0__tvm_ffi_([A-Za-z]\w*)(?=\0)", path.read_bytes())
    return tuple(sorted({name.decode() for name in names}))
