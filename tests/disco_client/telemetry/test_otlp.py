"""What spans tell, and where they go: the protocols, the program's own spans, failures."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from collecting import Collector
from disco_client.version import __version__

BEGIN = """
import disco_client
from disco_client.telemetry import spans
"""
SESSION = """
with disco_client.ThreadedSession(2) as session:
    session.empty((2,), "float32")
"""
# A program that has a provider of its own, which shows what comes on its output.
OWN_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
show = lambda span: span.name + "\\n"
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=show)))
trace.set_tracer_provider(provider)
"""


@pytest.fixture
def collector():
    with Collector() as made:
        yield made


def run(program: str, **variables: str) -> str:
    """Runs a program with these variables of OpenTelemetry; returns its output."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("protocol", ["", "http/protobuf", "grpc"])
def test_spans_come_by_the_protocol_of_the_environment(collector, protocol):
    """HTTP unless gRPC is asked for; all has come when the program has ended."""
    endpoint = collector.grpc if protocol == "grpc" else collector.http
    run(SESSION, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    (span,) = collector.spans()
    assert (span.name, span.service, span.parent, span.error) == (
        "disco.session",
        "disco-client",
        "",
        None,
    )
    assert span.facts["disco.session.name"]
    assert span.facts["disco.num_workers"] == 2
    assert span.facts["disco.commands"] > 0
    assert span.resource["service.version"] == __version__


def test_the_variable_for_spans_alone_is_enough(collector):
    """OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is the whole address."""
    run(SESSION, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.http}/v1/traces")
    assert len(collector.spans()) == 1


def test_the_environment_names_the_service(collector):
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say more than the house does."""
    run(
        SESSION,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.http,
        OTEL_SERVICE_NAME="embedder",
        OTEL_RESOURCE_ATTRIBUTES="host.name=h1,team=a",
    )
    (span,) = collector.spans()
    assert (span.service, span.resource["host.name"], span.resource["team"]) == (
        "embedder",
        "h1",
        "a",
    )


def test_a_provider_of_the_program_is_used_instead_of_ours(collector):
    """Its spans and ours go the same way, ours below its own; nothing is sent by us."""
    program = OWN_PROVIDER + (
        "with trace.get_tracer('mine').start_as_current_span('request') as request:\n"
        + SESSION.replace("\n", "\n    ")
        + "\n    assert session._core.span._span.parent.span_id == request.context.span_id\n"
    )
    out = run(program, OTEL_EXPORTER_OTLP_ENDPOINT=collector.http)
    assert out.split() == ["disco.session", "request"]
    assert collector.spans() == []


def test_ours_is_not_made_the_provider_of_the_program(collector):
    """A program that makes its own after its first session gets it."""
    out = run(SESSION + OWN_PROVIDER + SESSION, OTEL_EXPORTER_OTLP_ENDPOINT=collector.http)
    assert out.split() == ["disco.session"]
    assert len(collector.spans()) == 1


def test_a_part_of_a_session_belongs_to_what_the_program_does(collector):
    """Below the program's active span, linked to the session; else below the session."""
    run(
        """
session = spans.begin("session")
with session.within("alone"), session.within("nested"):
    pass
with spans.begin("request", parent={}), session.within("served"):
    pass
session.end()
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.http,
    )
    found = {span.name: span for span in collector.spans()}
    session, request, served = found["session"], found["request"], found["served"]
    assert (found["alone"].parent, found["nested"].parent) == (session.id, found["alone"].id)
    assert found["nested"].links == ()
    assert (served.parent, served.links) == (request.id, (session.id,))
    assert request.trace != session.trace


def test_a_failure_is_the_status_of_its_span(collector):
    """What a block raises, or the first of what is said; after its end nothing counts."""
    run(
        """
try:
    with spans.begin("raises"):
        raise ValueError("seven is not eight")
except ValueError:
    pass
said = spans.begin("said")
said.fail("first")
said.fail("second")
said.end()
said.fail("third")
said.note({"late": True})
said.end()
with spans.begin("works"):
    pass
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.http,
    )
    assert {span.name: (span.error, span.facts) for span in collector.spans()} == {
        "raises": ("seven is not eight", {}),
        "said": ("first", {}),
        "works": (None, {}),
    }


def test_headers_lead_on_to_another_process(collector):
    """It has the headers of W3C; what began earlier says so; log lines get both ids."""
    run(
        """
import time
with spans.begin("caller") as caller:
    assert spans.active_headers() == caller.headers
    assert dict(spans.active_ids()) == dict(caller.ids)
    trace_id, span_id = caller.ids["trace_id"], caller.ids["span_id"]
    (header,) = caller.headers.items()
    assert header[0] == "traceparent" and header[1].startswith(f"00-{trace_id}-{span_id}-")
    answer = spans.begin("answer", parent=spans.trace_headers(caller.headers.items()),
                         began_s=time.monotonic() - 5, kind="server")
answer.end()
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.http,
    )
    answer, caller = collector.spans()
    assert (answer.name, answer.parent, answer.trace) == ("answer", caller.id, caller.trace)
    assert answer.ended_ns - answer.began_ns >= 5_000_000_000


RAISING_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
class Raising(SpanProcessor):
    def on_start(self, span, parent_context=None):
        if span.name in os.environ["RAISES"]:
            raise RuntimeError("not today")
    def on_end(self, span):
        raise RuntimeError("not today either")
provider = TracerProvider()
provider.add_span_processor(Raising())
trace.set_tracer_provider(provider)
"""


@pytest.mark.parametrize("raises", ["", "disco.session"])
def test_a_provider_of_the_program_that_raises_ends_no_session(collector, raises):
    """Neither where a span begins nor where it ends."""
    shown = run(
        "import os\n" + RAISING_PROVIDER + SESSION + "print('done')",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.http,
        RAISES=raises,
    )
    assert shown == "done\n"
