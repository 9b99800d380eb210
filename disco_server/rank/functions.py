"""Names to functions: what was registered here, and what allowed modules offer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from types import MappingProxyType, ModuleType
from typing import Any, Final, TypeVar, cast

from disco_server.modules.tvm import find_global, serve
from disco_server.modules.tvm_worker import show_worker
from disco_server.rank.errors import (
    ArgumentRefused,
    FunctionMissing,
    ModuleNotAllowed,
    hidden_in_tracebacks,
)
from disco_server.rank.numpy_functions import (
    PACKAGES,
    is_supported,
    reason_against,
    supported_functions,
    supported_modules,
)
from disco_server.rank.tvm_table import INSTEAD
from disco_server.rank.worker import current_worker, is_worker_thread
from disco_server.settings import module_allowed

__all__ = [
    "MAX_NAME",
    "OWN_NAMES",
    "NamedCall",
    "destination_of",
    "enter_name",
    "find_dotted",
    "function_of",
    "home_of",
    "import_allowed",
    "is_uninterrupted",
    "meet_tvm",
    "names_of",
    "offer_function",
    "register_func",
    "registered",
    "registered_by",
    "registry",
    "resolve",
    "uninterrupted",
    "writes_into",
]


# Dotted names to functions: what a name may lead through.
#
# Of numpy and cupy every worker offers a list of functions (`numpy_functions`), each by the
# one name that is on it. Nothing is looked for beside that list, so what it does not name is
# refused, in this release of numpy and in the next.
#
# What the operator allows by name, with ``--allow-module``, is offered as a whole: a name leads
# through modules that are allowed, and from them to public callables that such a module
# exports (in its ``__all__``) or that are defined in one. What a module imported for its own
# use is not reached through it, whatever it is called there.


MAX_NAME: Final = 1024
"""No name of a function or module is longer."""


def import_allowed(name: str, patterns: Sequence[str]) -> ModuleType:
    """Imports a module that the allow-list covers, or of which every worker offers functions.

    Raises:
        ModuleNotAllowed: It is neither, or it is a program.
        FunctionMissing: There is no such module, or its import ended in an exit.
    """
    if "__main__" in name.split("."):
        msg = f"{_short(name)!r} is a program, and sessions import modules, which define functions"
        raise ModuleNotAllowed(msg)
    if len(name) > MAX_NAME or not (module_allowed(name, patterns) or name in supported_modules()):
        allowed = ", ".join((*patterns, "functions of numpy and cupy"))
        named = name if _package(name) else name.split(".", maxsplit=1)[0]
        msg = (
            f"module {_short(name)!r} is not on this worker's allow-list ({allowed}); "
            f"start disco-worker with --allow-module {_short(named)}"
        )
        raise ModuleNotAllowed(msg)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # the module is there; something it needs is not
        msg = f"no module named {error.name!r} on this worker; its path is {sys.path}"
        raise FunctionMissing(msg) from None
    except SystemExit as error:
        msg = f"module {name!r} is a program: its import ended with exit status {error.code}"
        raise FunctionMissing(msg) from error


def find_dotted(
    name: str, modules: Sequence[str], functions: Sequence[str] = ()
) -> Callable[..., Any] | None:
    """Finds a function by its dotted name; None where nothing callable has it.

    Args:
        name: Such as ``numpy.linalg.norm``.
        modules: The allow-list of modules.
        functions: Patterns of what may be called of numpy and cupy beyond the list.

    Raises:
        ModuleNotAllowed: The name leads through something that is not allowed.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        if module_allowed(".".join(parts[:cut]), modules):
            return _walk(name, cut, modules, functions)
    return _find_supported(name, modules, functions) if _package(name) else None


def function_of(
    module: ModuleType, name: str, modules: Sequence[str], functions: Sequence[str] = ()
) -> Callable[..., Any] | None:
    """Finds a function of a module that was imported; None where it has none of that name.

    Raises:
        ModuleNotAllowed: The module or the function is not allowed.
    """
    whole = f"{module.__name__}.{name}"
    if module_allowed(module.__name__, modules):
        found = _enter(module, name, whole, modules)
        return found if callable(found) else None
    if not _package(whole):
        raise ModuleNotAllowed(_not_on_list(whole, module.__name__))
    return _find_supported(whole, modules, functions)


# numpy and cupy -----------------------------------------------------------------------


def _package(name: str) -> str:
    """The package of a name, where it is one of which every worker offers functions."""
    package = name.partition(".")[0]
    return package if package in PACKAGES else ""


def _find_supported(
    name: str, modules: Sequence[str], functions: Sequence[str]
) -> Callable[..., Any] | None:
    """Finds a function of numpy or cupy, where it is on the list or allowed by its name."""
    if is_supported(name):
        owner = _look_up(name.rpartition(".")[0])
        found = getattr(owner, name.rpartition(".")[2], None)
        if name in supported_functions():
            return _checking_self(owner, found) if callable(found) else None
        if type(owner).__name__ == "ufunc":
            return found
    for part in name.split(".")[1:]:
        _check_public(name, part)
    if any(_covers(pattern, name) for pattern in functions):
        return _walk(name, name.count("."), (*modules, _package(name)), ())
    return _refuse(name, modules, functions)


def _look_up(name: str) -> Any:
    """The object of a name on the list; None where this release has none."""
    package, *parts = name.split(".")
    found: Any = import_allowed(package, ())
    path = package
    for part in parts:
        path += f".{part}"
        if (
            not hasattr(found, part)
            and isinstance(found, ModuleType)
            and path in supported_modules()
        ):
            import_allowed(path, ())
        found = getattr(found, part, None)
    return found


def _checking_self(owner: Any, found: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a check of the first argument to a method that does not check it itself.

    Cython compiles methods without it: numpy's generators read an array as one of theirs.
    """
    if not isinstance(owner, type) or type(found).__name__ != "cython_function_or_method":
        return found

    def method(self: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(self, owner):
            kind = type(self).__name__
            msg = f"expected a {owner.__name__} as the first argument, got an object of type {kind}"
            raise TypeError(msg)
        return found(self, *args, **options)

    return method


def _refuse(name: str, modules: Sequence[str], functions: Sequence[str]) -> Any:
    """Says why a name of numpy or cupy is not offered; None where nothing has that name."""
    reason = reason_against(name)
    if reason:
        msg = (
            f"{name!r} is not offered by default, because it {reason}; start disco-worker with "
            f"--allow-function {name}"
        )
        raise ModuleNotAllowed(msg)
    package = _package(name)
    library = import_allowed(package, ())
    found: Any = library
    parts = name.split(".")
    for index, part in enumerate(parts[1:], 2):
        owner = found
        if isinstance(owner, ModuleType):
            found = vars(owner).get(part)  # never through its __getattr__, which may import
        else:
            found = getattr(owner, part, None)
        if found is None:
            if _is_foreign(owner, part, modules):
                raise ModuleNotAllowed(_not_on_list(name, part))
            if not _has_module(owner, part):
                return None
            break
        if isinstance(found, ModuleType) and _package(found.__name__) != package:
            if not module_allowed(found.__name__, modules):
                raise ModuleNotAllowed(_not_on_list(name, found.__name__))
            return find_dotted(".".join((found.__name__, *parts[index:])), modules, functions)
    if found is not None and not callable(found):
        return None
    msg = (
        f"{name!r} exists in {package} {library.__version__}, but is not on the list of functions "
        f"that workers offer by default; start disco-worker with --allow-function {name}, or with "
        f"--allow-module {package} for all of {package}"
    )
    raise ModuleNotAllowed(msg)


def _has_module(owner: Any, part: str) -> bool:
    """Whether a package has a module of a name that has not been imported."""
    inside = isinstance(owner, ModuleType) and hasattr(owner, "__path__") and part.isidentifier()
    return inside and find_spec(f"{owner.__name__}.{part}") is not None


def _covers(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


# What the operator allowed ---------------------------------------------------------------


def _walk(
    name: str, cut: int, modules: Sequence[str], functions: Sequence[str]
) -> Callable[..., Any] | None:
    parts = name.split(".")
    for part in parts[1:]:
        _check_public(name, part)
    found: Any = None
    while found is None:
        try:
            found = import_allowed(".".join(parts[:cut]), modules)
        except FunctionMissing:
            cut -= 1  # the last part was no module but something inside one
            if not cut:
                raise
    for index, part in enumerate(parts[cut:], cut + 1):
        found = _enter(found, part, name, modules)
        if isinstance(found, ModuleType) and not module_allowed(found.__name__, modules):
            # Only numpy and cupy get here.
            return _find_supported(".".join((found.__name__, *parts[index:])), modules, functions)
    return found if callable(found) else None


def _enter(owner: Any, part: str, name: str, modules: Sequence[str]) -> Any:
    """Returns the attribute of a module, a class or an object."""
    _check_public(name, part)
    found = getattr(owner, part, None)
    if found is None and _is_foreign(owner, part, modules):
        raise ModuleNotAllowed(_not_on_list(name, part))
    if isinstance(found, ModuleType):
        if not (module_allowed(found.__name__, modules) or _package(found.__name__)):
            raise ModuleNotAllowed(_not_on_list(name, found.__name__))
        return found
    if not callable(found) or _exports(owner, part):
        return found
    home = home_of(found)
    if not module_allowed(home, modules) and not _is_listed(found):
        msg = (
            f"{name!r} leads to what belongs to module {home!r}, which is not allowed; a module "
            "gives it away if its __all__ names it, or start disco-worker with "
            f"--allow-module {home}"
        )
        raise ModuleNotAllowed(msg)
    return found


def _check_public(name: str, part: str) -> None:
    if part.startswith("_"):
        msg = f"{name!r} leads through the private name {part!r}, which no setting allows"
        raise ModuleNotAllowed(msg)


def _is_foreign(owner: Any, part: str, modules: Sequence[str]) -> bool:
    """Whether a part names a standard module that this module lacks, but others may import."""
    ours = part in sys.stdlib_module_names and not hasattr(owner, part)
    return isinstance(owner, ModuleType) and ours and not module_allowed(part, modules)


def _exports(owner: Any, part: str) -> bool:
    return isinstance(owner, ModuleType) and part in (getattr(owner, "__all__", None) or ())


def home_of(found: Any) -> str:
    """The module in which something is defined, of a method that of its class."""
    module: Any = getattr(found, "__module__", None)
    if isinstance(module, str):
        return module
    owner: Any = getattr(found, "__self__", found)
    kind: Any = getattr(found, "__objclass__", None) or owner.__class__
    return str(kind.__module__)


def _is_listed(found: Any) -> bool:
    """Whether this is a function of numpy's or cupy's list, under whichever name."""
    called = getattr(found, "__qualname__", None) or getattr(found, "__name__", "")
    name = f"{home_of(found)}.{called}"
    return name in supported_functions() and _look_up(name) is found


def _not_on_list(name: str, module: str) -> str:
    return (
        f"{name!r} leads into module {module!r}, which is not allowed; start disco-worker with "
        f"--allow-module {module}"
    )


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[:40]}..."


_F = TypeVar("_F", bound=Callable[..., Any])
OWN_NAMES = "runtime.disco."
"""How the names of functions begin that no module of a session registers."""

_registry: dict[str, Callable[..., Any]] = {}
_homes: dict[str, tuple[object, tuple[str, str]]] = {}
"""What was registered, functions and classes, with the module that did it, and its file."""

_destinations: dict[int, tuple[object, int]] = {}
_uninterrupted: dict[int, object] = {}


class NamedCall:
    """A function that a call returned, with its name in messages.

    Args:
        name: The name.
        function: The function.
    """

    __slots__ = ("_function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    @hidden_in_tracebacks
    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        """Calls the function."""
        return self._function(*args, **keywords)


def register_func(name: str, *, override: bool = False, torch: bool = False) -> Callable[[_F], _F]:
    """Registers a function for sessions under a name; a decorator.

    Args:
        name: The name for ``session.get_global_func``, such as ``"my.scale"``.
        override: Replace a function of that name instead of refusing.
        torch: Whether each worker has the process group of torch before it is called, as by
            ``current_worker().torch_group()``; all workers must call it together the first time.

    Raises:
        ValueError: Another function has that name, or it is no name.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.scale")
        ... def scale(array, factor=2.0):
        ...     return array * factor
        >>> session.get_global_func("docs.scale")(session.broadcast(np.ones(2)), factor=3.0).numpy()
        array([3., 3.])
    """
    check_entry_name(name, "@register_func('my.scale')")

    def register(func: _F) -> _F:
        enter_name(_registry, name, _with_torch(func) if torch else func, override=override)
        return func

    return register


def _with_torch(func: _F) -> _F:
    """A function that is called once the process group of torch is there."""

    @wraps(func)
    @hidden_in_tracebacks
    def call(*args: Any, **keywords: Any) -> Any:
        current_worker().torch_group()
        return func(*args, **keywords)

    return cast("_F", call)


def offer_function(name: str, func: Callable[..., Any]) -> None:
    """Registers a function of a file that a session has brought, by its dotted name."""
    _registry[name] = func


def check_entry_name(name: object, example: str) -> None:
    """Refuses what is no name, as where the brackets of a decorator were forgotten.

    Args:
        name: What was given.
        example: How it is written.

    Raises:
        ValueError: It is no name.
    """
    if not isinstance(name, str) or not name:
        msg = f"expected a name, as in {example}, got {name!r}"
        raise ValueError(msg)


def enter_name(table: dict[str, _F], name: str, thing: _F, *, override: bool) -> None:
    """Enters a function or a class in a table of those that modules register.

    Args:
        table: By name.
        name: Its name.
        thing: The function or class.
        override: Replace another one of that name instead of refusing.

    Raises:
        ValueError: Another one has that name.
    """
    known = table.get(name)
    if known is not None and not override and not _is_reloaded(known, thing):
        msg = f"{name!r} is registered already; override=True replaces it"
        raise ValueError(msg)
    table[name] = thing
    # The code that applies the decorator: what it registers may be of another module.
    where = sys._getframe(2).f_globals  # noqa: SLF001
    home = str(where.get("__name__")), str(where.get("__file__") or "")
    _homes[name] = thing, home


def registered_by(name: str) -> tuple[str, str] | None:
    """The module of this process that registered a function or a class, and its file, if any."""
    return _homes[name][1] if name in _homes else None


def names_of(thing: object) -> list[str]:
    """The names under which a function or a class is registered in this process."""
    return [name for name, (known, _) in _homes.items() if known is thing]


def _is_reloaded(known: object, func: object) -> bool:
    """Whether something is another one of the same place: its module was loaded again."""
    module, name = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
    if getattr(known, "__qualname__", None) != name:
        return False
    before = getattr(known, "__module__", None)
    # A program's own file is __main__ in its process, and has its name on workers.
    file = _file_of(before)
    return before == module or (file is not None and file == _file_of(module))


def _file_of(module: object) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None) if isinstance(module, str) else None
    return os.path.realpath(file) if isinstance(file, str) else None


def writes_into(position: int) -> Callable[[_F], _F]:
    """Declares which of its arguments a function overwrites as a whole; a decorator.

    Where it fails, or cannot run, that argument's register is poisoned.

    Args:
        position: The argument's, from 0.
    """

    def note(func: _F) -> _F:
        # By identity: what registers hold may have no hash, and none of its code is called.
        _destinations[id(func)] = func, position
        return func

    return note


def destination_of(func: object, count: int, names: Sequence[str] = ()) -> int:
    """Which argument of a call a function overwrites; -1 where that is not known.

    Args:
        func: The function.
        count: How many arguments the call has.
        names: The names of the last ones, where they have some.
    """
    place = _destinations.get(id(func), (None, -1))[1]
    plain = count - len(names)
    if place < plain or not names:
        return place
    found = list(signature(cast("Callable[..., Any]", func)).parameters)[place : place + 1]
    return plain + list(names).index(found[0]) if found and found[0] in names else -1


def uninterrupted(func: _F) -> _F:
    """Lets a function run also where the program has interrupted its call; a decorator.

    It is one of those that find out what earlier interrupts have ended, and must be quick.
    """
    _uninterrupted[id(func)] = func
    return func


def is_uninterrupted(func: object) -> bool:
    """Whether a function runs also where the program has interrupted its call."""
    return id(func) in _uninterrupted


def registered() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_registry))


def registry() -> Mapping[str, Callable[..., Any]]:
    """The registered functions by name, as they are at the time of each look."""
    return MappingProxyType(_registry)


def resolve(
    name: str, patterns: Sequence[str], functions: Sequence[str] = ()
) -> Callable[..., Any]:
    """Finds a function by its registered or dotted name, else in TVM's registry.

    TVM's functions may do anything, so they need an allow-list that covers ``tvm``.

    Args:
        name: The name.
        patterns: The allow-list of modules.
        functions: Patterns of what may be called of numpy and cupy besides what every
            worker offers (see `disco_server.rank.functions`).

    Raises:
        ArgumentRefused: The name is longer than any.
        FunctionMissing: Nothing callable has that name.
        ModuleNotAllowed: The name leads through a module that is not allowed.
    """
    func = _registry.get(name)
    if func is not None:
        return func
    if len(name) > MAX_NAME:
        msg = f"expected a name of at most {MAX_NAME} characters, got {len(name)}"
        raise ArgumentRefused(msg)
    # Disco's own names are no dotted names, whatever may be imported here, and what TVM has
    # under such names works on TVM's workers alone.
    if name.startswith(OWN_NAMES):
        raise FunctionMissing(_missing(name, patterns))
    func, more = None, ""
    try:
        func = find_dotted(name, patterns, functions)
    except FunctionMissing as error:
        more = f"; {error}"
    if func is None and module_allowed("tvm", patterns):
        func = find_global(name)
        if func is not None:
            meet_tvm()
    if func is None:
        raise FunctionMissing(f"{_missing(name, patterns)}{more}", name)
    return func


def meet_tvm() -> None:
    """Lets TVM's code in this process call what workers offer, and know this thread's worker."""
    try:
        serve(registry())
    except OSError:
        return  # the package tvm_ffi is there without TVM
    if is_worker_thread():
        show_worker(current_worker())


def _missing(name: str, patterns: Sequence[str]) -> str:
    msg = f"no function named {name!r} is registered on this worker"
    if name in INSTEAD:
        return f"{msg}: {INSTEAD[name].replace('`', '')}"
    module, dot, _ = name.rpartition(".")
    ours = name.startswith(OWN_NAMES) or name.partition(".")[0] in PACKAGES
    if dot and not ours and not module_allowed(module, patterns):
        msg += f", and module {module!r} is not on its allow-list (--allow-module)"
    return f"{msg}{_near(name)}"


def _near(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _registry, n=3, cutoff=0.75)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
