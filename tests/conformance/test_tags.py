"""Tags of collectives, in functions of the workers and in methods of the session."""

from __future__ import annotations

import re

import numpy as np
import pytest

import disco_client as di

WIDEST = pytest.mark.layouts((4, 1))


@WIDEST
def test_equal_tags_run_and_others_are_refused_with_both(tools):
    """In every collective that a function can enter; also with a tag beside none."""
    assert tools.results("tagged", ["grads"] * 4) == [{}] * 4
    assert tools.results("tagged", [None] * 4) == [{}] * 4
    for given, shown in (("loss", "tag 'loss'"), (None, "no tag")):
        refused = tools.results("tagged", ["grads", "grads", given, "grads"])
        assert refused == [refused[0]] * 4
        assert len(refused[0]) == 12
        for name, words in refused[0].items():
            odd = rf"worker 2 brought [^;]*, {shown} \(command #\d+[^)]*\) at disco_conformance_"
            assert re.search(odd, words), (name, words)
            others = r"workers (0, )?1 and 3 brought [^;]*, tag 'grads' \(command "  # than the root
            assert re.search(others, words), (name, words)


@WIDEST
def test_the_error_says_what_each_worker_brought_and_where(session, tools):
    """Operation, dtype, count, tag, and the line of the function on every worker."""
    tools.call("mixed_up")
    with pytest.raises(di.CollectiveMismatch) as refused:
        session.sync_all()
    words = str(refused.value)
    start = "broadcast of float32[3], destination float32[3], tag 'start'"
    for who, what, function in (
        ("worker 0", start, "lead"),
        ("workers 1 and 3", start, "join"),
        ("worker 2", "allreduce(sum) of int32[4], destination int32[4], no tag", "mixed_up"),
    ):
        at = rf" \(command #\d+\) at disco_conformance_functions\.py:\d+ in {function}(;|$)"
        told = re.escape(f"{who} brought {what}") + at
        assert re.search(told, words.replace(" on a GPU", ""), re.MULTILINE), who


@WIDEST
def test_methods_of_the_session_take_tags(session, tools):
    """Without another effect where the arrays fit; otherwise the error shows them."""
    tag = "step/7"
    part = session.scatter(np.arange(8.0).reshape(4, 2), tag=tag)
    whole = session.broadcast(np.arange(4.0), tag=tag)
    gathered = session.allgather(part, tag=tag)
    results = [
        (session.allreduce(part, op="max", tag=tag), [6, 7]),
        (session.allreduce(part, session.empty((2,), "float64"), "min", tag=tag), [0, 1]),
        (gathered, np.arange(8.0).reshape(4, 2)),
        (session.gather_to_worker0(part, session.empty((8,), "float64"), tag=tag), range(8)),
        (session.broadcast_from_worker0(whole, tag=tag), range(4)),
        (session.scatter_from_worker0(whole, tag=tag), [0]),
        (session.reduce_scatter(whole, tag=tag), [0]),
        (session.all_to_all(whole, tag=tag), [0, 0, 0, 0]),
    ]
    for got, want in results:
        np.testing.assert_array_equal(got.numpy(), want)
    session.allreduce(part, session.empty((3,), "float64"), tag=tag)
    told = r"destination float64\[3\]( on a GPU)?, tag 'step/7' \(command"
    with pytest.raises(di.CollectiveMismatch, match=told):
        session.sync_all()


@WIDEST
def test_a_destination_under_a_tag_is_poisoned_and_written_again(session, tools):
    """It is found beside the keyword: a failed call poisons it, and the next one fills it."""
    part, out = session.broadcast(np.ones(2)), session.empty((2,), "float64")
    wrong = tools.call("fail_on", [1], "no source")
    session.allreduce(wrong, out, tag="loss")
    with pytest.raises(di.RemoteException, match="no source"):
        out.numpy()
    session.allreduce(part, out, tag="loss")
    assert out.numpy(3).tolist() == [4.0, 4.0]


def test_a_captured_step_keeps_its_tag(session):
    """In each run, as any argument that is constant; the error of a run has no line of a worker."""
    with session.capture() as step:
        x, out = step.input("x"), step.input("out")
        session.allreduce(x, out, tag="captured")
    ones = session.broadcast(np.ones(3))
    step(ones, ones)
    assert ones.numpy(1).tolist() == [2.0] * 3
    step(ones, session.empty((2,), "float64"))
    with pytest.raises(di.CollectiveMismatch, match="tag 'captured'") as refused:
        session.sync_all()
    assert " at " not in str(refused.value).splitlines()[0]


def test_a_tag_that_is_no_text_is_refused_here(session):
    """At once, by every method, and the session goes on; what UTF-8 cannot encode too."""
    part = session.broadcast(np.ones(2))
    for method, source in (
        (session.allreduce, part),
        (session.reduce_scatter, part),
        (session.allgather, part),
        (session.all_to_all, part),
        (session.broadcast_from_worker0, part),
        (session.scatter_from_worker0, part),
        (session.gather_to_worker0, part),
        (session.broadcast, np.ones(2)),
        (session.scatter, np.ones((2, 1))),
    ):
        for wrong in (7, b"tag", ["tag"]):
            with pytest.raises(di.ConfigError, match=r"expected tag to be a str, got"):
                method(source, tag=wrong)
    with pytest.raises(di.EncodingError):
        session.allreduce(part, tag="\ud800")
    assert session.allreduce(part, tag="").numpy().tolist() == [2.0, 2.0]


@pytest.mark.layouts((1, 1))
def test_a_worker_that_is_alone_refuses_what_is_no_tag(session, tools):
    """As it would among others, also where a reduction of one has nothing to do."""
    assert tools.results("tagged", ["alone"]) == [{}]
    (refused,) = tools.results("tagged", [3])
    assert len(refused) == 12
    assert all("the tag must be a str, not int" in words for words in refused.values())
