"""What every worker offers of numpy and cupy: a list of names, and why others are not on it.

The list is ``numpy_functions.txt`` beside this file: functions, ufuncs, classes and their
methods that compute with arrays, by the names under which numpy and cupy document them.
``make functions`` writes it; what is documented and stays out is named here, with the reason.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

__all__ = [
    "PACKAGES",
    "UFUNC_METHODS",
    "is_supported",
    "reason_against",
    "supported_functions",
    "supported_modules",
]


PACKAGES: Final = ("numpy", "cupy")

UFUNC_METHODS: Final = frozenset(("accumulate", "at", "outer", "reduce", "reduceat"))
"""What may be called of every ufunc on the list."""

_LIST: Final = Path(__file__).with_name("numpy_functions.txt")

_REASONS: Final = {
    "reads or writes files": """
        DataSource fromfile fromregex genfromtxt load loadtxt memmap recfromcsv recfromtxt save
        savetxt savez savez_compressed ndarray.dump ndarray.dumps ndarray.tofile ma.mrecords.**
        lib.format.** lib.npyio.**
    """,
    "runs programs or text": """
        bmat compat.** distutils.** f2py.** lookfor matlib.** safe_eval source test testing.**
        tests.** cupy.ElementwiseKernel cupy.RawKernel cupy.RawModule cupy.ReductionKernel
        cupy.fuse cupy.vectorize
    """,
    "reaches memory outside of arrays, or takes positions in it unchecked": """
        byte_bounds compare_chararrays core.** ctypeslib.** cuda.** fastCopyAndTranspose flatiter
        frompyfunc lib.array_utils.** lib.stride_tricks.as_strided linalg.lapack_lite.** ma.ids
        ndarray ndarray.getfield ndarray.resize ndarray.setfield ndarray.setflags nditer
        nested_iters random.BitGenerator random.RandomState.set_state random.set_state
        cupy.fromDlpack cupy.get_default_memory_pool cupy.get_default_pinned_memory_pool
        cupy.ndarray.mdspan cupy.ndarray.scatter_add cupy.ndarray.scatter_max
        cupy.ndarray.scatter_min cupy.ndarray.toDlpack cupy.random.get_random_state
        cupy.random.reset_states cupy.random.set_random_state
    """,
    "changes the library for the whole process": """
        add_docstring add_newdoc add_newdoc_ufunc deprecate deprecate_with_doc geterrobj getbufsize
        geterrcall polynomial.set_default_printstyle
        set_numeric_ops set_string_function setbufsize seterrcall seterrobj
        cupy.clear_memo cupy.disable_experimental_feature_warning cupy.memoize
    """,
    "is about texts or records, which neither reach workers nor leave them": """
        char.** chararray dtypes.** format_parser lib.recfunctions.** lib.user_array.**
        ma.flatten_structured_array ma.fromflex ma.mvoid rec.** recarray record strings.** void
    """,
    "is private in all but name, and what it has for users stands elsewhere": """
        lib.*
    """,
    "tells about the library or the machine, and computes nothing": """
        disp exceptions.** get_array_wrap get_include info
        lib.introspect.** lib.mixins.** show_config show_runtime typing.** ufunc version.** who
        cupy.get_array_module cupy.is_available cupy.make_aligned_dtype
    """,
}
"""Reasons and what they are of; ``.*`` for all that a module holds, ``.**`` for all below it.

Names without a package are of both.
"""


def supported_modules() -> frozenset[str]:
    """The modules and classes of which some names are on the list."""
    return frozenset(_sections())


@cache
def supported_functions() -> frozenset[str]:
    """Every name on the list, such as ``numpy.linalg.norm``."""
    return frozenset(f"{owner}.{name}" for owner, names in _sections().items() for name in names)


def is_supported(name: str) -> bool:
    """Whether a name is on the list, or may be a method of a ufunc that is."""
    owner, _, method = name.rpartition(".")
    names = supported_functions()
    return name in names or (method in UFUNC_METHODS and owner in names)


def reason_against(name: str) -> str:
    """Why a name of numpy or cupy is not on the list; empty where no reason is given."""
    reasons = _reasons()
    if name in reasons:
        return reasons[name]
    owner, *parts = name.split(".")
    for part in parts:
        if f"{owner}.**" in reasons:
            return reasons[f"{owner}.**"]
        owner += f".{part}"
    return reasons.get(f"{name.rpartition('.')[0]}.*", "")


@cache
def _sections() -> dict[str, tuple[str, ...]]:
    text = "".join(
        line for line in _LIST.read_text("utf-8").splitlines(keepends=True) if line[0] != "#"
    )
    _, *parts = re.split(r"^\[(.+)\]$", text, flags=re.MULTILINE)
    return {
        owner: tuple(names.split()) for owner, names in zip(parts[::2], parts[1::2], strict=True)
    }


@cache
def _reasons() -> dict[str, str]:
    read: dict[str, str] = {}
    for reason, names in _REASONS.items():
        for name in names.split():
            whole = name.split(".")[0] in PACKAGES
            read |= dict.fromkeys([name] if whole else [f"{p}.{name}" for p in PACKAGES], reason)
    return read
