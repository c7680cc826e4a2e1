"""The client of the verifier protocol against ``streamco serve`` itself, on an engine that has a function as its model."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import ConnectVerifier, DraftRefused, VerdictReceived, VerifierConnected, VerifierFailed, VerifierLost
from streamco.core.verifier.options import LoadLimits
from streamco.endpoints.base import Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import EndpointStatusError, StreamcoError
from streamco.events import TokensReceived
from streamco.policies.acceptance import Rule, RuleKind
from streamco.server.app import ServeOptions, make_app
from streamco.server.http.listening import listening
from streamco.server.verify.options import VerifyOptions
from streamco.testing import FakeDistribution, FakeEngine, FaultProxy
from streamco.wire.verify.errors import UnauthorisedError, VocabularyError
from streamco.wire.verify.topk import quantise
from tests.endpoints.helpers import read_all
from tests.endpoints.verifiers.support import QUICK, Talk, greedy
from tests.server.verifying import PROMPT, SIZE, VOCABULARY, serving, target
from tests.support.certificates import client_context, write_certificate
from tests.support.leaks import settled

TARGET = FakeDistribution(1, SIZE)  # that of tests.server.verifying.target()
DRAFTER = FakeDistribution(1, SIZE, noise=1.0)
ANSWER = greedy(TARGET, PROMPT, 30)


@asynccontextmanager
async def verifier_at(url: str, **options: Any) -> AsyncIterator[VerifierEndpoint]:
    verifier = VerifierEndpoint(url, name="verifier", **{"timeouts": QUICK} | options)
    await verifier.start(FakeEngine(vocabulary=VOCABULARY))
    try:
        yield verifier
    finally:
        await verifier.aclose()


async def write(talk: Talk, count: int) -> list[int]:
    """An answer by greedy rounds, whatever becomes of them."""
    lost = 0
    while len(talk.answer) < count:
        drafted = greedy(DRAFTER, [*talk.prompt, *talk.answer], 4)
        talk.send(drafted)
        match await talk.emitted():
            case VerdictReceived() as verdict:
                talk.keep(verdict, drafted)
            case DraftRefused(_, retry_after):
                await asyncio.sleep(retry_after or 0.0)
            case VerifierLost():
                lost += 1
                assert lost < 50, "a connection that is always lost"
                await reconnect(talk)
            case other:
                raise AssertionError(other)
    return talk.answer[:count]


async def reconnect(talk: Talk) -> None:
    talk.session.run(ConnectVerifier(tuple(talk.answer)))
    assert await talk.emitted() == VerifierConnected(len(talk.answer))


async def test_an_answer_by_greedy_rounds_is_the_targets_own() -> None:
    async with serving() as server, verifier_at(server.url) as verifier:
        facts = await verifier.probe()
        assert facts.holds_context
        assert facts.is_exact(Rule(RuleKind.SAMPLE, 0.8))
        talk = Talk(verifier, PROMPT, reserve=200)
        await talk.connect()
        assert await write(talk, len(ANSWER)) == ANSWER
        await talk.aclose()
        await settled(lambda: not server.service.manager.figures()["sessions"])


@pytest.mark.long
async def test_many_answers_at_once_keep_apart() -> None:
    prompts = [(number, *PROMPT) for number in range(24)]
    async with serving() as server, verifier_at(server.url) as verifier:
        talks = [Talk(verifier, prompt) for prompt in prompts]
        await asyncio.gather(*(reconnect(talk) for talk in talks))

        async def whole(talk: Talk) -> list[int]:
            written = await write(talk, 12)
            await talk.aclose()  # there are fewer places than answers
            return written

        written = await asyncio.gather(*(whole(talk) for talk in talks))
        assert written == [greedy(TARGET, prompt, 12) for prompt in prompts]


async def test_the_rules_and_rows_are_understood_alike() -> None:
    row = quantise([(ANSWER[0], 0.6), (1, 0.4)], is_whole=True)
    async with serving() as server, verifier_at(server.url) as verifier:
        for rule in (Rule(RuleKind.SAMPLE, 0.8, top_k=5, seed=1), Rule(RuleKind.THRESHOLD, threshold=0.5)):
            talk = Talk(verifier, PROMPT, rule=rule, top_k=3)
            await talk.connect()
            verdict = await talk.verify(ANSWER[:1], rows=[row])
            assert [len(emitted) for emitted in verdict.rows] == [3, 3]


async def test_a_connection_that_breaks_again_and_again_loses_no_token() -> None:
    rng = Random(5)
    async with (
        serving() as server,
        FaultProxy(int(server.http.rpartition(":")[2])) as proxy,
        verifier_at(f"ws://127.0.0.1:{proxy.port}", rng=rng) as verifier,
    ):
        talks = [Talk(verifier, (number, *PROMPT)) for number in range(4)]
        await asyncio.gather(*(reconnect(talk) for talk in talks))
        writing = asyncio.gather(*(write(talk, 30) for talk in talks))
        for _ in range(12):
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            (proxy.cut if rng.random() < 0.5 else proxy.reset)()
        written = await writing
    assert written == [greedy(TARGET, talk.prompt, 30) for talk in talks]
    assert proxy.connections_total > 1


@pytest.mark.long
async def test_a_server_that_is_killed_in_mid_answer_and_started_again_goes_on_with_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    async def begin() -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "tests.endpoints.serve_fake", str(port)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        return process

    process = await begin()
    try:
        async with verifier_at(f"ws://127.0.0.1:{port}") as verifier:
            talk = Talk(verifier, PROMPT)
            await talk.connect()
            await write(talk, 10)
            held = len(talk.answer)
            talk.send(greedy(DRAFTER, [*PROMPT, *talk.answer], 4))
            process.kill()
            await process.wait()
            emitted = await talk.emitted()
            if isinstance(emitted, VerdictReceived):  # it was quicker than the signal
                talk.keep(emitted, greedy(DRAFTER, [*PROMPT, *talk.answer], 4))
                emitted = await talk.emitted()
            assert emitted == VerifierLost()
            assert talk.answer[:held] == ANSWER[:held]
            talk.session.run(ConnectVerifier(tuple(talk.answer)))
            process = await begin()
            assert await talk.emitted() == VerifierConnected(len(talk.answer))
            assert await write(talk, len(ANSWER)) == ANSWER
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("is_probed", [True, False])
async def test_the_same_server_goes_on_alone_behind_given_ids(is_probed: bool) -> None:
    async with serving(FakeEngine("one two three four five", vocabulary=VOCABULARY)) as server, verifier_at(server.url) as verifier:
        if is_probed:
            await verifier.probe()
        else:
            await Talk(verifier, PROMPT).connect()
        remote = verifier.remote
        assert isinstance(remote, OpenAIEndpoint)
        assert remote.capabilities.vocabulary == VOCABULARY.fingerprint
        request = Request(prompt_ids=VOCABULARY.encode("count from one"), sampling=SamplingOptions(temperature=0, max_tokens=5))
        answered = await read_all(remote.open(request))
        ids = [token for chunk in answered.chunks for choice in chunk.choices for token in choice.token_ids or ()]
        assert VOCABULARY.decode(ids) == answered.text == "one two three four five"


async def test_over_tls_the_same_certificates_are_trusted_for_both(tmp_path: Path) -> None:
    options = ServeOptions(host="localhost", tls_cert=str(write_certificate(tmp_path)), verify=VerifyOptions())
    engine = FakeEngine("one two three", vocabulary=VOCABULARY, successor=TARGET)
    async with listening(make_app(engine, options), options) as url, verifier_at(url, tls=client_context()) as verifier:
        talk = Talk(verifier, PROMPT)
        await talk.connect()
        assert await write(talk, 5) == ANSWER[:5]
        assert verifier.remote is not None
        request = Request(prompt_ids=VOCABULARY.encode("count from one"), sampling=SamplingOptions(temperature=0, max_tokens=5))
        stream = verifier.remote.open(request)
        emitted = await stream.receive()
        assert isinstance(emitted, TokensReceived)
        await stream.cancel()


@pytest.mark.parametrize("token", [None, "open"])
async def test_a_wrong_token_is_a_failure(token: str | None) -> None:
    async with serving(api_key="sesame") as server:
        async with verifier_at(server.url, token=token) as verifier:
            talk = Talk(verifier, PROMPT)
            talk.session.run(ConnectVerifier(()))
            failed = await talk.next(VerifierFailed)
            assert is_refusal(failed.error)
        async with verifier_at(server.url, token="sesame") as verifier:
            talk = Talk(verifier, PROMPT)
            await talk.connect()
            assert await write(talk, 5) == ANSWER[:5]


def is_refusal(error: StreamcoError) -> bool:
    return isinstance(error, UnauthorisedError) or (isinstance(error, EndpointStatusError) and error.status == 401)


async def test_another_vocabulary_is_a_failure() -> None:
    async with serving() as server:
        verifier = VerifierEndpoint(server.url, timeouts=QUICK)
        await verifier.start(FakeEngine())
        with pytest.raises(VocabularyError):
            await verifier.probe()
        await verifier.aclose()


async def test_a_context_beyond_the_servers_is_a_failure() -> None:
    async with serving(target(context_tokens=32)) as server, verifier_at(server.url) as verifier:
        talk = Talk(verifier, [3] * 40)
        talk.session.run(ConnectVerifier(()))
        emitted = await talk.emitted()
        while not isinstance(emitted, VerifierFailed):
            emitted = await talk.emitted()


async def test_sessions_beyond_what_is_borne_come_when_there_is_room() -> None:
    """Four sessions a device are allowed by this server; the fifth is opened when one is closed."""
    async with serving(verify=VerifyOptions(load=LoadLimits(sessions_per_device=2))) as server, verifier_at(server.url) as verifier:
        talks = [Talk(verifier, (number, *PROMPT)) for number in range(3)]
        for talk in talks[:2]:
            await talk.connect()
            await write(talk, 4)
        last = talks[2]
        last.session.run(ConnectVerifier(()))
        assert await last.emitted() == VerifierConnected(0)
        assert await last.emitted() == VerifierLost()
        last.session.run(ConnectVerifier(()))
        await asyncio.sleep(0.05)
        assert not last.has_emitted()
        await talks[0].aclose()
        assert await last.emitted() == VerifierConnected(0)
        assert await write(last, 8) == greedy(TARGET, last.prompt, 8)
