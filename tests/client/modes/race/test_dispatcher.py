"""Plans for requests, and what is learned from races: called directly, races made by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamco.client.arguments import build_request
from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.core.race.answer_lengths import TYPICAL
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.learner import PolicyName
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Capabilities, Endpoint, Request, TokenPrices
from streamco.errors import ConfigError, EndpointConnectError, EndpointError, EngineError
from streamco.events import StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.openai_types import CompletionUsage, PromptTokensDetails
from streamco.profiles import Profile
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk
from tests.client.helpers import ShapedDevice, device, server

REQUEST = build_request("How do tides work?")


def make(budget: float = 0.3, policy: PolicyName = "auto", seed: int = 1, **options: Any) -> Dispatcher:
    return Dispatcher(DispatchOptions(policy=policy, **options), budget=budget, seed=seed)


def decide(
    dispatcher: Dispatcher,
    *,
    local: Endpoint | None = None,
    remote: Endpoint | list[Endpoint] | None = None,
    request: Request = REQUEST,
    unavailable: dict[str, EndpointError] | None = None,
) -> DispatchRecord:
    servers = remote if isinstance(remote, list) else [remote] if remote is not None else []
    return dispatcher.decide(request, local, servers, unavailable or {})


def play(
    dispatcher: Dispatcher,
    dispatched: DispatchRecord,
    *,
    server_at: float | None,
    device_at: float | None,
    usage: CompletionUsage | None = None,
) -> RaceMachine:
    """A race; each side has its first token after these seconds; None: never (cancelled at the end)."""
    machine = RaceMachine(RacePlan(attempts=dispatched.attempts, explore=dispatched.explore))
    machine.start(now=0.0)
    due = {"server": server_at, "device": device_at}
    now = 0.0
    for _ in range(20):
        for command in machine.take_commands():
            if type(command).__name__ == "CancelStream":
                machine.receive(StreamCancelled(command.source), now=now)  # type: ignore[union-attr]
        if machine.is_over:
            break
        coming = [
            (attempt.opened + at, attempt.source)
            for attempt in machine.attempts.values()
            if attempt.is_live and attempt.opened is not None and (at := due[attempt.source]) is not None
        ]
        deadline = machine.next_deadline()
        if coming and (deadline is None or min(coming)[0] <= deadline):
            now, source = min(coming)
            machine.receive(TokensReceived(source, [text_chunk("x")], 1), now=now)
            machine.receive(StreamEnded(source, "stop", usage), now=now + 0.1)
        elif deadline is not None:
            now = deadline
            machine.handle_deadline(now=now)
    dispatcher.record(dispatched, machine)
    return machine


# Deciding


def test_while_nothing_is_known_both_start_at_once() -> None:
    dispatched = decide(make(budget=1.0), local=device(), remote=server())
    assert dispatched.attempts == (AttemptPlan("server", 0.0), AttemptPlan("device", 0.0))
    report = dispatched.report()
    assert (report.policy, report.device_wait, report.server_wait) == ("both", 0.0, 0.0)
    assert report.prompt_tokens == 10
    assert report.budget == 1.0
    assert report.budget_share is None


def test_a_side_alone_is_always_started() -> None:
    assert decide(make(budget=0.01), remote=server()).attempts == (AttemptPlan("server", 0.0),)
    assert decide(make(budget=0.0), local=device()).attempts == (AttemptPlan("device", 0.0),)


def test_further_servers_stand_in_behind_both_sides() -> None:
    servers: list[Endpoint] = [server(name=name) for name in ("a", "b", "c")]
    dispatched = decide(make(budget=1.0), local=device(), remote=servers)
    assert dispatched.attempts == (AttemptPlan("a", 0.0), AttemptPlan("device", 0.0), AttemptPlan("b", None), AttemptPlan("c", None))


@pytest.mark.parametrize("side", ["device", "server"])
def test_the_budget_is_a_cap_from_the_first_answer_on(side: str) -> None:
    dispatcher = make(budget=0.3, policy="both", constrained=side)
    shares: list[float] = []
    for _ in range(11):
        dispatched = decide(dispatcher, local=device(), remote=server())
        share = dispatched.report().budget_share
        shares += [] if share is None else [share]
        play(dispatcher, dispatched, server_at=1.0, device_at=1.1)
    assert shares[0] == 1.0, "the first answer may be raced"
    assert [share <= 0.31 + 1 / answers + 1e-9 for answers, share in enumerate(shares, 1)] == [True] * 10
    assert 0.3 <= shares[9] <= 0.41


def test_a_side_over_its_budget_stands_in_only() -> None:
    dispatched = decide(make(budget=0.001, policy="both", constrained="server"), local=device(), remote=server())
    assert dispatched.attempts == (AttemptPlan("server", None), AttemptPlan("device", 0.0))
    assert "budget" in dispatched.report().reason


@pytest.mark.parametrize(("policy", "side"), [("server-only", "server"), ("device-only", "device")])
def test_a_side_asked_for_by_name_is_not_limited_by_the_budget(policy: PolicyName, side: str) -> None:
    dispatcher = make(budget=0.0, policy=policy, constrained=side)
    for _ in range(5):
        dispatched = decide(dispatcher, local=device(), remote=server())
        assert [start.source for start in dispatched.attempts if start.wait is not None] == [side]
        play(dispatcher, dispatched, server_at=0.2, device_at=0.3)
    assert dispatcher._steering.requests == 0


def test_endpoints_that_could_not_start_are_left_out_and_told() -> None:
    gone: dict[str, EndpointError] = {"device": EngineError("no such file", endpoint="device")}
    dispatched = decide(make(), local=device(), remote=server(), unavailable=gone)
    assert dispatched.attempts == (AttemptPlan("server", 0.0),)
    assert dispatched.report().reason.endswith("; left out: device: no such file")
    first: dict[str, EndpointError] = {"a": EndpointConnectError("refused", endpoint="a")}
    servers: list[Endpoint] = [server(name=name) for name in ("a", "b")]
    assert decide(make(), remote=servers, unavailable=first).attempts == (AttemptPlan("b", 0.0),)


def test_a_request_nobody_can_serve_is_refused_with_each_ones_reason() -> None:
    request = build_request("hi", n=3)
    gone: dict[str, EndpointError] = {"server": EndpointConnectError("refused", endpoint="server")}
    with pytest.raises(ConfigError) as caught:
        decide(make(), local=device(), remote=server(), request=request, unavailable=gone)
    expected = "request: expected one that some endpoint can serve, got device: n > 1; server: no server; left out: server: refused"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": "device-only"}, 'server: kept out by policy="device-only"'),
        ({"policy": "server-only"}, 'device: kept out by policy="server-only"'),
        ({"budget": 0.0}, "server: kept out by budget=0"),
    ],
)
def test_a_side_that_is_kept_out_is_not_said_to_be_missing(settings: dict[str, Any], reason: str) -> None:
    assert decide(make(**settings), local=device(), remote=server()).report().reason == reason
    local, remote = (device(), None) if reason.startswith("server") else (None, server())
    assert "kept out" not in decide(make(**settings), local=local, remote=remote).report().reason


def test_the_prompts_length_is_the_devices_count_else_the_servers_else_an_estimate() -> None:
    dispatcher = make()
    assert decide(dispatcher, local=device(tokens=33), remote=server(tokens=44)).prompt_tokens == 33
    assert decide(dispatcher, local=device(tokens=None), remote=server(tokens=44)).prompt_tokens == 44
    assert decide(dispatcher, remote=server(), request=build_request("x" * 400)).prompt_tokens == 105
    request = Request(prompt="y" * 40)
    assert decide(dispatcher, remote=server(), request=request).prompt_tokens == 11


def test_tools_count_as_prompt_and_need_a_side_that_has_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": [1, 2]}}}]
    request = build_request("hi", tools=tools)
    plain = decide(make(), remote=server(), request=build_request("hi"))
    dispatched = decide(make(), local=device(tokens=None), remote=server(), request=request)
    assert dispatched.prompt_tokens > plain.prompt_tokens
    assert [start.source for start in dispatched.attempts] == ["server"]
    assert dispatched.report().reason == "device: tools"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_anything_but_text_is_for_sides_that_take_images(kind: str) -> None:
    request = build_request([{"role": "user", "content": [{"type": "text", "text": "look"}, {"type": kind}]}])
    dispatched = decide(make(), local=device(), remote=server(), request=request)
    assert [start.source for start in dispatched.attempts] == ["server"]


def test_text_in_parts_is_text() -> None:
    request = build_request([{"role": "user", "content": [{"type": "text", "text": "x" * 100}, {"type": "text", "text": "y" * 100}]}])
    dispatched = decide(make(), local=device(tokens=None), remote=server(), request=request)
    assert len(dispatched.attempts) == 2
    assert dispatched.prompt_tokens == pytest.approx(55, abs=1)


def test_decisions_depend_on_the_seed_and_the_requests_number_alone() -> None:
    def decisions(seed: int) -> list[tuple[AttemptPlan, ...]]:
        dispatcher = make(policy="stochastic", budget=0.5, seed=seed)
        made = [decide(dispatcher, local=device(), remote=server()) for _ in range(50)]
        return [dispatched.attempts for dispatched in made]

    assert decisions(1) == decisions(1)
    assert decisions(1) != decisions(2)


# Learning


def test_times_prompts_and_speeds_are_learned() -> None:
    dispatcher = make(policy="device-constrained", budget=1.0)
    rng = random.Random(3)
    for _ in range(80):
        tokens = rng.randrange(10, 300)
        play(
            dispatcher,
            decide(dispatcher, local=device(tokens=tokens), remote=server()),
            server_at=0.2 + rng.random(),
            device_at=0.01 * tokens,
        )
    profile = dispatcher._learner.profile()
    assert profile.server_ttft is not None
    assert profile.server_ttft.survival_at(0.19) == pytest.approx(1.0)
    assert profile.device is not None
    assert profile.device.seconds_per_token == pytest.approx(0.01, rel=0.1)
    assert profile.lengths is not None
    assert decide(dispatcher, local=device(), remote=server()).report().policy == "device-constrained"


def test_a_server_that_lost_is_a_censored_sample_and_one_that_failed_is_none() -> None:
    dispatcher = make(policy="both", budget=1.0, explore=0.0)
    for _ in range(30):
        play(dispatcher, decide(dispatcher, local=device(), remote=server()), server_at=None, device_at=0.5)
    assert (len(dispatcher._learner._server), dispatcher._learner._server.events) == (30, 0)
    machine_of_failure(dispatcher)
    assert len(dispatcher._learner._server) == 30


def machine_of_failure(dispatcher: Dispatcher) -> None:
    dispatched = decide(dispatcher, remote=server())
    machine = RaceMachine(RacePlan(attempts=dispatched.attempts))
    machine.start(now=0.0)
    machine.receive(TokensReceived("server", [text_chunk("x")], 1), now=0.4)
    machine.receive(StreamFailed("server", EndpointConnectError("cut")), now=0.5)
    dispatcher.record(dispatched, machine)


def test_the_devices_speed_is_learned_without_the_tokens_its_cache_had() -> None:
    dispatcher = make(policy="device-only")
    for cached in range(0, 90, 3):
        usage = CompletionUsage(prompt_tokens=100, completion_tokens=1, prompt_tokens_details=PromptTokensDetails(cached_tokens=cached))
        play(dispatcher, decide(dispatcher, local=device(tokens=100)), server_at=None, device_at=0.05 + 0.01 * (100 - cached), usage=usage)
    speed = dispatcher._learner.profile().device
    assert speed is not None
    assert speed.seconds_per_token == pytest.approx(0.01, rel=0.05)


def test_an_outage_is_exempt_from_the_budget() -> None:
    dispatcher = make(budget=0.001, policy="server-constrained")
    dispatched = decide(dispatcher, local=device(), remote=server())
    machine = RaceMachine(RacePlan(attempts=dispatched.attempts))
    machine.start(now=0.0)
    machine.receive(StreamFailed("device", EngineError("broken")), now=0.1)
    machine.receive(TokensReceived("server", [text_chunk("x")], 1), now=0.2)
    machine.receive(StreamEnded("server", "stop"), now=0.3)
    dispatcher.record(dispatched, machine)
    steering = dispatcher._steering
    assert (steering.requests, steering.exempt_requests, steering.exempt_spent_tokens) == (0, 1, 10)


def test_a_session_is_settled_in_the_account_it_was_opened_in() -> None:
    dispatcher = make(budget=0.5)
    before = decide(dispatcher, local=device(), remote=server())
    cheap = server(prices=TokenPrices(prompt=1e-15, completion=1e-15))
    after = decide(dispatcher, local=ShapedDevice("device", kind="device", tokens=10), remote=cheap)
    assert (before.plan.constrained, after.plan.constrained) == ("server", "device")
    assert before.steering is not after.steering
    play(dispatcher, before, server_at=0.1, device_at=0.2)
    assert before.steering.requests == 1
    assert after.steering.requests == 0
    assert after.steering._reserved == 10


def test_settling_twice_counts_once() -> None:
    dispatcher = make(budget=1.0)
    dispatched = decide(dispatcher, local=device(), remote=server())
    machine = play(dispatcher, dispatched, server_at=0.1, device_at=0.2)
    dispatcher.record(dispatched, machine)
    assert dispatcher._steering.requests == 1


def test_a_copy_knows_what_its_origin_knew_and_keeps_its_own_account() -> None:
    dispatcher = make(policy="both", budget=1.0)
    for _ in range(30):
        play(dispatcher, decide(dispatcher, local=device(), remote=server()), server_at=0.3, device_at=0.5)
    copy = dispatcher.copy(DispatchOptions(policy="device-constrained"), budget=None)
    assert decide(copy, local=device(), remote=server()).report().policy == "device-constrained"
    assert copy._steering.requests == 0
    assert copy._learner.budget == 1.0
    other = dispatcher.copy(DispatchOptions(policy="both"), budget=0.2)
    assert (other._learner.budget, other._learner.policy) == (0.2, "both")


def test_how_long_answers_are_goes_to_copies_and_to_the_next_client() -> None:
    dispatcher = make(policy="both", budget=1.0)
    assert Profile.from_json(dispatcher.profile()).answers is None, "nothing was seen"
    for _ in range(30):
        play(dispatcher, decide(dispatcher, local=device(), remote=server()), server_at=0.3, device_at=0.5)
    learned = Profile.from_json(dispatcher.profile()).answers
    assert learned is not None
    assert learned.expected(0) < TYPICAL.expected(0), "thirty answers of one token"
    copy = dispatcher.copy(DispatchOptions(policy="both"), budget=0.5)
    assert Profile.from_json(copy.profile()).answers == learned
    play(copy, decide(copy, local=device(), remote=server()), server_at=0.3, device_at=0.5)
    assert Profile.from_json(dispatcher.profile()).answers == learned, "a copy learns by itself"
    following = Dispatcher(DispatchOptions(policy="both"), budget=1.0, profile=Profile.from_json(dispatcher.profile()))
    assert Profile.from_json(following.profile()).answers == learned, "what was known stays known"


# Costs


def test_costs_are_told_only_where_they_are_known() -> None:
    dispatcher = make()
    prices = TokenPrices(prompt=1.0, completion=10.0)
    dispatched = decide(dispatcher, local=device(), remote=server(prices=prices))
    unknown = dispatched.cost(server(), 5, 5, 0)
    assert (unknown.server, unknown.total) == (None, None)
    assert dispatched.cost(server(prices=prices), 5, 2, 0).server == 25.0
    assert dispatched.cost(server(prices=prices), 5, 2, 3).server == 25.0, "no price of its own: cached tokens cost as the others"
    cached = TokenPrices(prompt=1.0, completion=10.0, cached_prompt=0.5)
    assert dispatched.cost(server(prices=cached), 5, 2, 4).server == 23.0
    shapeless = dispatched.cost(device(), 5, 2, 0)
    assert (shapeless.server, shapeless.device_joules) == (0.0, None)
    shaped = decide(dispatcher, local=ShapedDevice("device", kind="device", tokens=10), remote=server())
    cost = shaped.cost(device(), 100, 10, 0)
    assert cost.server == 0.0
    assert cost.device_joules is not None
    assert cost.device_joules > 0
    assert cost.total == cost.device


def test_capabilities_are_asked_for_at_each_request() -> None:
    dispatcher = make(budget=1.0)
    remote = ScriptedEndpoint("server", capabilities=Capabilities())
    request = build_request("hi", n=2)
    with pytest.raises(ConfigError):
        decide(dispatcher, remote=remote, request=request)
    remote.capabilities = Capabilities(choices=True)
    assert decide(dispatcher, remote=remote, request=request).attempts == (AttemptPlan("server", 0.0),)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="explore: expected a share"):
        make(explore=2)
    with pytest.raises(ConfigError, match="constrained: expected 'server' for policy 'server-constrained', got 'device'"):
        make(policy="server-constrained", constrained="device")
