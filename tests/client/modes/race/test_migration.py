"""Answers that move to a cheaper endpoint while they are written: the client in virtual time."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

import streamco
from streamco.client.client import Client
from streamco.client.modes.race.dispatch_record import endpoint_cost
from streamco.client.modes.race.migration import MigrationOptions, MigrationPlanner
from streamco.client.modes.race.mode import Race
from streamco.core.report import Report, report_sections
from streamco.endpoints.base import Capabilities, Endpoint, TokenPrices
from streamco.errors import ConfigError, EndpointConnectError
from streamco.policies.cost import RequestCost
from streamco.profiles import Profile
from streamco.testing import ScriptedEndpoint, run_in_virtual_time
from streamco.testing.endpoint import ScriptItem
from tests.client.helpers import ShapedDevice
from tests.support.modes import client_options

WORDS = [f"w{index} " for index in range(80)]
DEAR = TokenPrices(prompt=1e-6, completion=60e-6)
CHEAP = TokenPrices(prompt=1e-9, completion=1e-9)
ABLE = Capabilities(continuation="token_ids", pre_copy="append", tools=True, json_schema=True, choices=True)
PACE = 5.0


def script(first: float, step: float) -> list[tuple[float, ScriptItem]]:
    return [(first + step * index, word) for index, word in enumerate(WORDS)]


def server(name: str = "server", *, first: float = 0.2, step: float = 0.02, **options: Any) -> ScriptedEndpoint:
    options.setdefault("prices", DEAR)
    options.setdefault("capabilities", ABLE)
    return named(ScriptedEndpoint(name, script(first, step), tokens=10, **options))


def named(endpoint: ScriptedEndpoint, model: str = "m") -> ScriptedEndpoint:
    """The endpoint with the name of its model; ``ShapedDevice`` has "m"."""
    endpoint.model = model  # type: ignore[attr-defined]
    return endpoint


def device(*, first: float = 2.0, step: float = 0.05, **options: Any) -> ShapedDevice:
    options.setdefault("capabilities", ABLE)
    return ShapedDevice("device", script(first, step), kind="device", tokens=10, prefill_s=0.01, **options)


async def answer(client: Client, **options: Any) -> tuple[str, Report]:
    stream = client.stream("Tell me.", **options)
    text = "".join([token.text async for token in stream])
    await stream.aclose()
    return text, stream.report


def run(main: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(main)


def settings(**options: Any) -> dict[str, Any]:
    return {"policy": "both", "pace": PACE, "seed": 1, **options}


def test_the_device_ends_what_a_dear_server_began_and_the_reader_notices_nothing() -> None:
    async def main() -> None:
        async with Client(device(), server(), budget=1.0, **client_options(settings(dispatch=Race(explore=0.0)))) as client:
            for _ in range(3):
                text, report = await answer(client)
                assert text == "".join(WORDS)
                check_unnoticed_move(report)
                assert [part.outcome for part in report.endpoints].count("read ahead") >= 1

    run(main())


def test_the_papers_rule_waits_until_it_knows_the_device_and_then_covers_all_it_has_to_read() -> None:
    async def main() -> None:
        dispatch = Race(explore=1.0)  # or a device that always loses would never show its time
        options = settings(migration=MigrationOptions(rule="full-buffer"), dispatch=dispatch)
        async with Client(device(first=0.3), server(step=0.04), **client_options(options)) as client:
            _, first = await answer(client)
            assert first.hand_overs == []
            for _ in range(12):
                text, report = await answer(client)
                assert text == "".join(WORDS)
        check_unnoticed_move(report)
        assert "read ahead" not in [part.outcome for part in report.endpoints]

    run(main())


def test_a_device_of_unknown_energy_takes_over_and_the_report_says_that_it_counts_as_free() -> None:
    async def main() -> None:
        unshaped = named(ScriptedEndpoint("device", script(2.0, 0.05), kind="device", tokens=10, capabilities=ABLE, prefill_s=0.01))
        async with Client(unshaped, server(), budget=1.0, **client_options(settings(dispatch=Race(explore=0.0)))) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        (hand_over,) = report.hand_overs
        assert (hand_over.target, hand_over.reason, hand_over.delayed_tokens) == ("device", "cheaper", 0)
        assert hand_over.saved_usd == pytest.approx((len(WORDS) - hand_over.position) * 60e-6, rel=0.3)
        assert (report.unified_cost_usd, report.energy_j) == (None, None)
        assert report.cost_usd is not None
        note = "for hand-overs tokens at device count as free, because its energy is not known"
        assert note in report.dispatch.reason
        (label,) = [label for label, _ in report_sections(report)[0].rows if label.startswith("saved by it")]
        assert label == "saved by it, energy not known"

    run(main())


def test_a_device_that_must_read_again_takes_over_when_its_time_is_known() -> None:
    warm = Capabilities(continuation="continue_final_message", pre_copy="warm")

    async def main() -> None:
        unshaped = named(ScriptedEndpoint("device", script(0.3, 0.05), kind="device", tokens=10, capabilities=warm, prefill_s=0.01))
        async with Client(unshaped, server(step=0.04), **client_options(settings(dispatch=Race(explore=1.0)))) as client:
            _, first = await answer(client)
            assert first.hand_overs == []
            for _ in range(12):
                text, report = await answer(client)
                assert text == "".join(WORDS)
        (hand_over,) = report.hand_overs
        assert (hand_over.target, hand_over.reason, hand_over.delayed_tokens) == ("device", "cheaper", 0)

    run(main())


def test_a_device_that_can_not_continue_is_said_and_counts_as_nothing() -> None:
    async def main() -> None:
        other = ScriptedEndpoint("device", script(2.0, 0.05), kind="device", tokens=10, capabilities=Capabilities())
        options = settings(migration=MigrationOptions(), budget=1.0, dispatch=Race(explore=0.0))
        async with Client(other, server(), **client_options(options)) as client:
            _, report = await answer(client)
        assert report.hand_overs == []
        assert report.notes == ["the answer moves to no cheaper endpoint, because device can't continue an answer"]
        assert report.dispatch.reason.endswith("; no planned hand-over: device can't continue an answer")

    run(main())


@pytest.mark.parametrize(
    ("prices", "continuation", "clause"),
    [
        (None, "none", "server and device can't continue an answer"),
        (None, "continue_final_message", "the cost of tokens at server is not known"),
        (DEAR, "none", "device can't continue an answer"),
        (DEAR, "continue_final_message", ""),
    ],
)
def test_a_client_says_why_no_answer_moves(prices: TokenPrices | None, continuation: Any, clause: str) -> None:
    free = ScriptedEndpoint("device", [], kind="device", capabilities=Capabilities(continuation=continuation))
    dear = ScriptedEndpoint("server", [], prices=prices, capabilities=Capabilities())

    def cost(endpoint: Endpoint, prompt: int, completion: int, cached: int) -> RequestCost:
        return endpoint_cost(None, endpoint, prompt, completion, cached)

    planner, options = MigrationPlanner(), MigrationOptions()
    assert planner.obstacle(options, [dear, free], cost, pace=PACE) == clause
    assert planner.obstacle(options, [dear, free], cost, pace=None) == ""
    assert planner.obstacle(options, [dear], cost, pace=PACE) == ""
    assert planner.unmetered([dear, free], cost) == ([] if continuation == "none" else ["device"])


def check_unnoticed_move(report: Report) -> None:
    (hand_over,) = report.hand_overs
    assert (hand_over.source, hand_over.target, hand_over.reason) == ("server", "device", "cheaper")
    assert hand_over.is_planned
    assert hand_over.position < len(WORDS) / 2
    assert hand_over.delayed_tokens == report.quality.delayed_tokens == 0
    assert {"won", "took over"} <= {part.outcome for part in report.endpoints}
    assert report.unified_cost_usd is not None
    assert report.unified_cost_usd < len(WORDS) * 60e-6 / 2


def test_the_answer_goes_from_a_dear_server_to_a_cheap_one() -> None:
    async def main() -> None:
        spare = server("spare", prices=CHEAP)
        async with Client(server=[server(), spare], **client_options(settings())) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        assert [(change.source, change.target, change.delayed_tokens) for change in report.hand_overs] == [("server", "spare", 0)]
        assert report.hand_overs[0].buffered >= PACE * 3.0  # nothing was known of it: a slow first token was covered
        assert (report.wasted_prompt_tokens, spare.active) == (0, 0)

    run(main())


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"pace": None}, {}),
        ({"migration": MigrationOptions(max_migrations=0)}, {}),
        ({"on_failure": "raise"}, {}),
        ({"policy": "server-only"}, {}),
        ({}, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ({}, {"response_format": {"type": "json_schema"}}),
    ],
)
def test_no_answer_moves_where_a_move_is_not_wanted(options: dict[str, Any], asked: dict[str, Any]) -> None:
    async def main() -> None:
        async with Client(server=[server(), server("spare", prices=CHEAP)], **client_options(settings(**options))) as client:
            text, report = await answer(client, **asked)
        assert text == "".join(WORDS)
        assert report.hand_overs == []
        assert [part.outcome for part in report.endpoints] == ["won", "not started"]

    run(main())


@pytest.mark.parametrize("prices", [DEAR, None, TokenPrices(prompt=1e-6, completion=100e-6)])
def test_no_answer_moves_to_who_is_not_known_to_be_cheaper(prices: TokenPrices | None) -> None:
    async def main() -> None:
        async with Client(server=[server(), server("spare", prices=prices)], **client_options(settings())) as client:
            _, report = await answer(client)
        assert report.hand_overs == []

    run(main())


def test_unpaced_answers_move_where_the_caller_wants_it() -> None:
    async def main() -> None:
        moving = MigrationOptions(unpaced=True)
        async with Client(
            server=[server(), server("spare", prices=CHEAP)], **client_options(settings(pace=None, migration=moving))
        ) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        assert [change.target for change in report.hand_overs] == ["spare"]

    run(main())


def test_a_short_limit_is_not_worth_a_move() -> None:
    async def main() -> None:
        dear_to_ask = TokenPrices(prompt=50e-6, completion=1e-9)
        async with Client(server=[server(), server("spare", prices=dear_to_ask)], **client_options(settings())) as client:
            _, report = await answer(client, max_tokens=12)
        assert report.hand_overs == []

    run(main())


def test_the_device_is_not_asked_where_the_budget_spares_it() -> None:
    async def main() -> None:
        options = settings(policy="stochastic", budget=0.0, dispatch=Race(constrained="device"))
        phone = device()
        async with Client(phone, server(), **client_options(options)) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        assert report.hand_overs == []
        assert phone.streams == []

    run(main())


def test_a_device_that_cannot_read_ahead_leaves_the_answer_where_it_is() -> None:
    async def main() -> None:
        broken = device(prepare_error=EndpointConnectError("no memory", endpoint="device"))
        async with Client(broken, server(), **client_options(settings())) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        assert report.hand_overs == []
        assert any(part.outcome == "failed" for part in report.endpoints)

    run(main())


def test_when_the_source_dies_while_the_target_reads_ahead_the_target_goes_on() -> None:
    async def main() -> None:
        dying = ScriptedEndpoint(
            "server",
            [*script(0.2, 0.02)[:8], (0.5, EndpointConnectError("cut", endpoint="server"))],
            prices=DEAR,
            capabilities=ABLE,
            tokens=10,
        )
        slow = device(prepare_takes=5.0)
        async with Client(slow, dying, **client_options(settings())) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        assert [(change.target, change.is_planned) for change in report.hand_overs] == [("device", False)]
        assert slow.active == 0

    run(main())


def test_clients_of_one_client_share_what_is_learned_and_have_their_own_rule() -> None:
    async def main() -> None:
        async with Client(server=[server(), server("spare", prices=CHEAP)], **client_options(settings())) as client:
            staying = client.with_options(mode=Race(migration=MigrationOptions(max_migrations=0)))
            _, moved = await answer(client)
            _, stayed = await answer(staying)
        assert (len(moved.hand_overs), len(stayed.hand_overs)) == (1, 0)

    run(main())


GOOD_SPARE, BAD_SPARE = {"server": 0.8, "spare": 0.8}, {"server": 0.8, "spare": 0.2}


async def to_spare(model: str = "m", **options: Any) -> Report:
    spare = named(server("spare", prices=CHEAP), model)
    async with Client(server=[server(), spare], **client_options(settings(**options))) as client:
        text, report = await answer(client)
    assert text == "".join(WORDS)
    return report


@pytest.mark.parametrize(
    ("options", "moves", "note"),
    [
        (MigrationOptions(), False, ""),
        (None, False, ""),
        (MigrationOptions(quality=GOOD_SPARE), True, ""),
        (MigrationOptions(quality=BAD_SPARE), False, "the answer does not move from server to spare, which is cheaper, because spare has"),
        (MigrationOptions(quality=BAD_SPARE, min_quality=0.25), True, ""),
        (MigrationOptions(quality=BAD_SPARE, min_quality=0.5), False, ""),
        (MigrationOptions(min_quality=0.5), False, "because the quality of server and spare is not known (min_quality=0.5)"),
        (MigrationOptions(min_quality=0), True, ""),
    ],
)
def test_an_answer_moves_to_a_worse_model_only_where_the_caller_allows_it(options: MigrationOptions | None, moves: bool, note: str) -> None:
    async def main() -> None:
        report = await to_spare("other", migration=options)
        assert [change.target for change in report.hand_overs] == (["spare"] if moves else [])
        assert ("no planned hand-over from server to spare: " in report.dispatch.reason) == (not moves)
        notes = [each for each in report.notes if "spare" in each]
        assert len(notes) == bool(note)
        assert all(note in each for each in notes)

    run(main())


@pytest.mark.parametrize(("model", "moves"), [("m", True), ("org/M", True), ("n", False), ("", False)])
def test_without_figures_an_answer_moves_to_the_same_model(model: str, moves: bool) -> None:
    async def main() -> None:
        report = await to_spare(model)
        assert bool(report.hand_overs) is moves
        why = "no planned hand-over from server to spare: whether the model of spare is as good is not known"
        assert (why in report.dispatch.reason) is not moves
        assert not [each for each in report.notes if "spare" in each]

    run(main())


def test_a_model_that_the_request_names_is_the_servers() -> None:
    async def main() -> None:
        async with Client(device(), server(), budget=1.0, **client_options(settings(dispatch=Race(explore=0.0)))) as client:
            _, own = await answer(client)
            stream = await client.chat.completions.create(messages=[{"role": "user", "content": "Tell me."}], model="gpt-5", stream=True)
            async for _ in stream:
                pass
        assert ([each.target for each in own.hand_overs], stream.report.hand_overs) == (["device"], [])

    run(main())


def test_without_figures_an_answer_moves_from_a_device_to_a_server() -> None:
    async def main() -> None:
        dear = device(first=0.1, prices=DEAR)
        cheap = named(server(first=1.0, prices=CHEAP), "n")
        async with Client(dear, cheap, **client_options(settings(dispatch=Race(explore=0.0)))) as client:
            _, report = await answer(client)
        assert [each.target for each in report.hand_overs] == ["server"]
        (note,) = report.notes
        assert note.startswith("server went on for device, because it is cheaper; whether its model is good enough is not known (")

    run(main())


@pytest.mark.parametrize("first_prices", [None, CHEAP], ids=["no price", "the cheapest"])
def test_a_writer_that_failed_bars_moves_whatever_its_price(first_prices: TokenPrices | None) -> None:
    """The strong first endpoint dies, the dear one goes on, and the cheap one is too weak for what the first one has written."""

    async def main() -> None:
        strong = ScriptedEndpoint(
            "strong",
            [*script(0.1, 0.02)[:8], (0.5, EndpointConnectError("cut", endpoint="strong"))],
            prices=first_prices,
            capabilities=ABLE,
            tokens=10,
        )
        middling = TokenPrices(prompt=2e-9, completion=2e-9)
        quality = {"strong": 0.9, "dear": 0.5, "spare": 0.5}
        moving = MigrationOptions(min_quality=0.9, quality=quality)
        servers = [strong, server("dear"), server("spare", prices=middling)]
        async with Client(server=servers, **client_options(settings(migration=moving))) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        assert [(change.target, change.is_planned) for change in report.hand_overs] == [("dear", False)]

    run(main())


@pytest.mark.parametrize("quality", [[0.5], "device", 0.5])
def test_qualities_are_by_name(quality: object) -> None:
    with pytest.raises(ConfigError, match="migration: quality: expected numbers by endpoint name or None, got"):
        MigrationOptions(quality=quality)  # type: ignore[arg-type]


def test_the_quality_in_a_profile_counts_and_is_kept() -> None:
    async def main() -> None:
        known = Profile(quality=BAD_SPARE).to_json()
        assert (await to_spare(profile=known)).hand_overs == []
        (change,) = (await to_spare(profile=known, migration=MigrationOptions(min_quality=0.2))).hand_overs
        assert change.is_planned
        (change,) = (await to_spare(profile=known, migration=MigrationOptions(quality=GOOD_SPARE))).hand_overs
        assert change.is_planned
        client = Client(server=[server(), server("spare")], profile=known)
        assert Profile.from_json(client.profile()).quality == BAD_SPARE
        assert Profile.from_json(client.with_options(budget=0.5).profile()).quality == BAD_SPARE

    run(main())


def test_an_endpoint_that_dies_is_replaced_by_a_worse_one() -> None:
    async def main() -> None:
        cut = (0.5, EndpointConnectError("cut", endpoint="server"))
        dying = ScriptedEndpoint("server", [*script(0.2, 0.02)[:8], cut], prices=DEAR, capabilities=ABLE, tokens=10)
        options = settings(migration=MigrationOptions(quality=BAD_SPARE, min_quality=0.9))
        async with Client(server=[dying, server("spare", prices=CHEAP)], **client_options(options)) as client:
            text, report = await answer(client)
        assert text == "".join(WORDS)
        assert [(change.target, change.is_planned) for change in report.hand_overs] == [("spare", False)]

    run(main())


def test_nothing_is_said_of_the_quality_of_an_endpoint_that_could_not_take_over_anyway() -> None:
    async def main() -> None:
        unable = Capabilities(continuation="none", pre_copy="none")
        options = settings(migration=MigrationOptions(quality=BAD_SPARE))
        async with Client(server=[server(), server("spare", prices=CHEAP, capabilities=unable)], **client_options(options)) as client:
            _, report = await answer(client)
        assert report.hand_overs == []
        said = [each for each in report.notes if "spare" in each]
        assert said == ["the answer moves to no cheaper endpoint, because spare can't continue an answer"]

    run(main())


def test_a_quality_of_an_unknown_endpoint_is_refused() -> None:
    wrong = MigrationOptions(quality={"servr": 0.8})
    with pytest.raises(ConfigError, match="migration: quality: expected names among server, spare, got 'servr'"):
        Client(server=[server(), server("spare")], mode=Race(migration=wrong))
    with pytest.raises(ConfigError, match="migration: quality: expected names among server, got 'servr'"):
        Client(server=server()).with_options(mode=Race(migration=wrong))


@pytest.mark.parametrize("wrong", [{"rule": "now"}, {"max_migrations": -1}, {"min_quality": 1.1}, {"min_quality": -0.1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="migration: expected"):
        MigrationOptions(**wrong)
    with pytest.raises(ConfigError, match="migration: expected MigrationOptions"):
        Client(server="gpt-4o-mini", mode=Race(migration="pre-copy"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="migration: quality: a: expected a number of 0 or more"):
        MigrationOptions(quality={"a": -1.0})
    assert streamco.MigrationOptions is MigrationOptions
