"""What can be drafted and verified, by which rule, and who does it."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.arguments import build_request
from streamco.client.client import Client
from streamco.client.request_facts import describe_request
from streamco.client.speculation.eligibility import acceptance_rule, resolve_sampling, why_not_speculable
from streamco.client.speculation.options import SpeculationOptions
from streamco.client.speculation.verifier_binding import VerifierBinding, drafting_engine_options
from streamco.config import SamplingOptions
from streamco.core.speculation.estimates import EstimatesPrior
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers import logprob as stock
from streamco.endpoints.verifiers import streamco as verifier
from streamco.endpoints.verifiers.base import VerifierFacts
from streamco.engines.base import EngineOptions
from streamco.errors import ConfigError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.importance import LAYERS
from streamco.policies.offload import OffloadRule
from streamco.policies.window import Static
from streamco.testing import FakeEngine
from tests.client.helpers import device, server
from tests.client.speculating import World
from tests.support.leaks import settled

FACTS = VerifierFacts(model="large", rules=frozenset(RuleKind), draft_tokens=31, top_k=20, context_tokens=1000)
OPTIONS = SpeculationOptions(threshold=0.4)


def why_not(prompt: Any = "Why?", *, facts: VerifierFacts = FACTS, rule: Rule | None = None, **options: Any) -> str:
    request = build_request(prompt, **options)
    return why_not_speculable(
        request, describe_request(request, None, []), rule or Rule(), facts, context=800, models=frozenset({"large", "alias"})
    )


@pytest.mark.parametrize(
    ("options", "budget", "rule"),
    [
        ({"temperature": 0}, 1.0, Rule(RuleKind.GREEDY)),
        ({"temperature": 0.7, "top_k": 1}, 1.0, Rule(RuleKind.GREEDY)),
        ({"temperature": 0}, 0.3, Rule(RuleKind.THRESHOLD, threshold=0.4)),
        ({}, 1.0, Rule(RuleKind.SAMPLE, 0.8, 40, 0.95, 0.05)),
        ({}, 0.3, Rule(RuleKind.SAMPLE, 0.8, 40, 0.95, 0.05)),
        (
            {"temperature": 0.5, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "seed": -1},
            1.0,
            Rule(RuleKind.SAMPLE, 0.5, 0, 1.0, 0.0, seed=(1 << 32) - 1),
        ),
    ],
)
def test_the_rule_follows_from_sampling_and_budget(options: dict[str, Any], budget: float, rule: Rule) -> None:
    assert acceptance_rule(resolve_sampling(SamplingOptions(**options)), budget, OPTIONS) == rule


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, ""),
        ({"user": "me", "stream_options": {"include_usage": True}, "n": 1, "logprobs": False, "frequency_penalty": 0}, ""),
        ({"response_format": {"type": "text"}, "model": "alias", "stop": ["x"], "max_tokens": 700}, ""),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "a JSON schema"),
        ({"n": 2}, "2 choices"),
        ({"logit_bias": {"5": 1}}, "logit_bias can't be kept to"),
        ({"presence_penalty": 0.1}, "presence_penalty can't be kept to"),
        ({"top_logprobs": 2}, "top_logprobs can't be kept to"),
        ({"ignore_eos": True}, "ignore_eos can't be kept to"),
        ({"model": "other"}, "model other is another one than the verifier's"),
        ({"max_tokens": 900}, "tokens, room for 800"),
    ],
)
def test_what_drafts_cant_keep_to_is_told(options: dict[str, Any], reason: str) -> None:
    found = why_not(**options)
    assert found.endswith(reason)
    assert bool(found) == bool(reason)


def test_images_another_rule_and_a_smaller_context_there_are_told() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    assert why_not(image) == "images"
    greedy = VerifierFacts(model="large", rules=frozenset({RuleKind.GREEDY}), draft_tokens=31, top_k=0, context_tokens=100)
    assert why_not(facts=greedy, rule=Rule(RuleKind.SAMPLE, 0.8)) == "the verifier doesn't judge by sample"
    assert why_not(facts=greedy, max_tokens=99).endswith("room for 100")


def test_windows_are_named() -> None:
    assert SpeculationOptions().pair(1.0).window == 4
    assert SpeculationOptions(window=7).pair(1.0).propose_window() == 7
    assert SpeculationOptions(window="dynamic").pair(1.0).window == 4
    assert 2 <= SpeculationOptions(window="predicted").pair(1.0).propose_window() <= 12
    assert 2 <= SpeculationOptions(window="adaptive").pair(1.0).propose_window() <= 12
    assert SpeculationOptions(window=Static(3)).pair(1.0).window == 3


def windows_after(options: SpeculationOptions, proposals: list[float]) -> list[int]:
    pair = options.pair(1.0)
    return [pair._window._stabiliser.settle(proposal) for proposal in proposals]


def test_what_a_network_proposes_is_smoothed_and_always_leaves_a_draft() -> None:
    assert windows_after(SpeculationOptions(window="adaptive"), [10.0, 0.0, 0.0, 0.0, 0.0, 0.0]) == [10, 7, 5, 4, 3, 3]
    assert windows_after(SpeculationOptions(window="adaptive", smoothing=1.0), [10.0, 0.0]) == [10, 2]
    assert windows_after(SpeculationOptions(window="dynamic"), [10.0, 0.0]) == [10, 1], "whole proposals go through"
    assert windows_after(SpeculationOptions(window="dynamic", smoothing=0.4), [10.0, 0.0]) == [10, 6]


@pytest.mark.parametrize(
    "options",
    [
        {"window": "large"},
        {"window": True},
        {"threshold": 2},
        {"row_tokens": 0},
        {"max_branches": -1},
        {"link_patience": 0.0},
        {"prompt_patience": 0.0},
        {"verdict_patience": -1.0},
        {"budget": 1.5},
        {"smoothing": -1},
    ],
)
def test_settings_that_cant_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="speculation"):
        SpeculationOptions(**options)


def test_nobody_gives_up_before_the_verifier_itself_would() -> None:
    options = SpeculationOptions()
    for limits in (verifier._TIMEOUTS, stock._TIMEOUTS):
        assert limits.first_token is not None
        assert limits.next_token is not None
        assert options.prompt_patience >= limits.first_token
        assert options.verdict_patience >= limits.next_token


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, 'mode: expected "race"'),
        ({"emit": "all"}, 'emit: expected "verified"'),
        ({"verifier": 5}, "verifier: expected the URL"),
        ({"verifier": "ftp://host"}, "expected"),
        ({"speculation": {}}, "speculation: expected SpeculationOptions"),
    ],
)
def test_a_client_refuses_settings_that_cant_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Client(device(), server(), **options)


def test_a_pair_begins_with_what_another_one_knows() -> None:
    options = SpeculationOptions(prior=EstimatesPrior(acceptance=0.9, wait=0.3))
    pair = options.pair(1.0)
    assert pair.acceptance == pytest.approx(0.9)
    assert pair.wait == 0.3
    pair.record_wait(0.7, queue_depth=0.0, server_seconds=0.1)
    assert options.pair(0.5, pair).wait == pytest.approx(0.7)
    assert not options.pair(0.5, pair).is_lossless


def test_an_engine_that_drafts_has_places_and_below_budget_one_tells_attention() -> None:
    engine = drafting_engine_options(EngineOptions(threads=1), 1.0, 5)
    assert (engine.threads, engine.held_sequences, engine.attention_layers) == (1, 5, ())
    assert drafting_engine_options(EngineOptions(), 0.5).attention_layers == LAYERS


@pytest.mark.parametrize(("rule", "layers"), [("combined", LAYERS), ("importance", LAYERS), ("confidence", ()), ("random", ())])
def test_attention_is_told_only_where_a_filter_asks_for_it(rule: OffloadRule, layers: tuple[int, ...]) -> None:
    assert drafting_engine_options(EngineOptions(), 0.5, offload=rule).attention_layers == layers


# Finding the verifier


def asking(pairing: VerifierBinding) -> bool:
    return pairing._asking is not None


async def problem_of(pairing: VerifierBinding) -> str:
    await pairing.start()
    await pairing.aclose()
    return pairing.problem


async def test_without_a_device_that_drafts_or_a_server_that_verifies_nothing_is_speculated() -> None:
    engine = FakeEngine()
    drafts = DeviceEndpoint(engine)
    assert await problem_of(VerifierBinding(None, None, [server()])) == "no device"
    assert await problem_of(VerifierBinding(None, device(), [server()])) == "device can't draft"
    assert await problem_of(VerifierBinding(None, drafts, [])) == "no verifier"
    assert await problem_of(VerifierBinding(None, drafts, [server()])) == "server can't verify"
    unreachable = OpenAIEndpoint("m", base_url="http://127.0.0.1:9/v1")
    assert "127.0.0.1:9" in await problem_of(VerifierBinding(None, drafts, [unreachable]))
    await unreachable.aclose()
    engine.close()


async def test_a_verifier_that_comes_up_later_is_found_by_asking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    scripted = world.scripted()
    await scripted.start()
    url = scripted.url
    await scripted.aclose()
    pairing = VerifierBinding(url, DeviceEndpoint(world.engine), [])
    await pairing.start()
    assert "expected" in pairing.problem
    pairing.look_again()
    assert not asking(pairing), "not before some time has passed"
    await scripted.start()
    monkeypatch.setattr("streamco.client.speculation.verifier_binding._ASK_AGAIN", 0.0)
    pairing.look_again()
    assert asking(pairing)
    await settled(lambda: not asking(pairing))
    assert not pairing.problem
    assert pairing.facts.model == "scripted"
    assert pairing.models == frozenset({"scripted"})
    await pairing.aclose()
    await scripted.aclose()
    world.close()


async def test_a_client_that_was_closed_asks_no_more() -> None:
    world = World()
    pairing = VerifierBinding("ws://127.0.0.1:9", DeviceEndpoint(world.engine), [])
    with pytest.raises(AssertionError):
        _ = pairing.facts
    await pairing.aclose()
    pairing.look_again()
    assert not asking(pairing)
    world.close()
