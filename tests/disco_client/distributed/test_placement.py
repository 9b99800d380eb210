"""Placements: the original's grammar, and what goes beyond it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError
from disco_client.distributed import (
    DeviceMesh,
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
)
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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"axis": "0"}, "expected an axis"),
        ({"axis": True}, "expected an axis"),
        ({"axis": 0, "parts": 0}, "expected the number of fused parts"),
        ({"axis": 0, "parts": ()}, "expected the number of fused parts"),
        ({"axis": 0, "parts": (1, -1)}, "expected the number of fused parts"),
        ({"axis": 0, "parts": "3"}, "expected the number of fused parts"),
        ({"axis": 0, "parts": 1.5}, "expected the number of fused parts"),
    ],
)
def test_a_fused_axis_of_nonsense_is_refused(arguments, text):
    """When it is made, not when it is used."""
    with pytest.raises(ConfigError, match=text):
        PlacementSpec.fused(**arguments)


def test_a_fused_axis_reads_as_its_placement():
    """With what goes beyond a placement behind it."""
    assert str(PlacementSpec.fused(1)) == "S[1]"
    assert str(PlacementSpec.fused(0, parts=3, uneven=True)) == "S[0] (parts=3, uneven)"
    assert PlacementSpec.fused(0, uneven=True) == PlacementSpec.sharding(0)


def test_given_parts_can_be_written_and_read():
    """In pairs of first index and the one behind the last; adjacent ones are joined."""
    spec = PlacementSpec.explicit(0, [(0, 4), [(0, 2), (2, 3), (6, 8)], (5, 5)])
    placement = Placement([spec, PlacementSpec.replica()])
    assert str(placement) == "S[0: 0-4, 0-3+6-8, -], R"
    assert Placement.from_text(str(placement)) == placement
    assert str(placement.plain()) == "S[0], R"
    assert spec.overlaps
    assert not PlacementSpec.explicit(0, [(0, 5), (5, 8)]).overlaps


@pytest.mark.parametrize(
    "part", [(4, 2), (-1, 2), (0, 1.5), [(2, 4), (0, 1)], [(0, 2, 3)], 3, "ab"]
)
def test_parts_of_nonsense_are_refused(part):
    """When they are made."""
    with pytest.raises(ConfigError, match=r"expected parts such as \(0, 4\)"):
        PlacementSpec.explicit(0, [part])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("S[0: 0-8], R", "has 1 part, for 2 workers"),
        ("S[0: 0-4, 5-8], R", "do not make up an axis of extent 8"),
        ("S[0: 0-4, 4-9], R", "do not make up an axis of extent 8"),
        ("S[0: 0-4, 2-8], S[0]", "cannot be split along another axis of the mesh"),
    ],
)
def test_parts_that_do_not_fit_a_tensor_are_refused(text, why):
    """When tensor and mesh are known."""
    tensor, mesh = TensorStructInfo((8, 8), "int8"), DeviceMesh((2, 2), range(4))
    with pytest.raises(ConfigError, match=why):
        DTensorStructInfo(tensor, mesh, text)


def test_given_parts_that_are_equal_are_an_ordinary_split():
    """So that all that is known of one holds for the other."""
    tensor, mesh = TensorStructInfo((5, 4), "int8"), DeviceMesh((2, 2), range(4))
    info = DTensorStructInfo(tensor, mesh, "S[-2: 0-3, 3-5], S[1: 0-1, 1-4]")
    assert str(info.placement) == "S[0], S[1: 0-1, 1-4]"
    assert info.bounds(3) == ((3, 5), (1, 4))
    assert info.local_shape(3) == (2, 3)
    fused = DTensorStructInfo(
        tensor, mesh, Placement([PlacementSpec.replica(), PlacementSpec.fused(1, 2)])
    )
    assert fused.pieces(0) == (((0, 5),), ((0, 1), (2, 3)))
    with pytest.raises(ConfigError, match="have no bounds, only pieces"):
        fused.bounds(0)
