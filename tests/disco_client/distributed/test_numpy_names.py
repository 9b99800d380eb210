"""numpy's names: each is served, as an example shows, or refused with the way round."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy_examples import EXAMPLES, outcome

from disco_client import ConfigError, ThreadedSession
from disco_client.distributed.numpy_refused import REFUSED

PAGE = Path(__file__).parents[3] / "docs" / "numpy-names.md"

NO_FUNCTIONS = frozenset(
    [
        *("False_", "True_", "ScalarType", "sctypeDict", "typecodes", "little_endian"),
        *("c_", "r_", "s_", "index_exp", "mgrid", "ogrid", "newaxis", "pi", "e", "inf", "nan"),
        *("euler_gamma", "Inf", "Infinity", "NaN", "NAN", "NINF", "NZERO", "PINF", "PZERO"),
        *("infty", "cast", "nbytes", "sctypes", "tracemalloc_domain"),
    ]
)
"""Constants, and what is indexed instead of called."""


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


def public_names():
    """The functions and classes of numpy that it documents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            name
            for name in dir(np)
            if not name.startswith("_")
            and name not in NO_FUNCTIONS
            and callable(getattr(np, name, None))
        ]


def test_each_of_numpys_names_has_a_row():
    """One that a new numpy adds is served, or in the table of what is refused."""
    lacking = sorted(set(public_names()) - set(EXAMPLES) - set(REFUSED))
    assert not lacking, f"give an example or a way round for each of {lacking}"


def test_no_name_is_both_served_and_refused():
    """The tables say one thing of each."""
    assert sorted(set(EXAMPLES) & set(REFUSED)) == []


def test_the_page_lists_every_name():
    """Where its result lies, or what to do instead; a script writes it."""
    rows = re.findall(r"^\| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted({*EXAMPLES, *REFUSED}), "benchmarks/served_names.py --page"


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]", "P"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_each_example_agrees_with_numpy(session, placement):
    """Values, shapes and dtypes, wherever the arrays lie."""
    found = {name: outcome(name, session, placement) for name in EXAMPLES}
    wrong = {
        name: said for name, said in found.items() if said and not said.startswith("this numpy")
    }
    assert wrong == {}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_says_the_way_round(session, name):
    """As the namespace's name, and as numpy's function of a distributed tensor."""
    with pytest.raises(AttributeError) as caught:
        getattr(session.numpy, name)
    assert REFUSED[name] in str(caught.value)


def test_functions_of_numpy_say_the_way_round(session):
    """Those that are dispatched, and ufuncs that have no rule."""
    x = session.distribute(np.ones((4, 2)), placement="S[0]")
    for call, name in (
        (lambda: np.sort(x), "sort"),
        (lambda: np.copyto(x, 1), "copyto"),
        (lambda: np.save("x.npy", x), "save"),
        (lambda: np.piecewise(x, [x > 0], [1]), "piecewise"),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert REFUSED[name] in str(caught.value)
