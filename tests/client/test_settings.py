"""A client's options: checked, and replaced one by one by ``with_options``."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.race.dispatcher import DispatchOptions
from streamco.client.race.migration import MigrationOptions
from streamco.client.settings import check_options
from streamco.client.speculation.options import SpeculationOptions
from streamco.core.race.machine import OnFailure
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import ConfigError
from streamco.policies.eligibility import RequestFacts
from streamco.testing.endpoint import ScriptedEndpoint


def a_client(**options: Any) -> Client:
    return Client(server=ScriptedEndpoint("server"), **options)


@pytest.mark.parametrize(
    ("setting", "facts", "rule"),
    [
        (None, RequestFacts(prompt_tokens=1), "migrate"),
        (None, RequestFacts(prompt_tokens=1, has_tools=True), "raise"),
        (None, RequestFacts(prompt_tokens=1, has_json_schema=True), "raise"),
        ("restart", RequestFacts(prompt_tokens=1, has_tools=True), "restart"),
        ("migrate", RequestFacts(prompt_tokens=1, choices=2), "raise"),
    ],
)
def test_the_failure_rule_follows_the_setting_unless_there_are_choices(
    setting: OnFailure | None, facts: RequestFacts, rule: OnFailure
) -> None:
    assert a_client(on_failure=setting)._settings.failure_rule(facts) == rule


@pytest.mark.parametrize("name", ["migration", "dispatch", "limits"])
def test_an_option_of_another_type_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected .* or None, got int"):
        check_options(**{**dict.fromkeys(("migration", "dispatch", "limits", "on_failure")), name: 1})


def test_other_options_leave_the_client_itself_and_its_other_options_alone() -> None:
    client = a_client(pace=4.0)
    other = client.with_options(migration=MigrationOptions(rule="full-buffer"), on_failure="raise")
    assert (client._settings.on_failure, other._settings.on_failure) == (None, "raise")
    assert client._settings.migration == MigrationOptions()
    assert (other._settings.pace, other._settings.endpoints) == (4.0, client._settings.endpoints)
    assert other._settings.dispatcher is client._settings.dispatcher


def test_another_budget_policy_or_dispatch_starts_an_account_of_its_own() -> None:
    client = a_client()
    for other in (client.with_options(budget=0.5), client.with_options(policy="both"), client.with_options(dispatch=DispatchOptions())):
        assert other._settings.dispatcher is not client._settings.dispatcher
        assert other._settings.totals is not client._settings.totals


async def test_only_the_client_that_made_the_endpoints_closes_them() -> None:
    client = a_client()
    await client.start()
    await client.with_options(pace=4.0).aclose()
    assert client._settings.endpoints.is_started()
    await client.aclose()
    assert not client._settings.endpoints.is_started()


# Settings that could have no effect

DRAFTING: list[dict[str, Any]] = [{"verifier": "ws://127.0.0.1:9"}, {"emit": "draft"}, {"speculation": SpeculationOptions()}]


@pytest.mark.parametrize("setting", DRAFTING)
def test_a_setting_for_drafts_needs_a_mode(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=f'{name}: expected mode="speculate" or "auto" beside it .* got no mode'):
        a_client(**setting)
    for mode in ("race", "speculate", "auto"):
        a_client(mode=mode, **setting)


@pytest.mark.parametrize("setting", DRAFTING[1:])
def test_with_options_refuses_a_setting_for_drafts_to_a_client_that_races(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="got no mode"):
        a_client().with_options(**setting)
    a_client().with_options(mode="auto", **setting)
    a_client(mode="speculate").with_options(**setting)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "device-only"}, 'expected a device for policy="device-only", got none'),
        ({"policy": "device-first"}, 'expected a device for policy="device-first", got none'),
        ({"budget": 0.0}, "expected a device for budget=0, got none"),
        (
            {"policy": "server-only", "budget": 0.0},
            'expected a budget above 0 with policy="server-only", got budget=0, which keeps the server out',
        ),
        ({"policy": "server-first", "budget": 0.0}, "which keeps the server out"),
    ],
)
def test_a_side_that_is_asked_for_has_to_exist_and_a_budget_of_0_contradicts_a_policy_for_the_server(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        a_client(**options)
    with pytest.raises(ConfigError, match=message):
        a_client().with_options(**options)


def test_a_policy_for_the_server_needs_one() -> None:
    for policy in ("server-only", "server-first"):
        with pytest.raises(ConfigError, match=f'expected a server for policy="{policy}", got none'):
            Client(ScriptedEndpoint("device", kind="device"), policy=policy)
    with pytest.raises(ConfigError, match="expected a server for budget=0, got none"):
        Client(ScriptedEndpoint("device", kind="device"), budget=0.0, dispatch=DispatchOptions(constrained="device"))


def test_a_device_endpoint_gets_its_places_from_the_mode_before_it_is_loaded() -> None:
    endpoint = DeviceEndpoint("small.gguf")
    client = Client(endpoint, ScriptedEndpoint("server"))
    assert endpoint._options.held_sequences == 0
    client.with_options(mode="speculate")
    assert endpoint._options.held_sequences == 8
    assert endpoint._options.attention_layers == ()


def test_more_branches_need_more_places() -> None:
    for branches, places in ((0, 8), (6, 8), (12, 14)):
        endpoint = DeviceEndpoint("small.gguf")
        Client(endpoint, ScriptedEndpoint("server"), mode="speculate", speculation=SpeculationOptions(max_branches=branches))
        assert endpoint._options.held_sequences == places
