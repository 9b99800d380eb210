"""Who has as many sessions as he may have gets no more, and nobody else notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco_client.errors import ConfigError
from disco_server.core.nodes import NodeShare
from disco_server.core.quotas import Quota, SessionLimits, read_quotas
from disco_server.core.session_state import EndReason, Priority, SessionEvent, SessionTable

ANN = Quota(sessions=9, slots=4, priority=Priority.LOW)
LIMITS = SessionLimits(total=5, quota=Quota(sessions=2), owners={"ann": ANN})


def session(number, principal="token:ben", workers=2, **more):
    return SessionTable(
        number,
        f"s{number}",
        "me@here:1",
        workers,
        1,
        "",
        b"key",
        0.0,
        100.0,
        principal=principal,
        **more,
    )


def refused(asked, *others):
    own = [each for each in others if each.owner_key == asked.owner_key]
    return LIMITS.refusal(asked, len(others) + 1, [*own, asked])


def test_a_client_has_as_many_sessions_as_one_may_have():
    """Its next is refused with the number, their names and the flag; another client's is not."""
    there = [session(1), session(2)]
    assert refused(session(2), session(1)) is None
    end = refused(session(3), *there)
    assert end.reason is EndReason.QUOTA
    assert "has 2 sessions (s1, s2)" in end.message
    assert "--max-client-sessions" in end.message
    assert (end.quota.name, end.quota.limit, end.quota.used) == ("sessions", 2, 2)
    assert end.quota.sessions == ("s1", "s2")
    assert refused(session(3, "token:cid"), *there) is None


def test_a_session_that_is_ending_leaves_its_place_to_the_next():
    """It is neither counted nor named while its workers end, and those that run still are."""
    ending = session(1)
    ending.step(SessionEvent.END)
    assert refused(session(3), ending, session(2)) is None
    end = refused(session(4), ending, session(2), session(3))
    assert "has 2 sessions (s2, s3)" in end.message
    assert (end.quota.used, end.quota.sessions) == (2, ("s2", "s3"))


def test_where_nobody_is_asked_a_client_is_a_process():
    """As it names itself, which is all that is known of it."""
    assert session(1, "").owner_key == "me@here:1"
    assert LIMITS.of(session(1, "")) == LIMITS.quota


def test_all_together_have_as_many_as_there_may_be():
    """Whoever made them."""
    there = [session(number, f"token:{number}") for number in range(5)]
    assert refused(session(5, "token:5"), *there[:4]) is None
    end = refused(session(5, "token:5"), *there)
    assert end.reason is EndReason.NO_SLOTS
    assert "--max-sessions" in end.message


def test_more_workers_than_the_owner_may_ever_hold_are_refused():
    """At once, with who holds what by now and where more is given; so is a higher class."""
    share = (NodeShare("n", (0, 1), (0, 1), ("cpu", "cpu")),)
    holds = session(1, "token:ann", priority=Priority.LOW, shares=share)
    fits = session(2, "token:ann", 4, priority=Priority.LOW)
    assert refused(fits, holds) is None
    end = refused(session(2, "token:ann", 5, priority=Priority.LOW), holds)
    assert (end.quota.name, end.quota.limit, end.quota.used) == ("slots", 4, 2)
    assert end.quota.sessions == ("s1",)
    assert "at most 4 workers" in end.message
    assert "slots of [owner.ann] in its --quota-file" in end.message
    end = refused(session(2, "token:ann"), holds)
    assert end.quota.name == "priority"
    assert "at most 'low'" in end.message


def test_the_usual_class_is_normal_or_the_highest_that_one_may_have():
    """So that who may ask for less need not."""
    assert LIMITS.usual_priority("token:ann") is Priority.LOW
    assert LIMITS.usual_priority("token:ben") is Priority.NORMAL


def test_a_file_of_quotas_has_what_single_owners_may_have():
    """What a table does not say is as for all others."""
    text = """
    [owner.ann]
    slots = 16
    priority = "high"
    ["owner"."ben of b"]
    session_limit_s = 3600
    idle_limit_s = 0
    command_limit_s = 600
    sessions = 1
    """
    usual = Quota(sessions=7, idle_limit_s=60.0, command_limit_s=5.0)
    assert read_quotas(text, "file", usual) == {
        "ann": replace(usual, slots=16, priority=Priority.HIGH),
        "ben of b": Quota(sessions=1, session_limit_s=3600.0, command_limit_s=600.0),
    }
    assert read_quotas("", "file", usual) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[owner", "file: expected TOML"),
        ("owner = 1", r"file: expected tables \[owner.NAME\]"),
        ("[owners.ann]", r"expected tables \[owner.NAME\] alone, got 'owners'"),
        ("owner.ann = 1", r"\[owner.ann\]: expected a table"),
        ("[owner.ann]\nslot = 1", r"no quota 'slot'; did you mean 'slots'"),
        ("[owner.ann]\nslots = -1", r"\[owner.ann\] slots: expected a whole number from 0"),
        ("[owner.ann]\nslots = true", "whole number"),
        ("[owner.ann]\nsessions = 0", "whole number from 1"),
        ("[owner.ann]\nidle_limit_s = inf", "number of seconds, or 0"),
        ("[owner.ann]\nsession_limit_s = 'a day'", "number of seconds, or 0"),
        ("[owner.ann]\ncommand_limit_s = -1", r"\[owner.ann\] command_limit_s: expected a number"),
        ("[owner.ann]\npriority = 'urgent'", "one of low, normal, high"),
        ('[owner."a\\u200bnn"]', "the name of a token or certificate"),
    ],
)
def test_anything_else_in_that_file_is_refused(text, told):
    """With the place and what was expected."""
    with pytest.raises(ConfigError, match=told):
        read_quotas(text, "file", Quota())
