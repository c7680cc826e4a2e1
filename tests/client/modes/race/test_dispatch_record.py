"""The reasons of a dispatch decision: whole for the caller, and without the caller's words for the log."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.arguments import build_request
from streamco.client.modes.race.dispatch_record import DispatchRecord, endpoint_cost, known_prices
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.core.race.learner import PolicyName
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.policies.cost import RequestCost
from tests.client.helpers import device, server

WORDS = "my private words"


def decided(policy: PolicyName = "both", **options: Any) -> DispatchRecord:
    """The decision for a request to a device and a server that can do everything."""
    can = Capabilities(json_schema=True, choices=True)
    dispatcher = Dispatcher(DispatchOptions(policy=policy), budget=1.0, seed=1)
    return dispatcher.decide(build_request("Hi", **options), device(capabilities=can), [server(capabilities=can)], {})


def test_a_reason_that_quotes_nothing_is_logged_as_it_is() -> None:
    for options in ({}, {"reasoning_effort": "high"}, {"frequency_penalty": 1}):
        record = decided(**options)
        assert record.logged_reason() is None
        assert record.logged_report() == record.report()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"extra_body": {WORDS: 1}}, "a field that isn't known"),
        ({"extra_body": {WORDS: 1, f"{WORDS} 2": 2, "verbosity": "low"}}, "a field that isn't known, verbosity"),
        ({"response_format": {"type": WORDS}}, "a response_format that it can't follow"),
    ],
)
def test_words_of_the_callers_are_in_the_report_and_not_in_the_log(options: dict[str, Any], kind: str) -> None:
    record = decided(**options)
    assert WORDS in record.report().reason
    assert record.logged_reason() == record.logged_report().reason == f"device: {kind}"
    assert WORDS in record.obstacles["device"].text
    assert record.obstacles["device"].logged == kind


def test_a_reason_that_is_the_policys_own_is_the_same_in_both() -> None:
    record = decided("server-first", extra_body={WORDS: 1})
    assert WORDS in record.report().reason
    assert WORDS not in str(record.logged_report())
    one_sided = decided("server-only", extra_body={WORDS: 1})
    assert one_sided.logged_reason() is None
    assert WORDS not in one_sided.report().reason


def test_a_note_may_have_another_text_for_the_log() -> None:
    record = decided()
    record.add_note("first")
    assert record.logged_reason() is None
    record.add_note(f"second: {WORDS}", logged="second")
    assert record.report().reason == f"both at once; first; second: {WORDS}"
    assert record.logged_reason() == "both at once; first; second"


def test_costs_are_known_if_both_prices_are() -> None:
    whole, part = TokenPrices(prompt=1e-6, completion=2e-6), TokenPrices(prompt=1e-6)
    assert known_prices(server(prices=part)) is None
    found = known_prices(server(prices=whole))
    assert found is not None
    assert (found.prompt, found.completion) == (1e-6, 2e-6)
    assert endpoint_cost(None, server(prices=whole), 10, 5, 0).total == pytest.approx(20e-6)
    assert endpoint_cost(None, server(prices=part), 10, 5, 0) == RequestCost(server=None, device_joules=0.0, device=0.0, total=None)
