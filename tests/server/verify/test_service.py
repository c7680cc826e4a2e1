"""Drafts verified over real sockets: what a device says and what it is answered."""

from __future__ import annotations

import asyncio
import math
from random import Random

import aiohttp
import pytest

from streamco.core.verifier.options import LoadLimits
from streamco.policies.acceptance import Rule, RuleKind
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.service import PATH, STATS_PATH
from streamco.sim.workload.token_models import FakeDistribution
from streamco.wire.verify.frames import Opened, Refusal, VerdictFrame, VerifyLimits, Welcome
from streamco.wire.verify.topk import quantise
from tests.server.verifying import GREEDY, PROMPT, SIZE, WholeText, connected, connecting, greedy_text, serving, target, write
from tests.support.leaks import holding_nothing_new, settled

TRUTH = FakeDistribution(1, SIZE)
NOISY = FakeDistribution(1, SIZE, noise=1.0)


async def test_greedy_verdicts_give_the_targets_own_answer() -> None:
    async with serving(target(successor=TRUTH)) as server, connected(server.url) as device:
        session, opened = await device.open()
        assert (len(opened.key), opened.cached) == (16, 0)
        assert await write(device, session, PROMPT, NOISY, 60) == greedy_text(TRUTH, PROMPT, 60)


async def test_the_welcome_says_what_the_server_takes() -> None:
    options = VerifyOptions(frame_bytes=40_000, draft_tokens=8, top_k=5, resume_s=7, load=LoadLimits(sessions_per_device=3))
    async with serving(target(context_tokens=100), verify=options, model="large") as server, connecting(server.url) as device:
        welcome = await device.hear(Welcome)
    assert (welcome.version, welcome.model, welcome.rules, welcome.resume_s, welcome.is_exact) == (1, "large", 0b111, 7, True)
    assert welcome.limits == VerifyLimits(frame_bytes=40_000, context_tokens=100, draft_tokens=8, top_k=5, sessions=3, paths=8)


async def test_sessions_of_one_connection_are_judged_side_by_side() -> None:
    prompts = {number: (*PROMPT, number) for number in range(5)}
    async with serving(target(successor=TRUTH, mode="thread", token_s=0.002, prefill_s=0.0005)) as server, connected(server.url) as device:
        texts = {(await device.open(ids))[0]: list(ids) for ids in prompts.values()}
        rounds = {session: greedy_text(NOISY, text, 4) for session, text in texts.items()}
        for session, ids in rounds.items():
            device.client.draft(session, len(texts[session]), ids)
        await device.say()
        while any(len(text) < len(PROMPT) + 30 for text in texts.values()):
            verdict = await device.hear(VerdictFrame)
            session, text = verdict.session, texts[verdict.session]
            assert verdict.token is not None
            text += [*rounds[session][: verdict.accepted], verdict.token]
            rounds[session] = greedy_text(NOISY, text, 4)
            device.client.draft(session, len(text), rounds[session])
            await device.say()
    for session, text in texts.items():
        start = len(prompts[session])
        assert text[start:] == greedy_text(TRUTH, prompts[session], len(text) - start)


async def test_a_context_may_come_in_pieces_and_go_on_with_what_the_device_wrote_alone() -> None:
    own = greedy_text(TRUTH, PROMPT, 8)
    async with serving(target(successor=TRUTH)) as server, connected(server.url) as device:
        session, _ = await device.open(PROMPT[:2])
        device.client.extend(session, 2, [9, 9, 9])
        device.client.extend(session, 2, PROMPT[2:])
        verdict = await device.draft(session, 6, own[:5], given=3)
        assert (verdict.accepted, verdict.token) == (2, own[5])
        verdict = await device.draft(session, 12, [])
        assert (verdict.accepted, verdict.token) == (0, own[6])
        verdict = await device.draft(session, 8, [own[2], 63 - own[3]])  # five tokens are taken back
        assert (verdict.accepted, verdict.token) == (1, own[3])


async def test_long_contexts_are_read_in_many_batches() -> None:
    dice = Random(3)
    ids = [dice.randrange(SIZE) for _ in range(700)]
    successor = WholeText(SIZE)
    async with serving(target(successor=successor, context_tokens=1024)) as server, connected(server.url) as device:
        session, _ = await device.open(ids[:300])
        verdict = await device.draft(session, 300, [*ids[300:], 1, 2], given=400)
        assert verdict.token is not None
        assert [*[1, 2][: verdict.accepted], verdict.token] == greedy_text(successor, ids, verdict.accepted + 1)
        assert server.figures["batch_tokens"]["verify"] == 403
        assert server.figures["batch_tokens"]["prefill"] == 299


async def test_the_threshold_rule_takes_what_is_likely_enough() -> None:
    shares = dict.fromkeys(range(SIZE), 0.0) | {5: 0.5, 6: 0.3, 7: 0.2}
    async with serving(target(successor=lambda ids: shares)) as server, connected(server.url) as device:
        session, _ = await device.open(rule=Rule(RuleKind.THRESHOLD, threshold=0.5), top_k=2)
        verdict = await device.draft(session, len(PROMPT), [6, 5, 7, 5])
    assert (verdict.accepted, verdict.token) == (2, 5)
    assert [row.ids for row in verdict.rows] == [(5, 6)] * 5
    assert all(abs(row.rest - 0.2 * 65535) < 2 for row in verdict.rows)


@pytest.mark.long
async def test_sampled_answers_have_the_targets_distribution() -> None:
    shares, proposed = {1: 0.6, 2: 0.3, 3: 0.1}, {1: 0.2, 2: 0.2, 3: 0.6}
    rule, dice, counts = Rule(RuleKind.SAMPLE, temperature=1.0, seed=11), Random(5), dict.fromkeys(shares, 0)
    row = quantise(sorted(proposed.items(), key=lambda pair: -pair[1]), is_whole=True)
    async with serving(target(successor=lambda ids: shares)) as server, connected(server.url) as device:
        session, _ = await device.open(rule=rule)
        for _ in range(1500):
            drawn = dice.choices(row.ids, row.weights)[0]
            verdict = await device.draft(session, len(PROMPT), [drawn], rows=[row])
            first = drawn if verdict.accepted else verdict.token
            assert first is not None
            counts[first] += 1
    chi = sum((counts[token] - 1500 * share) ** 2 / (1500 * share) for token, share in shares.items())
    assert chi < 13.8, counts  # two degrees of freedom: one seed in a thousand would be worse


async def test_a_context_that_is_full_gets_no_token() -> None:
    own = greedy_text(TRUTH, PROMPT, 12)
    async with serving(target(successor=TRUTH, context_tokens=10)) as server, connected(server.url) as device:
        session, _ = await device.open()
        verdict = await device.draft(session, 6, own[:4])
        assert (verdict.accepted, verdict.token) == (4, None)
        verdict = await device.draft(session, 8, [63 - own[2], 1])
        assert (verdict.accepted, verdict.token) == (0, own[2])
        device.client.draft(session, 9, own[3:5])
        await device.say()
        assert (await device.hear(Refusal)).code == "context_full"


async def test_a_closed_session_frees_its_place_for_another() -> None:
    options = VerifyOptions(load=LoadLimits(idle_after=60.0))
    async with serving(target(held_sequences=1), verify=options) as server, connected(server.url) as device:
        session, _ = await device.open()
        device.client.open(PROMPT, GREEDY)
        await device.say()
        refusal = await device.hear(Refusal)
        assert refusal.code == "overloaded"
        assert refusal.retry_after_ms is not None
        device.client.close(session)
        await device.open()
        assert server.figures["sessions"] == 1
        assert server.figures["session_limit"] is None


async def test_an_idle_sessions_place_is_taken_and_its_context_read_again() -> None:
    options = VerifyOptions(load=LoadLimits(idle_after=0.0))
    async with serving(target(successor=TRUTH, held_sequences=1), verify=options) as server, connected(server.url) as device:
        sessions = [(await device.open((*PROMPT, number)))[0] for number in range(3)]
        for count in range(1, 10, 4):
            for number, session in enumerate(sessions):
                own = greedy_text(TRUTH, (*PROMPT, number), 13)
                verdict = await device.draft(session, 6 + count, own[count - 1 : count + 2])
                assert (verdict.accepted, verdict.token) == (3, own[count + 2])


async def test_a_target_that_fails_is_said_and_asked_again() -> None:
    is_broken = False
    own = greedy_text(TRUTH, PROMPT, 4)
    async with (
        serving(target(successor=lambda ids: {1: math.inf} if is_broken else TRUTH(ids))) as server,
        connected(server.url) as device,
    ):
        session, _ = await device.open()
        await device.draft(session, 6, own[:1])
        is_broken = True
        device.client.draft(session, 6, own[:2])
        await device.say()
        refusal = await device.hear(Refusal)
        assert (refusal.code, refusal.session, refusal.round_number) == ("failed", session, 1)
        is_broken = False
        verdict = await device.draft(session, 6, own[:3])
        assert (verdict.accepted, verdict.token) == (3, own[3])
        assert server.figures["failed_batches"] == 1


async def test_a_session_at_which_the_target_fails_costs_the_others_of_its_batches_nothing() -> None:
    own, gate = greedy_text(TRUTH, PROMPT, 4), asyncio.Event()
    engine = target(successor=lambda ids: {1: math.inf} if ids[0] == 63 else TRUTH(ids), mode="manual")

    async def step() -> None:
        while True:
            await gate.wait()
            engine.step()
            await asyncio.sleep(0.001)

    async with serving(engine) as server, connected(server.url) as device, connected(server.url) as other:
        gate.set()
        stepping = asyncio.create_task(step())
        session, _ = await device.open()
        await device.draft(session, 6, [])
        broken, _ = await other.open([63, 1, 2])
        told = []
        for round_number in range(3):
            if round_number:
                gate.clear()  # the failed session's prompt is read again, and meanwhile the other draft comes
            other.client.draft(broken, 3, [1])
            await other.say()
            while server.figures["batches"]["prefill"] < 2 + round_number:
                await asyncio.sleep(0.001)
            device.client.draft(session, 6, own[:3])
            await device.say()
            await settled(lambda: gate.is_set() or server.figures["waiting_rounds"])
            gate.set()
            told.append(await other.refused())
            assert (await device.hear(VerdictFrame)).accepted == 3
        stepping.cancel()
        assert told == [("failed", broken, 0), ("failed", broken, 1), ("failed", broken, None)]
        assert server.figures["sessions"] == 1


async def test_a_target_that_is_gone_ends_the_session() -> None:
    engine = target()
    async with serving(engine) as server, connected(server.url) as device:
        session, _ = await device.open()
        engine.close()
        told = []
        for _ in range(3):
            device.client.draft(session, 6, [1])
            await device.say()
            told.append(await device.refused())
        assert told == [("failed", session, 0), ("failed", session, 1), ("failed", session, None)]
        assert server.figures["sessions"] == 0


async def test_a_shutdown_is_said_to_every_device() -> None:
    engine = target(mode="manual")
    async with holding_nothing_new(), serving(engine) as server, connected(server.url) as busy, connecting(server.url) as fresh:
        await busy.open()
        busy.client.draft(0, 6, [1])
        await busy.say()
        await fresh.hear(Welcome)
        await server.runner.shutdown()
        for device in (busy, fresh):
            assert (await device.hear(Refusal)).code == "shutting_down"
            await device.socket.wait_closed()
            assert device.socket.close_code == 1001


async def test_a_device_that_leaves_in_mid_round_leaves_nothing_behind() -> None:
    engine = target(mode="thread", token_s=0.01, prefill_s=0.01)
    async with holding_nothing_new():
        async with serving(engine, verify=VerifyOptions(resume_s=0)) as server:
            for _ in range(3):
                async with connected(server.url) as device:
                    await device.open()
                    device.client.draft(0, 6, [1, 2, 3])
                    await device.say()
                    device.socket.transport.abort()
            await settled(lambda: not server.figures["sessions"] and not server.figures["cached_tokens"])
            assert server.figures["connections"] == server.service.peers.connections == 0
        engine.close()


async def test_what_it_did_is_counted() -> None:
    async with serving(target(successor=TRUTH)) as server, connected(server.url) as device, aiohttp.ClientSession() as client:
        session, _ = await device.open()
        await write(device, session, PROMPT, TRUTH, 10)
        async with client.get(f"{server.http}{STATS_PATH}") as response:
            figures = await response.json()
    assert (figures["connections"], figures["sessions"], figures["opened"], figures["verdicts"]) == (1, 1, 1, 2)
    assert (figures["accepted_tokens"], figures["late_verdicts"], figures["batches"]["verify"]) == (8, 0, 2)


async def test_an_engine_that_holds_nothing_does_not_verify() -> None:
    from streamco.server.app import ServeOptions, make_app

    paths = {route.resource.canonical for route in make_app(target(), ServeOptions(verify=None)).router.routes() if route.resource}
    assert PATH not in paths
    assert "/v1/models" in paths


@pytest.mark.long
@pytest.mark.parametrize(("policy", "devices"), [("alternating", 64), ("strict", 24)])
async def test_no_text_of_many_devices_is_ever_mixed_with_anothers(policy: str, devices: int) -> None:
    """What follows depends on every token of the text, so a foreign one anywhere would change all that comes."""
    successor = WholeText(SIZE)
    engine = target(successor=successor, mode="thread", held_sequences=20, context_tokens=128)
    options = VerifyOptions(policy=policy, load=LoadLimits(idle_after=0.01))  # type: ignore[arg-type]

    async def ask(number: int) -> None:
        dice, draft = Random(number), FakeDistribution(number, SIZE)
        ids = [dice.randrange(SIZE) for _ in range(dice.randrange(1, 60))]
        async with connected(server.url) as device:
            await asyncio.sleep(0.3 * dice.random())
            session, _ = await device.open_patiently(ids)
            text = list(ids)
            while len(text) < len(ids) + 24:
                length = dice.randrange(6)
                drafted = greedy_text(successor, text, length)
                if length and dice.random() < 0.5:
                    drafted[dice.randrange(length)] = greedy_text(draft, text, 1)[0]
                given = dice.randrange(len(drafted) + 1) if dice.random() < 0.3 else 0
                verdict = await device.draft(session, len(text), drafted, given=given)
                text += [*drafted[: given + verdict.accepted]]
                assert verdict.token is not None
                assert verdict.token == greedy_text(successor, text, 1)[0], f"device {number}"
                text.append(verdict.token)

    async with serving(engine, verify=options) as server:
        await asyncio.gather(*map(ask, range(devices)))
        assert server.figures["failed_batches"] == 0
    engine.close()


async def test_opened_is_said_before_the_context_is_read() -> None:
    engine = target(mode="manual")
    async with serving(engine) as server, connected(server.url) as device:
        session, _ = await device.open()
        device.client.draft(session, 6, [1])
        await device.say()
        while not any(isinstance(frame, VerdictFrame) for frame in device.heard):
            engine.step()
            try:
                device.heard.append(await asyncio.wait_for(device.hear(VerdictFrame), 0.05))
            except TimeoutError:
                continue
        assert not any(isinstance(frame, Opened) for frame in device.heard)


async def test_a_welcome_has_the_engines_row_costs() -> None:
    engine = target(successor=TRUTH, mode="thread", step_time=lambda rows, tokens: 0.001 * (rows + tokens))
    async with serving(engine) as server, connected(server.url) as device:
        assert device.client.welcome is not None
        assert [cost.microseconds for cost in device.client.welcome.row_costs[:3]] == [1000, 2000, 3000]
    async with serving(target(successor=TRUTH)) as server, connected(server.url) as device:
        assert device.client.welcome is not None
        assert device.client.welcome.row_costs == ()
