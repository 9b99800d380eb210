"""Placements: the original's grammar, and what goes beyond it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError
from disco_client.distributed import Placement, PlacementSpec
from disco_client.distributed.placement import mixes

R, S0, S1 = PlacementSpec.replica(), PlacementSpec.sharding(0), PlacementSpec.sharding(1)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("R", [R]),
        ("S[0]", [S0]),
        ("S[0], R", [S0, R]),
        ("R R", [R, R]),
        ("RR", [R, R]),
        ("RS[0]", [R, S0]),
        ("S[0]S[1]", [S0, S1]),
        ("S [0]", [S0]),
        ("S[ 1]", [S1]),
        (",,R,,", [R]),
        ("R, ", [R]),
        ("\tR\n", [R]),
        ("", []),
        (",", []),
        ("S[-1]", [PlacementSpec.sharding(-1)]),
        ("S[00]", [S0]),
        ("S[+1]", [S1]),
        ("P", [PlacementSpec.partial()]),
        ("P[max] R", [PlacementSpec.partial("max"), R]),
    ],
)
def test_texts_that_are_placements(text, specs):
    """All that the original reads as such, and partial values."""
    assert Placement.from_text(text) == Placement(specs)


@pytest.mark.parametrize(
    ("text", "character", "expected"),
    [
        ("r", 1, "R, S"),
        ("s[0]", 1, "R, S"),
        ("X", 1, "R, S"),
        ("R;", 2, "R, S"),
        ("S[0]]", 5, "R, S"),
        ("S[a]", 3, "an axis"),
        ("S[1,2]", 4, "']'"),
        ("S[1.5]", 4, "']'"),
        ("S[0x1]", 4, "']'"),
        ("S[0 ]", 4, "']'"),
        ("S", 2, "'['"),
        ("R, S0", 5, "'['"),
        ("S(0)", 2, "'['"),
        ("S[", 3, "an axis"),
        ("S[]", 3, "an axis"),
        ("S[0", 4, "']'"),
        ("P[avg]", 3, "one of sum, prod, min, max"),
    ],
)
def test_texts_that_are_none_are_refused_at_the_character(text, character, expected):
    """Also those that break off, which the original reads as something."""
    with pytest.raises(ConfigError) as raised:
        Placement.from_text(text)
    message, shown, caret = str(raised.value).splitlines()
    assert f"at character {character} " in message
    assert expected in message
    # The caret stands below the character, behind the quote.
    assert caret.index("^") == shown.index(repr(text)) + character


specs = st.one_of(
    st.just(R),
    st.integers(-3, 9).map(PlacementSpec.sharding),
    st.sampled_from(["sum", "prod", "min", "max"]).map(PlacementSpec.partial),
)


@given(st.lists(specs, max_size=4).filter(lambda found: not mixes(found)).map(Placement))
def test_what_a_placement_says_makes_it_again(placement):
    """Its text as well as its repr."""
    assert Placement.from_text(str(placement)) == placement
    assert eval(repr(placement)) == placement


@given(st.text(alphabet="RSP[]0123456789,+- summinx", max_size=12))
def test_any_text_is_a_placement_or_refused(text):
    """With an error of ours, whatever it is."""
    with contextlib.suppress(ConfigError):
        assert Placement.from_text(text).dim_specs is not None


def test_wrong_types_are_refused():
    """At once, where the original crashes later."""
    with pytest.raises(TypeError, match="the text of a placement"):
        Placement.from_text(3)
    with pytest.raises(TypeError, match="expected specs"):
        Placement([None])
    with pytest.raises(TypeError, match="an axis of the tensor"):
        PlacementSpec.sharding("0")
    with pytest.raises(ConfigError, match="one of sum"):
        PlacementSpec.partial("avg")


def test_partial_values_become_copies():
    """Where they are combined."""
    assert str(Placement.from_text("P[max], S[0], P[max]").combined()) == "R, S[0], R"


@pytest.mark.parametrize("text", ["P, P[max]", "P[min], R, P[prod]"])
def test_values_are_combined_in_one_way(text):
    """A sum of largest values is not the largest sum; along two axes the order would decide."""
    with pytest.raises(ConfigError, match="the order would decide what comes out"):
        Placement.from_text(text)
    assert Placement.from_text("P[max], R, P[max]").dim_specs[1] == R
