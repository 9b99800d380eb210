"""Log lines for people and for machines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re

import pytest

from disco_client.errors import ConfigError
from disco_server.observe import logs


class Log(io.StringIO):
    """A stream that has all that was logged when it is looked at."""

    def getvalue(self):
        for handler in logging.getLogger().handlers:
            handler.flush()
        return super().getvalue()


@pytest.fixture
def root():
    """The root logger, put back as it was afterwards."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture(params=["text", "json"])
def either(request, root):
    """A stream that logs in one of the formats."""
    stream = Log()
    logs.setup("debug", request.param, stream)
    return stream


@pytest.fixture
def text(root):
    stream = Log()
    logs.setup("info", "text", stream)
    return stream


@pytest.fixture
def as_json(root):
    stream = Log()
    logs.setup("info", "json", stream)
    return stream


LOG = logging.getLogger("disco_server.some.part")


def fail():
    raise ValueError("of no use")


def test_a_text_line_has_time_level_logger_message_and_fields(text):
    """The house's fields come first and in their order, then others; None is left out."""
    bound = logs.bind(LOG, shard="a b", seq=17, rank=0, session="s-1", node=None)
    bound.info("allreduce of %d bytes", 64)
    line = text.getvalue()
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    disco_server\.some\.part: ", line
    )
    assert line.endswith(': allreduce of 64 bytes session=s-1 rank=0 seq=17 shard="a b"\n')


def test_a_json_line_is_one_object_with_the_fields_as_members(as_json):
    """Times are UTC in ISO 8601, numbers stay numbers, and what JSON lacks becomes text."""
    logs.bind(LOG, rank=3, session="s-1").warning("slow: é", extra={"shape": {1}})
    (line,) = as_json.getvalue().splitlines()
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
    assert entry == {
        "level": "warning",
        "logger": "disco_server.some.part",
        "message": "slow: é",
        "session": "s-1",
        "rank": 3,
        "shape": "{1}",
    }


def test_a_field_cannot_pass_for_the_message(as_json):
    """Fields named like the record's own members do not replace them."""
    logs.bind(LOG, level="none", time="never").info("here")
    entry = json.loads(as_json.getvalue())
    assert (entry["level"], entry["time"] == "never") == ("info", False)


def test_output_of_a_rank_cannot_forge_or_colour_lines(either):
    """Newlines, escape sequences and their like are written out, not obeyed."""
    LOG.info("one\n2026-01-01T00:00:00.000Z ERROR forged\x1b[31m\u2028")
    assert len(either.getvalue().splitlines()) == 1
    assert "\x1b" not in either.getvalue()


def test_a_traceback_follows_in_text_on_indented_lines(text):
    """Only records start in the first column."""
    try:
        fail()
    except ValueError:
        logs.bind(LOG, rank=1).exception("failed")
    first, *rest = text.getvalue().splitlines()
    assert first.endswith("failed rank=1")
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-1] == "    ValueError: of no use"
    assert all(line.startswith("    ") for line in rest)


def test_a_traceback_is_a_member_in_json(as_json):
    """A record with a traceback is still one line."""
    try:
        fail()
    except ValueError:
        LOG.exception("failed", stack_info=True)
    (line,) = as_json.getvalue().splitlines()
    trace = json.loads(line)["exception"]
    assert "ValueError: of no use" in trace
    assert "Stack (most recent call last):" in trace


def test_binding_again_keeps_the_fields_and_replaces_those_given_anew(as_json):
    """A session's logger becomes a rank's by one more field; a call's own win."""
    session = logs.bind(LOG, session="s-1", rank=0)
    logs.bind(session, rank=2).info("x", extra={"seq": 9})
    session.info("y")
    first, second = map(json.loads, as_json.getvalue().splitlines())
    assert (first["session"], first["rank"], first["seq"]) == ("s-1", 2, 9)
    assert (second["rank"], "seq" in second) == (0, False)


def test_a_field_of_every_record_cannot_be_bound():
    """The mistake shows where it is made, not at the first record."""
    with pytest.raises(ValueError, match="its own module, name"):
        logs.bind(LOG, name="x", module="y", rank=1)


def test_setting_up_twice_logs_each_record_once(root):
    """The second call replaces the first and leaves other handlers alone."""
    other = logging.NullHandler()
    root.addHandler(other)
    before, after = Log(), Log()
    logs.setup("info", "text", before)
    handler = logs.setup("error", "text", after)
    LOG.error("once")
    LOG.info("below the level")
    assert before.getvalue() == ""
    assert len(after.getvalue().splitlines()) == 1
    assert other in root.handlers
    assert handler in root.handlers


def test_records_go_to_standard_error_by_default(root, capsys):
    """Standard output belongs to what a command answers."""
    handler = logs.setup()
    LOG.info("hello")
    handler.flush()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err


def test_what_grpc_says_of_a_stopping_server_is_left_out(text):
    """A daemon that ends as it should looks so; gRPC's other records stay."""
    logger = logging.getLogger("grpc._cython.cygrpc")
    logger.warning("Aborting method [%s] due to server stop.", "/disco.v1/Register")
    for kind in (asyncio.CancelledError, ValueError):
        logger.error("Exception not handled in servicer method", exc_info=kind("gone"))
    logging.getLogger("disco.controller").warning("aborted due to server stop")
    lines = text.getvalue()
    assert "CancelledError" not in lines
    assert "Aborting" not in lines
    assert "ValueError: gone" in lines
    assert "aborted due to server stop" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("loud", "text"), "log_level: expected one of debug, info, warning, error, got 'loud'"),
        (("info", "xml"), "log_format: expected one of text, json, got 'xml'"),
    ],
)
def test_an_unknown_level_or_format_is_refused(arguments, message):
    """The error lists what there is."""
    with pytest.raises(ConfigError) as caught:
        logs.setup(*arguments)
    assert str(caught.value) == message


def test_ids_of_spans_are_for_machines(as_json, text):
    """JSON has them, bound to a record; a text line stays short."""
    both = [logs.setup("info", "json", as_json), logging.StreamHandler(text)]
    both[1].setFormatter(logs.TextFormatter())
    LOG.addHandler(both[1])
    try:
        logs.bind(LOG, session="s-1", trace_id="a" * 32, span_id="b" * 16).info("x")
    finally:
        LOG.removeHandler(both[1])
    entry = json.loads(as_json.getvalue())
    assert (entry["trace_id"], entry["span_id"]) == ("a" * 32, "b" * 16)
    assert text.getvalue().endswith(": x session=s-1\n")
