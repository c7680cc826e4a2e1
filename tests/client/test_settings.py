"""A client's options: checked, and replaced one by one by ``with_options``."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.auto import Auto
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.split.mode import Split
from streamco.client.settings import check_options
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import ConfigError
from streamco.profiles import PairProfile, Profile
from streamco.testing.endpoint import ScriptedEndpoint
from tests.support.modes import client_options, drafting, racing


def a_client(**options: Any) -> Client:
    return Client(server=ScriptedEndpoint("server"), **client_options(options))


def test_an_option_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="limits: expected Limits or None, got int"):
        check_options(1, None)
    with pytest.raises(ConfigError, match="migration: expected MigrationOptions or None, got int"):
        Race(migration=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["split", "fast", 5, Race, None])
def test_what_is_no_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"mode: expected Race\(...\), Speculate\(...\), Split\(...\), Auto\(...\), "):
        a_client(mode=mode)


def test_short_forms_name_the_modes_that_a_client_has_or_had() -> None:
    race, drafting_mode = Race(policy="both"), Speculate(window=3)
    client = a_client(mode=Auto(race, drafting_mode))
    assert client.race == race
    assert client.with_options(mode="race").with_options(mode="speculate")._settings.mode == drafting_mode
    assert client.with_options(mode="race").with_options(mode="auto")._settings.mode == Auto(race, drafting_mode)
    assert a_client().with_options(mode="auto")._settings.mode == Auto(Race(), Speculate())


def test_a_mode_carries_its_account_and_its_estimates() -> None:
    client = a_client(mode=Auto(Race(policy="both"), Speculate(window=3)))
    other = client.with_options(mode="race").with_options(mode="speculate")
    assert racing(other).dispatcher is racing(client).dispatcher
    assert drafting(other).estimates is drafting(client).estimates
    assert drafting(other).binding is drafting(client).binding
    assert other._settings.totals is client._settings.totals
    changed = client.with_options(mode=Speculate(window=4))
    assert drafting(changed).estimates is not drafting(client).estimates
    assert drafting(changed).binding is drafting(client).binding


def test_a_race_that_is_given_later_makes_what_an_earlier_speculation_declines() -> None:
    client = a_client(mode=Speculate(window=3, otherwise=Race(policy="both")))
    other = client.with_options(mode=Race(policy="server-first")).with_options(mode="speculate")
    assert other._settings.mode == Speculate(window=3)
    assert other.race == Race(policy="server-first")
    assert client.with_options(mode="auto")._settings.mode == Auto(Race(policy="both"), Speculate(window=3))


def test_estimates_are_shared_under_one_budget_and_at_one_verifier_alone() -> None:
    client = a_client(mode=Speculate(budget=0.3))
    less = client.with_options(budget=0.5)
    again = less.with_options(mode=Speculate(budget=0.3, emit="draft"))
    assert (drafting(less).budget, drafting(again).budget) == (0.5, 0.3)
    assert drafting(again).estimates is not drafting(less).estimates
    elsewhere = client.with_options(mode=Speculate(budget=0.3, verifier="ws://127.0.0.1:9"))
    assert drafting(elsewhere).binding is not drafting(client).binding
    assert drafting(elsewhere).estimates is not drafting(client).estimates
    twice = client.with_options(mode=Speculate(budget=0.3, verifier="ws://127.0.0.1:9"))
    assert drafting(twice).binding is drafting(elsewhere).binding, "one connection, however many clients name it"


def test_clients_that_are_made_for_each_request_learn_together() -> None:
    client = a_client(seed=5)
    first, second = (drafting(client.with_options(mode=Speculate(window=3))) for _ in range(2))
    assert first is second
    assert drafting(client.with_options(mode=Speculate(window=4))) is not first
    again = drafting(a_client(seed=5).with_options(mode=Speculate(window=3)))
    assert again.next_draws().random() == first.next_draws().random(), "equal seeds, equal draws"


def test_nothing_is_in_the_way_of_a_mode_that_any_answer_can_be_made_in() -> None:
    assert a_client(mode=Auto(Race())).unspeculated == ""


def test_a_mode_that_is_chosen_later_begins_with_the_profile() -> None:
    pair = PairProfile(window=4, rounds=9, acceptance=0.5, wait=0.3, step_times=(0.01,))
    client = a_client(profile=Profile(pair=pair).to_json())
    assert drafting(client.with_options(mode="speculate")).estimates.acceptance == pytest.approx(0.5)


@pytest.mark.parametrize("otherwise", ["race", Speculate(), Auto(), 5])
def test_what_cant_make_every_answer_is_no_way_out(otherwise: Any) -> None:
    with pytest.raises(ConfigError, match=r"otherwise: expected Race\(...\) or None, got "):
        Speculate(otherwise=otherwise)


@pytest.mark.parametrize("modes", [(Race(), Race()), (Race(), "speculate"), (Auto(),), (Race,), (Race, Speculate)])
def test_auto_chooses_among_one_mode_of_each_kind(modes: Any) -> None:
    with pytest.raises(ConfigError, match=r"auto: expected Race\(...\) and Speculate\(...\), one of each, got "):
        Auto(*modes)


@pytest.mark.parametrize(
    "weights", [{"time": -1.0}, {"money": float("inf")}, {"quality": True}, {"time": "much"}, {"time": 0.0, "money": 0.0}]
)
def test_weights_are_finite_numbers_of_which_one_counts(weights: Any) -> None:
    with pytest.raises(ConfigError, match=r"auto: .*expected "):
        Auto(**weights)


def test_a_split_model_takes_part_by_weights_alone() -> None:
    split = Split("parts/NAME", "http://127.0.0.1:8000")
    assert Auto(Race(), split, time=1.0).modes == (Race(), split)
    with pytest.raises(ConfigError, match=r"auto: expected Race\(...\) and Speculate\(...\), one of each, got "):
        Auto(Race(), split)


def test_equal_weights_make_equal_modes() -> None:
    assert Auto(Race(), time=1.0) == Auto(Race(), time=1)
    assert len({Auto(Race(), time=1.0), Auto(Race(), time=2.0), Auto(Race())}) == 3
    assert repr(Auto(time=1.0, quality=2)) == "Auto(time=1.0, quality=2)"


def test_other_options_leave_the_client_itself_and_its_other_options_alone() -> None:
    client = a_client(pace=4.0)
    other = client.with_options(mode=Race(migration=MigrationOptions(rule="full-buffer")), on_failure="raise")
    assert (client._settings.on_failure, other._settings.on_failure) == (None, "raise")
    assert client.race == Race()
    assert (other._settings.pace, other._settings.endpoints) == (4.0, client._settings.endpoints)
    assert racing(other).dispatcher is racing(client).dispatcher


def test_another_budget_policy_or_dispatch_starts_an_account_of_its_own() -> None:
    client = a_client()
    for other in (
        client.with_options(budget=0.5),
        client.with_options(mode=Race(policy="both")),
        client.with_options(mode=Race(explore=0.0)),
    ):
        assert racing(other).dispatcher is not racing(client).dispatcher
        assert other._settings.totals is not client._settings.totals


async def test_only_the_client_that_made_the_endpoints_closes_them() -> None:
    client = a_client()
    await client.start()
    await client.with_options(pace=4.0).aclose()
    assert client._settings.endpoints.is_started()
    await client.aclose()
    assert not client._settings.endpoints.is_started()


# Settings of modes


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
        a_client().with_options(**client_options(options))


def test_a_policy_for_the_server_needs_one() -> None:
    for policy in ("server-only", "server-first"):
        with pytest.raises(ConfigError, match=f'expected a server for policy="{policy}", got none'):
            Client(ScriptedEndpoint("device", kind="device"), mode=Race(policy=policy))
    with pytest.raises(ConfigError, match="expected a server for budget=0, got none"):
        Client(ScriptedEndpoint("device", kind="device"), budget=0.0, mode=Race(constrained="device"))


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
        Client(endpoint, ScriptedEndpoint("server"), mode=Speculate(max_branches=branches))
        assert endpoint._options.held_sequences == places
