"""Estimates about a draft model and its verifier, measured in every round, kept across answers, and used by the policies.

The machine doesn't record the times of the device's first token, the first round and the first remote token, because they include reading
the prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from itertools import accumulate
from math import prod, sqrt
from operator import mul
from random import Random
from typing import Literal, NamedTuple

from msgspec.structs import replace

from streamco.core.speculation.averages import DECAY, DecayedRatio, DraftStepTimes, Ewma, HitRate, RemoteStepTime, RoundTrip
from streamco.core.speculation.draft_window import DraftWindow
from streamco.core.speculation.events import DraftToken
from streamco.core.speculation.prior import EstimatesPrior
from streamco.policies.acceptance import expected_tokens
from streamco.policies.drafts.confidence_calibration import ConfidenceCalibration
from streamco.policies.mode_switch import ModeSwitch, RoundConditions, best_window, predict_rates
from streamco.policies.offload import CONFIDENCE_THRESHOLD, OffloadRule, OffloadSteering
from streamco.policies.rejection import Branch, RejectionForecast, chain_rejection, forecast_rejection, rank_branches, sample_branch
from streamco.policies.window import Stabiliser, WindowPolicy, WindowState
from streamco.profiles.row_costs import RowCosts

__all__ = ["Forecast", "SpeculationEstimates"]

Forecast = Literal["learned", "geometric", "sampled"]
"""How rejections are forecast. "learned" uses each token's acceptance probability, learned by confidence. "geometric" uses one acceptance
rate that is adjusted by confidence, as in Synera section 4.4. Both rank all branches. "sampled" uses the same rate, but draws the position
and the correction of a single branch, as the paper does."""

_ROUND_DECAY = 0.9  # the weight of a round after the next one, for figures that depend on the window, which soon changes
_FIRST_WEIGHT = 0.5  # of a new opening share
_CONFIDENCE_WEIGHT = 0.05  # of a new token's confidence
_PRIOR_AHEAD = 0.4  # share of rounds in which the next draft is sent ahead, until it is measured: less than in most simulations
_STANDARD_ERRORS = 2.0  # how far the acceptance rate may be above its mean
_PRIOR_TOKENS = 8.0  # how many draft tokens the prior acceptance counts as
_PRIOR_ROUNDS = 4.0  # how many rounds the prior hit rate and the expected tokens of a round count as


class _Forecasting(NamedTuple):
    """How rejections are forecast, and the random source from which the "sampled" forecast draws its branches."""

    kind: Forecast
    rng: Random


class _RoundAverages(NamedTuple):
    """Averages over rounds.

    Attributes:
        hit_rate: share of rounds that began with an adopted branch.
        adopted: how many tokens such a branch had.
        ahead_rate: share of rounds after which the next draft had already been sent.
        gain: ratio of a round's tokens to the number that the acceptance rate predicts for a draft of its length.
        verified: counts rounds.
        drafted: tokens that the device writes in a round, including tokens on dropped branches.
    """

    hit_rate: HitRate
    adopted: DecayedRatio
    ahead_rate: DecayedRatio
    gain: DecayedRatio
    verified: DecayedRatio
    drafted: DecayedRatio


class SpeculationEstimates:
    """The estimates about one draft model and its verifier, kept from answer to answer.

    Args:
        budget: share of the draft tokens that are verified, 0..1; 1 for a lossless answer.
        window: policy that decides how many tokens to draft; None for always four.
        stabiliser: smooths the policy's proposals; if None, they are only rounded.
        mode_stabiliser: smooths the proposals that the mode is chosen by (DSD section 4.4, technique 3); if None, the last proposal is
            used.
        prior: the estimates to begin with.
        rule: the offloading filters to use.
        confidence_threshold: c_th of the confidence filter, as profiled.
        chunks: (confidence, importance) of measured chunks, for the first offloading plan.
        forecast: how rejections are forecast.
        rng: draws the branches of the forecast "sampled"; None for a fixed seed.

    Attributes:
        steering: keeps the offloaded share at the budget.
        switch: decides which mode pays.
        energy: how many seconds the energy for a drafted token is worth to the user; 0 if energy doesn't count.

    Raises:
        ConfigError: the budget is outside 0..1.
    """

    def __init__(
        self,
        budget: float = 1.0,
        *,
        window: WindowPolicy | None = None,
        stabiliser: Stabiliser | None = None,
        mode_stabiliser: Stabiliser | None = None,
        prior: EstimatesPrior | None = None,
        rule: OffloadRule = "combined",
        confidence_threshold: float = CONFIDENCE_THRESHOLD,
        chunks: Iterable[tuple[float, float | None]] = (),
        forecast: Forecast = "learned",
        rng: Random | None = None,
    ) -> None:
        prior = prior or EstimatesPrior()
        self.steering = OffloadSteering(budget, rule=rule, confidence_threshold=confidence_threshold, chunks=chunks)
        self.switch = ModeSwitch(is_lossless=budget >= 1.0)
        self.energy = 0.0
        self._window = DraftWindow(window, stabiliser, mode_stabiliser)
        self._forecasting = _Forecasting(forecast, rng or Random(0))
        self._is_parallel, self._is_ahead = True, False
        self._step_times = DraftStepTimes(prior.step_times)
        self._round_trips: defaultdict[str, RoundTrip] = defaultdict(partial(RoundTrip, prior.wait))  # by verifier, if there are several
        self._round_trip = RoundTrip(prior.wait)  # the current one
        self._remote_step = RemoteStepTime(prior.remote_step)
        self._prompt_time = Ewma(0.0, first_weight=1.0)
        self._opening_share = Ewma(1.0, _FIRST_WEIGHT)
        self._acceptance = DecayedRatio(DECAY, prior.acceptance, _PRIOR_TOKENS)
        self._confidence = (
            Ewma(0.0, _CONFIDENCE_WEIGHT, first_weight=1.0)
            if prior.mean_confidence is None
            else Ewma(prior.mean_confidence, _CONFIDENCE_WEIGHT)
        )
        self._calibration = ConfidenceCalibration(prior.acceptance, prior.mean_confidence)
        self._recent_chance = Ewma(min(prior.acceptance, self._calibration.acceptance(1.0)), 1.0 - DECAY)
        self._has_confidence = prior.mean_confidence is not None
        self._rounds = _RoundAverages(
            hit_rate=HitRate(prior.hit_rate, prior.acceptance, _PRIOR_ROUNDS),
            adopted=DecayedRatio(_ROUND_DECAY),
            ahead_rate=DecayedRatio(DECAY),
            gain=DecayedRatio(_ROUND_DECAY, 1.0, _PRIOR_ROUNDS),
            verified=DecayedRatio(DECAY),
            drafted=DecayedRatio(_ROUND_DECAY),
        )

    # Several verifiers

    def at(self, verifier: str) -> SpeculationEstimates:
        """Return the estimates for an answer at one of several verifiers. The round times are that verifier's, and the rest is shared."""
        other = copy(self)
        other.move_to(verifier)
        return other

    def move_to(self, verifier: str) -> None:
        """Use the round times of another verifier from now on. Call this on estimates that ``at`` returned."""
        self._round_trip = self._round_trips[verifier]

    def share_verifiers(self, other: SpeculationEstimates) -> None:
        """Use the same round times at several verifiers as ``other``, which has another budget. The times don't depend on the budget."""
        self._round_trips = other._round_trips

    # Acceptance

    @property
    def is_lossless(self) -> bool:
        """True if every draft is verified."""
        return self.steering.budget >= 1.0

    @property
    def acceptance(self) -> float:
        """Acceptance rate (alpha), which is accepted tokens / compared tokens. A token after a rejected one is not compared."""
        return self._acceptance.value

    @property
    def mean_confidence(self) -> float | None:
        """Mean confidence of draft tokens, 0..1, or None if not measured."""
        return self._confidence.value if self._has_confidence or self._confidence.is_measured else None

    def forecast(self, confidences: Sequence[float]) -> RejectionForecast:
        """Forecast where the first rejection will be in a draft whose tokens have these confidences, 0..1."""
        if self._forecasting.kind == "learned":
            return chain_rejection([self._calibration.acceptance(confidence) for confidence in confidences])
        return forecast_rejection(self.acceptance, confidences, self.mean_confidence)

    def rank_branches(
        self, draft: Sequence[int], confidences: Sequence[float], rows: Sequence[Sequence[tuple[int, float]]], alternatives: int
    ) -> list[Branch]:
        """Return the branches to draft after this draft, likeliest first, or a single one if branches are sampled.

        Args:
            draft: token ids of the draft.
            confidences: the draft model's probability of each token, 0..1.
            rows: the draft model's likeliest (id, probability) pairs at each position.
            alternatives: maximum number of corrections for each position.
        """
        forecast = self.forecast(confidences)
        if self._forecasting.kind == "sampled":
            return [sample_branch(forecast, draft, rows, self._forecasting.rng, alternatives)]
        return rank_branches(forecast, draft, rows, self.acceptance, alternatives)

    def record_verdict(self, confidences: Sequence[float], accepted: int, *, is_hit: bool | None, has_sibling: bool = False) -> None:
        """Record the verdict on a draft.

        Args:
            confidences: confidences of the draft's tokens.
            accepted: number of accepted tokens.
            is_hit: True if a branch was adopted; None if there were no branches.
            has_sibling: True if a sibling was accepted after those tokens.
        """
        expected_acceptance = self.acceptance
        for position, confidence in enumerate(confidences):
            self._confidence.record(confidence)
            if position <= accepted:
                is_accepted = position < accepted
                self._acceptance.record(is_accepted)
                self._calibration.record(confidence, is_accepted=is_accepted)
                self._recent_chance.record(self._calibration.acceptance(confidence))
        self._window.record_accepted(len(confidences), accepted)
        if confidences:
            self._remote_step.since_verdict = 0
            length = next((end for end in range(1, len(confidences)) if self.should_end(confidences[:end])), len(confidences))
            self._window.record_length(length, has_ended=self.should_end(confidences))
            tokens = min(accepted, length) + 1 + (has_sibling and accepted < length)
            self._rounds.verified.record(True)
            self._rounds.drafted.record(0.0)  # its tokens were added as they arrived
            self._rounds.gain.record(tokens / expected_tokens(expected_acceptance, length))
        if is_hit is not None:
            self._rounds.hit_rate.record(is_hit, expected_acceptance)

    def record_compared(self, draft: Sequence[DraftToken], streamed: Sequence[int]) -> None:
        """Record how many of a draft's first tokens a stream has produced as well, up to the first difference."""
        for token, given in zip(draft, streamed, strict=False):
            is_same = token.id == given
            self._acceptance.record(is_same)
            self._calibration.record(token.confidence, is_accepted=is_same)
            if not is_same:
                return

    @property
    def tokens_since_verdict(self) -> int:
        """How many tokens remote streams have produced since a draft was last compared or verified."""
        return self._remote_step.since_verdict

    def record_streamed(self, tokens: int) -> None:
        """Record that a remote stream produced ``tokens`` tokens while nothing was verified."""
        self._remote_step.since_verdict += tokens

    @property
    def hit_rate(self) -> float | None:
        """Expected share of rounds that begin with an adopted branch, at the current acceptance rate; None if not measured."""
        return self._rounds.hit_rate.at(self.acceptance) if self._rounds.hit_rate.is_measured else None

    @property
    def round_energy(self) -> float:
        """How many seconds the energy for a round's drafted tokens is worth to the user."""
        if not self.energy:
            return 0.0
        known = self.conditions()
        return known.energy * max(float(known.window), known.drafted or 0.0)

    # Windows

    @property
    def window(self) -> int:
        """Maximum length of the next draft in tokens."""
        return self._window.tokens

    @property
    def proposal(self) -> float:
        """The window in tokens by which the mode is chosen, which is the policy's last proposal or the smoothed and rounded one."""
        return self._window.proposal

    @property
    def policy_decides(self) -> bool:
        """True if the window policy itself proposes fused mode, so that rates need not be compared."""
        return self._window.decides_mode

    @property
    def usual_window(self) -> int:
        """Usual length of a draft in tokens."""
        return self._window.usual_tokens

    def window_with(self, more: int) -> int:
        """Return the usual length of a draft plus ``more`` tokens, but no more than the window."""
        return min(self.window, self.usual_window + more)

    def propose_window(self) -> int:
        """Ask the window policy how long the next draft may be, and return this window."""
        known = self.conditions()
        state = WindowState(
            previous=self._window.settled,
            acceptance=self.acceptance,
            drafted_acceptance=self._window.drafted_acceptance,
            queue_depth=self.queue_depth,
            rtt=self.rtt,
            tpot=self.remote_step,
            draft_step=known.draft_step + known.energy,
            wait=max(0.0, known.wait - known.ahead),
            hit_rate=known.hit_rate,
            slowdown=known.slowdown,
            rate=predict_rates(known if known.row_costs is None else _best(known)).speculative,
            row_costs=known.row_costs,
            fixed_wait=max(0.0, known.verify - known.ahead),
            rounds=self._rounds.verified.events,
            calibrated_acceptance=self._recent_chance.value,
        )
        return self._window.propose(state)

    def should_end(self, confidences: Sequence[float]) -> bool:
        """Return True if a draft whose tokens have these confidences should end now, or should have ended before."""
        if not self._window.may_end_early:
            return False
        chances = self._chances(confidences)
        last = (chances[-1], confidences[-1]) if chances else (1.0, 1.0)
        return self._window.should_end(*last, length=len(chances)) or self._window.should_have_ended(chances)

    def useful_length(self, draft: Sequence[DraftToken]) -> int:
        """Return how many tokens of a draft are worth verifying, given how long the verifier's rows take."""
        if not self.is_lossless:
            return len(draft)
        chances = self._chances([token.confidence for token in draft])
        return self._window.useful_length(chances, is_sampled=any(token.row is not None for token in draft))

    def should_draft_more(self, confidences: Sequence[float], *, lateness: float) -> bool:
        """Return True if it should save time to draft one more token before a draft is sent ahead of the verdict.

        Args:
            confidences: confidences of the tokens that the draft has.
            lateness: how many seconds after the assumed verdict the reply to a message sent now would arrive. If this is below 0, the
                draft would have to wait at the verifier, so another token costs nothing.
        """
        chance = self.acceptance * self._chance(confidences)
        later = max(0.0, lateness + self.step_times[0]) - max(0.0, lateness)
        return chance * self.remote_step > later + self.energy

    def _chances(self, confidences: Sequence[float]) -> list[float]:
        """Return the probabilities that the first 1, 2, ... tokens are all accepted, given their confidences."""
        return list(accumulate(map(self._calibration.acceptance, confidences), mul))

    def _chance(self, confidences: Sequence[float]) -> float:
        """Return the probability that all tokens are accepted, given their confidences."""
        return prod(self._calibration.acceptance(confidence) for confidence in confidences)

    # Rounds

    def expect_rounds(self, *, branches: int, ahead: int) -> None:
        """Set how many branches the rounds of the next answer may draft and send.

        Args:
            branches: maximum number of branches drafted while a verdict is out.
            ahead: maximum number of branches that are sent before the verdict arrives.
        """
        self._is_parallel = branches > 0
        self._is_ahead = branches > 0 and ahead > 0 and self.is_lossless

    def conditions(self) -> RoundConditions:
        """Return the current figures by which the mode is chosen."""
        first, *more = self.step_times
        window = self.usual_window
        ahead, ahead_rounds = self._rounds.ahead_rate.with_prior(_PRIOR_AHEAD, _PRIOR_ROUNDS)
        prices = self._round_trip.prices
        return RoundConditions(
            acceptance=self.acceptance,
            window=window,
            draft_step=first,
            remote_step=self.remote_step,
            verify=self.wait if prices is None else prices[0],
            row_costs=None if prices is None else prices[1],
            hit_rate=self._rounds.hit_rate.at(self.acceptance) if self._is_parallel else 0.0,
            ahead=self.rtt * ahead / ahead_rounds if self._is_ahead else 0.0,
            slowdown=(more[-1] if more else first) / first,
            adopted=self._rounds.adopted.value if self._rounds.adopted.events else None,
            budget=min(1.0, max(0.01, self.steering.budget)),
            round_tokens=min(window + 1.0, expected_tokens(self.acceptance, window) * self._rounds.gain.value),
            energy=self.energy if self.is_lossless else 0.0,  # otherwise the device writes in any case
            drafted=self._rounds.drafted.value if self.is_lossless and self._rounds.drafted.events else None,
        )

    def conditions_of(self, draft: Sequence[DraftToken], *, leaves_stream: bool = False) -> RoundConditions:
        """Return ``conditions`` for a round with this draft. ``leaves_stream`` says whether an open stream would be closed for it."""
        known = self.conditions()
        return replace(
            known,
            window=len(draft),
            round_tokens=1.0 + sum(self._chances([token.confidence for token in draft])),
            verify=known.verify + self.rtt * leaves_stream,
        )

    def can_pay(self) -> bool:
        """Return True if drafting would be faster than the remote stream, with the acceptance rate at its upper confidence bound.

        Until the device's pace is measured, this returns True.
        """
        if not self._step_times.is_measured:
            return True
        known = self.conditions()
        best = min(1.0, self.acceptance + _STANDARD_ERRORS * sqrt(self.acceptance * (1.0 - self.acceptance) / self._acceptance.events))
        hits = self._rounds.hit_rate.at(best) if self._is_parallel else 0.0
        hopeful = replace(known, acceptance=best, hit_rate=hits, round_tokens=None, drafted=None)
        rates = predict_rates(_best(hopeful))
        return rates.speculative > rates.remote

    def record_written(self, tokens: int) -> None:
        """Record that the device has written ``tokens`` tokens, whether or not they are used."""
        self._rounds.drafted.total += tokens

    def record_adopted(self, tokens: int) -> None:
        """Record that a branch of this many tokens was adopted when its verdict arrived."""
        self._rounds.adopted.record(tokens)

    def record_ahead(self, was_sent: bool) -> None:
        """Record a verdict on a round with branches. ``was_sent`` says whether a draft for exactly this verdict had already been sent."""
        self._rounds.ahead_rate.record(was_sent)

    # Times

    @property
    def step_times(self) -> Sequence[float]:
        """How many seconds a step of the draft model on 1, 2, ... sequences takes."""
        return self._step_times.times

    def record_draft(self, sequences: int, tokens: int, seconds: float, *, is_beside_stream: bool = False) -> None:
        """Record that drafting ``tokens`` tokens on each of ``sequences`` sequences took ``seconds``; see ``DraftStepTimes``."""
        self._step_times.record(sequences, tokens, seconds, is_beside_stream=is_beside_stream)

    @property
    def wait(self) -> float:
        """Seconds from sending a draft to its verdict."""
        return self._round_trip.wait(self.remote_step, self.usual_window + 1)

    @property
    def rtt(self) -> float:
        """Mean round trip of the link in seconds. Before the first verdict, this is the expected one, or 0 if none is expected."""
        return self._round_trip.rtt

    @property
    def queue_depth(self) -> float:
        """Utilisation of the verifier's queue at the last verdict, 0..1."""
        return self._round_trip.queue_depth

    def expect_rtt(self, seconds: float) -> None:
        """Set the link's round trip in seconds. Until the first verdict, the wait is assumed to be this plus one target step."""
        self._round_trip.expect_rtt(seconds)

    def expect_row_costs(self, costs: RowCosts | None) -> None:
        """Set how long the verifier's rounds take by their number of rows, as it reported, or None if it didn't report that."""
        self._round_trip.expect_costs(costs)

    def record_wait(
        self, seconds: float, *, queue_depth: float, server_seconds: float, computed: tuple[int, float] | None = None, read: int = 0
    ) -> None:
        """Record that a verdict took ``seconds``, of which ``server_seconds`` were spent at the server; see ``RoundTrip.record``."""
        self._round_trip.record(seconds, queue_depth=queue_depth, server_seconds=server_seconds, computed=computed, read=read)

    def record_lost_round(self, seconds: float) -> None:
        """Record that no verdict arrived within ``seconds``."""
        self._round_trip.record_lost(seconds)

    @property
    def remote_step(self) -> float:
        """Seconds between two tokens of the remote stream."""
        return self._remote_step.seconds

    @property
    def has_remote_step(self) -> bool:
        """True if ``remote_step`` was measured or given."""
        return self._remote_step.is_known

    @property
    def is_remote_step_stale(self) -> bool:
        """True if ``remote_step`` should be measured again."""
        return self._remote_step.is_stale

    def record_remote(self, tokens: int, seconds: float, *, is_beside_draft: bool = False) -> None:
        """Record that a remote stream produced ``tokens`` tokens in ``seconds``; see ``RemoteStepTime``."""
        self._remote_step.record(tokens, seconds, is_beside_draft=is_beside_draft)

    def record_drafted(self, tokens: int) -> None:
        """Record that ``tokens`` tokens were drafted, so that the last measurement of the stream's pace is older."""
        self._remote_step.record_drafted(tokens)

    @property
    def prompt_time(self) -> float:
        """How many seconds the remote stream took to read a prompt in recent answers; 0 if not known."""
        return self._prompt_time.value

    def record_prompt(self, seconds: float) -> None:
        """Record how long the remote stream took to read a prompt. A time of 0 is ignored if no other time was recorded before."""
        if seconds or self._prompt_time.is_measured:
            self._prompt_time.record(seconds)

    @property
    def opening_share(self) -> float:
        """How long a session takes to open after a stream, as a share of the prompt time. A server may keep what the stream has read."""
        return self._opening_share.value

    def record_opening(self, share: float) -> None:
        """Record how long a session took to open after a stream, as a share of the prompt time."""
        self._opening_share.record(min(2.0, share))


def _best(conditions: RoundConditions) -> RoundConditions:
    """Return the conditions with the window that is predicted to be fastest."""
    return replace(conditions, window=best_window(conditions, is_parallel=True), round_tokens=None, adopted=None, drafted=None)
