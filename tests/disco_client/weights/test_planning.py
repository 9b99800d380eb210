"""Plans against what files hold: what is chosen, and everything that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError, Shape, WeightsMismatch
from disco_client.bulk_io import batches
from disco_client.distributed import DeviceMesh, PlacementSpec
from disco_client.weights import (
    StoredTensor,
    WeightPlan,
    choose,
    read_catalog,
    read_expected,
)

CATALOG = {
    "names": ["embed", "layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down", "norm"],
    "shapes": [Shape(s) for s in ([100, 8], [16, 8], [8, 16], [16, 8], [8, 16], [8])],
    "dtypes": ["float16"] * 6,
    "stored": ["float16"] * 6,
    "nbytes": Shape([1600, 256, 256, 256, 256, 16]),
    "same_as": [""] * 6,
}
TENSORS = read_catalog(CATALOG)


def plan(entries, expect=None, strict=True, workers=4, tensors=TENSORS):
    expected = read_expected(expect)
    mesh = DeviceMesh((workers,), range(workers))
    chosen = choose("/m", tensors, WeightPlan(entries), expected, strict=strict, mesh=mesh)
    return {each.tensor.name: str(each.info.placement) for each in chosen}


def problems(*args, **options):
    with pytest.raises(WeightsMismatch) as raised:
        plan(*args, **options)
    assert str(raised.value).startswith(f"/m: {len(raised.value.problems)} problem")
    return raised.value.problems


def test_the_first_pattern_that_matches_counts():
    """Names and patterns, dots included, in the plan's order."""
    chosen = plan(
        {
            "layers.1.up": PlacementSpec.sharding(-1),
            "*.up": "S[0]",
            "layers.*.d?wn": 1,
            "[ne]*": "skip",
            "*": "R",
        }
    )
    assert chosen == {
        "layers.0.up": "S[0]",
        "layers.0.down": "S[1]",
        "layers.1.up": "S[1]",
        "layers.1.down": "S[1]",
    }


def test_a_name_with_brackets_matches_itself():
    """Though it is also a pattern that does not."""
    tensor = StoredTensor(0, "a[0]", (4,), "int8", "int8", 4)
    assert plan({"a[0]": "R"}, tensors=[tensor]) == {"a[0]": "R"}


def test_everything_that_is_wrong_is_in_one_error():
    """Missing, surplus, shapes, splits; with hints where a name is nearly right."""
    found = problems(
        {
            "layers.*.up": PlacementSpec.fused(0, parts=3),
            "layers.*.down": 5,
            "norms": "R",
            "embed": "S[0]",
        },
        expect={"embed": (101, 8), "layer.0.up": None, "layers.0.up": None, "norm": (8,)},
    )
    assert found == (
        "layer.0.up: missing, the files do not hold it; did you mean 'layers.0.up'?",
        "plan['norms']: missing, the files hold no such tensor; did you mean 'norm'?",
        "embed: expected shape [101, 8], the file has [100, 8]",
        (
            "layers.0.up: float16[16, 8] does not fit plan['layers.*.up'] = S[0] (parts=3): "
            "its extent 16 cannot be cut into 3 equal parts"
        ),
        "layers.0.down: surplus, it is not among the expected tensors",
        "layers.1.up: surplus, it is not among the expected tensors",
        "layers.1.down: surplus, it is not among the expected tensors",
        "norm: surplus, no pattern of the plan matches it",
    )


def test_an_uneven_split_is_refused_with_figures_unless_it_is_wanted():
    """The extent and the workers are named, and the way out."""
    (problem,) = problems({"embed": "S[0]", "*": "R"}, workers=3)
    assert problem == (
        "embed: float16[100, 8] does not fit plan['embed'] = S[0]: its extent 100 cannot be "
        "divided by 3 workers without uneven=True"
    )
    for uneven in (PlacementSpec.sharding(0), PlacementSpec.fused(0, uneven=True)):
        assert plan({"embed": uneven, "*": "R"}, workers=3)["embed"] == "S[0]"


def test_what_no_array_can_hold_must_be_skipped():
    """The others of the file load."""
    packed = [*TENSORS, StoredTensor(6, "q4", (9,), "", "F4", 5)]
    (problem,) = problems({"*": "R"}, tensors=packed)
    assert problem == "q4: no array can have its dtype F4; 'skip' leaves it out"
    assert len(plan({"q4": "skip", "*": "R"}, tensors=packed)) == 6


def test_patterns_that_earlier_ones_shadow_are_reported():
    """They are as wrong as those that match nothing; a last resort may be idle."""
    assert problems({"layers.*": "R", "*.up": 0, "*": "R"}) == (
        "plan['*.up']: unused, earlier patterns match all that it does",
    )
    assert len(plan({"layers.*": "R", "norm": "R", "embed": "R", "*": 0})) == 6


def test_what_is_expected_may_not_be_skipped():
    """The program would lack it."""
    expect = dict.fromkeys(CATALOG["names"])
    assert problems({"norm": "skip", "*": "R"}, expect=expect) == (
        "norm: expected, but plan['norm'] skips it",
    )


def test_without_strictness_only_what_the_program_needs_counts():
    """Idle patterns and other tensors are no problem; missing ones and wrong shapes are."""
    assert plan({"*.bias": 0, "norm": "R"}, strict=False) == {"norm": "R"}
    assert plan({"*": "R"}, {"norm": None}, strict=False) == {"norm": "R"}
    found = problems({"*.up": "R"}, {"norm": None, "none": None}, strict=False)
    assert found == (
        "none: missing, the files do not hold it",
        "norm: expected, but no pattern of the plan matches it",
    )


def test_what_the_plan_skips_need_not_be_there():
    """Nothing is lost by it; a pattern that should load something, or is shadowed, is wrong."""
    assert len(plan({"*.inv_freq": "skip", "*": "R"})) == 6
    assert problems({"*": "R", "norm": "skip", "none": "R"}) == (
        "plan['norm']: unused, earlier patterns match all that it does",
        "plan['none']: missing, the files hold no such tensor",
    )


def test_one_of_the_names_of_a_tensor_is_enough():
    """A second name is neither missing nor surplus, and with it the first one is not either."""
    tensors = [*TENSORS[:1], StoredTensor(1, "head", (100, 8), "float16", "float16", 1600, "embed")]
    for entries, chosen in (
        ({"embed": "R"}, {"embed": "R"}),
        ({"head": 0}, {"head": "S[0]"}),
        ({"embed": "R", "h*": 1}, {"embed": "R", "head": "S[1]"}),
        ({"*": "R"}, {"embed": "R", "head": "R"}),
    ):
        assert plan(entries, tensors=tensors) == chosen
    assert plan({"*": "R"}, {"head": (100, 8)}, tensors=tensors) == {"head": "R"}
    assert problems({"em*": "R"}, {"head": None, "embed": None}, tensors=tensors) == (
        "head: surplus, no pattern of the plan matches it",
    )
    assert problems({"other": "R"}, tensors=tensors) == (
        "plan['other']: missing, the files hold no such tensor",
        "embed: surplus, no pattern of the plan matches it",
    )


def test_a_long_list_is_shown_in_part_and_kept_whole():
    """The message stays readable, the error has all."""
    expect = {f"t{i}": None for i in range(500)}
    with pytest.raises(WeightsMismatch) as raised:
        plan({"*": "R"}, expect, strict=False)
    assert len(raised.value.problems) == 500
    assert str(raised.value).endswith("... and 460 more, see the error's `problems`")


def test_a_way_out_is_named_for_what_no_pattern_matches():
    """Replicate the rest, or leave it out."""
    with pytest.raises(WeightsMismatch, match=r"'\*': 'R' at the plan's end replicates the rest"):
        plan({"norm": "R"})


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ("R", "expected a plan such as"),
        (None, "expected a plan such as"),
        ({0: "R"}, "expected names or patterns of tensors in the plan, got 0"),
        ({"a": "X"}, r"plan\['a'\]: expected 'R', None, .* got 'X'; 'skip' leaves tensors out"),
        ({"a": 1.5}, r"plan\['a'\]: expected"),
    ],
)
def test_a_plan_of_nonsense_is_refused(entries, text):
    """Before any worker is asked."""
    with pytest.raises(ConfigError, match=text):
        WeightPlan(entries)


@pytest.mark.parametrize(
    ("expect", "text"),
    [
        (["a"], "expected a mapping of names to shapes"),
        ({1: None}, "expected the name of a tensor, got 1"),
        ({"a": 3}, r"expect\['a'\]"),
        ({"a": (-1,)}, r"expect\['a'\]"),
        ({"a": (1.5,)}, r"expect\['a'\]"),
    ],
)
def test_expectations_of_nonsense_are_refused(expect, text):
    """Before any worker is asked."""
    with pytest.raises(ConfigError, match=text):
        read_expected(expect)


SPEC = PlacementSpec


@pytest.mark.parametrize(
    ("entry", "spec"),
    [
        ("R", SPEC.replica()),
        (" R ", SPEC.replica()),
        (None, SPEC.replica()),
        ("S[0]", SPEC.fused(0)),
        (" S [ -1 ] ", SPEC.fused(-1)),
        (2, SPEC.fused(2)),
        (SPEC.fused(1, parts=3), SPEC.fused(1, parts=3)),
        (SPEC.sharding(1), SPEC.sharding(1)),
        ("S[1: 0-4, 2-4+6-8]", SPEC.explicit(1, [(0, 4), [(2, 4), (6, 8)]])),
    ],
)
def test_an_entry_is_a_placement_or_an_axis(entry, spec):
    """The words of placements, and numbers for short."""
    (rule,) = WeightPlan({"a": entry}).rules
    assert rule.spec == spec


@pytest.mark.parametrize(
    "entry",
    ["", "r", "S", "S[]", "S[a]", "S0", "S[0], R", "S[0]]", "S[1.5]", "P", 1.0, True, [0], b"R"],
)
def test_another_entry_is_refused(entry):
    """With what would have been right."""
    expected = r"expected 'R', None, 'S\[axis\]', an axis or a PlacementSpec"
    with pytest.raises(ConfigError, match=expected):
        WeightPlan({"a": entry})


@pytest.mark.parametrize("spec", [SPEC.fused(2), SPEC.fused(-3), "S[2]"])
def test_an_axis_that_a_tensor_lacks_is_refused(spec):
    """With the tensor's name and shape."""
    (problem,) = problems({"layers.0.up": spec, "*": "R"})
    assert problem.startswith("layers.0.up: float16[16, 8] does not fit plan['layers.0.up'] = S[")
    assert "splits an axis that a tensor of shape (16, 8) does not have" in problem


def test_a_layout_says_axis_and_pieces():
    """The axis counted from the front; of each worker first and last of what it reads."""
    mesh = DeviceMesh((2,), range(2))
    plan = WeightPlan({"*.0.up": PlacementSpec.fused(0, 2), "*.down": -1, "*": "R"})
    chosen = choose("/m", TENSORS, plan, None, strict=True, mesh=mesh)
    layouts = [each.layout() if each.axis is not None else None for each in chosen]
    assert layouts[:3] == [
        None,
        [Shape([0, 0, 4, 8, 12]), Shape([0, 4, 8, 12, 16])],
        [Shape([1, 0, 8]), Shape([1, 8, 16])],
    ]
    assert [each.nbytes for each in chosen[:3]] == [1600, 128, 128]


@given(st.lists(st.integers(0, 100 << 20), max_size=600))
def test_batches_are_bounded_and_lose_nothing(sizes):
    """By bytes on a worker, unless one tensor alone has more, and by number."""
    cut = list(batches(sizes))
    assert [number for batch in cut for number in batch] == list(range(len(sizes)))
    for batch in cut:
        held = sum(sizes[number] for number in batch)
        assert len(batch) == 1 or (held <= 32 << 20 and len(batch) <= 256)
