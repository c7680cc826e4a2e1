"""Who can serve a request, and what is left of a decision then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamco.errors import CONTEXT_EXCEEDED, ConfigError
from streamco.policies.dispatch import Decision
from streamco.policies.eligibility import (
    Eligibility,
    RequestFacts,
    RequestGate,
    SideFacts,
    check_eligibility,
    exclusions,
    restrict,
    why_refused,
)

DEVICE = SideFacts(context_tokens=2048)
SERVER = SideFacts(context_tokens=128_000, tools=True, json_schema=True, images=True, choices=True)
PLAIN = RequestFacts(prompt_tokens=40, max_tokens=128)
BOTH = Decision(0.25, 0.0, "p", "both")


def test_a_plain_request_goes_to_both() -> None:
    assert check_eligibility(PLAIN, device=DEVICE, server=SERVER) == Eligibility(device=True, server=True, hedge=True)


@pytest.mark.parametrize(
    ("request_facts", "reason"),
    [
        (RequestFacts(prompt_tokens=2000, max_tokens=100), "device: 2100 tokens in a context of 2048"),
        (RequestFacts(prompt_tokens=2048), "device: 2049 tokens in a context of 2048"),
        (RequestFacts(prompt_tokens=4, has_images=True), "device: images"),
        (RequestFacts(prompt_tokens=4, choices=2), "device: n > 1"),
        (RequestFacts(prompt_tokens=4, has_tools=True), "device: tools"),
        (RequestFacts(prompt_tokens=4, has_json_schema=True), "device: json schema"),
        (RequestFacts(prompt_tokens=4, has_images=True, choices=3), "device: images, n > 1"),
    ],
)
def test_what_the_device_lacks_goes_to_the_server(request_facts: RequestFacts, reason: str) -> None:
    found = check_eligibility(request_facts, device=DEVICE, server=SERVER)
    assert found == Eligibility(device=False, server=True, hedge=False, reason=reason)


def test_what_the_server_lacks_goes_to_the_device() -> None:
    found = check_eligibility(RequestFacts(prompt_tokens=1500), device=DEVICE, server=SideFacts(context_tokens=1024))
    assert found == Eligibility(device=True, server=False, hedge=False, reason="server: 1501 tokens in a context of 1024")


def test_a_context_that_is_not_known_is_no_obstacle() -> None:
    assert check_eligibility(RequestFacts(prompt_tokens=10**6), device=SideFacts(), server=SERVER).device


def test_what_nobody_can_serve_says_why_for_each() -> None:
    found = check_eligibility(RequestFacts(prompt_tokens=4, has_images=True), device=DEVICE, server=SideFacts())
    assert found == Eligibility(device=False, server=False, hedge=False, reason="device: images; server: images")


def test_a_side_that_is_not_there_can_not_serve() -> None:
    assert check_eligibility(PLAIN, device=None, server=SERVER) == Eligibility(
        device=False, server=True, hedge=False, reason="device: no device"
    )
    assert check_eligibility(PLAIN, device=DEVICE, server=None) == Eligibility(
        device=True, server=False, hedge=False, reason="server: no server"
    )


def test_a_side_that_is_kept_out_has_the_settings_name() -> None:
    assert check_eligibility(PLAIN, device=DEVICE, server=None, kept_out_by="budget=0").reason == "server: kept out by budget=0"


def test_tools_are_hedged_only_when_asked_for() -> None:
    capable = SideFacts(context_tokens=2048, tools=True)
    request = RequestFacts(prompt_tokens=4, has_tools=True)
    found = check_eligibility(request, device=capable, server=SERVER)
    assert found == Eligibility(device=True, server=True, hedge=False, reason="tools are not hedged")
    assert check_eligibility(request, device=capable, server=SERVER, hedge_tools=True) == Eligibility(device=True, server=True, hedge=True)


# The gate


def test_a_gate_keeps_requests_from_the_device() -> None:
    found = check_eligibility(PLAIN, device=DEVICE, server=SERVER, gate=lambda request: request.prompt_tokens < 10)
    assert found == Eligibility(device=False, server=True, hedge=False, reason="device: request gate")
    assert check_eligibility(
        RequestFacts(prompt_tokens=4), device=DEVICE, server=SERVER, gate=lambda request: request.prompt_tokens < 10
    ).device


def test_a_gate_is_not_asked_about_what_the_device_can_not_do() -> None:
    asked: list[RequestFacts] = []

    def gate(request: RequestFacts) -> bool:
        asked.append(request)
        return True

    check_eligibility(RequestFacts(prompt_tokens=4, has_images=True), device=DEVICE, server=SERVER, gate=gate)
    check_eligibility(PLAIN, device=None, server=SERVER, gate=gate)
    assert asked == []


@pytest.mark.parametrize(
    ("gate", "request_facts", "passes"),
    [
        (RequestGate(), RequestFacts(prompt_tokens=10**6), True),
        (RequestGate(longest_prompt_tokens=50), RequestFacts(prompt_tokens=50), True),
        (RequestGate(longest_prompt_tokens=50), RequestFacts(prompt_tokens=51), False),
        (RequestGate(longest_prompt_chars=200), RequestFacts(prompt_tokens=1, prompt_chars=200), True),
        (RequestGate(longest_prompt_chars=200), RequestFacts(prompt_tokens=1, prompt_chars=201), False),
        (RequestGate(longest_prompt_chars=200), RequestFacts(prompt_tokens=1), True),
        (RequestGate(tasks=frozenset({"chat"})), RequestFacts(prompt_tokens=1, task="chat"), True),
        (RequestGate(tasks=frozenset({"chat"})), RequestFacts(prompt_tokens=1, task="math"), False),
        (RequestGate(tasks=frozenset({"chat"})), RequestFacts(prompt_tokens=1), False),
        (RequestGate(longest_prompt_tokens=50, tasks=frozenset({"chat"})), RequestFacts(prompt_tokens=60, task="chat"), False),
    ],
)
def test_thresholds_hold_together(gate: RequestGate, request_facts: RequestFacts, passes: bool) -> None:
    assert gate(request_facts) is passes


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ConfigError, match="request gate: longest_prompt_chars: expected >= 0 or None, got -1"):
        RequestGate(longest_prompt_chars=-1)


# Decisions


def restricted(decision: Decision, *, device: bool, server: bool, hedge: bool) -> tuple[float | None, float | None]:
    found = restrict(decision, Eligibility(device=device, server=server, hedge=hedge, reason="why"))
    return found.device_wait, found.server_wait


def test_what_is_eligible_stays_as_decided() -> None:
    assert restrict(BOTH, Eligibility(device=True, server=True, hedge=True)) is BOTH


def test_one_eligible_side_starts_at_once_whatever_was_decided() -> None:
    for decision in (BOTH, Decision(None, 0.0, "p", "r"), Decision(0.0, None, "p", "r")):
        assert restricted(decision, device=True, server=False, hedge=False) == (0.0, None)
        assert restricted(decision, device=False, server=True, hedge=False) == (None, 0.0)
    assert restrict(BOTH, Eligibility(device=False, server=True, hedge=False, reason="device: images")).reason == "device: images"


def test_without_a_hedge_the_side_that_would_start_first_is_kept() -> None:
    assert restricted(Decision(0.25, 0.0, "p", "r"), device=True, server=True, hedge=False) == (None, 0.0)
    assert restricted(Decision(0.0, 0.25, "p", "r"), device=True, server=True, hedge=False) == (0.0, None)
    assert restricted(Decision(0.0, 0.0, "p", "r"), device=True, server=True, hedge=False) == (None, 0.0)
    alone = Decision(0.0, None, "p", "r")
    assert restrict(alone, Eligibility(device=True, server=True, hedge=False)) is alone


def test_fields_that_only_a_server_keeps_to_exclude_a_device_by_name() -> None:
    asked = RequestFacts(prompt_tokens=4, has_images=True, server_fields=("audio", "verbosity"))
    device = SideFacts(context_tokens=2048, all_fields=False)
    assert check_eligibility(asked, device=device, server=SERVER).reason == "device: images, audio, verbosity"
    assert check_eligibility(asked, device=None, server=SERVER).server


# Counts and estimates

SMALL = SideFacts(context_tokens=512, prompt_tokens=None, is_estimated=True)


def test_an_estimate_keeps_no_side_out_however_large_it_is() -> None:
    guessed = RequestFacts(prompt_tokens=10**6, is_estimated=True)
    found = check_eligibility(guessed, device=None, server=replace(SMALL, shortens=True))
    assert (found.server, found.reason) == (True, "device: no device")
    assert check_eligibility(guessed, device=replace(SMALL, shortens=True), server=None).device
    assert exclusions(guessed, SMALL) == []


def test_an_estimate_lets_the_side_with_room_begin_and_the_other_is_its_fallback() -> None:
    guessed = RequestFacts(prompt_tokens=593, is_estimated=True)
    found = check_eligibility(guessed, device=SMALL, server=replace(SERVER, is_estimated=True))
    assert (found.device, found.server, found.hedge, found.first) == (True, True, False, "server")
    assert found.reason == "device: about 594 tokens in a context of 512"
    assert restrict(BOTH, found) == Decision(None, 0.0, BOTH.policy, found.reason)
    reverse = check_eligibility(guessed, device=replace(SERVER, is_estimated=True), server=replace(SMALL, shortens=True))
    assert (reverse.first, restrict(BOTH, reverse).server_wait) == ("device", None)


def test_if_an_estimate_leaves_no_side_room_the_policy_decides() -> None:
    found = check_eligibility(RequestFacts(prompt_tokens=593, is_estimated=True), device=SMALL, server=SMALL)
    assert found == Eligibility(device=True, server=True, hedge=True)


def test_each_side_goes_by_its_own_count() -> None:
    asked = RequestFacts(prompt_tokens=593, is_estimated=True)
    counted = replace(SMALL, prompt_tokens=300, is_estimated=False)
    assert check_eligibility(asked, device=counted, server=SERVER).hedge
    beyond = replace(counted, prompt_tokens=512)
    assert check_eligibility(asked, device=beyond, server=SERVER).reason == "device: 513 tokens in a context of 512"


def test_a_limit_beyond_the_whole_context_is_known_without_a_count() -> None:
    asked = RequestFacts(prompt_tokens=3, is_estimated=True, max_tokens=512)
    assert check_eligibility(asked, device=SMALL, server=SERVER).reason == "device: more than 513 tokens in a context of 512"
    assert check_eligibility(asked, device=replace(SMALL, shortens=True), server=SERVER).device


def test_parts_that_are_not_text_are_named() -> None:
    parts = tuple(f"messages[0].content[{n}]: type 'input_audio'" for n in range(5))
    asked = RequestFacts(prompt_tokens=4, has_images=True, other_parts=parts)
    assert check_eligibility(asked, device=DEVICE, server=SERVER).reason == f"device: {', '.join(parts[:3])} and 2 more"
    assert exclusions(asked, DEVICE)[0].field == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("request_facts", "field", "code"),
    [
        (RequestFacts(prompt_tokens=5000), "messages", CONTEXT_EXCEEDED),
        (RequestFacts(prompt_tokens=5000, has_tools=True), "tools", "unsupported_parameter"),
        (RequestFacts(prompt_tokens=4, has_tools=True), "tools", "unsupported_parameter"),
        (RequestFacts(prompt_tokens=4, has_json_schema=True), "response_format", "unsupported_value"),
        (RequestFacts(prompt_tokens=4, choices=2), "n", "unsupported_value"),
        (RequestFacts(prompt_tokens=4, has_images=True), "messages", "unsupported_value"),
        (RequestFacts(prompt_tokens=4, server_fields=("verbosity",)), "verbosity", "unsupported_parameter"),
        (RequestFacts(prompt_tokens=4, server_fields=("logit_bias (its ids are others)",)), "logit_bias", "unsupported_parameter"),
    ],
)
def test_a_refusal_names_field_and_code(request_facts: RequestFacts, field: str, code: str) -> None:
    why = why_refused(request_facts, [replace(DEVICE, all_fields=False)])
    assert why is not None
    assert (why.field, why.code) == (field, code)


def test_a_refusal_names_the_length_if_a_shorter_prompt_would_do() -> None:
    asked = RequestFacts(prompt_tokens=5000, has_tools=True, choices=2)
    why = why_refused(asked, [DEVICE, SideFacts(context_tokens=4096, tools=True, choices=True)])
    assert why is not None
    assert why.code == CONTEXT_EXCEEDED
    common = why_refused(asked, [DEVICE, SideFacts(tools=True)])
    assert common is not None
    assert common.field == "n", "what all have against it, not what the first one alone has"
    apart = why_refused(RequestFacts(prompt_tokens=4, has_tools=True, choices=2), [SideFacts(tools=True), SideFacts(choices=True)])
    assert apart is not None
    assert apart.field == "tools", "the last one's"
    assert why_refused(asked, []) is None
    assert why_refused(PLAIN, [DEVICE, SERVER]) is None
