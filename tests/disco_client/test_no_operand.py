"""References as operands: nothing computes with one on the host, and the error says what does."""

from __future__ import annotations

import copy
import operator

import numpy as np
import pytest

import disco_client
import disco_server

FETCHES = r"ref\.numpy\(\)"

NO_VALUE_NEEDED = {"isscalar", "iterable", "printoptions", "info", "show_config", "show_runtime"}
"""Functions that ask no argument for a value, or print."""

WRITING = {"save", "savez", "savez_compressed", "savetxt", "test", "set_printoptions", "bmat"}
"""Those that write files, run tests or change settings; a matrix of names takes none of its own."""


def functions():
    """All functions of numpy that a program may call with arrays."""
    for space in (np, np.linalg, np.fft, np.char):
        for name in sorted(dir(space)):
            function = getattr(space, name)
            skipped = name[0] == "_" or isinstance(function, type) or not callable(function)
            if not skipped and name not in NO_VALUE_NEEDED | WRITING:
                yield function


@pytest.fixture
def ref(session):
    return session.copy_to_worker_0(np.arange(3.0, dtype="float32"))


@pytest.fixture
def handles(session):
    """One of each class of references."""
    function = session.get_global_func("tests.echo")
    return {
        "reference": function(1),
        "function": function,
        "module": disco_client.DModule(function(1), session),
        "object": disco_client.DObject(function(1), session),
    }


@pytest.mark.parametrize("kind", ["reference", "function", "module", "object"])
@pytest.mark.parametrize(
    "use",
    {
        "truth": bool,
        "not": operator.not_,
        "asarray": np.asarray,
        "a list of them": lambda ref: np.array([ref, ref]),
        "sum": np.sum,
        "stack": lambda ref: np.stack([ref]),
        "where": lambda ref: np.where(ref, 1, 2),
        "a ufunc": lambda ref: np.add(1, ref),
        "its method": np.add.reduce,
        "out": lambda ref: np.add(1, 2, out=ref),
        "array on the left": lambda ref: np.ones(2) + ref,
        "array on the right": lambda ref: ref * np.ones(2),
        "equal": lambda ref: ref == np.ones(2),
        "unequal": lambda ref: np.ones(2) != ref,
        "a number of numpy's": lambda ref: ref == np.float32(1),
        "fill": lambda ref: np.full(3, ref),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_a_reference_is_no_operand(handles, kind, use):
    """Whatever takes it for a value says how to fetch it."""
    with pytest.raises(TypeError, match=FETCHES):
        use[1](handles[kind])


def test_nor_beside_a_distributed_tensor(session, ref):
    """On neither side."""
    tensor = session.distribute(np.arange(4.0), placement="S[0]")
    for pair in ((tensor, ref), (ref, tensor)):
        for use in (operator.eq, operator.ne, operator.add, np.add, lambda *two: np.stack(two)):
            with pytest.raises(TypeError):
                use(*pair)


@pytest.mark.filterwarnings("ignore")
def test_no_function_of_numpy_takes_one_in_silence(ref):
    """Not as the first argument, and not inside a list; most say how to fetch it."""
    told = 0
    for function in functions():
        for given in (ref, [ref, ref]):
            try:
                function(given)
            except Exception as error:  # noqa: BLE001  (some look for something else first)
                told += "ref.numpy()" in str(error)
            else:
                pytest.fail(f"{function!r} took {given!r}")
    assert told > 400


def test_references_are_equal_if_they_are_the_same(session, ref):
    """So that they may be in sets, lists and keys; a copy is another one."""
    other = copy.copy(ref)
    assert ref == ref  # noqa: PLR0124
    assert ref != other
    assert ref not in [None, 3, "text", other]
    assert ref in [other, ref]
    assert len({ref, other, ref}) == 2
    assert {ref: 1}[ref] == 1
    assert session.get_global_func("tests.echo") != ref


def test_shape_and_dtype_are_what_the_session_made(session, ref):
    """Where it made no array, or one may be another by now, the error says whom to ask."""
    assert (ref.shape, ref.dtype) == ((3,), np.dtype("float32"))
    assert session.empty((2, 0), "bfloat16").shape == (2, 0)
    assert session.broadcast(np.array(True)).shape == ()
    ref.debug_copy_from(0, np.ones(3, "float32"))
    result = session.get_global_func("numpy.ones")(3)
    for unknown in (ref, result):
        assert not hasattr(unknown, "dtype")
        with pytest.raises(AttributeError, match=r"ref\.numpy\(\)\.shape"):
            _ = unknown.shape


def test_an_object_s_shape_is_its_own(session):
    """As all its attributes but those that references need."""
    held = session.get_global_func("tests.echo")(np.ones((2, 3)))
    shape = disco_client.DObject(held, session).shape
    assert isinstance(shape, disco_client.DPackedFunc)


def test_a_function_shows_its_name(session):
    """Also one of a module or an object, and its copy."""
    echo = session.get_global_func("tests.echo")
    assert (
        repr(echo)
        == f"DPackedFunc(reg_id={echo.reg_id}, session={session.name!r}, name='tests.echo')"
    )
    assert "tests.echo" in repr(echo.on(worker=1))
    assert "tests.echo" in repr(copy.copy(echo))
    assert "tests.echo" in echo._repr_html_()
    assert "name='step'" in repr(disco_client.DObject(echo(1), session).step)
    with pytest.raises(disco_client.FunctionNotFound, match="step"):
        session.sync_all()


def test_completion_lists_what_a_person_may_use(session, ref):
    """No private names, and of packages all that they offer."""
    tensor = session.distribute(np.arange(4.0), placement="S[0]")
    for handle in (ref, tensor, session.get_global_func("tests.echo")):
        assert "numpy" in dir(handle)
        assert [name for name in dir(handle) if name[0] == "_" and name[1] != "_"] == []
    assert {"register_func", "register_class", "current_worker"} <= set(dir(disco_server))
    assert "distributed" in dir(disco_client)
