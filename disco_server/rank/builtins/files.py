"""The functions behind distributed tensors that workers read from files by themselves."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_client.wire.arrays import byte_view
from disco_client.wire.values import Device, Shape, is_array
from disco_server.modules import loading
from disco_server.modules.base import FileRefused, LoadedModule, LoadNotAllowed
from disco_server.modules.tvm import ModuleFunctions
from disco_server.rank.builtins.checkpoints import read_bounds
from disco_server.rank.builtins.core import noting_failure
from disco_server.rank.errors import ArgumentRefused, FunctionMissing
from disco_server.rank.functions import (
    function_of,
    meet_tvm,
    offer_function,
    register_func,
    registry,
)
from disco_server.rank.objects import offer_class
from disco_server.rank.worker import Worker, current_worker
from disco_server.settings import file_allowed
from disco_server.storage.files import DataFile, FileError, absolute_path
from disco_server.storage.hdf5 import open_hdf5, open_netcdf
from disco_server.storage.model_files import open_npy, open_safetensors
from disco_server.storage.stores import ObjectPath
from disco_server.storage.tensor_files import TensorFile
from disco_server.storage.zarr_arrays import open_zarr

if TYPE_CHECKING:
    from disco_server.modules.cache import Incoming, ModuleCache

__all__ = ["content_of"]


Array = np.ndarray[Any, Any]


_OPENERS: dict[str, Callable[[str, str, Sequence[str]], TensorFile]] = {
    "hdf5": open_hdf5,
    "netcdf": open_netcdf,
    "npy": lambda path, _, allowed: open_npy(path, allowed),
    "safetensors": open_safetensors,
    "zarr": open_zarr,
}
"""How a tensor is found in a file of each kind, by path and name; their libraries load then."""


@register_func("runtime.disco._file_open")
def file_open(kind: str, path: str, name: str, readers: Sequence[int]) -> TensorFile | None:
    """Finds a tensor in a file.

    Args:
        kind: Of the file.
        path: The file.
        name: The tensor's name, where files have several.
        readers: The workers that read of it; for the others it need not be there.
    """
    if current_worker().worker_id not in readers:
        return None
    worker = current_worker()
    if kind not in _OPENERS:
        msg = f"expected one of {', '.join(map(repr, _OPENERS))}, got {kind!r}"
        raise ArgumentRefused(msg)
    found = _OPENERS[kind](path, name, worker.allow_read)
    worker.audit("file opened", path, "")
    return found


@register_func("runtime.disco._file_facts")
def file_facts(file: TensorFile | None) -> list[Any] | None:
    """The shape and the dtype of the tensor."""
    if file is None:
        return None
    return [Shape(_checked(file).shape), file.dtype]


@register_func("runtime.disco._file_read")
def file_read(
    file: TensorFile | None,
    shape: Shape,
    dtype: str,
    table: Sequence[Any],
    dropped: Sequence[int] = (),
) -> Array | None:
    """Reads this worker's part.

    Args:
        file: The file.
        shape: What the first reader's file says.
        dtype: The same.
        table: For each worker the bounds of its part, or None.
        dropped: Axes of which there is one index, and which its part does not have.

    Raises:
        FileError: This worker's file says otherwise.
    """
    worker = current_worker()
    if file is None:
        return None
    if (_checked(file).shape, file.dtype) != (tuple(shape), dtype):
        problem = f"expected {dtype}{list(shape)}, as another worker sees, got {file.dtype}"
        raise FileError(file.path, f"{problem}{list(file.shape)}")
    bounds = read_bounds(table, worker.worker_id, file.shape)
    if bounds is None:
        return None
    part = file.read(bounds, worker.allow_read)
    if dropped:
        part = part.reshape([n for axis, n in enumerate(part.shape) if axis not in dropped])
    return worker.arrays.from_host(part)


def _checked(file: Any) -> TensorFile:
    if not isinstance(file, TensorFile):
        msg = f"expected a tensor's file that was opened, got {type(file).__name__}"
        raise ArgumentRefused(msg)
    return file


# The builtins of modules: loading files, uploading them, and looking up their content.


_NAMED = 20
"""How many functions of a module an error lists."""


# Loading ---------------------------------------------------------------------------


@register_func("runtime.disco.load_vm_module")
def load_vm_module(path: str, where: Any = None) -> LoadedModule:
    """Loads a module from a file of this node, or from an object store by its URL.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileRefused: It is missing, or of no kind that can be loaded.
        FileError: It is a URL, and cannot be read.
        ArgumentRefused: The device is not this worker's.
    """
    worker = current_worker()
    device = _own_device(worker, where)
    name = _text(path)
    loading.refuse_kind(name)
    if "://" in name:
        place = absolute_path(name)
        if isinstance(place, ObjectPath):
            return _loaded(_fetch(worker, place), name, device)
        name = str(place)
    real = worker.loading.check_file(Path(name))
    loading.digest_of(real)  # says what is missing
    worker.audit("module loaded", str(real), "")
    return _loaded(real, name, device)


@register_func("runtime.disco._load_content")
def load_content(path: str, digest: str, where: Any = None) -> LoadedModule:
    """Loads a module whose content the client knows: here by its path, or an upload.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileRefused: It has disappeared since the check, or cannot be loaded.
    """
    worker = current_worker()
    device = _own_device(worker, where)
    return _loaded(content_of(worker, path, digest), path, device)


def _fetch(worker: Worker, url: ObjectPath) -> Path:
    """A file of this node with what an object has; it is kept as uploads are.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileError: It cannot be read.
        FileRefused: It is larger than what this node keeps.
    """
    rules = worker.loading
    if not file_allowed(url, rules.allow):
        msg = f"loading {str(url)!r} is not allowed on this worker"
        raise LoadNotAllowed(f"{msg}; start disco-worker with --allow-load {url.parent}")
    cache, suffix = _cache(worker), loading.refuse_kind(url.name)
    with DataFile(url, rules.allow) as file:
        if file.size > rules.cache_bytes:
            msg = (
                f"{url} has {file.size:,} bytes, more than the {rules.cache_bytes:,} that are kept"
            )
            raise FileRefused(msg)
        content = file.read(file.size)
    digest = hashlib.sha256(content).hexdigest()
    worker.audit("module loaded", f"{url} (SHA-256 {digest})", "")
    found = cache.find(digest, suffix)
    if found is None:
        incoming = cache.begin(digest, suffix, len(content))
        incoming.append(memoryview(content))
        found = incoming.finish()
    return found


def _loaded(file: Path, name: str, device: Device) -> LoadedModule:
    module = loading.load(file, name, device, registry())
    if isinstance(module.functions, ModuleFunctions):
        meet_tvm()
    return module


@register_func("runtime.disco._load_source")
def load_source(path: str, digest: str, module_name: str) -> None:
    """Imports a Python file whose content the client knows, so that it registers its functions.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileRefused: It has disappeared since the check, or cannot be imported.
    """
    worker = current_worker()
    with noting_failure(worker, "load_source", _text(module_name)):
        loading.import_source(content_of(worker, path, digest), digest, path, module_name)


@register_func("runtime.disco._offer_source")
def offer_source(path: str, digest: str, module_name: str, qualname: str) -> None:
    """Imports a Python file as `load_source`, and registers a function or a class of it.

    Its name is the dotted one. A worker that is a thread of the program has the very objects.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileRefused: It has disappeared since the check, or cannot be imported.
        FunctionMissing: It has nothing callable of that name.
    """
    worker, name = current_worker(), _text(module_name)
    with noting_failure(worker, "load_source", name):
        file = content_of(worker, path, digest)
        module = loading.program_module(file, name) if worker.loading.in_program else None
        found: Any = module or loading.import_source(file, digest, path, name)
    _offer(found, name, qualname, Path(path).name)


@register_func("runtime.disco._include")
def include(path: str, digest: str, name: str, origin: str) -> None:
    """Lets the worker import a package of the client's.

    Args:
        path: The archive at the client.
        digest: The SHA-256 of its content, in hexadecimal.
        name: The name of the package.
        origin: Its folder or file at the client.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileRefused: The worker has another package of that name.
    """
    worker, rules = current_worker(), current_worker().loading
    if not _text(name).isidentifier():
        msg = f"expected the name of a package, got {name!r}"
        raise ArgumentRefused(msg)
    from disco_server.modules import packages

    with noting_failure(worker, "include", name):
        if rules.in_program:
            packages.make_importable(name, _text(origin))
            return
        file = content_of(worker, path, digest)
        # Without a cache the worker is a child of the client, whose folder ends with the client.
        packages.include(
            file, digest, name, _text(origin), file.parent if not rules.cache else None
        )


@register_func("runtime.disco._offer_included")
def offer_included(module_name: str, qualname: str) -> None:
    """Imports a module of an included package, and registers a function or a class of it.

    Raises:
        FileRefused: It was not included, or cannot be imported.
        FunctionMissing: It has nothing callable of that name.
    """
    worker, name = current_worker(), _text(module_name)
    from disco_server.modules import packages

    if not (worker.loading.in_program or packages.is_included(name)):
        msg = f"module {name!r} is in no package that a session has included on this worker"
        raise FileRefused(msg)
    with noting_failure(worker, "include", name):
        module = packages.import_included(name)
    _offer(module, name, qualname, name)


def _offer(found: Any, name: str, qualname: str, where: str) -> None:
    """Registers a function or a class of a module by its dotted name."""
    for part in _text(qualname).split("."):
        found = getattr(found, part, None)
    if not callable(found):
        msg = (
            f"{where!r} defines no function or class {qualname!r} on this worker, which"
            " does not execute what stands below 'if __name__ == \"__main__\":'"
        )
        raise FunctionMissing(msg)
    if isinstance(found, type):
        offer_class(f"{name}.{qualname}", found)
    else:
        offer_function(f"{name}.{qualname}", found)


def content_of(worker: Worker, path: str, digest: str) -> Path:
    """The file of this node that has what a client's file has.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileRefused: It has disappeared since the check.
        ArgumentRefused: That is no path, or no SHA-256 in hexadecimal.
    """
    found = _find(worker, _text(path), _hexadecimal(digest))
    if found is None:
        msg = f"the upload of {path!r} is not on this worker any more"
        raise FileRefused(msg)
    worker.audit("module loaded", f"{path} (SHA-256 {digest})", "")
    return found


def _find(worker: Worker, path: str, digest: str) -> Path | None:
    """Where a file of that content is on this node, and may be loaded from."""
    here = worker.loading.allowed(Path(path))
    if here is not None and here.is_file() and loading.digest_of(here) == digest:
        return here
    worker.loading.check_uploads(Path(path))
    return _cache(worker).find(digest, loading.refuse_kind(path))


def _cache(worker: Worker) -> ModuleCache:
    rules = worker.loading
    if rules.cache is None:
        msg = "this worker has no folder for what clients bring"
        raise FileRefused(msg)
    from disco_server.modules.cache import ModuleCache

    return ModuleCache(rules.cache, rules.cache_bytes, rules.owner)


def _own_device(worker: Worker, where: Any) -> Device:
    device = Device.parse(where) if isinstance(where, str) else where
    if device is not None and device != worker.device:
        msg = f"expected this worker's device {worker.device}, got {device}"
        raise ArgumentRefused(msg)
    return worker.device


def _text(path: Any) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        msg = f"expected the path of a file, got {path!r}"
        raise ArgumentRefused(msg)
    return path


def _hexadecimal(digest: Any) -> str:
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        msg = f"expected a SHA-256 in hexadecimal, got {digest!r}"
        raise ArgumentRefused(msg)
    return digest


# Uploading files ---------------------------------------------------------------------


@register_func("runtime.disco._wants_file")
def wants_file(path: str, digest: str, asked: Sequence[int]) -> bool:
    """Whether this node lacks a file of that content; False on ranks not in ``asked``.

    Raises:
        LoadNotAllowed: It lacks the file, and may not load what clients upload.
        FileRefused: There is no loader for this kind.
    """
    worker = current_worker()
    if worker.worker_id not in asked:
        return False
    loading.refuse_kind(_text(path))
    return _find(worker, path, _hexadecimal(digest)) is None


@register_func("runtime.disco._begin_file")
def begin_file(path: str, digest: str, size: int, asked: Sequence[int]) -> Incoming | None:
    """Begins an upload on the ranks in ``asked``; where that is empty, on all that lack it."""
    worker = current_worker()
    if asked:
        wanted = worker.worker_id in asked
    else:
        loading.refuse_kind(_text(path))
        wanted = _find(worker, path, _hexadecimal(digest)) is None
    if not wanted:
        return None
    worker.loading.check_uploads(Path(_text(path)))
    suffix = loading.refuse_kind(path)
    return _cache(worker).begin(_hexadecimal(digest), suffix, size)


@register_func("runtime.disco._append_file")
def append_file(incoming: Any, data: Any, receiver: int) -> None:
    """Writes the next bytes of a file, on one rank, or with -1 on all that receive it."""
    if receiver < 0 and incoming is None:
        return
    if receiver < 0 or current_worker().worker_id == receiver:
        from disco_server.modules.cache import Incoming

        if not isinstance(incoming, Incoming) or not is_array(data):
            msg = f"expected a file under way and its bytes, got {incoming!r} and {data!r}"
            raise ArgumentRefused(msg)
        incoming.append(byte_view(data))


@register_func("runtime.disco._finish_file")
def finish_file(incoming: Incoming | None) -> None:
    """Verifies a file and moves it to its place, on the ranks that received it."""
    if incoming is not None:
        incoming.finish()


# What is inside ------------------------------------------------------------------------


@register_func("ffi.ModuleGetFunction")
def module_get_function(module: Any, name: str, query_imports: Any = None) -> Any:
    """Finds a function of a module that a register holds.

    Args:
        module: The module.
        name: The function's name.
        query_imports: Whether modules that it imports are searched too, as in TVM; the answer for
            a missing one is None then. Without this argument they are, and a missing one is an
            error.

    Raises:
        FunctionMissing: The module has none of that name, and no third argument was given.
        ModuleNotAllowed: It is not for sessions to use.
    """
    if isinstance(module, LoadedModule):
        imports = query_imports is None or bool(query_imports)
        functions = module.functions
        compiled = isinstance(functions, ModuleFunctions)
        func = functions.find(name, imports=imports) if compiled else functions.get(name)
    else:
        worker = current_worker()
        func = function_of(_module(module), name, worker.allow_modules, worker.allow_functions)
    if callable(func):
        return func
    if query_imports is not None:
        return None
    what = module.name if isinstance(module, LoadedModule) else module.__name__
    msg = f"module {what!r} has no function {name!r}"
    raise FunctionMissing(f"{msg}; {_offers(module)}" if isinstance(module, LoadedModule) else msg)


@register_func("runtime.disco._module_names")
def module_names(module: Any) -> list[str]:
    """The names of a module's functions, sorted."""
    if isinstance(module, LoadedModule):
        return sorted(module.functions)
    found = vars(_module(module)).items()
    return sorted(name for name, each in found if callable(each) and not name.startswith("_"))


def _module(module: Any) -> ModuleType:
    if not isinstance(module, ModuleType):
        msg = f"expected a module in the register, got {type(module).__name__}"
        raise ArgumentRefused(msg)
    return module


def _offers(module: LoadedModule) -> str:
    names = module_names(module)
    if not names:
        return "it does not tell what it has"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"it has {', '.join(names[:_NAMED])}{more}"


@register_func("runtime.disco.get_item")
def get_item(value: Any, key: Any) -> Any:
    """Takes one item out of what a register holds.

    Args:
        value: A list, such as a module's several results, a map, or an array.
        key: A position, from the end where it is negative; for a map, a key.

    Raises:
        ArgumentRefused: There is no such item, or nothing to take one out of.
    """
    if not isinstance(value, (list, tuple, dict)) and not (is_array(value) and value.ndim):
        msg = f"expected a list, a map or an array to take item {key!r} of, got {_kind(value)}"
        raise ArgumentRefused(msg)
    held = cast("Any", value)
    try:
        item = held[key]
    except (LookupError, TypeError):
        has = f"keys {list(held)}" if hasattr(held, "keys") else f"{len(held)} items"
        msg = f"expected an item of {_kind(held)} with {has}, got {key!r}"
        raise ArgumentRefused(msg) from None
    # What is not an array of its own travels as a number.
    return item.item() if isinstance(item, (np.integer, np.floating)) else item


def _kind(value: Any) -> str:
    return "an array" if is_array(value) else f"a {type(value).__name__}"
