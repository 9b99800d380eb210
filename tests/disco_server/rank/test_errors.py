"""How exceptions become reports that may travel."""

from __future__ import annotations

import traceback

import pytest

from disco_client.errors import ConfigError, EncodingError
from disco_client.wire.codec import EncodedReply, FailureKind, encode_failure
from disco_server.collectives.types import (
    AbortedError,
    CommunicatorLost,
    MismatchError,
    UnavailableError,
)
from disco_server.rank.errors import (
    MAX_MESSAGE,
    MAX_TRACEBACK,
    ArgumentRefused,
    FunctionMissing,
    ModuleNotAllowed,
    describe_failure,
    sendable,
)
from disco_server.storage.files import FileError, FileNotAllowed


def describe(error):
    return describe_failure(error, worker=3, node="attic", seq=17, function="tests.f")


def raised(func, *args):
    """An exception with a traceback whose first frame stands for the executor's."""
    try:
        func(*args)
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FunctionMissing("what"), FailureKind.NOT_FOUND),
        (ModuleNotAllowed("what"), FailureKind.NOT_ALLOWED),
        (ArgumentRefused("what"), FailureKind.BAD_ARGUMENT),
        (EncodingError("what"), FailureKind.BAD_ARGUMENT),
        (ConfigError("what"), FailureKind.BAD_ARGUMENT),
        (MismatchError([1], "what"), FailureKind.MISMATCH),
        (AbortedError([1], 17, "allreduce"), FailureKind.ABORTED),
        (UnavailableError("what"), FailureKind.CCL),
        (CommunicatorLost("what"), FailureKind.CCL),
        (FileError("/a", "what"), FailureKind.FILE),
        (FileNotAllowed("what"), FailureKind.NOT_ALLOWED),
    ],
)
def test_what_a_rank_refuses_is_told_by_its_message_alone(error, kind):
    """Each family has its kind; nobody wants a traceback of the refusal itself."""
    failure, told = describe(error)
    assert told is kind
    assert failure.message == str(error)
    assert (failure.worker, failure.node, failure.seq) == (3, "attic", 17)
    assert failure.function == "tests.f"
    assert failure.exception == failure.traceback == ""


@pytest.mark.parametrize("kind", [ValueError, LookupError, PermissionError, KeyError])
def test_what_user_code_raises_is_never_taken_for_a_refusal(kind):
    """Also where it raises what our own refusals derive from."""
    failure, told = describe(kind("theirs"))
    assert told is FailureKind.EXCEPTION
    assert failure.exception == kind.__name__


def test_an_exception_brings_its_qualified_type_and_its_cause_but_not_our_frame():
    """The traceback begins where the person's own code does."""

    class Odd(RuntimeError):
        pass

    def user_code():
        try:
            {}["key"]
        except KeyError as error:
            raise Odd("no such thing") from error

    failure, _ = describe(raised(user_code))
    assert failure.exception.endswith("test_errors.Odd")
    assert "in user_code" in failure.traceback
    assert "KeyError: 'key'" in failure.traceback
    assert "func(*args)" not in failure.traceback, "the caller's frame is not theirs"


def test_each_traceback_is_that_of_its_own_error():
    """As Python writes it, though what was found for one place is used for the next error there."""

    def inner(value):
        if value < 0:
            raise ValueError(f"{value} is negative")
        return 1 / value

    def first(value):
        return inner(value)

    def second(value):
        return inner(value)

    for func, value in [(first, -1), (second, -1), (first, -2), (first, 0), (second, 0)] * 2:
        error = raised(func, value)
        below = error.__traceback__.tb_next
        plain = "".join(traceback.format_exception(type(error), error, below))
        assert describe(error)[0].traceback == plain


def test_long_texts_are_cut_in_the_middle():
    """Both ends of a message and of a traceback say more than the middle does."""

    def user_code():
        raise ValueError("begin" + "x" * 100_000 + "end")

    failure, _ = describe(raised(user_code))
    for text, limit in ((failure.message, MAX_MESSAGE), (failure.traceback, MAX_TRACEBACK)):
        assert limit <= len(text) < limit + 100
        assert "characters left out" in text
        assert text.rstrip().endswith("end")
    assert failure.message.startswith("begin")


def test_a_message_that_utf8_cannot_encode_travels_escaped():
    """Names of files may be such; the report must arrive all the same."""
    failure, kind = describe(raised(open, "/no/such\udcff"))
    encode_failure(EncodedReply().failure, failure, kind)
    assert "\\udcff" in failure.message
    assert sendable("plain ä") == "plain ä"


def test_an_exception_whose_text_raises_is_reported_too():
    """An author's mistake in __str__ must not hide which exception it was."""

    class Mute(Exception):
        def __str__(self):
            raise ZeroDivisionError

    def user_code():
        raise Mute

    failure, _ = describe(raised(user_code))
    assert failure.message == "its text raised ZeroDivisionError"
    assert failure.exception.endswith("Mute")
