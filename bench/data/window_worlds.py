"""Drawn worlds in which one device drafts and one server verifies, for learning which window is the best (DSD section 4.2).

A world is a link, an acceptance rate, two models' steps and a server's load, each drawn from a wide range. The answer is the same whatever
the window: which of the target's tokens the draft model foresees is fixed place by place, so that windows differ by what they make of it,
and not by luck. A draft token is foreseen with a chance of its own, drawn around the acceptance rate and kept from place to place for runs
of text as hard as one another. What the model believes is that chance, as far as the world lets it know; where it is wrong, its second
choice is right in a share of cases.

The server's load is seen by a round as its turn in a queue: verifications in front of it, as many as a queue of that utilisation has (the
geometric distribution of M/M/1), each for a share of a step, because they are verified together, and the rest of a step that is running.

The speculation machine, the estimates and the mode switch are the client's own. All times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

import simpy
from msgspec import Struct
from msgspec.structs import replace as replaced

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken, VerdictReceived
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.core.verifier.events import FULL_QUEUE
from streamco.policies.mode_switch import RoundConditions, best_window, predict_rates
from streamco.policies.window import Stabiliser, WindowPolicy
from streamco.sim.fleet.drafting_device import DraftingDevice
from streamco.sim.single.answer import SimulatedSpeculation, SpeculationOutcome, simulate_answer
from streamco.sim.single.faulty_verifier import Fault, FaultyLink, VerifyingServer

__all__ = ["ANSWERS", "TOKENS", "Pace", "WindowWorld", "draw_world", "run_fused", "run_policy"]

TOKENS = 96  # of an answer
ANSWERS = 2  # of a pair, one after the other
_SIDE_BY_SIDE = 6  # sequences that the device's steps are known for
_HOPELESS, _KEPT = 0.7, 1.0 / 6.0  # times the server alone; share of such worlds that are kept
_USUAL_HITS, _USUALLY_AHEAD = 0.35, 0.4  # shares of rounds
_MOST_AHEAD = 3  # drafts sent ahead of a verdict, as a client has it
_HELD = 0.8  # of a run of text, the most that its chances stay the same from a place to the next


class WindowWorld(Struct, frozen=True, kw_only=True):
    """One place in the space of conditions.

    Args:
        seed: of everything that is left to chance in it.
        rtt: of the link.
        acceptance: mean share of draft tokens that are right behind right ones.
        concentration: of the tokens' chances around it: small, most are near 0 or 1.
        run: chance that a token's chance is that of the token before it.
        informed: share of tokens whose confidence is their chance; of the others it says nothing.
        second: share of wrong tokens whose second choice is right.
        target_step: of the target for a token, or a round.
        read_time: more for each token that it judges.
        prompt_time: in which it reads the prompt.
        draft_step: of the draft model for a token.
        spread: of a draft step, what each further sequence in it adds.
        jitter: a draft step takes up to this share more or less.
        load: utilisation of the verifier's queue, 0..1.
        turn: of a target step, what a verification in front takes.
        is_parallel: the device drafts on while the verdict is out.
        is_ahead: and sends such drafts ahead of it.
    """

    seed: str
    rtt: float
    acceptance: float
    concentration: float
    run: float
    informed: float
    second: float
    target_step: float
    read_time: float
    prompt_time: float
    draft_step: float
    spread: float
    jitter: float
    load: float
    turn: float
    is_parallel: bool
    is_ahead: bool

    @property
    def step_times(self) -> tuple[float, ...]:
        """Of the draft model, by sequences side by side."""
        return tuple(self.draft_step * (1.0 + self.spread * more) for more in range(_SIDE_BY_SIDE))


class Pace(Struct, frozen=True):
    """How fast answers came.

    Args:
        rate: tokens a second, everything counted.
        tpot: seconds between two tokens, from the first to the last.
    """

    rate: float
    tpot: float


def draw_world(seed: int, number: int) -> WindowWorld:
    """The nth world of a seed.

    Where the server alone is far ahead by arithmetic, one world teaches as much as the next: five in six of those are drawn again.
    """
    rng = Random(f"{seed}/{number}")
    world = _draw(f"{seed}/{number}", rng)
    while _gain(world) < _HOPELESS and rng.random() >= _KEPT:
        world = _draw(f"{seed}/{number}", rng)
    return world


def _gain(world: WindowWorld) -> float:
    """What drafting gives, in times what the server alone does, by arithmetic and at the best window."""
    turns = world.turn * world.load / (1.0 - world.load) + 0.5 * world.load
    conditions = RoundConditions(
        acceptance=world.acceptance,
        window=1,
        draft_step=world.draft_step,
        remote_step=world.target_step,
        verify=world.target_step * (1.0 + turns),
        rtt=world.rtt,
        hit_rate=_USUAL_HITS if world.is_parallel else 0.0,
        ahead=_USUALLY_AHEAD * world.rtt if world.is_ahead else 0.0,
        slowdown=1.0 + world.spread * (_SIDE_BY_SIDE - 1),
    )
    rates = predict_rates(replaced(conditions, window=best_window(conditions, is_parallel=True)))
    return rates.parallel / rates.remote


def _draw(seed: str, rng: Random) -> WindowWorld:
    def scaled(low: float, high: float) -> float:
        """As likely between 1 and 2 as between 10 and 20."""
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")

    target_step = scaled(0.005, 0.15)
    return WindowWorld(
        seed=seed,
        rtt=scaled(0.001, 0.2),
        acceptance=round(rng.uniform(0.2, 0.95), 4),
        concentration=scaled(1.0, 8.0),
        run=round(rng.uniform(0.0, _HELD), 3),
        informed=round(rng.random(), 3),
        second=round(rng.uniform(0.3, 0.8), 3),
        target_step=target_step,
        read_time=scaled(0.001, 0.01) * target_step,
        prompt_time=scaled(1.0, 20.0) * target_step,
        draft_step=scaled(0.001, min(0.06, target_step)),  # no draft model is slower than its target
        spread=scaled(0.02, 0.9),
        jitter=round(rng.uniform(0.0, 0.2), 3),
        load=0.0 if rng.random() < 0.35 else round(rng.uniform(0.05, 0.95), 3),
        turn=scaled(0.05, 0.5),
        is_parallel=(is_parallel := rng.random() < 0.75),
        is_ahead=is_parallel and rng.random() < 0.67,
    )


class _Text:
    """An answer, and what a draft model makes of it: the token at each place, its own choice there and how sure it is."""

    def __init__(self, world: WindowWorld, number: int) -> None:
        rng = Random(f"text {world.seed} {number}")
        alpha, beta = world.concentration * world.acceptance, world.concentration * (1.0 - world.acceptance)
        self._target: list[Mapping[int, float]] = []
        self._draft: list[DraftToken] = []
        chance = rng.betavariate(alpha, beta)
        for place in range(TOKENS + 16):
            right, wrong, other = 3 * place + 1, 3 * place + 2, 3 * place + 3
            if rng.random() >= world.run:
                chance = rng.betavariate(alpha, beta)
            is_right, is_second = rng.random() < chance, rng.random() < world.second
            emit = chance if rng.random() < world.informed else rng.betavariate(alpha, beta)
            sure = min(0.995, max(0.05, emit))
            rest = min(0.6 * (1.0 - sure), 0.9 * sure)
            self._target.append({right: 1.0})
            first, second = (right, wrong) if is_right else (wrong, right if is_second else other)
            self._draft.append(DraftToken(first, sure, ((first, sure), (second, rest))))

    def target(self, ids: Sequence[int]) -> Mapping[int, float]:
        return self._target[len(ids)]

    def draft(self, ids: Sequence[int]) -> Mapping[int, float]:
        return dict(self.write(ids).alternatives)

    def write(self, ids: Sequence[int]) -> DraftToken:
        return self._draft[min(len(ids), TOKENS + 15)]


class _Queue:
    """The verifications in front of each round; also tells the verdicts how full it was."""

    def __init__(self, world: WindowWorld, number: int) -> None:
        self._world = world
        self._rng = Random(f"queue {world.seed} {number}")
        self._waiting = 0

    def fault(self, _: int) -> Fault | None:
        """Of the next round: it comes late."""
        world, rng = self._world, self._rng
        if not world.load:
            return None
        self._waiting = int(math.log(1.0 - rng.random()) / math.log(world.load))
        running = rng.random() if rng.random() < world.load else 0.0
        return Fault("slow", world.target_step * (running + world.turn * self._waiting))

    def attach(self, _: simpy.Environment, run: SimulatedSpeculation) -> None:
        """Make the verdicts carry the queue's depth."""
        emit = run.session.emit

        def emit_with_depth(event: object) -> None:
            if isinstance(event, VerdictReceived):
                event = replaced(event, queue_depth=min(1.0, self._waiting / FULL_QUEUE))
            emit(event)  # type: ignore[arg-type]

        run.session.emit = emit_with_depth


def run_policy(
    world: WindowWorld, policy: WindowPolicy, *, is_adaptive: bool, smoothing: float = 1.0, min_window: int = 1, smooths_mode: bool = False
) -> tuple[Pace, list[SpeculationOutcome]]:
    """Answers of a pair that begins with knowing how fast the target streams, and nothing else.

    Args:
        world: where.
        policy: of the window.
        is_adaptive: the server may generate alone.
        smoothing, min_window: of the policy's proposals, ``Stabiliser``.
        smooths_mode: the mode is chosen by smoothed proposals as well.
    """
    prior = EstimatesPrior(remote_step=world.target_step)
    pair = SpeculationEstimates(
        window=policy,
        stabiliser=Stabiliser(smoothing, min_window=min_window),
        mode_stabiliser=Stabiliser(smoothing) if smooths_mode else None,
        prior=prior,
    )
    pair.expect_rtt(world.rtt)
    max_ahead = _MOST_AHEAD if world.is_ahead else 0
    options = SpeculationMachineOptions(max_tokens=TOKENS, is_adaptive=is_adaptive, is_parallel=world.is_parallel, max_ahead=max_ahead)
    outcomes = []
    for number in range(ANSWERS):
        text, queue = _Text(world, number), _Queue(world, number)
        device = DraftingDevice(
            model=text.draft, writes=text.write, step_times=world.step_times, read_time=world.spread * world.draft_step, jitter=world.jitter
        )
        server = VerifyingServer(
            model=text.target, step=world.target_step, read_time=world.read_time, prompt_time=world.prompt_time, faults=queue.fault
        )
        outcome = simulate_answer(pair, options, device, server, FaultyLink(rtt=world.rtt), seed=number, before=queue.attach)
        if outcome is None or len(outcome.ids) != TOKENS:
            raise AssertionError(f"{world}: expected an answer of {TOKENS} tokens, got {outcome}")
        outcomes.append(outcome)
    return _pace(outcomes), outcomes


def _pace(outcomes: Sequence[SpeculationOutcome]) -> Pace:
    seconds = sum(outcome.seconds for outcome in outcomes)
    streaming = sum(outcome.reader.times[-1] - outcome.reader.times[0] for outcome in outcomes)
    return Pace(len(outcomes) * TOKENS / seconds, streaming / (len(outcomes) * (TOKENS - 1)))


def run_fused(world: WindowWorld) -> Pace:
    """The server alone, by arithmetic: nothing in its stream is left to chance."""
    seconds = world.rtt + world.prompt_time + TOKENS * world.target_step
    return Pace(TOKENS / seconds, world.target_step)
