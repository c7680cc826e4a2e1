"""What is known about a draft model and its verifier: measured in every round, kept across answers, and used by the policies.

The machine leaves out the times of the device's first token, the first round and the first remote token, because they include reading the
prompt.
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
"""How rejections are forecast: from each token's acceptance probability, learned by confidence; or as in Synera section 4.4, from one
acceptance rate that is adjusted by confidence. "sampled" draws the position and the correction of a single branch from the latter, as the
paper does; the others rank all branches."""

_ROUND_DECAY = 0.9  # the weight of a round after the next one where windows matter, which soon change
_FIRST_WEIGHT = 0.5  # of a new opening share
_CONFIDENCE_WEIGHT = 0.05  # of a new token's confidence
_PRIOR_AHEAD = 0.4  # share of rounds in which the next draft is sent ahead, until it is measured: less than in most simulations
_STANDARD_ERRORS = 2.0  # how far the acceptance rate may be above its mean
_PRIOR_TOKENS = 8.0  # draft tokens as which the prior acceptance counts
_PRIOR_ROUNDS = 4.0  # rounds as which the prior hit rate and the expected tokens of a round count


class _Forecasting(NamedTuple):
    """How rejections are forecast, and the random source for the branches of the forecast "sampled"."""

    kind: Forecast
    rng: Random


class _RoundAverages(NamedTuple):
    """Averages over rounds.

    Attributes:
        hit_rate: share of rounds that began with an adopted branch.
        adopted: tokens of such a branch.
        ahead_rate: share of rounds after which the next draft had been sent ahead.
        gain: ratio of a round's tokens to those that the acceptance rate predicts for a draft of its length.
        verified: counts rounds.
        drafted: tokens that the device writes in a round, including those on dropped branches.
    """

    hit_rate: HitRate
    adopted: DecayedRatio
    ahead_rate: DecayedRatio
    gain: DecayedRatio
    verified: DecayedRatio
    drafted: DecayedRatio


class SpeculationEstimates:
    """The estimates of one draft model and one verifier, which outlive an answer.

    Args:
        budget: share of the draft tokens that are verified, 0..1; 1 for a lossless answer.
        window: policy that says how many tokens to draft; None for four.
        stabiliser: smooths the policy's proposals; if None, they are only rounded.
        mode_stabiliser: smooths the proposals that the mode is chosen by (DSD section 4.4, technique 3); None if it is chosen by the last
            one.
        prior: what is assumed at first.
        rule: the offloading filters to use.
        confidence_threshold: c_th of the confidence filter, profiled.
        chunks: (confidence, importance) of measured chunks, for the first offloading plan.
        forecast: how rejections are forecast.
        rng: draws the branches of the forecast "sampled"; None for a fixed seed.

    Attributes:
        steering: holds the offloaded share at the budget.
        switch: says which mode pays.
        energy: seconds that the energy of a drafted token is worth to the user; 0 if energy doesn't count.

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
        """Return the estimates for an answer at one of several verifiers. Round times are that verifier's; everything else is shared."""
        other = copy(self)
        other.move_to(verifier)
        return other

    def move_to(self, verifier: str) -> None:
        """Continue with the times of rounds at another verifier, for estimates that ``at`` returned."""
        self._round_trip = self._round_trips[verifier]

    def share_verifiers(self, other: SpeculationEstimates) -> None:
        """Share the times of rounds at several verifiers with estimates for another budget, on which they don't depend."""
        self._round_trips = other._round_trips

    # Acceptance

    @property
    def is_lossless(self) -> bool:
        """True if every draft is verified."""
        return self.steering.budget >= 1.0

    @property
    def acceptance(self) -> float:
        """Acceptance rate (alpha): accepted tokens / compared tokens. A token after a rejected one is not compared."""
        return self._acceptance.value

    @property
    def mean_confidence(self) -> float | None:
        """Mean confidence of draft tokens, 0..1, or None if not measured."""
        return self._confidence.value if self._has_confidence or self._confidence.is_measured else None

    def forecast(self, confidences: Sequence[float]) -> RejectionForecast:
        """Return the forecast of the first rejection in a draft of tokens with these confidences, 0..1."""
        if self._forecasting.kind == "learned":
            return chain_rejection([self._calibration.acceptance(confidence) for confidence in confidences])
        return forecast_rejection(self.acceptance, confidences, self.mean_confidence)

    def rank_branches(
        self, draft: Sequence[int], confidences: Sequence[float], rows: Sequence[Sequence[tuple[int, float]]], alternatives: int
    ) -> list[Branch]:
        """Return the branches to draft after a draft of these tokens, likeliest first; a single one if they are sampled.

        Args:
            draft: ids of its tokens.
            confidences: the draft model's probability of each, 0..1.
            rows: the draft model's likeliest (id, probability) at each position.
            alternatives: maximum number of corrections for each position.
        """
        forecast = self.forecast(confidences)
        if self._forecasting.kind == "sampled":
            return [sample_branch(forecast, draft, rows, self._forecasting.rng, alternatives)]
        return rank_branches(forecast, draft, rows, self.acceptance, alternatives)

    def record_verdict(self, confidences: Sequence[float], accepted: int, *, is_hit: bool | None, has_sibling: bool = False) -> None:
        """Record the outcome of a draft.

        Args:
            confidences: confidences of its tokens.
            accepted: number of accepted tokens.
            is_hit: True if a branch was adopted; None if there were no branches.
            has_sibling: a sibling was accepted after those tokens.
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
            self._rounds.drafted.record(0.0)  # its tokens were added as they came
            self._rounds.gain.record(tokens / expected_tokens(expected_acceptance, length))
        if is_hit is not None:
            self._rounds.hit_rate.record(is_hit, expected_acceptance)

    def record_compared(self, draft: Sequence[DraftToken], streamed: Sequence[int]) -> None:
        """Record which of a draft's first tokens a stream has given as well, up to the first difference."""
        for token, given in zip(draft, streamed, strict=False):
            is_same = token.id == given
            self._acceptance.record(is_same)
            self._calibration.record(token.confidence, is_accepted=is_same)
            if not is_same:
                return

    @property
    def tokens_since_verdict(self) -> int:
        """Tokens that remote streams gave since a draft was last compared or verified."""
        return self._remote_step.since_verdict

    def record_streamed(self, tokens: int) -> None:
        """Record tokens of a remote stream, during which nothing is verified."""
        self._remote_step.since_verdict += tokens

    @property
    def hit_rate(self) -> float | None:
        """Expected share of rounds that begin with an adopted branch, at the current acceptance rate; None if not measured."""
        return self._rounds.hit_rate.at(self.acceptance) if self._rounds.hit_rate.is_measured else None

    @property
    def round_energy(self) -> float:
        """Seconds that the energy of a round's drafted tokens is worth."""
        if not self.energy:
            return 0.0
        known = self.conditions()
        return known.energy * max(float(known.window), known.drafted or 0.0)

    # Windows

    @property
    def window(self) -> int:
        """Longest length of the next draft, tokens."""
        return self._window.tokens

    @property
    def proposal(self) -> float:
        """The window by which the mode is chosen, tokens: the policy's last proposal, or the smoothed and rounded one."""
        return self._window.proposal

    @property
    def policy_decides(self) -> bool:
        """True if the window policy itself proposes fused mode, so that rates need not be compared."""
        return self._window.decides_mode

    @property
    def usual_window(self) -> int:
        """Usual length of a draft, tokens."""
        return self._window.usual_tokens

    def window_with(self, more: int) -> int:
        """Return the usual length of a draft plus ``more`` tokens, at most the window."""
        return min(self.window, self.usual_window + more)

    def propose_window(self) -> int:
        """Ask the window policy for the next draft, and return the window."""
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
        """Return True if a draft that begins with tokens of these confidences should end with them, or should have ended before."""
        if not self._window.may_end_early:
            return False
        chances = self._chances(confidences)
        last = (chances[-1], confidences[-1]) if chances else (1.0, 1.0)
        return self._window.should_end(*last, length=len(chances)) or self._window.should_have_ended(chances)

    def useful_length(self, draft: Sequence[DraftToken]) -> int:
        """Return how many tokens of a draft are worth verifying, by what the verifier's rows cost."""
        if not self.is_lossless:
            return len(draft)
        chances = self._chances([token.confidence for token in draft])
        return self._window.useful_length(chances, is_sampled=any(token.row is not None for token in draft))

    def should_draft_more(self, confidences: Sequence[float], *, lateness: float) -> bool:
        """Return True if drafting one more token before sending a draft ahead is expected to save time.

        Args:
            confidences: confidences of the tokens it has.
            lateness: seconds by which the reply to a message sent now would come after the assumed verdict. Below 0 the draft would wait
                at the verifier, so another token costs nothing.
        """
        chance = self.acceptance * self._chance(confidences)
        later = max(0.0, lateness + self.step_times[0]) - max(0.0, lateness)
        return chance * self.remote_step > later + self.energy

    def _chances(self, confidences: Sequence[float]) -> list[float]:
        """Return the probabilities that the first 1, 2, ... tokens of these confidences are all accepted."""
        return list(accumulate(map(self._calibration.acceptance, confidences), mul))

    def _chance(self, confidences: Sequence[float]) -> float:
        """Return the probability that all tokens of these confidences are accepted."""
        return prod(self._calibration.acceptance(confidence) for confidence in confidences)

    # Rounds

    def expect_rounds(self, *, branches: int, ahead: int) -> None:
        """Set how the rounds of the next answer work.

        Args:
            branches: maximum number of branches drafted while a verdict is out.
            ahead: maximum number of them that are sent ahead of the verdict.
        """
        self._is_parallel = branches > 0
        self._is_ahead = branches > 0 and ahead > 0 and self.is_lossless

    def conditions(self) -> RoundConditions:
        """Return the figures by which the mode is chosen."""
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
        """Return ``conditions`` for a round with this draft. If ``leaves_stream``, an open stream would have to be opened again."""
        known = self.conditions()
        return replace(
            known,
            window=len(draft),
            round_tokens=1.0 + sum(self._chances([token.confidence for token in draft])),
            verify=known.verify + self.rtt * leaves_stream,
        )

    def can_pay(self) -> bool:
        """Return True if drafting would be faster than the remote stream with an acceptance rate at its upper confidence bound.

        Also returns True until the device's pace is measured.
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
        """Record that the device has written ``tokens``, whatever happens to them."""
        self._rounds.drafted.total += tokens

    def record_adopted(self, tokens: int) -> None:
        """Record that a branch of this many tokens was adopted when its verdict came."""
        self._rounds.adopted.record(tokens)

    def record_ahead(self, was_sent: bool) -> None:
        """Record a verdict of a round with branches. If ``was_sent``, the next draft had been sent ahead for exactly that verdict."""
        self._rounds.ahead_rate.record(was_sent)

    # Times

    @property
    def step_times(self) -> Sequence[float]:
        """Seconds of the draft model's step on 1, 2, ... sequences."""
        return self._step_times.times

    def record_draft(self, sequences: int, tokens: int, seconds: float, *, is_beside_stream: bool = False) -> None:
        """Record that drafting ``tokens`` on each of ``sequences`` side by side took ``seconds``; see ``DraftStepTimes``."""
        self._step_times.record(sequences, tokens, seconds, is_beside_stream=is_beside_stream)

    @property
    def wait(self) -> float:
        """Seconds from sending a draft to its verdict."""
        return self._round_trip.wait(self.remote_step, self.usual_window + 1)

    @property
    def rtt(self) -> float:
        """Mean round trip of the link, seconds. Before the first verdict it is the expected one, or 0 if not known."""
        return self._round_trip.rtt

    @property
    def queue_depth(self) -> float:
        """Utilisation of the verifier's queue at the last verdict, 0..1."""
        return self._round_trip.queue_depth

    def expect_rtt(self, seconds: float) -> None:
        """Set the link's round trip in seconds. Used only until the first verdict is measured: then wait = round trip + one target step."""
        self._round_trip.expect_rtt(seconds)

    def expect_row_costs(self, costs: RowCosts | None) -> None:
        """Set what the verifier's rounds cost by their number of rows, as it reported, or None if it didn't report it."""
        self._round_trip.expect_costs(costs)

    def record_wait(
        self, seconds: float, *, queue_depth: float, server_seconds: float, computed: tuple[int, float] | None = None, read: int = 0
    ) -> None:
        """Record that a verdict took ``seconds``, of which ``server_seconds`` at the server; see ``RoundTrip.record``."""
        self._round_trip.record(seconds, queue_depth=queue_depth, server_seconds=server_seconds, computed=computed, read=read)

    def record_lost_round(self, seconds: float) -> None:
        """Record that no verdict came within ``seconds``."""
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
        """Record that ``tokens`` of a remote stream came in ``seconds``; see ``RemoteStepTime``."""
        self._remote_step.record(tokens, seconds, is_beside_draft=is_beside_draft)

    def record_drafted(self, tokens: int) -> None:
        """Record that drafts gave ``tokens``, during which the stream's pace can't be measured."""
        self._remote_step.record_drafted(tokens)

    @property
    def prompt_time(self) -> float:
        """Seconds that the remote stream takes to read a prompt, by recent answers; 0 if not known."""
        return self._prompt_time.value

    def record_prompt(self, seconds: float) -> None:
        """Record how long the remote stream took to read a prompt. As long as nothing is known, 0 s is ignored."""
        if seconds or self._prompt_time.is_measured:
            self._prompt_time.record(seconds)

    @property
    def opening_share(self) -> float:
        """Share of the prompt time that a session takes to open after a stream; a server may keep what the stream has read."""
        return self._opening_share.value

    def record_opening(self, share: float) -> None:
        """Record which share of the prompt time a session took to open after a stream."""
        self._opening_share.record(min(2.0, share))


def _best(conditions: RoundConditions) -> RoundConditions:
    """Return the conditions with the window that is predicted to be fastest."""
    return replace(conditions, window=best_window(conditions, is_parallel=True), round_tokens=None, adopted=None, drafted=None)
