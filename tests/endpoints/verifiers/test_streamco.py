"""A verifier that speaks streamco's protocol: its URL, its start, its connection and its end."""

from __future__ import annotations

import asyncio

import pytest

from streamco.config import Timeouts
from streamco.core.speculation.events import (
    ConnectVerifier,
    VerifierConnected,
    VerifierLost,
)
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import (
    ConfigError,
    StreamClosed,
    UsageError,
)
from streamco.policies.acceptance import Rule, RuleKind
from streamco.testing import ScriptedVerifier
from streamco.wire.verify.errors import (
    VocabularyError,
)
from streamco.wire.verify.frames import VerifyLimits
from tests.endpoints.verifiers.support import (
    ANSWER,
    PROMPT,
    QUICK,
    SIZE,
    TARGET,
    Talk,
    an_engine,
    greedy,
    scripted,
    verifier_at,
)
from tests.support.leaks import settled


@pytest.mark.long
async def test_all_answers_share_one_connection(server: ScriptedVerifier) -> None:
    prompts = [(number, number + 1) for number in range(20)]
    async with verifier_at(server.url) as verifier:
        talks = [Talk(verifier, prompt) for prompt in prompts]
        await asyncio.gather(*(talk.connect() for talk in talks))
        written = await asyncio.gather(*(talk.write(10) for talk in talks))
        assert written == [greedy(TARGET, prompt, 10) for prompt in prompts]
        for talk in talks:
            await talk.aclose()
        again = Talk(verifier)
        await again.connect()
        await again.write(4)
        await settled(lambda: len(server.contexts) == 1)
        assert server.connections_total == 1


async def test_answers_are_planned_within_the_limits_of_both_sides() -> None:
    ours, theirs = VerifyLimits(draft_tokens=5, paths=3), VerifyLimits(top_k=9, paths=8)
    async with scripted(limits=theirs) as server, verifier_at(server.url, limits=ours) as verifier:
        facts = await verifier.probe()
        assert (facts.draft_tokens, facts.top_k, facts.max_paths) == (5, 9, 3)
        assert verifier.facts == facts


async def test_its_stream_has_the_same_time_limits_except_the_one_for_pings(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url, timeouts=Timeouts(first_token=9.0, next_token=4.0, socket=3.0)) as verifier:
        assert isinstance(verifier.remote, OpenAIEndpoint)
        assert verifier.remote.timeouts == Timeouts(first_token=9.0, next_token=4.0)


async def test_the_round_trip_is_measured_and_the_welcome_read(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        assert (verifier.facts, verifier.rtt) == (None, None)
        facts = await verifier.probe()
        assert verifier.facts == facts
        assert (facts.model, facts.rules, facts.draft_tokens, facts.top_k) == ("scripted", frozenset(RuleKind), 31, 64)
        assert facts.holds_context
        assert facts.is_exact(Rule())
        assert facts.is_exact(Rule(RuleKind.SAMPLE, 1.0))
        assert not facts.is_exact(Rule(RuleKind.THRESHOLD, threshold=0.3))
        await settled(lambda: verifier.rtt is not None)
        assert verifier.rtt is not None
        assert verifier.rtt > 0


async def test_a_server_that_was_killed_and_started_again_goes_on() -> None:
    async with scripted() as server, verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:3])
        server.lose_sessions()
        await server.aclose()
        await talk.next(VerifierLost)
        talk.session.run(ConnectVerifier(tuple(talk.answer)))
        await asyncio.sleep(0.3)  # some tries meet a closed port
        assert not talk.has_emitted()
        await server.start()
        await talk.next(VerifierConnected)
        assert await talk.write(len(ANSWER)) == ANSWER


async def test_another_vocabulary_is_refused(server: ScriptedVerifier) -> None:
    verifier = VerifierEndpoint(server.url, timeouts=QUICK)
    await verifier.start(an_engine(SIZE + 1))
    with pytest.raises(VocabularyError, match=str(SIZE)):
        await verifier.probe()
    await verifier.aclose()


async def test_closing_ends_everything_at_once(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk, waiting = Talk(verifier), Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        waiting.session.run(ConnectVerifier(()))
        await verifier.aclose()
        await verifier.aclose()
        assert not server.contexts or not talk.events[1:]
        with pytest.raises(UsageError):
            verifier.open(PROMPT, lambda event: None, rule=Rule())
        with pytest.raises(StreamClosed):
            await verifier.start(an_engine())


def test_the_system_s_certificates_are_no_reason_for_a_session_of_its_own_in_any_loop() -> None:
    verifier = VerifierEndpoint("wss://localhost:1")

    async def has_session() -> bool:
        await verifier.start(an_engine())
        return verifier._connections.get().http is not None

    assert [asyncio.run(has_session()) for _ in range(3)] == [False] * 3
    asyncio.run(verifier.aclose())


async def test_it_must_be_started_first_and_for_one_vocabulary(server: ScriptedVerifier) -> None:
    verifier = VerifierEndpoint(server.url)
    with pytest.raises(UsageError, match="started"):
        verifier.open(PROMPT, lambda event: None, rule=Rule())
    with pytest.raises(UsageError, match="started"):
        await verifier.probe()
    await verifier.start(an_engine())
    with pytest.raises(UsageError, match="vocabulary"):
        await verifier.start(an_engine(SIZE + 1))
    await verifier.aclose()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("ws://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/verify"),
        ("http://localhost:8000/v1/", "ws://localhost:8000/v1/verify"),
        ("https://host/proxy", "wss://host/proxy/v1/verify"),
        ("wss://host/v1/verify", "wss://host/v1/verify"),
    ],
)
def test_the_path_is_added_where_there_is_none(url: str, wanted: str) -> None:
    assert wanted in repr(VerifierEndpoint(url))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:80",
        "ftp://host",
        "ws://",
        "wss://user:secret@host",
        "wss://host:99999",
        "wss://[::1:8000",
        "https://user:se://secret@host:0",
        "ws://example.com",
    ],
)
def test_a_url_that_is_none_is_refused_without_telling_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        VerifierEndpoint(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ws://10.0.0.3:8000", "ws://127.0.0.1.example.com", "http://127.example.com", "ws://api.localhost"])
def test_plain_text_beyond_this_machine_has_to_be_meant(url: str) -> None:
    with pytest.raises(ConfigError, match="is_plain"):
        VerifierEndpoint(url, token="secret")


def test_plain_text_that_is_meant_is_allowed() -> None:
    assert "10.0.0.3" in VerifierEndpoint("ws://10.0.0.3:8000", is_plain=True).name


@pytest.mark.parametrize("token", ["", " a", "a\n", "é", "x" * 4097])
def test_a_token_that_is_none_is_refused_without_telling_it(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        VerifierEndpoint("ws://127.0.0.1:1", token=token)
