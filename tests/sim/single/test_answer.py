from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import get_args

import pytest
import simpy
from msgspec.structs import replace

from streamco.core.speculation.answer import Emit
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import CloseRemote, OpenRemote, ReaderCaughtUp, ReaderFellBehind, SpeculationCommand, SpeculationEvent
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.policies.learned_window import Adaptive
from streamco.policies.mode_switch import Predicted
from streamco.policies.window import Dynamic, Static, WindowPolicy
from streamco.sim.driver import call_at
from streamco.sim.fleet.drafting_device import DraftingDevice
from streamco.sim.single.answer import SimulatedSpeculation, SpeculationOutcome, simulate_answer
from streamco.sim.single.faulty_verifier import Fault, FaultKind, Faults, FaultyLink, VerifyingServer
from streamco.sim.workload.token_models import DeterministicModel, FakeDistribution, TokenModel, choose_token
from tests.support.examples import examples

_END = 0
_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


@cache
def model(seed: int, noise: float, size: int = 8) -> TokenModel:
    """Two last ids decide; each place is computed once."""
    distribution = FakeDistribution(seed, size, noise=noise)
    known: dict[tuple[int, ...], Mapping[int, float]] = {}

    def successor(ids: Sequence[int]) -> Mapping[int, float]:
        position = tuple(ids[-2:])
        if position not in known:
            known[position] = distribution(position)
        return known[position]

    return successor


def own_answer(target: TokenModel, end_ids: frozenset[int], most: int) -> list[int]:
    """What the target says alone, greedily, the end included."""
    ids: list[int] = []
    while len(ids) < most and not (ids and ids[-1] in end_ids):
        ids.append(choose_token(target(ids), None))
    return ids


def random_faults(rng: Random, share: float) -> Faults:
    def fault(_: int) -> Fault | None:
        if rng.random() >= share:
            return None
        kind = rng.choice(_KINDS)
        return Fault(kind, rng.choice((-1.0, 0.0, 0.01, 0.3, 3.0)) if kind == "refused" else rng.random() * 2.0)

    return fault


def repeat_events(_: simpy.Environment, run: SimulatedSpeculation) -> None:
    """Whoever tells of rounds and connections says everything twice."""
    once = run.receive

    def twice(event: SpeculationEvent) -> None:
        once(event)
        once(event)

    run.session.emit = twice


class Scenario:
    """Everything about an answer, from one seed."""

    def __init__(self, seed: int, *, budget: float | None = None) -> None:
        rng = Random(seed)
        self.seed = seed
        self.budget = rng.choice((0.0, 0.2, 0.5, 0.9)) if budget is None else budget
        self.end_ids = frozenset({_END}) if rng.random() < 0.7 else frozenset[int]()
        self.most = rng.choice((1, 2, 3, 7, 20, 40))
        self.target = model(rng.randrange(12), 0.0)
        draft = model(rng.randrange(12), rng.choice((0.0, 0.5, 1.0, 3.0)))
        if rng.random() < 0.8:
            draft = model(seed % 12, rng.choice((0.0, 0.5, 1.0, 3.0)))
            self.target = model(seed % 12, 0.0)
        is_sampled = rng.random() < 0.2
        fails = [rng.choice((0.05, 0.5, 2.0)) if rng.random() < 0.12 else None for _ in range(3)]
        self.is_doomed = any(fail is not None for fail in fails)
        share = rng.choice((0.0, 0.0, 0.1, 0.5))
        self.window: WindowPolicy = Static(rng.randrange(1, 7)) if rng.random() < 0.6 else Dynamic()
        prior = EstimatesPrior(remote_step=rng.choice((0.01, 0.05, 0.2)), wait=rng.choice((0.02, 0.1, 0.5)))
        self.pair = SpeculationEstimates(self.budget, window=self.window, prior=prior)
        emit: Emit = rng.choice(("verified", "draft"))
        self.options = SpeculationMachineOptions(
            end_ids=self.end_ids,
            max_tokens=self.most,
            emit=emit,
            has_remote=rng.random() < 0.7,
            may_use_device=rng.random() < 0.3,
            is_adaptive=rng.random() < 0.7,
            is_parallel=rng.random() < 0.8,
            max_branches=rng.randrange(1, 6),
            verdict_timeout=rng.choice((0.2, 1.0, 5.0)),
            first_verdict_timeout=rng.choice((1.0, 5.0)),
            patience=rng.choice((0.1, 1.0)),
            last_patience=rng.choice((5.0, 30.0)),
            max_ahead=Random(f"ahead {seed}").choice((0, 1, 3)) if self.budget == 1.0 else 0,
            may_begin_by_stream=Random(f"stream {seed}").random() < 0.5,
        )
        step = rng.choice((0.001, 0.02, 0.05))
        self.device = DraftingDevice(
            model=draft,
            step_times=tuple(step * (1.0 + 0.1 * position) for position in range(rng.randrange(1, 7))),
            read_time=rng.choice((0.0, 0.01)),
            prompt_time=Random(f"prompt {seed}").choice((0.0, 0.0, 0.3, 2.0)),
            is_sampled=is_sampled,
            end_ids=self.end_ids,
            context=rng.choice((None, None, None, 5, 30)),
            burst=rng.choice((1, 2, 100)),
            jitter=rng.choice((0.0, 0.5)),
            emit_delay=rng.choice((0.0, 0.005)),
            fails_at=fails[0],
        )
        self.server = VerifyingServer(
            model=self.target,
            step=rng.choice((0.01, 0.05, 0.2)),
            read_time=rng.choice((0.0, 0.002)),
            prompt_time=rng.choice((0.0, 0.3)),
            is_sampled=is_sampled,
            end_ids=self.end_ids,
            context=rng.choice((None, None, None, None, 6, 25)),
            connect_trips=rng.choice((1.0, 3.0)),
            faults=random_faults(Random(seed + 1), share),
            remembers=rng.random() < 0.5,
            verifier_fails_at=fails[1],
            remote_fails_at=fails[2],
        )
        self.link = FaultyLink(rtt=rng.choice((0.0, 0.03, 0.2)), bits_per_s=rng.choice((1e4, 1e8)))
        self.is_sampled = is_sampled

    def trouble(self, env: simpy.Environment, run: SimulatedSpeculation) -> None:
        """Everything is told twice, and some readers fall behind now and then."""
        repeat_events(env, run)
        rng = Random(self.seed + 2)
        at = 0.0
        while rng.random() < 0.6 and self.seed % 3 == 0:
            at += rng.random()
            call_at(env, at, lambda: run.receive(ReaderFellBehind()))
            at += rng.random()
            call_at(env, at, lambda: run.receive(ReaderCaughtUp()))

    def run(self) -> SpeculationOutcome:
        outcome = simulate_answer(self.pair, self.options, self.device, self.server, self.link, seed=self.seed, before=self.trouble)
        assert outcome is not None, f"seed {self.seed}: nothing happens any more, and the answer has no end"
        return outcome


def check_reader(scenario: Scenario, outcome: SpeculationOutcome) -> None:
    """The reader has what was settled, once, and nothing else."""
    text = outcome.ids[:-1] if outcome.ids and outcome.ids[-1] in scenario.end_ids else outcome.ids
    reader, report = outcome.reader, outcome.report
    assert [token for token, _ in reader.final] == text
    assert not reader.provisional
    assert reader.shown - reader.retracted == len(text) == len(reader.times)
    assert report.retracted == reader.retracted
    assert not (set(text) & scenario.end_ids)
    settled = {"accepted": report.accepted, "corrected": report.corrected, "bonus": report.bonus}
    settled |= {"device": report.device, "remote": report.remote}
    assert sum(settled.values()) == len(outcome.ids)
    for origin, count in settled.items():
        assert 0 <= count - sum(vouched == origin for _, vouched in reader.final) <= 1  # the end of the text isn't delivered
    assert len(outcome.ids) <= scenario.most
    assert report.wasted >= 0


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("part", range(8))
def test_a_lossless_answer_is_the_targets_own_whatever_happens(part: int) -> None:
    for seed in range(part * 400, part * 400 + examples(150, thorough=400)):
        scenario = Scenario(seed, budget=1.0)
        outcome = scenario.run()
        try:
            check_reader(scenario, outcome)
            check_lossless(scenario, outcome)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_an_answer_is_the_targets_own_whatever_happens_while_the_device_reads_the_prompt() -> None:
    begun = 0
    for seed in range(examples(200, thorough=4000)):
        rng, scenario = Random(f"reading {seed}"), Scenario(seed, budget=1.0)
        prior = EstimatesPrior(remote_step=rng.choice((0.05, 0.2, 0.5)), wait=rng.choice((0.01, 0.05, 0.2)))
        scenario.pair = SpeculationEstimates(window=scenario.window, prior=prior)
        scenario.options = replace(scenario.options, may_begin_by_stream=True, is_adaptive=True, has_remote=True)
        scenario.device = replace(scenario.device, prompt_time=rng.choice((0.05, 0.2, 0.5, 2.0)))
        outcome = scenario.run()
        begun += outcome.report.why_remote == "the device reads the prompt"
        try:
            check_reader(scenario, outcome)
            check_lossless(scenario, outcome)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert begun > 0


def check_lossless(scenario: Scenario, outcome: SpeculationOutcome) -> None:
    report = outcome.report
    assert report.device == 0 or (not report.is_exact and scenario.options.may_use_device)
    if not scenario.is_sampled and report.is_exact:
        whole = own_answer(scenario.target, scenario.end_ids, scenario.most)
        assert outcome.ids == whole[: len(outcome.ids)]
        is_cut = scenario.server.context is not None and len(outcome.ids) >= scenario.server.context
        assert outcome.reason is None or is_cut or len(outcome.ids) >= len(whole) - (outcome.reason == "stop")
    if outcome.reason is None:
        assert outcome.error is not None
        assert scenario.is_doomed or not scenario.options.has_remote


@pytest.mark.parametrize("part", range(8))
def test_a_selective_answer_settles_everything_once_whatever_happens(part: int) -> None:
    for seed in range(part * 200, part * 200 + examples(80, thorough=200)):
        scenario = Scenario(seed)
        outcome = scenario.run()
        try:
            check_reader(scenario, outcome)
            assert outcome.reason is not None or scenario.is_doomed
            assert outcome.report.offloaded <= outcome.report.chunks
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def scripted(agreement: float, seed: int) -> tuple[TokenModel, TokenModel]:
    """A target that is sure of everything, and a draft model that agrees with it so often; its second choice is right as a rule."""
    target = DeterministicModel(seed)

    @cache
    def drafted(length: int, last: int) -> Mapping[int, float]:
        rng, right = Random(f"draft {seed} {length} {last}"), target.next_token(length, last)
        wrong, other = rng.sample(range(1000, 2000), 2)
        sure = min(0.95, max(0.4, rng.gauss(agreement, 0.15)))
        if rng.random() < agreement:
            return {right: sure, wrong: (1.0 - sure) * 0.5}
        return {wrong: sure, (right if rng.random() < 0.6 else other): (1.0 - sure) * 0.6}

    return target, lambda ids: drafted(len(ids), ids[-1] if ids else 0)


def answer_ratio(
    pair: SpeculationEstimates, *, rtt: float, agreement: float, step: float, draft_step: float, is_adaptive: bool = True
) -> float:
    """Tokens per second of an answer of 256 tokens, relative to the plain stream."""
    target, draft = scripted(agreement, 5)
    device = DraftingDevice(model=draft, step_times=tuple(draft_step * (1.0 + 0.05 * position) for position in range(6)))
    server = VerifyingServer(model=target, step=step, prompt_time=0.2)
    outcome = simulate_answer(
        pair, SpeculationMachineOptions(max_tokens=256, is_adaptive=is_adaptive), device, server, FaultyLink(rtt=rtt), seed=1
    )
    assert outcome is not None
    assert len(outcome.ids) == 256
    return (rtt + server.prompt_time + 256 * step) / outcome.seconds


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(("is_calibrated", "window"), [(False, Static()), (True, Predicted())])
@pytest.mark.parametrize("rtt", [0.01, 0.03, 0.06, 0.12])
def test_a_lossless_answer_is_never_slower_than_95_percent_of_plain_remote(rtt: float, is_calibrated: bool, window: WindowPolicy) -> None:
    ratios: dict[tuple[float, float, float], float] = {}
    for agreement in (0.0, 0.75, 0.9):
        for step in (0.02, 0.05, 0.1):
            for draft_step in (0.005, 0.02, 0.05):
                prior = EstimatesPrior(remote_step=step, wait=rtt + step) if is_calibrated else EstimatesPrior()
                ratio = answer_ratio(
                    SpeculationEstimates(window=window, prior=prior), rtt=rtt, agreement=agreement, step=step, draft_step=draft_step
                )
                ratios[agreement, step, draft_step] = ratio
    worst = min(ratios, key=lambda position: ratios[position])
    assert ratios[worst] >= 0.95, f"{ratios[worst]} at {worst}"
    assert max(ratios.values()) > 1.3, "and drafting is not simply left alone"


def test_a_long_prompt_on_the_device_makes_it_seem_no_slower() -> None:
    target, draft = scripted(0.8, 5)
    device = DraftingDevice(model=draft, step_times=(0.01,) * 6, prompt_time=2.0)
    pair = SpeculationEstimates(prior=EstimatesPrior(step_times=(0.02,) * 6))
    server = VerifyingServer(model=target, step=0.06)
    options = SpeculationMachineOptions(max_tokens=6, has_remote=False)  # a round or two
    assert simulate_answer(pair, options, device, server, FaultyLink(rtt=0.03), seed=1) is not None
    assert 0.01 <= pair.step_times[0] < 0.02


def test_energy_that_is_worth_something_saves_drafted_tokens_and_much_of_it_ends_drafting() -> None:
    target, draft = scripted(0.8, 256)
    drafted, tokens = [], []
    for energy in (0.0, 0.004, 1.0):
        pair = SpeculationEstimates(prior=EstimatesPrior(remote_step=0.06, wait=0.09, step_times=(0.01,) * 6))
        pair.energy = energy
        device = DraftingDevice(model=draft, step_times=(0.01,) * 6)
        options = SpeculationMachineOptions(max_tokens=256)
        outcome = simulate_answer(pair, options, device, VerifyingServer(model=target, step=0.06), FaultyLink(rtt=0.03), seed=1)
        assert outcome is not None
        drafted.append(outcome.report.drafted)
        tokens.append(outcome.ids)
    assert tokens[0] == tokens[1] == tokens[2]
    assert drafted[0] > 1.5 * drafted[1] > 30 * drafted[2]


def test_what_drafting_saves_in_time_does_not_pay_for_energy_that_is_worth_more() -> None:
    target, draft = scripted(0.8, 256)
    pair = SpeculationEstimates(window=Adaptive(), prior=EstimatesPrior(remote_step=0.06, wait=0.09, step_times=(0.01,) * 6))
    pair.energy = 3600.0
    device, options = DraftingDevice(model=draft, step_times=(0.01,) * 6), SpeculationMachineOptions(max_tokens=256, max_ahead=3)
    drafted = 0
    for seed in range(12):
        outcome = simulate_answer(pair, options, device, VerifyingServer(model=target, step=0.06), FaultyLink(rtt=0.03), seed=seed)
        assert outcome is not None
        drafted += outcome.report.drafted
    assert drafted < 100, "some beside the stream, to know the acceptance"


@pytest.mark.long
def test_the_window_that_is_predicted_to_be_best_nearly_is() -> None:
    for rtt, draft_step in ((0.01, 0.02), (0.03, 0.01), (0.06, 0.005)):
        prior = EstimatesPrior(acceptance=0.75, remote_step=0.06, wait=rtt + 0.06)
        rates: dict[str, float] = {}
        windows: list[WindowPolicy] = [Predicted(), *map(Static, (2, 3, 4, 6, 8, 12))]
        for window in windows:
            pair = SpeculationEstimates(window=window, prior=prior)
            ratio = answer_ratio(pair, rtt=rtt, agreement=0.8, step=0.06, draft_step=draft_step, is_adaptive=False)
            rates[f"{window.name} {window.first}"] = ratio
        assert rates["predicted 4"] >= 0.9 * max(rates.values()), f"{rtt}, {draft_step}: {rates}"


def test_where_drafting_was_thought_not_to_pay_it_is_found_that_it_does() -> None:
    pair = SpeculationEstimates(prior=EstimatesPrior(acceptance=0.2, remote_step=0.1, wait=0.13))
    first = answer_ratio(pair, rtt=0.03, agreement=0.9, step=0.1, draft_step=0.01)
    second = answer_ratio(pair, rtt=0.03, agreement=0.9, step=0.1, draft_step=0.01)
    assert first > 1.2
    assert second > 2.0


def share_cores(_: simpy.Environment, run: SimulatedSpeculation) -> None:
    """Let the device draft half as long again while the server writes a stream, as where both have the same cores."""
    do, drafts = run._do, run._drafts
    alone = drafts._device
    beside = replace(alone, step_times=tuple(1.5 * step for step in alone.step_times))

    def do_and_slow_down(command: SpeculationCommand) -> None:
        if isinstance(command, OpenRemote | CloseRemote):
            drafts._device = beside if isinstance(command, OpenRemote) else alone
        do(command)

    run._do = do_and_slow_down  # type: ignore[method-assign]


def test_a_device_that_a_stream_slows_down_drafts_nevertheless() -> None:
    for repeat in range(3):
        pair, seconds, streamed = SpeculationEstimates(), 0.0, 0
        for number in range(25):
            target, draft = scripted(0.9, 100 * repeat + number)
            device = DraftingDevice(model=draft, step_times=tuple(0.017 * (1.0 + 0.1 * position) for position in range(6)))
            server = VerifyingServer(model=target, step=0.044, read_time=0.006, prompt_time=0.2)
            options = SpeculationMachineOptions(max_tokens=64)
            outcome = simulate_answer(pair, options, device, server, FaultyLink(rtt=0.06), seed=number, before=share_cores)
            assert outcome is not None
            seconds += outcome.seconds
            streamed += outcome.report.remote
        plain = 25 * (0.06 + 0.2 + 64 * 0.044)
        assert plain / seconds > 1.05
        assert streamed < 0.5 * 25 * 64


@pytest.mark.parametrize("seed", range(3))
def test_pre_drafted_branches_are_adopted_in_more_than_45_percent_of_the_rounds(seed: int) -> None:
    target, draft = scripted(0.75, seed)
    device = DraftingDevice(model=draft, step_times=tuple(0.015 * (1.0 + 0.1 * position) for position in range(6)))
    rates: list[float] = []
    for max_branches, is_parallel in ((6, True), (1, True), (6, False)):
        options = SpeculationMachineOptions(max_tokens=400, is_adaptive=False, is_parallel=is_parallel, max_branches=max_branches)
        pair = SpeculationEstimates(prior=EstimatesPrior(acceptance=0.75))
        outcome = simulate_answer(pair, options, device, VerifyingServer(model=target), FaultyLink(rtt=0.06), seed=seed)
        assert outcome is not None
        assert outcome.report.acceptance is not None
        rates.append(outcome.report.hit_rate or 0.0)
        rates.append(outcome.tokens_per_s)
    many, fast, one, slower, none, slowest = rates
    assert many >= 0.45
    assert many > one > none == 0.0
    assert fast > slower > slowest


@pytest.mark.parametrize("draft_step", [0.001, 0.01])
def test_drafts_that_are_sent_ahead_spare_the_link(draft_step: float) -> None:
    target, draft = scripted(0.75, 1)
    device = DraftingDevice(model=draft, step_times=tuple(draft_step * (1.0 + 0.1 * position) for position in range(6)))
    rates: list[float] = []
    for max_ahead in (0, 3):
        options = SpeculationMachineOptions(max_tokens=400, is_adaptive=False, max_ahead=max_ahead)
        pair = SpeculationEstimates(prior=EstimatesPrior(acceptance=0.75))
        outcome = simulate_answer(pair, options, device, VerifyingServer(model=target), FaultyLink(rtt=0.12), seed=1)
        assert outcome is not None
        rates.append(outcome.tokens_per_s)
        assert ((outcome.report.ahead_rate or 0.0) > 0.3) == (max_ahead > 0)
    assert rates[1] > 1.1 * rates[0]


@pytest.mark.long
@pytest.mark.parametrize("max_ahead", [0, 3])
def test_answers_that_are_drawn_have_the_targets_distribution(max_ahead: int) -> None:
    """Chi-square over the first three tokens, with branches, retractions and all; the bound is passed by chance once in 1,000 times."""
    target, draft = model(3, 0.0, size=3), model(3, 1.0, size=3)
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        expected = {(*ids, token): share * p for ids, share in expected.items() for token, p in target(ids).items()}
    device = DraftingDevice(model=draft, is_sampled=True, step_times=(0.01, 0.011, 0.012))
    server = VerifyingServer(model=target, is_sampled=True, prompt_time=0.0)
    options = SpeculationMachineOptions(max_tokens=3 + max_ahead, is_adaptive=False, emit="draft", max_ahead=max_ahead)
    counts = dict.fromkeys(expected, 0)
    hits, ahead, runs = 0, 0, 4000
    for seed in range(runs):
        outcome = simulate_answer(
            SpeculationEstimates(window=Static(1), prior=EstimatesPrior(wait=0.1)), options, device, server, FaultyLink(), seed=seed
        )
        assert outcome is not None
        counts[tuple(outcome.ids[:3])] += 1
        hits += outcome.report.hits
        ahead += outcome.report.ahead
    square = sum((counts[ids] - runs * share) ** 2 / (runs * share) for ids, share in expected.items())
    assert square < 54.1, f"26 degrees of freedom, {square}"
    assert hits > runs / 4
    assert (ahead > runs / 4) == (max_ahead > 0)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("part", range(3))
def test_an_answer_that_goes_to_the_stream_and_back_is_still_the_targets_own(part: int) -> None:
    ways_back = 0
    for seed in range(part * 50, part * 50 + 50):
        scenario = Scenario(seed, budget=1.0)
        scenario.most, scenario.end_ids = 150, frozenset()
        scenario.pair = SpeculationEstimates(window=scenario.window, prior=EstimatesPrior(remote_step=0.2, wait=0.05))
        scenario.options = replace(scenario.options, has_remote=True, max_tokens=150, end_ids=frozenset(), patience=0.2)
        scenario.device = replace(scenario.device, end_ids=frozenset(), context=None, fails_at=None, is_sampled=False)
        faults = random_faults(Random(seed), 0.2)
        scenario.server = replace(scenario.server, end_ids=frozenset(), context=None, is_sampled=False, step=0.2, faults=faults)
        scenario.is_sampled = False
        outcome = scenario.run()
        check_reader(scenario, outcome)
        check_lossless(scenario, outcome)
        makers = [vouched == "remote" for _, vouched in outcome.reader.final]
        ways_back += sum(before and not after for before, after in pairwise(makers))
    assert ways_back > 20
