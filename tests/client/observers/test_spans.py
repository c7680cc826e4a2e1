"""A client's answers as OpenTelemetry spans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from streamco.client.observers.base import ObservedAttempt
from streamco.client.observers.spans import AnswerSpans
from streamco.endpoints.base import Capabilities, Kind, Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointConnectError, EndpointError
from streamco.openai_types import CompletionUsage
from streamco.testing import Cut, ScriptedResponse, ScriptedServer, chunk_event, json_answer
from tests.client.helpers import ask, device, opened, server, tokens_text, words
from tests.client.speculating import PROMPT, World

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traces:
    """A tracer provider that keeps the spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = AnswerSpans(self.provider)

    def finished(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def tree(self) -> tuple[ReadableSpan, dict[str, ReadableSpan]]:
        """The answer's span, and those below it by endpoint."""
        spans = self.finished()
        (top,) = [each for each in spans if "streamco.endpoint" not in attributes(each)]
        below = {str(attributes(each)["streamco.endpoint"]): each for each in spans if each is not top}
        assert all(
            each.parent is not None and top.context is not None and each.parent.span_id == top.context.span_id for each in below.values()
        )
        assert len(below) == len(spans) - 1
        return top, below


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


@pytest.fixture
def traces() -> Traces:
    return Traces()


async def test_a_race_has_a_span_of_the_answer_and_one_of_each_request(traces: Traces) -> None:
    sides = device(), server([(5.0, "S")], usage=CompletionUsage(10, 1, 11))
    async with opened(*sides, policy="both", budget=1.0, observers=[traces.spans]) as client:
        stream = client.stream("hello", temperature=0.5, max_tokens=7)
        await tokens_text(stream)
        await stream.aclose()
        report = stream.report
    top, below = traces.tree()
    assert (top.name, top.kind, top.status.status_code) == ("chat streamco", SpanKind.INTERNAL, StatusCode.UNSET)
    found = attributes(top)
    assert found["gen_ai.operation.name"] == "chat"
    assert (found["gen_ai.request.temperature"], found["gen_ai.request.max_tokens"]) == (0.5, 7)
    assert found["streamco.winner"] == "device"
    assert found["streamco.dispatch.policy"] == "both"
    assert found["gen_ai.response.time_to_first_chunk"] == report.ttft
    assert found["gen_ai.response.finish_reasons"] == ("stop",)
    assert top.end_time is not None
    assert top.start_time is not None
    assert (top.end_time - top.start_time) / 1e9 == pytest.approx(report.duration, abs=0.05)
    lost, won = attributes(below["server"]), attributes(below["device"])
    assert below["server"].kind is SpanKind.CLIENT
    assert (lost["streamco.outcome"], won["streamco.outcome"]) == ("lost", "won")
    assert "error.type" not in lost, "the loser of a race is no error"
    assert below["server"].status.status_code is StatusCode.UNSET
    assert won["gen_ai.usage.output_tokens"] == 1
    assert lost["streamco.usage.is_estimated"] is True


async def test_no_text_of_prompt_or_answer_is_in_a_span(traces: Traces) -> None:
    async with opened(device([(0.0, "secretanswer")]), observers=[traces.spans]) as client:
        await ask(client, "secretprompt")
    for span in traces.finished():
        assert "secret" not in span.to_json()


async def test_a_callers_trace_goes_on_and_the_server_continues_that_of_its_own_request(traces: Traces) -> None:
    side = server()
    async with opened(server=side, observers=[traces.spans]) as client:
        await ask(client, extra_headers={"traceparent": CALLER})
    top, below = traces.tree()
    assert top.context is not None
    assert f"{top.context.trace_id:032x}" == CALLER.split("-")[1]
    assert top.parent is not None
    assert f"{top.parent.span_id:016x}" == CALLER.split("-")[2]
    own = below["server"].context
    assert own is not None
    sent = dict(side.streams[0].request.headers)["traceparent"]
    assert sent.split("-")[1:3] == [f"{own.trace_id:032x}", f"{own.span_id:016x}"]


async def test_a_server_does_not_get_the_callers_baggage(traces: Traces) -> None:
    side = server()
    token = context.attach(baggage.set_baggage("customer", "secret"))
    try:
        async with opened(server=side, observers=[traces.spans]) as client:
            await ask(client)
    finally:
        context.detach(token)
    sent = dict(side.streams[0].request.headers)
    assert "traceparent" in sent
    assert "baggage" not in sent


async def test_the_current_span_of_the_task_is_the_parent(traces: Traces) -> None:
    tracer = traces.provider.get_tracer("app")
    async with opened(device(), observers=[traces.spans]) as client:
        with tracer.start_as_current_span("request") as outer:
            await ask(client)
    spans = {each.name: each for each in traces.finished()}
    parent = spans["chat streamco"].parent
    assert parent is not None
    assert parent.span_id == outer.get_span_context().span_id


async def test_a_failed_request_is_an_error_with_its_type_and_the_move_is_an_event(traces: Traces) -> None:
    cut = ScriptedResponse(steps=[chunk_event("One "), chunk_event("two "), Cut()])
    async with ScriptedServer(cut) as scripted:
        first = OpenAIEndpoint("m", base_url=scripted.url, name="first")
        second = server(words(0.0, 0.0, 0.0), name="second", capabilities=Capabilities(continuation="prefix"))
        async with opened(None, [first, second], observers=[traces.spans]) as client:
            await ask(client)
        port = int(scripted.url.split(":")[2].split("/")[0])
    top, below = traces.tree()
    failed = below["first"]
    assert failed.name == "chat m"
    assert failed.status.status_code is StatusCode.ERROR
    found = attributes(failed)
    assert found["error.type"] == "EndpointProtocolError"
    assert (found["gen_ai.request.model"], found["server.address"], found["server.port"]) == ("m", "127.0.0.1", port)
    assert top.status.status_code is StatusCode.UNSET, "the reader got the whole answer"
    (event,) = [each for each in top.events if each.name == "streamco.hand_over"]
    assert dict(event.attributes or {})["streamco.hand_over.target"] == "second"
    assert top.start_time is not None
    assert top.end_time is not None
    assert top.start_time <= event.timestamp <= top.end_time


async def test_an_answer_that_fails_is_an_error(traces: Traces) -> None:
    async with opened(server=server([(0.0, EndpointConnectError("down"))]), observers=[traces.spans]) as client:
        with pytest.raises((AllEndpointsFailed, EndpointError)):
            await ask(client)
    top, _ = traces.tree()
    assert top.status.status_code is StatusCode.ERROR
    assert attributes(top)["error.type"] == "EndpointConnectError"
    assert attributes(top)["streamco.ending"] == "failed"


async def test_a_status_is_the_error_type(traces: Traces) -> None:
    async with ScriptedServer(json_answer({"error": {"message": "slow down"}}, status=429)) as scripted:
        side = OpenAIEndpoint("m", base_url=scripted.url, name="it")
        async with opened(server=side, max_retries=0, observers=[traces.spans]) as client:
            with pytest.raises((AllEndpointsFailed, EndpointError)):
                await ask(client)
    _, below = traces.tree()
    assert attributes(below["it"])["error.type"] == "429"


async def test_a_refused_request_is_one_span_with_an_error(traces: Traces) -> None:
    async with opened(device(capabilities=Capabilities()), observers=[traces.spans]) as client:
        with pytest.raises(ConfigError, match="tools"):
            await ask(client, tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    top, below = traces.tree()
    assert not below
    assert top.status.status_code is StatusCode.ERROR


async def test_a_speculated_answer_has_spans_of_device_and_verifier(traces: Traces) -> None:
    world = World()
    try:
        async with world.scripted() as verifier, world.speculating(verifier, observers=[traces.spans]) as client:
            await ask(client, PROMPT, temperature=0)
    finally:
        world.close()
    top, below = traces.tree()
    outcomes = {attributes(each)["streamco.outcome"]: each.kind for each in below.values()}
    assert outcomes == {"drafted": SpanKind.INTERNAL, "verified": SpanKind.CLIENT}
    found = attributes(top)
    assert found["streamco.mode"] == "speculate"
    assert isinstance(found["streamco.speculation.rounds"], int)
    assert found["streamco.speculation.rounds"] > 0


async def test_a_speculated_answer_that_moves_to_another_verifier_has_one_span_of_both(traces: Traces) -> None:
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        await tokens_text(stream)
        await stream.aclose()
        report = stream.report
    world.close()
    observed = traces.spans.began(Request(messages=[]))
    for part in report.endpoints:
        name = "first" if part.kind == "server" else part.name
        asked = Request(messages=[])
        kind: Kind = "server" if part.kind == "server" else "device"
        attempt = ObservedAttempt(endpoint=name, kind=kind, model="m", provider=None, base_url=None, request=asked)
        assert observed.opened(attempt)
    observed.ended(report)
    _, below = traces.tree()
    assert below.keys() == {part.name for part in report.endpoints}
    (verifying,) = [span for name, span in below.items() if attributes(span).get("streamco.outcome") == "verified"]
    assert attributes(verifying)["gen_ai.usage.output_tokens"]


async def test_without_a_provider_the_global_one_is_used_and_costs_no_error() -> None:
    async with opened(device(), observers=[AnswerSpans()]) as client:
        assert await ask(client) == "D"
