"""The verifier of a client: how it is found, and what an engine needs to draft for it."""

from __future__ import annotations

import pytest

from streamco.client.modes.speculation.verifier_binding import VerifierBinding, drafting_engine_options, reserve_places
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.policies.importance import LAYERS
from streamco.policies.offload import OffloadRule
from streamco.testing import FakeEngine
from tests.client.helpers import device, server
from tests.client.speculating import World
from tests.support.leaks import settled


def test_an_engine_that_drafts_has_places_and_below_budget_one_tells_attention() -> None:
    engine = drafting_engine_options(EngineOptions(threads=1), 1.0, 5)
    assert (engine.threads, engine.held_sequences, engine.attention_layers) == (1, 5, ())
    assert drafting_engine_options(EngineOptions(), 0.5).attention_layers == LAYERS


@pytest.mark.parametrize(("rule", "layers"), [("combined", LAYERS), ("importance", LAYERS), ("confidence", ()), ("random", ())])
def test_attention_is_told_only_where_a_filter_asks_for_it(rule: OffloadRule, layers: tuple[int, ...]) -> None:
    assert drafting_engine_options(EngineOptions(), 0.5, offload=rule).attention_layers == layers


@pytest.mark.parametrize(
    ("options", "budget", "expected"),
    [
        (None, 1.0, EngineOptions(held_sequences=8)),
        (EngineOptions(threads=1), 1.0, EngineOptions(threads=1, held_sequences=8)),
        (EngineOptions(threads=1), 0.5, EngineOptions(threads=1, held_sequences=8, attention_layers=LAYERS)),
        (EngineOptions(attention_layers=(3,)), 0.5, EngineOptions(held_sequences=8, attention_layers=(3,))),
        (EngineOptions(held_sequences=2), 0.5, EngineOptions(held_sequences=2)),
    ],
)
def test_a_device_gets_places_for_drafts_unless_its_owner_gave_it_some(
    options: EngineOptions | None, budget: float, expected: EngineOptions
) -> None:
    endpoint = DeviceEndpoint("small.gguf", options=options)
    reserve_places(endpoint, budget, offload="combined")
    assert endpoint._options == expected


async def test_an_engine_that_was_loaded_without_places_is_a_problem_that_names_the_cure() -> None:
    engine = FakeEngine(held_sequences=0)
    binding = VerifierBinding("ws://127.0.0.1:9", DeviceEndpoint(engine), [])
    assert await problem_of(binding) == (
        "device: expected an engine with EngineOptions(held_sequences=...) above 0, got one without places for drafts"
    )
    engine.close()


# Finding the verifier


def probing(binding: VerifierBinding) -> bool:
    return binding._probes.get().task is not None


async def problem_of(binding: VerifierBinding) -> str:
    await binding.start()
    await binding.aclose()
    return binding.problem


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


async def test_a_verifier_that_comes_up_later_is_found_by_probing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    scripted = world.scripted()
    await scripted.start()
    url = scripted.url
    await scripted.aclose()
    binding = VerifierBinding(url, DeviceEndpoint(world.engine), [])
    await binding.start()
    assert "expected" in binding.problem
    binding.probe_again()
    assert not probing(binding), "not before some time has passed"
    await scripted.start()
    monkeypatch.setattr("streamco.client.modes.speculation.verifier_binding._PROBE_AGAIN", 0.0)
    binding.probe_again()
    assert probing(binding)
    await settled(lambda: not probing(binding))
    assert not binding.problem
    assert binding.facts.model == "scripted"
    assert binding.models == frozenset({"scripted"})
    await binding.aclose()
    await scripted.aclose()
    world.close()


async def test_a_client_that_was_closed_asks_no_more() -> None:
    world = World()
    binding = VerifierBinding("ws://127.0.0.1:9", DeviceEndpoint(world.engine), [])
    with pytest.raises(AssertionError):
        _ = binding.facts
    await binding.aclose()
    binding.probe_again()
    assert not probing(binding)
    world.close()
