"""Values that are made of others, for tests of what travels."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pathlib
import sys
from pathlib import Path

from hypothesis import strategies as st

from disco_client import Device  # noqa: F401  (which nobody may make by the name of this module)

__all__ = ["VALUES", "assert_same", "classes"]

_WORKER_MODULES = str(Path(__file__).parents[1] / "worker_modules")
sys.path.insert(0, _WORKER_MODULES)
import disco_value_classes as classes  # noqa: E402  (workers have it there)

sys.path.remove(_WORKER_MODULES)

_HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False),
    st.times(timezones=st.none() | st.just(dt.timezone(dt.timedelta(minutes=-90), "X"))),
    st.timedeltas(),
    st.sampled_from(
        [
            *classes.Colour,
            *classes.Access,
            *classes.Level,
            *classes.Word,
            *classes.Corner,
            *classes.Mask,
            classes.Mask(9),
            classes.Access.READ | classes.Access.WRITE,
            classes.Access(0),
        ]
    ),
    st.text("ab/.\udcff", max_size=9).map(pathlib.PurePosixPath),
    st.text("ab/.", max_size=9).map(pathlib.Path),
    st.text("ab\\:", max_size=9)
    .map(pathlib.PureWindowsPath)
    .filter(lambda path: pathlib.PureWindowsPath(str(path)) == path),
)


def _deeper(inner):
    return st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(classes.Point, inner, inner),
        st.builds(classes.Fixed, inner, inner),
    )


_FROZEN = st.recursive(_HASHABLE, _deeper, max_leaves=8)
VALUES = st.recursive(
    _FROZEN | st.sets(_FROZEN, max_size=3),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(_FROZEN, inner, max_size=3),
        st.builds(classes.Order, st.text(), inner.map(lambda item: [item])),
        st.builds(
            classes.Outer,
            st.text(),
            inner=inner | st.builds(classes.Outer.Inner, inner),
        ),
    ),
    max_leaves=8,
)


def assert_same(got, sent):
    """The same value, of the same types all through."""
    assert type(got) is type(sent)
    assert got == sent
    if dataclasses.is_dataclass(sent):
        for field in dataclasses.fields(sent):
            assert_same(getattr(got, field.name), getattr(sent, field.name))
    elif isinstance(sent, (list, tuple)):
        for mine, theirs in zip(got, sent, strict=True):
            assert_same(mine, theirs)
    elif isinstance(sent, dict):
        assert_same(list(got.items()), list(sent.items()))
    elif isinstance(sent, (set, frozenset)):
        assert sorted(map(repr, map(type, got))) == sorted(map(repr, map(type, sent)))
    else:
        assert repr(got) == repr(sent)
