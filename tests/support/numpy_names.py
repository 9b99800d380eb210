"""What numpy and cupy document, and the list of it that workers offer; run by ``make functions``.

The list keeps what other releases have, so that one list serves all of them.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from disco_server.rank import numpy_functions
from disco_server.rank.numpy_functions import PACKAGES, reason_against, supported_functions

LIST = Path(numpy_functions.__file__).with_name("numpy_functions.txt")

POLYNOMIALS = ("chebyshev", "hermite", "hermite_e", "laguerre", "legendre", "polynomial")
NAMESPACES = (
    *("", "linalg", "fft", "random", "ma", "emath", "polynomial"),
    *(f"polynomial.{name}" for name in POLYNOMIALS),
    *("char", "ctypeslib", "dtypes", "exceptions", "f2py", "lib", "lib.array_utils"),
    *("lib.format", "lib.introspect", "lib.mixins", "lib.npyio", "lib.scimath"),
    *("lib.stride_tricks", "matlib", "rec", "strings", "testing", "typing", "version"),
)
"""The public modules, as numpy's reference lists them."""

CLASSES = (
    *("ndarray", "poly1d", "random.Generator", "random.RandomState", "random.SeedSequence"),
    *("random.MT19937", "random.PCG64", "random.PCG64DXSM", "random.Philox", "random.SFC64"),
    *("polynomial.Chebyshev", "polynomial.Hermite", "polynomial.HermiteE"),
    *("polynomial.Laguerre", "polynomial.Legendre", "polynomial.Polynomial"),
)
"""The classes of which methods are called by name."""

HEAD = """\
# What sessions may call of numpy and cupy on every worker, by the names under which they are
# documented. "make functions" writes this file: it adds what the installed releases document
# and disco_server/rank/numpy_functions.py gives no reason against. Look at each name that it
# adds before you commit it: nothing here may write, run or read more than the arrays it is given.
"""


def documented(package: str) -> Iterator[str]:
    """The names of everything that the installed release documents and that can be called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for namespace in NAMESPACES:
            name = f"{package}.{namespace}".rstrip(".")
            module = _module(name)
            if module is not None:
                yield from _callables(name, module)
        for path in CLASSES:
            owner = import_module(package)
            for part in path.split("."):
                owner = getattr(owner, part, None)
            if isinstance(owner, type):
                yield from _callables(f"{package}.{path}", owner)


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        package, _, part = name.rpartition(".")
        return getattr(import_module(package), part, None) if package else None


def _callables(name: str, owner: Any) -> Iterator[str]:
    for part in sorted(set(getattr(owner, "__all__", None) or dir(owner))):
        found = getattr(owner, part, None)
        error = isinstance(found, type) and issubclass(found, BaseException)
        if not part.startswith("_") and callable(found) and not error:
            yield f"{name}.{part}"


def write() -> None:
    """Adds what the installed numpy, and cupy where there is one, document."""
    names = set(supported_functions())
    for package in PACKAGES:
        try:
            found = set(documented(package))
        except ImportError:
            continue
        names |= {name for name in found if not reason_against(name)}
    sections: dict[str, list[str]] = {}
    for name in sorted(names):
        owner, _, part = name.rpartition(".")
        sections.setdefault(owner, []).append(part)
    text = HEAD
    for owner in sorted(sections, key=lambda owner: (owner.startswith("cupy"), owner)):
        text += f"\n[{owner}]\n{textwrap.fill(' '.join(sections[owner]), 98)}\n"
    LIST.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
