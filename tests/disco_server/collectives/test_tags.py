"""Tags of collectives, and the lines in their errors: four processes, and four threads."""

from __future__ import annotations

import inspect

import pytest
import scenarios_tags

WAYS = ["world", "group", "team"]


@pytest.mark.parametrize("way", WAYS)
def test_equal_tags_run(any_ranks, way):
    """Every collective of every size, of all ranks, of a group and of a team."""
    for said in any_ranks.run("tagged", way=way, tags=["grads/é 1"] * 4):
        assert set(said.values()) == {"ran"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "shown"), [("loss", "tag 'loss'"), (None, "no tag"), ("", "tag ''")]
)
def test_another_tag_is_refused_everywhere(any_ranks, way, given, shown):
    """In every collective the same words on all ranks, with both tags; also for lack of one."""
    tags = [given, "weight", "weight", "weight"]
    for said in any_ranks.run("tagged", way=way, tags=tags):
        for name, outcome in said.items():
            assert outcome != "ran", name
            odd, words = outcome
            # Of two members the worker with the higher number counts as the odd one.
            assert odd == [0] if way == "world" else len(odd) == 1, name
            assert f", {shown} (command #" in words, name
            assert ", tag 'weight' (command #" in words, name


def test_headers_that_are_messages_carry_tags_too(ranks):
    """As between ranks that share no memory."""
    for tags, ran in ((["a"] * 4, True), (["a", "a", "b", "a"], False)):
        for said in ranks.run("tagged", way="messages", tags=tags):
            assert [name for name, outcome in said.items() if (outcome == "ran") != ran] == []
            if not ran:
                assert all(odd == [2] for odd, _ in said.values())


@pytest.mark.parametrize("wrong", [3, ["list"]])
def test_a_tag_that_is_no_text_is_refused_everywhere(any_ranks, wrong):
    """The rank that gave it is named to all, and so is what it was."""
    for said in any_ranks.run("tagged", way="world", tags=["a", wrong, "a", "a"]):
        for name, (odd, words) in said.items():
            assert odd == [1], name
            assert f"the tag must be a str, not {type(wrong).__name__}" in words, name
    for said in any_ranks.run("tagged", way="world", tags=[wrong] * 4):
        assert all(odd == [0, 1, 2, 3] for odd, _ in said.values())


def test_long_tags_that_begin_alike_differ(any_ranks):
    """The message shows their beginnings, and checksums that differ."""
    tags = ["layer." * 50 + end for end in ("a", "a", "b", "a")]
    said = any_ranks.run("tagged", way="world", tags=tags)
    odd, words = said[0]["barrier"]
    assert odd == [2]
    assert words.count("tag 'layer.layer.") == 2
    checksums = [part.split(")")[0] for part in words.split("... (checksum ")[1:]]
    assert len(set(checksums)) == 2
    assert said == [said[0]] * 4


def test_transfers_have_tags(any_ranks):
    """Both ends learn of both tags, and a transfer with one tag goes through."""
    first, second, *others = any_ranks.run("tagged_transfers")
    assert second[0] == [0.0] * 3
    assert others == [[[2.0] * 3] * 3, [[3.0] * 3] * 3]
    for number, shown in ((1, "tag 'biases'"), (2, "no tag")):
        assert first[number] == second[number]
        assert f", {shown} (command #" in first[number]
        assert ", tag 'weights' (command #" in first[number]


def test_each_rank_s_line_is_told_and_none_is_compared(any_ranks):
    """Calls from two lines fit one another; where something else does not, both are told."""
    assert any_ranks.run("lines", wrong=False) == [[0.0] * 3] * 4
    said = any_ranks.run("lines", wrong=True)
    assert said == [said[0]] * 4
    for name, workers in (("root", "worker 0"), ("peer", "workers 1 and 3"), ("peer", "worker 2")):
        text, first = inspect.getsourcelines(getattr(scenarios_tags, name))
        at = f"at scenarios_tags.py:{first + len(text) - 1} in {name}"
        (part,) = [part for part in said[0].split("; ") if f"{workers} brought" in part]
        assert at in part
