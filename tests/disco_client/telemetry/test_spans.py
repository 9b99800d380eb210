"""Whether spans are made at all: off, without the extra, and with nobody who takes them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from collecting import Collector
from disco_client.telemetry import spans
from disco_client.telemetry.base import NO_SPAN

SESSION = """
import sys
import disco_client
with disco_client.ThreadedSession(2) as session:
    session.sync_all()
"""
LOADED = """
print("opentelemetry" in {name.partition(".")[0] for name in sys.modules})
"""
# As if the extra were not installed, whatever is.
WITHOUT_EXTRA = """
import sys
sys.modules["opentelemetry"] = None
"""
GENEROUS_S = 28.0
"""The promise is two seconds; the library's own end would take half a minute."""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with these variables of OpenTelemetry, and no others."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_nothing_is_loaded_without_the_variable():
    """A session opens, works and ends, and no module of OpenTelemetry is there."""
    done = run(SESSION + LOADED)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    "more", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}], ids=str
)
def test_the_standard_switches_turn_spans_off(more):
    """The collector is named, and the environment says all the same that there be none."""
    done = run(SESSION + LOADED, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", **more)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_without_the_extra_one_line_says_what_to_install():
    """Two sessions work, and say once how to go on."""
    done = run(WITHOUT_EXTRA + SESSION + SESSION, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    (line,) = done.stderr.splitlines()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in line
    assert "pip install 'disco-runtime[otel]'" in line


def test_a_wrong_setting_is_said_and_does_no_harm():
    """A protocol that there is not is named in one line, and the session works."""
    done = run(
        SESSION,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/json",
    )
    (line,) = done.stderr.splitlines()
    assert "expected http/protobuf or grpc, got 'http/json'" in line


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_nobody_who_listens_costs_a_moment_and_a_line(protocol):
    """The program's exit does not wait for a collector that is not there."""
    began = time.monotonic()
    done = run(
        SESSION,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
    )
    assert time.monotonic() - began < GENEROUS_S
    (line,) = done.stderr.splitlines()
    assert "spans do not reach the collector at http://127.0.0.1:1: " in line


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_hangs_does_not_hang_the_program(protocol):
    """One that takes connections and says nothing would hold the exporter for its whole limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        run(
            SESSION,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_TIMEOUT="600",
        )
        assert time.monotonic() - began < GENEROUS_S


def test_a_forked_child_ends_as_ever():
    """It has no thread that sends, and does not wait for one; the parent's spans come once."""
    fork = "import os\nif pid := os.fork(): assert os.waitpid(pid, 0)[1] == 0\n"
    with Collector() as collector:
        run(SESSION + fork, OTEL_EXPORTER_OTLP_ENDPOINT=collector.http)
        assert [span.name for span in collector.spans()] == ["disco.session"]


def test_a_span_that_is_not_made_does_nothing():
    """It can be used like any other, and so can its parts."""
    with spans.begin("disco.test", {"disco.bytes": 1}) as span:
        span.note({"disco.bytes": 2})
        span.fail("of no consequence")
        assert span is NO_SPAN
        assert span.within("disco.part") is NO_SPAN
    assert (span.headers, span.ids, spans.active_headers(), spans.active_ids()) == ({}, {}, {}, {})


def test_of_headers_only_the_trace_context_is_passed_on():
    """Neither other headers, nor what is too long or no text."""
    headers = [
        ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        ("tracestate", "x" * 513),
        ("authorization", "Bearer secret"),
    ]
    assert spans.trace_headers(headers) == {"traceparent": headers[0][1]}
    assert spans.trace_headers([("traceparent", b"00")]) == {}
