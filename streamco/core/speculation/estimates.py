"""What is known of a draft model and its verifier: measured round by round, kept over answers, and asked by the policies.

Times are means that forget; those of the device's first token, the first round and the first remote token are left out by the
speculator, for a prompt is read in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod, sqrt
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from streamco.config import check_share
from streamco.errors import ConfigError
from streamco.policies.acceptance import expected_tokens
from streamco.policies.confidence_calibration import ConfidenceCalibration
from streamco.policies.mode_switch import ModeSwitch, RoundConditions, best_window, predict_rates
from streamco.policies.offload import CONFIDENCE_THRESHOLD, OffloadRule, OffloadSteering
from streamco.policies.rejection import RejectionForecast, chain_rejection, forecast_rejection
from streamco.policies.window import DecidesFusedMode, EndsDraftsEarly, Stabiliser, Static, WindowPolicy, WindowState

__all__ = ["Forecast", "SpeculationEstimates", "EstimatesPrior"]

Forecast = Literal["learned", "geometric"]
"""Of the rejection: from each token's chance, learned by confidence; the paper's, from one acceptance rate bent by confidence (4.4)."""

_WEIGHT = 0.15  # of a new time
_FIRST_WEIGHT = 0.5  # of the first time of its kind
_MEMORY = 0.98  # what a draft token's fate counts for after the next one's
_REMOTE_STEP = 0.05  # seconds, until it was measured
_SAMPLE = 3  # tokens of a stream that are enough to measure its pace again
_STALE = 64, 2048  # tokens that drafts give, for each one of the stream that was measured and at most, until that is done
_AHEAD = 0.4  # of rounds whose next draft is sent ahead, until it was measured: a little less than in most worlds
_STANDARD_ERRORS = 2.0  # that the acceptance rate may be above its mean
_PRIOR_TOKENS = 8.0  # that the prior acceptance stands for
_PRIOR_ROUNDS = 4.0  # that the prior hit rate, and what the acceptance rate makes of a round, stand for


class EstimatesPrior(Struct, frozen=True, kw_only=True):
    """What is believed before anything was measured; a calibrated profile says better. Times in seconds.

    Args:
        acceptance: alpha, 0..1.
        step_times: of the draft model for one token on each of 1, 2, ... sequences in one batch; as long as the most branches wanted.
        wait: from sending a draft to its verdict.
        remote_step: between two tokens of the remote side's plain stream; None: not known, it is measured before anything is drafted.
        hit_rate: share of rounds whose pre-drafted branch is adopted, 0..1.
        mean_confidence: of draft tokens; None: not measured.
    """

    acceptance: float = 0.7
    step_times: tuple[float, ...] = (0.02, 0.021, 0.022, 0.023, 0.024, 0.025)
    wait: float = 0.1
    remote_step: float | None = None
    hit_rate: float = 0.3
    mean_confidence: float | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        check_share("prior acceptance", self.acceptance)
        check_share("prior hit rate", self.hit_rate)
        times = (*self.step_times, self.wait, *(() if self.remote_step is None else (self.remote_step,)))
        if not self.step_times or min(times) <= 0.0:
            raise ConfigError(
                f"pair: expected times above 0 s and at least one step time, got {self.step_times}, {self.wait} and {self.remote_step}"
            )


class SpeculationEstimates:
    """The state that outlives an answer.

    Args:
        budget: share of draft tokens that are sent to be judged, 0..1; 1: lossless.
        window: how many tokens to draft.
        stabiliser: of its proposals; None: whole proposals go through unsmoothed.
        prior: what is believed at first.
        rule: which offloading filters are used.
        confidence_threshold: c_th, profiled.
        chunks: (confidence, importance) of measured chunks, for the first offloading plan.
        forecast: of the rejection.

    Attributes:
        steering: holds the offloaded share. switch: says which mode pays.
        queue_depth: the verifier's at the last verdict, 0..1.
        remote_step: seconds between two tokens of the remote side's plain stream. knows_remote: it was measured.
        prompt_time: seconds in which the remote side reads a prompt, as lately; 0: not known. opening_share: of that, what a session
            takes to open behind a stream: a server may keep what the stream has read.
        unheard: tokens that the remote side streamed since a draft was last judged, by whomever.
        window: tokens of the next draft; a draft may end before. proposal: what the policy said.

    Raises:
        ConfigError: a budget outside 0..1.
    """

    def __init__(
        self,
        budget: float = 1.0,
        *,
        window: WindowPolicy | None = None,
        stabiliser: Stabiliser | None = None,
        prior: EstimatesPrior | None = None,
        rule: OffloadRule = "combined",
        confidence_threshold: float = CONFIDENCE_THRESHOLD,
        chunks: Iterable[tuple[float, float | None]] = (),
        forecast: Forecast = "learned",
    ) -> None:
        prior = prior or EstimatesPrior()
        self.steering = OffloadSteering(budget, rule=rule, confidence_threshold=confidence_threshold, chunks=chunks)
        self.switch = ModeSwitch(is_lossless=budget >= 1.0)
        self.queue_depth = 0.0
        self._policy: WindowPolicy = window or Static()
        self._stopping = self._policy if isinstance(self._policy, EndsDraftsEarly) else None  # to ask costs more than a round's arithmetic
        self._fusing = self._policy if isinstance(self._policy, DecidesFusedMode) else None
        self._stabiliser = stabiliser or Stabiliser(1.0)
        self.proposal = float(self._policy.first)
        self.window = self._settled = self._policy.first  # the longest draft, and what the policy's proposals have become
        self._step_times = list(prior.step_times)
        self._usual_times = prior.step_times
        self._timed: set[int] = set()  # numbers of sequences whose step was measured
        self._wait, self._rtt = prior.wait, 0.0
        self.remote_step = _REMOTE_STEP if prior.remote_step is None else prior.remote_step
        self.knows_remote = prior.remote_step is not None
        self._remote_events = round(1.0 / _WEIGHT) if self.knows_remote else 0
        self._streamed = _STALE[1] if self.knows_remote else 0  # tokens of streams that were measured
        self._looked = self._unlooked = 0  # of those, the ones since drafts gave the last; and what drafts gave since the last look
        self._is_measured = False  # a wait was
        self._expected_rtt: float | None = None
        self.opening_share, self.prompt_time = 1.0, 0.0
        self.unheard = 0
        self._tried, self._held = _PRIOR_TOKENS, _PRIOR_TOKENS * prior.acceptance
        self._rounds, self._hits = _PRIOR_ROUNDS, _PRIOR_ROUNDS * prior.hit_rate
        self._is_parallel, self._is_ahead = True, False
        self._led, self._ahead = 0.0, 0.0  # rounds whose next draft could be sent ahead, and those where that was won
        self._confidence = prior.mean_confidence
        self._chances = ConfidenceCalibration(prior.acceptance, prior.mean_confidence)
        self._forecast: Forecast = forecast
        self._chance = min(prior.acceptance, self._chances.acceptance(1.0))  # mean of what draft tokens' confidences said lately
        self._least_chance = 0.0
        self._length = float(self.window)  # of drafts, where they end before the window
        self._judged, self._given = 0.0, 0.0  # rounds, and the tokens they gave

    @property
    def is_lossless(self) -> bool:
        """True if everything is judged."""
        return self.steering.budget >= 1.0

    @property
    def acceptance(self) -> float:
        """Alpha: tokens accepted of those that were judged for themselves, behind accepted ones only."""
        return self._held / self._tried

    @property
    def wait(self) -> float:
        """Seconds from sending a draft to its verdict."""
        return self._wait if self._is_measured or self._expected_rtt is None else self._expected_rtt + self.remote_step

    @property
    def step_times(self) -> Sequence[float]:
        """Of the draft model, seconds, by the number of sequences in the batch."""
        return self._step_times

    @property
    def mean_confidence(self) -> float | None:
        """Of draft tokens."""
        return self._confidence

    @property
    def usual_window(self) -> int:
        """Tokens that drafts have: where the policy stops them, about as many as lately."""
        return self.window if not self._least_chance else max(1, min(self.window, round(self._length)))

    def reach(self, more: int) -> int:
        """Tokens of a draft that may have so many more than a usual one, and no more than the longest."""
        return min(self.window, self.usual_window + more)

    def forecast(self, confidences: Sequence[float]) -> RejectionForecast:
        """Where a draft of these tokens will be rejected."""
        if self._forecast == "learned":
            return chain_rejection([self._chances.acceptance(confidence) for confidence in confidences])
        return forecast_rejection(self.acceptance, confidences, self.mean_confidence)

    def is_enough(self, confidences: Sequence[float]) -> bool:
        """Return True if a draft that begins with these tokens should end with them."""
        return bool(self._least_chance) and prod(self._chances.acceptance(confidence) for confidence in confidences) < self._least_chance

    def is_worth_waiting(self, confidences: Sequence[float], *, arrival: float) -> bool:
        """Return True if a draft that could be sent ahead had better have another token.

        Args:
            confidences: of the tokens it has.
            arrival: seconds from when the verdict that it bets on would be here to when an answer to a message sent now would: below 0, it
                would wait at the verifier.
        """
        chance = self.acceptance * prod(self._chances.acceptance(confidence) for confidence in confidences)
        later = max(0.0, arrival + self._step_times[0]) - max(0.0, arrival)
        return chance * self.remote_step > later

    @property
    def rtt(self) -> float:
        """Of the link, seconds; 0: nobody said."""
        return self._rtt if self._is_measured else self._expected_rtt or 0.0

    def expect_rtt(self, seconds: float) -> None:
        """Of the link: with it a verdict should take a step of the large model; of no account once one was measured."""
        self._expected_rtt = seconds

    def propose_window(self) -> int:
        """Ask the window policy for the next draft."""
        known = self.conditions()
        state = WindowState(
            previous=self._settled,
            acceptance=self.acceptance,
            queue_depth=self.queue_depth,
            rtt=self.rtt,
            tpot=self.remote_step,
            draft_step=known.draft_step,
            wait=max(0.0, known.wait - known.ahead),
            hit_rate=known.hit_rate,
            slowdown=known.slowdown,
            rate=predict_rates(known).speculative,
            rounds=self._judged,
            calibrated_acceptance=self._chance,
        )
        self.proposal = self._policy.propose(state)
        self.window = self._settled = self._stabiliser.settle(self.proposal)
        if self._stopping is not None:
            assert self._stabiliser.smoothed is not None, "it has just settled a proposal"
            self.window = self._stopping.max_draft_tokens(state, self._settled)
            self._least_chance = self._stopping.min_acceptance(state, self._stabiliser.smoothed)
        return self.window

    @property
    def policy_decides(self) -> bool:
        """The window policy proposes fused mode where that is faster, and windows nowhere else."""
        return self._fusing is not None and self._fusing.may_fuse

    def conditions(self) -> RoundConditions:
        """Return what the mode is chosen by; the wait counts as a whole."""
        first, *more = self._step_times
        return RoundConditions(
            acceptance=self.acceptance,
            window=(window := self.usual_window),
            draft_step=first,
            remote_step=self.remote_step,
            verify=self.wait,
            hit_rate=self._hits / self._rounds if self._is_parallel else 0.0,
            ahead=self.rtt * (_PRIOR_ROUNDS * _AHEAD + self._ahead) / (_PRIOR_ROUNDS + self._led) if self._is_ahead else 0.0,
            slowdown=(more[-1] if more else first) / first,
            budget=min(1.0, max(0.01, self.steering.budget)),
            round_tokens=(expected_tokens(self.acceptance, window) * _PRIOR_ROUNDS + self._given) / (_PRIOR_ROUNDS + self._judged),
        )

    def may_pay(self) -> bool:
        """Return True if drafting would be faster than the plain stream if what was seen of the acceptance rate had been bad luck.

        It may while nobody has measured how fast the device drafts.
        """
        if not self._timed:
            return True
        known = self.conditions()
        doubt = _STANDARD_ERRORS * sqrt(self.acceptance * (1.0 - self.acceptance) / self._tried)
        hopeful = replace(known, acceptance=min(1.0, self.acceptance + doubt), round_tokens=None)
        rates = predict_rates(replace(hopeful, window=best_window(hopeful, is_parallel=True)))
        return rates.speculative > rates.remote

    def note_draft(self, sequences: int, tokens: int, seconds: float) -> None:
        """Drafts of ``tokens`` on so many sequences side by side took this long."""
        if not tokens or seconds <= 0.0 or not 1 <= sequences <= len(self._step_times):
            return
        weight = _WEIGHT if sequences in self._timed else _FIRST_WEIGHT
        self._timed.add(sequences)
        self._step_times[sequences - 1] += weight * (seconds / tokens - self._step_times[sequences - 1])
        for place in range(len(self._step_times)):
            if place + 1 not in self._timed:
                self._step_times[place] = self._reckoned_time(place + 1)

    def _reckoned_time(self, sequences: int) -> float:
        """Of a number that was never measured: on the line through the nearest two that were, or as the one that was is to the prior."""
        near = sorted(self._timed, key=lambda number: abs(number - sequences))[:2]
        known, usual = self._step_times[near[0] - 1], self._usual_times
        if len(near) == 1:
            return known * usual[sequences - 1] / usual[near[0] - 1]
        slope = (self._step_times[near[1] - 1] - known) / (near[1] - near[0])
        return max(known / 2.0, known + slope * (sequences - near[0]))

    def note_verdict(self, confidences: Sequence[float], accepted: int, *, is_hit: bool | None) -> None:
        """A draft was judged. ``is_hit``: a branch was adopted; None: there were no branches."""
        for place, confidence in enumerate(confidences):
            self._confidence = confidence if self._confidence is None else self._confidence + 0.05 * (confidence - self._confidence)
            if place <= accepted:
                self._tried = self._tried * _MEMORY + 1.0
                self._held = self._held * _MEMORY + (place < accepted)
                self._chances.record(confidence, is_accepted=place < accepted)
                self._chance += (1.0 - _MEMORY) * (self._chances.acceptance(confidence) - self._chance)
        if confidences:
            self.unheard = 0
            length = next((place for place in range(1, len(confidences)) if self.is_enough(confidences[:place])), len(confidences))
            if length >= min(self._length, self.window) or self.is_enough(confidences):  # else it was cut short: sent ahead, or no room
                self._length += _WEIGHT * (length - self._length)
            self._judged = self._judged * _MEMORY + 1.0
            self._given = self._given * _MEMORY + min(accepted, length) + 1
        if is_hit is not None:
            self._rounds = self._rounds * _MEMORY + 1.0
            self._hits = self._hits * _MEMORY + is_hit

    def expect_rounds(self, *, branches: int, ahead: int) -> None:
        """How the next answer is made: with up to so many branches while a verdict is out, of which so many may be sent ahead of it."""
        self._is_parallel = branches > 0
        self._is_ahead = branches > 0 and ahead > 0 and self.is_lossless

    def note_ahead(self, is_won: bool) -> None:
        """A verdict came. ``is_won``: the next draft had been sent ahead for just that."""
        self._led = self._led * _MEMORY + 1.0
        self._ahead = self._ahead * _MEMORY + is_won

    def note_wait(self, seconds: float, *, queue_depth: float, server_seconds: float) -> None:
        """A verdict took this long, of it so much at the server."""
        weight = _WEIGHT if self._is_measured else 1.0
        self._is_measured = True
        self._wait += weight * (max(seconds, 1e-6) - self._wait)
        self._rtt += weight * (max(0.0, seconds - server_seconds) - self._rtt)
        self.queue_depth = queue_depth

    def note_prompt(self, seconds: float) -> None:
        """The remote side read a prompt."""
        self.prompt_time += (_WEIGHT if self.prompt_time else 1.0) * (seconds - self.prompt_time)

    def note_opening(self, share: float) -> None:
        """A session was opened behind a stream."""
        self.opening_share += _FIRST_WEIGHT * (min(2.0, share) - self.opening_share)

    def note_remote(self, tokens: int, seconds: float) -> None:
        """So many tokens of a plain stream came in this time."""
        if tokens and seconds > 0.0:
            self._remote_events += 1  # the first may come together, however slow the stream: they count alike
            self.remote_step += max(_WEIGHT, 1.0 / self._remote_events) * (seconds / tokens - self.remote_step)
            self.knows_remote = True
            self._streamed += tokens
            self._looked += tokens
            if self._looked >= _SAMPLE:
                self._unlooked = 0

    def note_drafted(self, tokens: int) -> None:
        """Drafts gave so many: meanwhile nobody sees how fast the remote side streams."""
        self._unlooked += tokens
        self._looked = 0

    @property
    def is_stale(self) -> bool:
        """True if ``remote_step`` should be looked at again, by ``_SAMPLE`` tokens of a stream: sooner if few have been seen."""
        return self._unlooked >= min(_STALE[0] * self._streamed, _STALE[1])
