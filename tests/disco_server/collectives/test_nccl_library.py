"""What is known of the library that moves data between GPUs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scenarios

from disco_server.collectives import nccl_library
from disco_server.collectives.nccl_library import NcclLibrary, library_for, version_text
from disco_server.collectives.types import ReduceOp, UnavailableError
from disco_server.collectives.validation import Family, find_kind

ARRAYS = SimpleNamespace(device="cuda:0")


@pytest.fixture
def library(standin):
    """The stand-in, as a rank sees it."""
    return NcclLibrary("nccl", ARRAYS)


def test_a_library_for_each_kind_of_gpu():
    """And none for a CPU."""
    assert [library_for(kind) for kind in ("cuda", "rocm", "cpu")] == ["nccl", "rccl", ""]


@pytest.mark.parametrize(
    ("version", "text"),
    [(23203, "2.32.3"), (21801, "2.18.1"), (20906, "2.9.6"), (2804, "2.8.4"), (2408, "2.4.8")],
)
def test_versions_are_written_as_people_do(version, text):
    """Before 2.9 they had fewer digits."""
    assert version_text(version) == text


@pytest.mark.parametrize(("name", "extra"), [("nccl", "cuda13 (or cuda12)"), ("rccl", "rocm")])
def test_a_library_that_cannot_be_loaded_names_its_extra(standin, monkeypatch, name, extra):
    """Whether cupy lacks the module, or the module finds no library behind it."""
    monkeypatch.setattr(standin.cuda, "nccl", None, raising=False)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", SimpleNamespace(available=False))
    with pytest.raises(UnavailableError, match="cupy finds no") as absent:
        NcclLibrary(name, ARRAYS)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    with pytest.raises(UnavailableError, match=f"{name} cannot be loaded") as missing:
        NcclLibrary(name, ARRAYS)

    assert f"lib{name}.so" in str(absent.value)
    for error in (absent, missing):
        assert f"install the extra {extra}" in str(error.value)


@pytest.mark.parametrize(("version", "splits"), [(23203, True), (21801, True), (21705, False)])
def test_old_versions_of_the_standin_do_not_split(standin, monkeypatch, version, splits):
    """Whoever reads the number also knows whether communicators can be split."""
    monkeypatch.setenv("STANDIN_NCCL_VERSION", str(version))

    library = NcclLibrary("nccl", ARRAYS)
    assert (library.version, library.splits) == (version, splits)


def test_every_dtype_that_is_reduced_has_a_number_in_the_standin(library):
    """Of the same size, or of half of it for complex numbers, which are two."""
    from cupy._machine.nccl_math import DTYPES  # pyright: ignore[reportMissingImports]

    for dtype in scenarios.DTYPES:
        if dtype.name in ("int16", "uint16"):
            with pytest.raises(KeyError):
                library.type_of(dtype)
            continue
        number, each = library.type_of(dtype)
        assert each == (2 if dtype.kind == "c" else 1)
        assert DTYPES[number].itemsize * each == dtype.itemsize
    assert DTYPES[library.byte].itemsize == 1


def test_reductions_have_the_numbers_of_the_standin(library):
    """Which counts them in another order; over booleans there are two only."""
    binding = library.binding
    names = ("SUM", "PROD", "MIN", "MAX", "AVG")
    numbers = [getattr(binding, f"NCCL_{name}") for name in names]
    either, both = binding.NCCL_MAX, binding.NCCL_MIN
    boolean = find_kind(np.dtype(bool)).family

    assert [library.reduction(op, Family.FLOAT) for op in ReduceOp] == numbers
    known = (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.PROD, ReduceOp.MIN)
    assert [library.reduction(op, boolean) for op in known] == [either, either, both, both]


def test_a_library_that_is_not_loaded_says_nothing_more(library):
    """Looking for its last word loads nothing."""
    assert library.last_error() == ""
    assert library.explain(ValueError("broken")) == "broken"


def test_a_library_without_a_last_word(library, monkeypatch):
    """Older ones have no such call."""
    monkeypatch.setitem(nccl_library._FILES, "nccl", "libc.so.6")
    assert library.last_error() == ""


def test_the_last_word_of_a_library_is_told(library, monkeypatch, tmp_path):
    """In brackets behind the error; a small library of our own says it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, made = tmp_path / "said.c", tmp_path / "libsaid.so"
    source.write_text(
        'const char *ncclGetLastError(void *c) { return c ? "wrong" : "no route \\n"; }'
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    monkeypatch.setitem(nccl_library._FILES, "nccl", str(made))
    assert library.last_error() == "", "not loaded, so not asked"
    import ctypes

    loaded = ctypes.CDLL(str(made))

    assert loaded is not None
    assert library.explain(ValueError("broken")) == "broken (no route)"
