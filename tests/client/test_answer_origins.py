"""Real endpoints on the loopback: where an answer came from and what was sent for it are as asked, or a note or an error says so."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.config import RetryPolicy
from streamco.core.race.learner import PolicyName
from streamco.core.report import Report
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import AllEndpointsFailed, EndpointStatusError, StreamcoError
from streamco.testing import FakeEngine, RecordedRequest, ScriptedServer, json_answer, stream_answer

LOCAL, REMOTE = "Made here", "Made there"
FIELDS: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["END"],
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {"5": 1},
    "reasoning_effort": "low",
    "user": "me",
}
IN_BODY = {"user", "reasoning_effort"}  # they are no sampling options
ONLY_A_SERVER = {"reasoning_effort", "logit_bias"}  # the server's vocabulary is not known


@dataclass(frozen=True)
class Case:
    """A client's policy, a request and what is wrong."""

    policy: PolicyName
    budget: float | None
    device: str  # "", or what is wrong with it
    server: str
    fields: frozenset[str]
    is_streamed: bool

    @property
    def keeps_out(self) -> str:
        return {"device-only": "server", "server-only": "device"}.get(self.policy, "server" if self.budget == 0 else "")

    @property
    def options(self) -> dict[str, Any]:
        return {name: FIELDS[name] for name in self.fields}


CASES = st.builds(
    Case,
    policy=st.sampled_from(["device-only", "server-only", "device-first", "server-first", "both", "auto"]),
    budget=st.sampled_from([None, 1.0, 0.0]),
    device=st.sampled_from(["", "", "no file", "fails", "refuses"]),
    server=st.sampled_from(["", "", "401", "404", "503", "gone"]),
    fields=st.frozensets(st.sampled_from(sorted(FIELDS)), max_size=3),
    is_streamed=st.booleans(),
).filter(lambda case: not (case.budget == 0 and case.policy.startswith("server")))


async def answer(case: Case) -> None:
    engine = FakeEngine(LOCAL, fail_after=0 if case.device == "fails" else None)
    wrong = json_answer({"error": {"message": "no"}}, status=int(case.server)) if case.server.isdecimal() else None
    async with ScriptedServer(wrong or stream_answer([REMOTE])) as scripted:
        url = "http://127.0.0.1:9/v1" if case.server == "gone" else scripted.url
        remote = OpenAIEndpoint("m", base_url=url, api_key="", name="server", retry=RetryPolicy(attempts=0))
        local = DeviceEndpoint(Path("/nowhere/no.gguf") if case.device == "no file" else engine)
        content: Any = 5 if case.device == "refuses" else "hello"
        text, report, error = "", None, None
        try:
            async with Client(local, remote, mode=Race(policy=case.policy), budget=case.budget, seed=1) as client:
                text, report = await ask(client, case, [{"role": "user", "content": content}])
        except StreamcoError as caught:
            error = caught
        check_promise(case, engine, scripted)
        check_sent(case, engine, [each for each in scripted.requests if each.path.endswith("/chat/completions")])
        if report is None:
            check_error(case, error)
        else:
            check_origin(case, text, report)
    engine.close()


async def ask(client: Client, case: Case, messages: list[dict[str, Any]]) -> tuple[str, Report]:
    if not case.is_streamed:
        whole = await client.chat.completions.create(messages=messages, **case.options)
        assert whole.report is not None
        return whole.choices[0].message.content or "", whole.report
    stream = await client.chat.completions.create(messages=messages, stream=True, **case.options)
    text = "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])
    return text, stream.report


def check_promise(case: Case, engine: FakeEngine, scripted: ScriptedServer) -> None:
    """Nothing was asked of the side that is kept out."""
    assert case.keeps_out != "server" or scripted.connections_total == 0
    assert case.keeps_out != "device" or not engine.requests


def check_sent(case: Case, engine: FakeEngine, sent: list[RecordedRequest]) -> None:
    """Whatever was sent had all that was asked for."""
    for request in sent:
        body = json.loads(request.body)
        assert {name: body.get(name) for name in case.fields} == {name: FIELDS[name] for name in case.fields}
    for made in engine.requests:
        assert not case.fields & ONLY_A_SERVER or case.fields & ONLY_A_SERVER == {"logit_bias"}, "a device can't keep to it"
        for name in case.fields - IN_BODY:
            kept = getattr(made.sampling, name)
            assert kept == {"stop": ("END",), "logit_bias": ((5, 1),)}.get(name, FIELDS[name])


def check_error(case: Case, error: StreamcoError | None) -> None:
    """A call fails only if no side that may be used works, or if a server refuses."""
    errors = error.errors.values() if isinstance(error, AllEndpointsFailed) else [error]
    if any(isinstance(each, EndpointStatusError) and each.status in {401, 404} for each in errors):
        assert case.server in {"401", "404"}
        return
    device_works = case.keeps_out != "device" and not case.device and not case.fields & ONLY_A_SERVER
    server_works = case.keeps_out != "server" and not case.server
    assert not device_works, error
    assert not server_works, error


def check_origin(case: Case, text: str, report: Report) -> None:
    """The side that was asked for has answered, or a note says why another one has; and nothing is noted without a reason."""
    assert text in {LOCAL, REMOTE}
    origin = "device" if text == LOCAL else "server"
    assert report.winner == origin
    assert origin != case.keeps_out
    asked = case.policy.partition("-")[0] if case.policy not in {"both", "auto"} else origin
    reasons = []
    if origin != asked:
        reasons.append(f"^({asked} failed|{asked} left out|endpoint left out)")
    if case.device == "no file" and case.keeps_out != "device":
        reasons.append("^endpoint left out, it could not start: device: ")
    elif case.fields & ONLY_A_SERVER and origin == "server" and case.keeps_out != "device":
        reasons.append("^device left out: ")
    for reason in reasons:
        assert any(re.search(reason, note) for note in report.notes), (reason, report.notes)
    if not reasons and not case.device and not case.server:
        assert report.notes == []


@settings(max_examples=150)
@given(CASES)
def test_an_answer_comes_from_where_it_was_asked_for_with_what_was_asked_for_or_that_is_said(case: Case) -> None:
    asyncio.run(answer(case))
