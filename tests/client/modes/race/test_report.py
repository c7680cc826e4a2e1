"""Reports of race machines that the tests call by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from streamco.client.arguments import build_request
from streamco.client.client import Client
from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.report import build_cost, build_opening, build_report, describe_usage, with_split_figures
from streamco.core.race.attempt import AttemptPlan, AttemptState, ReadAhead
from streamco.core.race.machine import OnFailure, RaceMachine, RacePlan
from streamco.core.report import Report, opening_of
from streamco.core.report_parts import AnswerUsage, EndpointReport, is_energy_measured
from streamco.core.split.machine import SplitCounts
from streamco.endpoints.base import Capabilities, Endpoint, Request, TokenPrices
from streamco.engines.base import GenerationTimings
from streamco.engines.split.tally import SplitTally, SplitTraffic
from streamco.errors import EndpointConnectError, EndpointStatusError, EndpointTimeoutError, EngineError, StreamcoError
from streamco.events import Event, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.openai_types import CompletionUsage, PromptTokensDetails
from streamco.testing.endpoint import ScriptedEndpoint, ScriptedStream, ScriptItem, text_chunk
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.client.helpers import ShapedDevice, opened, server, tokens_text, words

PRICES = TokenPrices(prompt=1e-6, completion=4e-6, cached_prompt=5e-7)
SIDES: dict[str, Endpoint] = {
    "server": server(prices=PRICES),
    "device": ShapedDevice("device", kind="device", tokens=10),
    "spare": server(name="spare"),
}


def tokens(source: str, count: int = 1) -> TokensReceived:
    return TokensReceived(source, [text_chunk("word ") for _ in range(count)], count)


def run(
    *events: tuple[float, Event],
    attempts: tuple[AttemptPlan, ...] = (AttemptPlan("server", 0.0), AttemptPlan("device", 0.0)),
    pace: float | None = None,
    missing: tuple[tuple[str, EngineError], ...] = (),
    on_failure: OnFailure = "raise",
) -> RaceMachine:
    machine = RaceMachine(RacePlan(attempts=attempts, pace=pace, missing=missing, on_failure=on_failure))
    machine.start(now=100.0)
    for now, event in events:
        machine.receive(event, now=100.0 + now)
    return machine


def dispatched() -> DispatchRecord:
    dispatcher = Dispatcher(DispatchOptions(policy="both"), budget=1.0, seed=1)
    return dispatcher.decide(build_request("hello"), SIDES["device"], [SIDES["server"]], {})


def report_on(machine: RaceMachine, now: float = 200.0, *, endpoints: Mapping[str, Endpoint] = SIDES, was_left: bool = False) -> Report:
    decision = dispatched()
    return build_report(machine, decision, endpoints, build_cost(machine, decision, endpoints, was_left=was_left), now=now)


def part(report: Report, name: str) -> EndpointReport:
    return next(part for part in report.endpoints if part.name == name)


WON: list[tuple[float, Event]] = [(0.4, tokens("server", 3)), (0.5, StreamCancelled("device")), (0.9, tokens("server", 2))]


def test_times_are_counted_from_the_request() -> None:
    report = report_on(run(*WON, (1.0, StreamEnded("server", "stop"))))
    assert report.winner == "server"
    assert report.ttft == pytest.approx(0.4)
    assert report.duration == pytest.approx(1.0)
    assert report.tokens == 5
    assert report.tokens_per_second == pytest.approx(4 / 0.5)
    assert report.finish_reason == "stop"
    assert report.is_final
    assert report.quality.tbt_p50 is not None


def test_an_answer_under_way_has_figures_so_far() -> None:
    report = report_on(run(*WON[:1]), now=100.6)
    assert report.duration == pytest.approx(0.6)
    assert report.tokens == 3
    assert report.tokens_per_second is None, "all of one moment"
    assert not report.is_final
    nothing = report_on(run(), now=100.1)
    assert (nothing.winner, nothing.ttft, nothing.tokens) == (None, None, 0)


def test_each_endpoint_has_its_outcome() -> None:
    attempts = (AttemptPlan("server", 0.0), AttemptPlan("device", 0.2), AttemptPlan("spare", None))
    failed = StreamFailed("server", EndpointConnectError("refused", endpoint="server"))
    report = report_on(run((0.1, failed), (0.6, tokens("device")), (0.7, StreamEnded("device", "stop")), attempts=attempts))
    outcomes = {part.name: (part.outcome, part.opened, part.ttft) for part in report.endpoints}
    assert outcomes["server"] == ("failed", 0.0, None)
    assert outcomes["device"][0] == "won"
    assert outcomes["device"][1:] == pytest.approx((0.1, 0.5)), "the time to first token counts from the endpoint's own start"
    assert outcomes["spare"] == ("not started", None, None)
    assert part(report, "server").error == "server: refused"
    assert [part.kind for part in report.endpoints] == ["server", "device", "server"]


def test_a_winner_that_fails_afterwards_has_won_and_says_what_happened() -> None:
    report = report_on(run(*WON, (1.0, StreamFailed("server", EndpointConnectError("cut", endpoint="server")))))
    assert part(report, "server").outcome == "won"
    assert part(report, "server").error == "server: cut"
    assert report.finish_reason is None


def test_a_loser_has_lost_and_its_tokens_are_waste() -> None:
    report = report_on(
        run((0.4, tokens("server")), (0.41, tokens("device", 4)), (0.5, StreamCancelled("device")), (0.6, StreamEnded("server")))
    )
    assert part(report, "device").outcome == "lost"
    assert part(report, "device").completion_tokens == 4
    assert part(report, "device").is_estimated
    assert report.wasted_tokens == 4


def test_an_endpoint_that_could_not_start_is_in_the_report() -> None:
    report = report_on(
        run(WON[0], attempts=(AttemptPlan("server", 0.0),), missing=(("device", EngineError("no such file", endpoint="device")),))
    )
    gone = part(report, "device")
    assert (gone.outcome, gone.opened, gone.kind) == ("failed", None, "device")
    assert gone.error == "device: no such file"
    assert gone.prompt_tokens == 0


def test_an_endpoints_own_count_goes_before_the_estimate() -> None:
    usage = CompletionUsage(
        prompt_tokens=1000, completion_tokens=50, total_tokens=1050, prompt_tokens_details=PromptTokensDetails(cached_tokens=400)
    )
    report = report_on(run(*WON, (1.0, StreamEnded("server", "stop", usage))))
    won = part(report, "server")
    assert (won.prompt_tokens, won.completion_tokens, won.is_estimated) == (1000, 50, False)
    assert won.cost_usd == pytest.approx(600e-6 + 400 * 5e-7 + 50 * 4e-6)
    lost = part(report, "device")
    assert (lost.prompt_tokens, lost.completion_tokens, lost.is_estimated) == (10, 0, True)
    assert report.wasted_tokens == 0


def test_costs_add_up_over_everybody_who_worked() -> None:
    report = report_on(run(*WON, (1.0, StreamEnded("server", "stop"))))
    won, lost = part(report, "server"), part(report, "device")
    assert won.cost_usd == pytest.approx(10e-6 + 5 * 4e-6)
    assert lost.cost_usd == 0.0
    assert report.cost_usd == won.cost_usd
    assert lost.energy_j is not None
    assert lost.energy_j > 0
    assert won.energy_j is None
    assert report.energy_j == lost.energy_j
    assert report.unified_cost_usd is not None
    assert report.unified_cost_usd > (report.cost_usd or 0.0)


def test_a_cost_that_is_not_known_makes_the_sum_unknown_but_only_if_it_was_incurred() -> None:
    attempts = (AttemptPlan("server", 0.0), AttemptPlan("spare", None))
    spared = report_on(run((0.1, tokens("server")), (0.2, StreamEnded("server")), attempts=attempts))
    assert spared.cost_usd is not None
    failed = StreamFailed("server", EndpointConnectError("refused"))
    used = report_on(run((0.1, failed), (0.2, tokens("spare")), (0.3, StreamEnded("spare")), attempts=attempts))
    assert used.cost_usd is None


def test_what_was_held_for_a_reader_who_left_is_waste() -> None:
    usage = CompletionUsage(prompt_tokens=10, completion_tokens=20, total_tokens=30)
    attempts = (AttemptPlan("server", 0.0),)
    machine = run((0.0, tokens("server", 10)), (0.1, StreamEnded("server", "stop", usage)), attempts=attempts, pace=1.0)
    machine.handle_deadline(now=104.0)
    assert report_on(machine).wasted_tokens == 0, "still to be delivered"
    machine.receive(ReaderLeft(), now=104.5)
    assert machine.meter.tokens == 5
    assert report_on(machine).wasted_tokens == 10


@pytest.mark.parametrize("pace", [None, 1000.0])
def test_an_answer_that_was_read_whole_has_no_waste_however_its_tokens_were_estimated(pace: float | None) -> None:
    burst = TokensReceived("server", [text_chunk("a chunk that holds a good many words at once")], 3)
    machine = run((0.0, burst), (0.1, StreamEnded("server", "stop")), attempts=(AttemptPlan("server", 0.0),), pace=pace)
    while (deadline := machine.next_deadline()) is not None:
        machine.handle_deadline(now=deadline)
    report = report_on(machine)
    assert report.is_final
    assert report.wasted_tokens == 0


def test_a_leg_that_never_opened_costs_nothing() -> None:
    machine = run((0.1, tokens("server")), attempts=(AttemptPlan("server", 0.0), AttemptPlan("device", 9.0)))
    described = part(report_on(machine), "device")
    assert (described.prompt_tokens, described.completion_tokens, described.cost_usd) == (0, 0, 0.0)
    assert not described.is_estimated


def test_a_report_is_figures_only_and_goes_to_json_and_back() -> None:
    report = report_on(run(*WON, (1.0, StreamEnded("server", "stop"))))
    encoded = msgspec.json.encode(report)
    assert msgspec.json.decode(encoded, type=Report) == report
    assert b"word" not in encoded
    assert b"hello" not in encoded


# What is paid for


@pytest.mark.parametrize("error", [EndpointConnectError("refused"), EndpointStatusError("too many", status=429)])
def test_who_refused_has_read_nothing_and_costs_nothing_though_its_prices_are_not_known(error: EndpointConnectError) -> None:
    attempts = (AttemptPlan("spare", 0.0), AttemptPlan("server", None))
    report = report_on(run((0.1, StreamFailed("spare", error)), (0.2, tokens("server")), (0.3, StreamEnded("server")), attempts=attempts))
    gone = part(report, "spare")
    assert (gone.outcome, gone.prompt_tokens, gone.is_estimated, gone.cost_usd) == ("failed", 0, False, 0.0)
    assert report.cost_usd == part(report, "server").cost_usd
    assert report.wasted_prompt_tokens == 0


def test_who_took_too_long_or_broke_off_has_read_the_prompt() -> None:
    late = StreamFailed("server", EndpointTimeoutError("expected a token", phase="first_token", limit=1.0))
    assert part(report_on(run((1.0, late))), "server").prompt_tokens == 10
    cut = StreamFailed("server", EndpointConnectError("cut"))
    assert part(report_on(run(*WON, (1.0, cut))), "server").prompt_tokens == 10


def test_prompts_of_those_whose_answer_nobody_read_are_waste() -> None:
    assert report_on(run(*WON, (1.0, StreamEnded("server", "stop")))).wasted_prompt_tokens == 10


def test_a_bill_has_the_reports_figures() -> None:
    machine = run(*WON, (1.0, StreamEnded("server", "stop")))
    cost, report = build_cost(machine, dispatched(), SIDES), report_on(machine)
    assert cost.endpoints == report.endpoints
    for name in ("tokens", "cost_usd", "energy_j", "unified_cost_usd", "wasted_tokens", "wasted_prompt_tokens", "ending"):
        assert getattr(cost, name) == getattr(report, name)


# How it ended


def test_an_answer_ends_complete_failed_or_left() -> None:
    assert report_on(run(*WON)).ending is None
    assert report_on(run(*WON, (1.0, StreamEnded("server", "stop")))).ending == "complete"
    assert report_on(run(*WON, (1.0, StreamFailed("server", EndpointConnectError("cut"))))).ending == "failed"
    left = run(*WON, (1.0, ReaderLeft()))
    assert report_on(left, was_left=True).ending == "left"


@pytest.mark.parametrize("steps", [(), (WON[0],), WON, (*WON, (1.0, StreamEnded("server", "stop")))])
def test_the_opening_is_the_part_of_the_report_that_it_says(steps: Sequence[tuple[float, Event]]) -> None:
    machine = run(*steps)
    assert build_opening(machine, dispatched(), SIDES) == opening_of(report_on(machine))


# Usage of the answer

TOLD = CompletionUsage(40, 7, 47, prompt_tokens_details=PromptTokensDetails(cached_tokens=32))
BOTH_CAN = (AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", None, continues=True))
CUT = StreamFailed("server", EndpointConnectError("cut"))


def test_usage_is_what_the_endpoint_told_that_wrote_the_answer() -> None:
    usage = report_on(run(*WON, (1.0, StreamEnded("server", "stop", TOLD)))).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.is_estimated) == (40, 7, 47, False)
    assert usage.prompt_tokens_details == PromptTokensDetails(cached_tokens=32)
    assert isinstance(usage, CompletionUsage)


def test_usage_that_nobody_told_is_estimated_and_says_so() -> None:
    assert report_on(run(*WON, (1.0, StreamEnded("server", "stop")))).usage == AnswerUsage(10, 5, 15, is_estimated=True)
    assert report_on(run()).usage == AnswerUsage(10, 0, 10, is_estimated=True)
    assert report_on(run(*WON, (1.0, ReaderLeft()), (1.1, StreamCancelled("server")))).usage == AnswerUsage(10, 5, 15, is_estimated=True)


def test_usage_behind_a_hand_over_is_the_whole_answers_with_the_requests_own_prompt() -> None:
    going_on: list[tuple[float, Event]] = [(0.2, tokens("server", 3)), (0.3, CUT), (0.5, tokens("device", 2))]
    under_way = run(*going_on, attempts=BOTH_CAN, on_failure="migrate")
    assert describe_usage(under_way, 10) == AnswerUsage(10, 5, 15, is_estimated=True)
    theirs = CompletionUsage(prompt_tokens=10 + 3 + 4, completion_tokens=6, total_tokens=23)
    whole = run(*going_on, (0.9, StreamEnded("device", "stop", theirs)), attempts=BOTH_CAN, on_failure="migrate")
    assert describe_usage(whole, 10) == AnswerUsage(10, 3 + 6, 19, is_estimated=True)
    assert report_on(whole).usage.completion_tokens == 9
    assert [item.completion_tokens for item in report_on(whole).endpoints] == [3, 6], "each one's own work is in its part"


def test_usage_counts_what_was_delivered_when_nobody_got_to_go_on() -> None:
    racing = (AttemptPlan("server", 0.0, continues=True), AttemptPlan("device", 0.0, continues=True))
    waiting: list[tuple[float, Event]] = [(0.2, tokens("server", 3)), (0.3, CUT), (0.31, tokens("device", 4))]
    machine = run(*waiting, attempts=racing, on_failure="migrate")
    assert describe_usage(machine, 10) == AnswerUsage(10, 3, 13, is_estimated=True)


def test_usage_leaves_out_what_was_held_for_a_reader_who_left() -> None:
    usage = CompletionUsage(prompt_tokens=12, completion_tokens=20, total_tokens=32)
    machine = run(
        (0.0, tokens("server", 10)), (0.1, StreamEnded("server", "stop", usage)), attempts=(AttemptPlan("server", 0.0),), pace=1.0
    )
    assert describe_usage(machine, 10) == AnswerUsage(12, 20, 32), "still to be delivered"
    machine.handle_deadline(now=104.0)
    machine.receive(ReaderLeft(), now=104.5)
    assert describe_usage(machine, 10) == AnswerUsage(12, 10, 22, is_estimated=True)
    assert report_on(machine).wasted_tokens == 10


# Energy


class MeasuredStream(ScriptedStream):
    """A stream whose engine has measured 7 J by its end."""

    has_ended = False

    @property
    def timings(self) -> GenerationTimings | None:
        counts = {"prompt_tokens": 10, "reused_tokens": 0, "completion_tokens": 1, "prefill_s": 0.1, "decode_s": 0.1}
        return GenerationTimings(**counts, joules=7.0) if self.has_ended else None  # type: ignore[arg-type]

    async def receive(self) -> TokensReceived | StreamEnded:
        event = await super().receive()
        self.has_ended = isinstance(event, StreamEnded)
        return event

    async def cancel(self) -> None:
        await super().cancel()
        self.has_ended = True


class MeasuredDevice(ShapedDevice):
    def open(self, request: Request) -> ScriptedStream:
        self.active += 1
        return MeasuredStream(self, request)


@pytest.mark.parametrize("device_at", [0.0, 5.0])
async def test_measured_energy_replaces_the_estimate_when_the_device_has_won_or_was_cancelled(device_at: float) -> None:
    device = MeasuredDevice("device", [(device_at, "D"), (device_at + 0.01, "E")], kind="device", tokens=10)
    async with opened(device, server(words(0.05)), mode=Race(policy="both"), budget=1.0) as client:
        stream = client.stream("hello")
        assert await anext(stream)
        if not device_at:
            assert stream.report.energy_j != 7.0
            assert not stream.report.is_energy_measured, "it is an estimate while the answer is under way"
        await tokens_text(stream)
        await stream.aclose()
        report = stream.report
        assert (report.energy_j, report.is_energy_measured) == (7.0, True)
        assert (part(report, "device").energy_j, part(report, "device").is_energy_measured) == (7.0, True)
        assert not part(report, "server").is_energy_measured
        assert client.totals.energy_j == 7.0


def test_energy_is_called_measured_only_if_all_of_it_was() -> None:
    parts = [EndpointReport(name="device", kind="device", outcome="won", energy_j=2.0, is_energy_measured=True)]
    assert not is_energy_measured([])
    assert is_energy_measured(parts)
    assert is_energy_measured([*parts, EndpointReport(name="server", kind="server", outcome="lost")])
    assert not is_energy_measured([*parts, EndpointReport(name="device", kind="device", outcome="lost", energy_j=1.0)])


# Reading ahead and handing over


def handed_over(*more: tuple[float, Event]) -> RaceMachine:
    """The server wrote three tokens, the device goes on."""
    return run((0.2, tokens("server", 3)), (0.3, CUT), (0.5, tokens("device", 2)), *more, attempts=BOTH_CAN, on_failure="migrate")


def reading_ahead(machine: RaceMachine, *, of: int) -> RaceMachine:
    """The device read the prompt and ``of`` tokens of the answer ahead, in a part of its own."""
    attempt = machine.attempts["device"].prepare(0.25, ReadAhead(of, of))
    attempt.state = AttemptState.PREPARED
    machine.past_attempts.append(attempt)
    return machine


def test_who_read_ahead_and_took_over_has_wasted_nothing() -> None:
    report = report_on(reading_ahead(handed_over(), of=2))
    ahead = next(item for item in report.endpoints if item.outcome == "read ahead")
    assert (ahead.name, ahead.prompt_tokens, ahead.completion_tokens, ahead.is_estimated) == ("device", 12, 0, True)
    assert (ahead.wasted_prompt_tokens, report.wasted_prompt_tokens, report.wasted_tokens) == (0, 0, 0)


def test_who_read_ahead_and_was_not_needed_has_read_for_nothing() -> None:
    report = report_on(reading_ahead(run(*WON[:1], attempts=BOTH_CAN, on_failure="migrate"), of=2))
    assert [item.outcome for item in report.endpoints] == ["read ahead", "won", "not started"]
    assert (report.endpoints[0].wasted_prompt_tokens, report.wasted_prompt_tokens) == (12, 12)


def test_what_was_kept_from_reading_ahead_is_not_read_again() -> None:
    machine = handed_over()
    whole = part(report_on(machine), "device")
    machine.attempts["device"].kept = 3
    kept = part(report_on(machine), "device")
    assert whole.prompt_tokens == kept.prompt_tokens == 13
    assert whole.energy_j is not None
    assert kept.energy_j is not None
    assert kept.energy_j < whole.energy_j
    told = CompletionUsage(13, 2, 15, prompt_tokens_details=PromptTokensDetails(cached_tokens=13))
    assert part(report_on(handed_over((0.9, StreamEnded("device", "stop", told)))), "device").energy_j == pytest.approx(kept.energy_j)


def test_what_the_source_made_behind_the_hand_over_is_waste_and_not_in_the_answer() -> None:
    machine = handed_over()
    machine.attempts["server"].tokens += 2
    machine.attempts["server"].late += 2
    report = report_on(machine)
    assert part(report, "server").completion_tokens == 5
    assert (part(report, "server").wasted_tokens, report.wasted_tokens) == (2, 2)
    assert report.usage.completion_tokens == 5


def call_it_planned(machine: RaceMachine) -> None:
    """The report shows the hand-over as if it had been made to save money."""
    assert machine._handover is not None
    machine._handover.hand_overs[0] = replace(machine._handover.hand_overs[0], is_planned=True)


def test_a_planned_hand_over_saves_what_the_source_would_have_taken_for_the_rest_less_what_the_target_took() -> None:
    machine = reading_ahead(handed_over(), of=2)
    machine.attempts["device"].kept = 2
    (unplanned,) = report_on(machine).hand_overs
    assert unplanned.saved_usd is None
    call_it_planned(machine)
    report = report_on(machine)
    (planned,) = report.hand_overs
    parts = [item.unified_cost_usd or 0.0 for item in report.endpoints if item.name == "device"]
    assert len(parts) == 2
    assert min(parts) > 0.0
    assert planned.saved_usd == pytest.approx(2 * 4e-6 - sum(parts))
    machine.attempts["server"].tokens += 2
    machine.attempts["server"].late += 2
    assert report_on(machine).hand_overs[0].saved_usd == pytest.approx(-sum(parts)), "the source had made the rest already"


def test_what_a_hand_over_saved_is_not_known_where_a_price_is_not() -> None:
    machine = handed_over()
    call_it_planned(machine)
    endpoints = SIDES | {"server": server()}
    (planned,) = report_on(machine, endpoints=endpoints).hand_overs
    assert planned.saved_usd is None


def test_what_was_held_for_a_reader_who_left_was_the_last_ones() -> None:
    machine = RaceMachine(RacePlan(attempts=BOTH_CAN, pace=1.0, on_failure="migrate"))
    machine.start(now=100.0)
    machine.receive(tokens("server", 6), now=100.0)
    machine.receive(CUT, now=100.1)
    machine.receive(tokens("device", 3), now=100.2)
    machine.receive(ReaderLeft(), now=101.5)
    assert (machine.meter.tokens, machine.dropped) == (1, 8)
    report = report_on(machine)
    assert [(item.name, item.wasted_tokens) for item in report.endpoints] == [("server", 5), ("device", 3)]
    assert report.usage.completion_tokens == 1


# Whatever happens


@pytest.mark.parametrize("seed", range(100))
def test_every_token_that_was_made_was_delivered_or_wasted(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        sides = [stuttering(rng, name) for name in ("device", "server", "spare")]
        async with Client(sides[0], sides[1:], mode=Race(policy="both"), budget=1.0, pace=rng.choice([None, 4, 40]), seed=seed) as client:
            reports = [await leave_somewhere(client, rng) for _ in range(4)]
            totals = client.totals
        for report in reports:
            assert report.is_final
            assert report.usage.completion_tokens == report.tokens, f"seed {seed}"
            assert sum(item.completion_tokens for item in report.endpoints) == report.tokens + report.wasted_tokens, f"seed {seed}"
            assert all(0 <= item.wasted_tokens <= item.completion_tokens for item in report.endpoints)
            assert all(0 <= item.wasted_prompt_tokens <= item.prompt_tokens for item in report.endpoints)
        assert totals.answers == totals.complete + totals.failed + totals.left == len(reports)
        assert [report.ending for report in reports].count("left") == totals.left
        assert totals.tokens == sum(report.tokens for report in reports)
        assert totals.wasted_tokens == sum(item.wasted_tokens for item in totals.endpoints.values())
        assert totals.wasted_prompt_tokens == sum(report.wasted_prompt_tokens for report in reports)
        assert totals.hand_overs == sum(len(report.hand_overs) for report in reports)

    run_in_virtual_time(main())


def stuttering(rng: random.Random, name: str) -> ScriptedEndpoint:
    """Writes some words, most of them in bursts; now and then it fails after them. Prices differ, so that paced answers may move."""
    times = list(itertools.accumulate(rng.choice([0.0, 0.01, 0.05, 0.3]) for _ in range(rng.randrange(1, rng.choice([30, 120])))))
    script: list[tuple[float, ScriptItem]] = [(0.1 + time, "word ") for time in times]
    if rng.random() < 0.3:
        script.append((script[-1][0], EndpointConnectError("cut", endpoint=name)))
    able = Capabilities(
        continuation=rng.choice(["none", "continue_final_message", "continue_final_message"]),
        pre_copy=rng.choice(["append", "warm", "none"]),
    )
    options: dict[str, Any] = {"capabilities": able, "tokens": 10, "cancel_takes": rng.choice([0.0, 0.2])}
    if name == "device":
        return ShapedDevice(name, script, kind="device", **options)
    return ScriptedEndpoint(name, script, prices=rng.choice([PRICES, TokenPrices(prompt=1e-9, completion=1e-9)]), **options)


async def leave_somewhere(client: Client, rng: random.Random) -> Report:
    """An answer read to its end, to its failure, or left before; a loser's cancel is waited for."""
    stream = client.stream("hello")
    end = rng.randrange(rng.choice([40, 300]))
    with suppress(StreamcoError):
        async for _ in stream:
            end -= 1
            if end < 0:
                break
    await stream.aclose()
    return stream.report


TRIPS = SplitTally(SplitCounts(trips=2), SplitTraffic(servers=["one:8000"])).figures(tokens=5, input_layers=2, states="f32")


def test_a_split_model_alone_is_no_race() -> None:
    raced = report_on(run((0.1, tokens("device")), attempts=(AttemptPlan("device", 0.0),)))
    report = with_split_figures(raced, [TRIPS])
    assert (report.mode, report.split, report.dispatch.policy, report.dispatch.constraint) == ("split", TRIPS, "split", None)
    assert report.dispatch.reason == "device has the ends of a model here, and its middle at one:8000"
    assert with_split_figures(raced, [None]) is raced


def test_a_split_model_beside_a_server_has_its_figures_and_the_answer_raced() -> None:
    report = with_split_figures(report_on(run((0.1, tokens("device")))), [None, TRIPS])
    assert (report.mode, report.split) == ("race", TRIPS)
