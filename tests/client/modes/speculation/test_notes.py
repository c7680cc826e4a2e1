"""What a speculated answer is without is in its notes and in the log, and nothing else is."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.client.stream import Retracted
from streamco.core.report import Report
from streamco.core.speculation.prior import EstimatesPrior
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import EngineError, VerifierError
from streamco.policies.offload import OffloadRule
from streamco.testing import ScriptedVerifier
from tests.client.helpers import recorded_log, tokens_text
from tests.client.speculating import ALWAYS, HASTY, PROMPT, QUICK, SIZE, World
from tests.support.leaks import holding_nothing_new
from tests.support.logprob_servers import ScriptedVLLM


@dataclass(frozen=True)
class Drafting:
    """A client that speculates, its request and what is wrong."""

    fault: str  # what is wrong with the verifier or the device
    form: str
    budget: float | None
    emit: str
    pace: float | None
    on_degraded: str
    field: str | None


DRAFTING = st.builds(
    Drafting,
    fault=st.sampled_from(["", "", "no places", "vocabulary", "401", "gone", "dies", "device fails", "kept out"]),
    form=st.sampled_from(["tokens", "chunks", "whole"]),
    budget=st.sampled_from([None, 1.0, 0.5]),
    emit=st.sampled_from(["verified", "draft"]),
    pace=st.sampled_from([None, None, 1000.0]),
    on_degraded=st.sampled_from(["warn", "warn", "ignore"]),
    field=st.sampled_from([None, None, "penalty", "neutral", "model"]),
)


async def speculate(case: Drafting, records: list[logging.LogRecord]) -> None:
    world = World(**({"held_sequences": 0} if case.fault == "no places" else {}))
    vocabulary = "300:another" if case.fault == "vocabulary" else world.vocabulary.fingerprint
    status = 401 if case.fault == "401" else None
    async with ScriptedVerifier(world.target, vocabulary=vocabulary, vocabulary_size=SIZE, status=status) as verifier:
        options: dict[str, Any] = {"budget": 0.0 if case.fault == "kept out" else case.budget, "pace": case.pace, "emit": case.emit}
        asked = VerifierEndpoint("ws://127.0.0.1:9", timeouts=QUICK) if case.fault == "gone" else verifier
        async with world.speculating(asked, speculation=HASTY, on_degraded=case.on_degraded, **options) as client:
            try:
                text, report = await read_drafted(client, case, world, verifier)
            except EngineError:
                assert case.fault == "device fails", "nothing but the device could answer in a race"
                world.close()
                return
    check_drafted(case, text, report, rounds=len(verifier.drafts), own=world.text(most=40))
    warned = [record.getMessage() for record in records if record.levelno == logging.WARNING]
    assert bool(warned) == (bool(report.notes) and case.on_degraded != "ignore"), (warned, report.notes)
    world.close()


async def read_drafted(client: Client, case: Drafting, world: World, verifier: ScriptedVerifier) -> tuple[str, Report]:
    """Read an answer; after its first tokens, the fault comes."""
    fields: dict[str, dict[str, Any]] = {"penalty": {"frequency_penalty": 1.0}, "neutral": {"user": "me"}, "model": {"model": "another"}}
    asked = fields.get(case.field or "", {})
    options: dict[str, Any] = {**asked, "temperature": 0, "max_tokens": 40}
    messages = [{"role": "user", "content": PROMPT}]
    if case.form == "whole":
        if case.fault == "device fails":
            world.engine.close()
        answer = await client.chat.completions.create(messages=messages, **options)
        assert answer.report is not None
        return answer.choices[0].message.content or "", answer.report
    stream: Any = (
        client.stream(messages, **options)
        if case.form == "tokens"
        else await client.chat.completions.create(messages=messages, stream=True, **options)
    )
    text, seen = "", 0
    async for each in stream:
        if isinstance(each, Retracted):
            text = text[: len(text) - each.characters]
        elif case.form == "chunks":
            text += "".join(choice.delta.content or "" for choice in each.choices)
        else:
            text += each.text
        seen += 1
        if seen == 4 and case.fault == "dies":
            await verifier.aclose()
        if seen == 4 and case.fault == "device fails":
            world.engine.close()
    return text, stream.report


def check_drafted(case: Drafting, text: str, report: Report, *, rounds: int, own: str) -> None:
    """The mode and the text that were asked for, or a note; and no note without a reason."""
    is_lossless = case.budget != 0.5 and case.fault != "kept out"
    reasons: list[str] = []
    if rounds == 0 and is_lossless:
        reasons.append("^(not speculated|nothing was drafted)|wrote .* alone")
    if is_lossless and text != own:
        reasons.append("^not speculated|wrote .* alone|failed|lost")
    was_late = case.fault in {"dies", "device fails"} and rounds > 0 and (text == own or not is_lossless)
    is_lost = case.fault == "dies" and report.speculation is not None and report.speculation.losses > 0
    if case.fault and (is_lost or not was_late):
        reasons.append("^not speculated|failed|lost|alone")
    if case.field in {"penalty", "model"} or report.mode != "speculate":
        reasons.append("^not speculated: ")
    if case.emit == "draft" and report.mode == "speculate" and (case.form != "tokens" or case.pace is not None):
        reasons.append('^emit="draft" has no effect')
    if case.form == "whole" and case.pace is not None:
        reasons.append("^the client's pace has no effect")
    for reason in reasons:
        assert any(re.search(reason, note) for note in report.notes), (reason, report.notes)
    if not reasons and case.fault not in {"dies", "device fails"}:
        assert report.notes == []


@pytest.mark.long
@settings(max_examples=25)
@given(DRAFTING)
def test_whatever_a_speculated_answer_is_without_is_in_the_notes_and_in_the_log(case: Drafting) -> None:
    with recorded_log() as records:
        asyncio.run(speculate(case, records))


# One by one


async def test_a_first_answer_that_is_streamed_says_why_nothing_was_drafted(world: World) -> None:
    world.wake()
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode="speculate", seed=1) as client:
            stream = client.stream(PROMPT, temperature=0, max_tokens=4)
            assert await tokens_text(stream) == world.text(most=4)
            (note,) = stream.report.notes
            assert stream.report.dispatch.reason == "server generates alone: its speed was measured"
    assert note.startswith("nothing was drafted, because server alone is timed first, and the answer ended before")


async def test_drafting_that_would_be_slower_is_said(world: World) -> None:
    world.wake()
    slow = SpeculationTuning(prior=EstimatesPrior(remote_step=0.001, wait=0.5, step_times=(0.05,)))
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        options = Speculate(tuning=slow)
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode=options) as client:
            stream = client.stream(PROMPT, temperature=0, max_tokens=4)
            assert await tokens_text(stream) == world.text(most=4)
            assert stream.report.speculation is not None
            assert stream.report.speculation.rounds == 0
            assert stream.report.notes == [
                "nothing was drafted, because server alone is as fast (Speculate(is_adaptive=False) drafts always)"
            ]
            assert stream.report.dispatch.reason == "server generates alone: drafting is slower"


async def test_a_device_that_reads_the_prompt_until_the_answer_has_ended_is_said() -> None:
    world = World(step_time=lambda rows, tokens: 60.0)
    world.wake()
    tuning = SpeculationTuning(prior=EstimatesPrior(remote_step=0.3, wait=0.1, step_times=(0.02,)))
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        options = Speculate(tuning=tuning)
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode=options) as client:
            stream = client.stream(PROMPT, temperature=0, max_tokens=4)
            assert await tokens_text(stream) == world.text(most=4)
            assert stream.report.speculation is not None
            assert stream.report.speculation.rounds == 1
            assert stream.report.notes == ["nothing was drafted, because the device was still reading the prompt"]
            assert stream.report.dispatch.reason == "server generates alone: the device reads the prompt"
    world.close()


async def test_a_device_that_fails_in_a_speculated_answer_is_named(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        text = ""
        async for token in stream:
            text += token.text
            if len(text) > 30:
                world.engine.close()
        assert text == world.text()
        name = urlsplit(verifier.url).netloc
        assert stream.report.notes[0] == f"device failed (EngineError): {name} went on alone"
        assert "device" in [each.endpoint for each in client.degraded]


async def test_a_verifier_that_works_again_is_degraded_no_longer(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        degradations = client._settings.degradations
        name = urlsplit(verifier.url).netloc
        degradations.record_failure([], VerifierError("gone"), endpoint=name, instead="the answer went on without it")
        assert [each.endpoint for each in client.degraded] == [name]
        await tokens_text(client.stream(PROMPT, temperature=0))
        assert client.degraded == ()


async def test_a_verifier_that_is_lost_below_budget_1_is_said(world: World) -> None:
    world.target.length = world.drafter.length = 400
    async with world.scripted() as verifier, world.speculating(verifier, budget=0.5) as client:
        name = urlsplit(verifier.url).netloc
        stream = client.stream(PROMPT, temperature=0, max_tokens=200)
        async for _token in stream:
            if verifier.drafts and verifier.connections_open:
                await verifier.aclose()
        assert stream.report.notes == [f"{name} was lost; the answer went on without it"]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(("offload", "is_noted"), [("combined", True), ("importance", True), ("confidence", False), ("random", False)])
async def test_a_filter_that_misses_attention_is_said(world: World, offload: OffloadRule, is_noted: bool) -> None:
    world.engine.reads_attention = False  # type: ignore[attr-defined]
    options = Speculate(is_adaptive=False, offload=offload)
    async with world.scripted() as verifier, world.speculating(verifier, speculation=options, budget=0.5) as client:
        stream = client.stream(PROMPT, temperature=0, max_tokens=8)
        await tokens_text(stream)
        assert any(note.startswith(f'offload="{offload}" goes by confidence alone') for note in stream.report.notes) == is_noted
        everything = client.with_options(budget=1.0).stream(PROMPT, temperature=0, max_tokens=8)
        await tokens_text(everything)
        assert everything.report.notes == []


async def test_a_sampled_answer_of_a_verifier_that_tells_a_part_of_its_distribution_is_said_not_to_be_exact(world: World) -> None:
    world.wake()
    async with ScriptedVLLM(world.target, world.engine.tokenize) as scripted:
        server = OpenAIEndpoint(scripted.model, base_url=scripted.url, name="stock")
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode=ALWAYS) as client:
            sampled = client.stream(PROMPT, temperature=1.0, top_k=0, max_tokens=12)
            await tokens_text(sampled)
            assert sampled.report.notes == ["the answer is not exactly stock's own, because it tells only a part of what it draws from"]
            greedy = client.stream(PROMPT, temperature=0, max_tokens=12)
            await tokens_text(greedy)
            assert greedy.report.notes == []
