"""Functions and classes of the program, given as they are instead of by a name."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from disco_client.cells import file_of_cell, kept_file
from disco_client.core import DRef, Renewable
from disco_client.errors import ConfigError, NotAllowed, RemoteError
from disco_client.free_standing import check_free_standing
from disco_client.modules import bring, digest_of, source_of
from disco_client.package_files import INSTALLED, find_package
from disco_client.sources import described

if TYPE_CHECKING:
    from disco_client.core import DPackedFunc, SessionCore

__all__ = ["OwnCode"]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a function or a class is defined.

    Attributes:
        module: The name of its module on the workers.
        qualname: Its name there, of a method with that of its class.
        file: What workers import where the session brings it; None where it is installed.
        only_brought: Whether workers cannot have the module otherwise.
    """

    module: str
    qualname: str
    file: Path | None = None
    only_brought: bool = False

    @property
    def name(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.qualname}"


class OwnCode(Renewable):
    """What the workers of a session have of the program's own files."""

    def __init__(self, core: SessionCore) -> None:
        """Takes the session's core."""
        self._core = core
        self._brought: set[tuple[_Place, str]] = set()
        self._included: dict[str, str] = {}
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._functions: WeakKeyDictionary[Any, DPackedFunc] = WeakKeyDictionary()

    def renew(self) -> None:
        """Forgets it, because others may take the place of these workers."""
        self._included = {}
        self._forget_functions()

    def _forget_functions(self) -> None:
        self._brought = set()
        self._names = WeakKeyDictionary()
        self._functions = WeakKeyDictionary()

    def include(self, package: object) -> None:
        """Brings a package of the program; see ``Session.include``."""
        found = find_package(package)
        file = kept_file(found.archive(), found.name, ".disco-package")
        digest = digest_of(file)
        if self._included.get(found.name) == digest:
            return
        bring(self._core, file)
        included = self._core.call_builtin(
            "runtime.disco._include", str(file), digest, found.name, str(found.path)
        )
        self._core.get(included, 0)
        if self._included.get(found.name):
            self._forget_functions()  # they may use the former version
        self._included[found.name] = digest

    def is_known(self, thing: object) -> bool:
        """Whether a function or a class was brought once, so that its name is known."""
        return thing in self._names

    def known_name(self, thing: object) -> str:
        """Like `name_of`, but brings the file only the first time."""
        # No lock, because this may wait. Of two threads that do, the first one's counts; and of
        # workers that were replaced meanwhile, nothing more does. So it is for functions.
        names = self._names
        found = names.get(thing)
        return names.setdefault(thing, self.name_of(thing)) if found is None else found

    def known_function(self, func: object) -> DPackedFunc:
        """A reference to a function, which is brought and looked up the first time."""
        functions = self._functions
        found = functions.get(func)
        if found is not None:
            return found
        return functions.setdefault(func, self._core.look_up(self.known_name(func)))

    def name_of(self, thing: object) -> str:
        """The name by which workers find a function or a class; brings its file before.

        Args:
            thing: A function or a class.

        Raises:
            ConfigError: Workers cannot find it.
            TypeError: It is neither.
            NotAllowed: A worker's settings do not let sessions load what clients bring.
            RemoteError: The import of the file failed on worker 0.
        """
        place = _place_of(thing)
        package = place.module.partition(".")[0]
        if package in self._included:
            self._offer_included(place, self._included[package])
        elif place.file is not None:
            try:
                self._provide(place, place.file)
            except NotAllowed:
                if place.only_brought or not self._is_there(place.name):
                    raise
        return place.name

    def _is_there(self, name: str) -> bool:
        """Whether worker 0 has it, and its settings let sessions use it."""
        try:
            self._core.get(self._core.look_up(name), 0)
        except RemoteError:
            return False
        return True

    def _offer_included(self, place: _Place, digest: str) -> None:
        if (place, digest) not in self._brought:
            offer = "runtime.disco._offer_included"
            self._core.get(self._core.call_builtin(offer, place.module, place.qualname), 0)
            self._brought.add((place, digest))

    def _provide(self, place: _Place, file: Path) -> None:
        if (place, digest_of(file)) in self._brought:
            return
        digest = bring(self._core, file)
        offer = "runtime.disco._offer_source"
        offered = self._core.call_builtin(offer, str(file), digest, place.module, place.qualname)
        self._core.get(offered, 0)
        self._brought.add((place, digest))


def _place_of(thing: Any) -> _Place:
    kind = _refused_kind(thing)
    if kind:
        raise TypeError(f"expected a function or a class of this program, got {kind}")
    module_name, qualname = _names_of(thing)
    check_free_standing(thing, module_name, qualname)
    module = sys.modules.get(module_name)
    if module is None or _found_in(module, qualname) != thing:
        msg = (
            f"{module_name}.{qualname} is something else here, so workers would find something else"
            f" by that name; expected what the module has there, got {described(thing)}"
        )
        raise ConfigError(msg)
    if module_name == "__main__" and not getattr(module, "__file__", None):
        file = file_of_cell(qualname.partition(".")[0], vars(module))
        return _Place(file.stem, qualname, file, only_brought=True)
    if _is_installed(module):
        return _Place(module_name, qualname)
    name, file = source_of(module)
    return _Place(name, qualname, file, only_brought=module_name == "__main__")


def _refused_kind(thing: Any) -> str:
    """What was given in place of a function or a class, and what to do; "" for these."""
    if isinstance(thing, DRef):
        return f"{thing!r}, which is on the workers already"
    if isinstance(thing, str):
        return f"the text {thing!r}; session.get_global_func and session.create take names"
    if isinstance(thing, partial):
        return f"{thing!r}; give its function, and the arguments with each call"
    if isinstance(thing, MethodType) and not isinstance(thing.__self__, type):
        return (
            f"{thing!r}, a method of an object of this program; session.create makes the object on"
            " the workers, and its methods are called there"
        )
    return "" if callable(thing) and all(_names_of(thing)) else f"{thing!r}"


def _names_of(thing: Any) -> tuple[str, str]:
    """The module and the qualified name; empty where it has none."""
    if type(thing).__name__ == "ufunc":  # numpy's have a plain name alone
        return "numpy", thing.__name__
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return module or "", qualname or ""


def _found_in(module: ModuleType, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _is_installed(module: ModuleType) -> bool:
    """Whether workers are to have the module themselves: a package, the standard library, C."""
    file = cast("str | None", getattr(module, "__file__", None))
    top = module.__name__.partition(".")[0]
    if module.__name__ == "__main__":
        return False
    inside = "." in module.__name__ or hasattr(module, "__path__")
    ours = file is not None and file.endswith(".py") and top not in sys.stdlib_module_names
    return inside or not ours or any(part in INSTALLED for part in Path(file or "").parts)
