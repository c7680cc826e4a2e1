"""Decides how long the drafts of a split model are, with a window policy and measured times. Belongs to the engine's thread.

Each additional token costs a draft step, and the time for one more row on the link and at the server. If the policy ends drafts early by
their acceptance (``policies.window.Confident``), a token must be worth that time. On a server without a GPU, even the first row may cost
more than its token is worth. Then nothing is drafted, except in an occasional round, which shows whether that has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from statistics import median

from streamco.core.speculation.averages import DecayedRatio, Ewma
from streamco.policies.drafts.confidence_calibration import ConfidenceCalibration
from streamco.policies.drafts.prompt_lookup import LONGEST_MATCH, Match
from streamco.policies.window import EndsAtDoubtfulToken, EndsDraftsEarly, WindowPolicy, WindowState

__all__ = ["LONGEST", "Confidence", "DraftLengths"]

Confidence = float | Match
"""The evidence for a token of a draft: its probability in the draft layer, or the match in earlier text after which it was found."""

LONGEST = 16
"""Maximum number of tokens in a draft."""

_PROBE = 16  # rounds without drafts, unsent hits of branches, or matches that aren't looked up, until one is tried
_ACCEPTANCE = 0.5  # of a token, until verdicts tell more
_LONG_WAIT = 1e9  # seconds
_BRANCH_SHARE, _PRIOR_BRANCHES = 0.75, 8.0  # of the accepted tokens of other drafts; weight of that in drafts
_STEPS = 15  # number of times from which the median of a step is taken
_FIRST = 8  # rounds before which drafts aren't given up
_LOOKAHEAD = 4  # length of the draft that is compared with no draft
_MEMORY = 0.98  # weight of a round after the next one
_MATCH_ACCEPTANCE = 0.9, 0.4  # at the longest matches, and how much less at the shortest, until verdicts tell more
_LOOKUP_SHARE = 0.7  # share of the draft layer's acceptance that is enough, as a looked-up token costs no step and more follow it


class _StepTime:
    """The median time of the latest draft steps, on which a single interrupted step has no effect."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_STEPS)
        self.value = 0.0

    @property
    def is_measured(self) -> bool:
        return bool(self._times)

    def record(self, seconds: float) -> None:
        self._times.append(seconds)
        self.value = median(self._times)


class DraftLengths:
    """Decides the lengths of the drafts of all answers of an engine.

    Args:
        policy: proposes windows.
        row_seconds: returns how many seconds the last row adds to a trip with the given number of rows; 0 if not known.
    """

    def __init__(self, policy: WindowPolicy, row_seconds: Callable[[int], float]) -> None:
        self._policy = policy
        self._row_seconds = row_seconds
        self._ends_early = policy if isinstance(policy, EndsDraftsEarly) else None
        self._min_confidence = policy.min_confidence if isinstance(policy, EndsAtDoubtfulToken) else 0.0
        self._previous = policy.first
        self._step, self._short_step = _StepTime(), _StepTime()
        self._tokens = DecayedRatio(_MEMORY)  # per round
        self._seconds = DecayedRatio(_MEMORY)  # per round
        self._lookup_step = _StepTime()
        self._accepted = DecayedRatio(_MEMORY, _ACCEPTANCE, 8.0)  # of the first token
        self._layer_accepted = DecayedRatio(_MEMORY, _ACCEPTANCE, 8.0)  # of the draft layer's tokens
        self._match_accepted = [DecayedRatio(_MEMORY, _match_prior(length), 8.0) for length in range(LONGEST_MATCH + 1)]
        self._calibration = ConfidenceCalibration(_ACCEPTANCE)
        self._wait = Ewma(_LONG_WAIT, first_weight=1.0)
        self._gains = {False: DecayedRatio(_MEMORY), True: DecayedRatio(_MEMORY)}  # accepted tokens of a draft, by whether a branch's
        self._skipped = 0  # rounds in a row
        self._hits = 0
        self._declined = 0  # matches

    @property
    def step_seconds(self) -> float:
        """Seconds of a draft step; 0 if not known."""
        return self._step.value

    @property
    def wait(self) -> float:
        """Seconds from sending rows until their deep states arrive (HAT, equation 6); a very large number until it is measured."""
        return self._wait.value

    @property
    def usual_window(self) -> int:
        """Maximum length of the most recent draft."""
        return self._previous

    @property
    def usual_acceptance(self) -> float:
        """Share of drafts whose first token is accepted."""
        return min(1.0, self._accepted.value)

    def acceptance(self, confidence: Confidence) -> float:
        """Return the probability that a token with this confidence is accepted, if all tokens before it are."""
        if isinstance(confidence, Match):
            return min(1.0, self._match_accepted[confidence.length].value)
        return self._calibration.acceptance(confidence)

    def should_look_up(self, match: Match) -> bool:
        """Return True if the token that followed a match should be drafted, or False if the draft layer's own guess is far likelier.

        Now and then one is looked up anyway, to learn whether that is still so.
        """
        if self.acceptance(match) >= _LOOKUP_SHARE * self._layer_accepted.value:
            return True
        self._declined += 1
        return self._declined % _PROBE == 0

    def should_send_branch(self, tokens: int) -> bool:
        """Return True if a branch's draft should be sent as it is, or False if a new draft from the verified deep states is worth its time.

        A branch was drafted from guessed states, so fewer of its tokens are accepted. Now and then one is sent to learn how many.

        Args:
            tokens: maximum length of the draft.
        """
        self._hits += 1
        if self._hits % _PROBE == 0 or not self._tokens.events:
            return True
        fresh, branch = self._gains[False], self._gains[True]
        expected = fresh.value if fresh.events else 0.0
        total, events = branch.with_prior(_BRANCH_SHARE * expected, _PRIOR_BRANCHES)
        step = self._short_step.value if self._short_step.is_measured else self._step.value
        saved = min(tokens, 1.0 + expected) * step * self._tokens.value / self._seconds.value
        return saved > expected - total / events

    def window(self) -> int:
        """Return the maximum length of the next draft, or 0 if drafting doesn't pay off at present."""
        state = self._state(1)
        if self._ends_early is not None and not self._is_worthwhile(state.rate):
            self._skipped = (self._skipped + 1) % _PROBE
            if self._skipped:
                return 0
        self._skipped = 0
        self._previous = max(1, min(LONGEST, round(self._policy.propose(state))))
        return self._previous

    def _is_worthwhile(self, rate: float) -> bool:
        """Return True if a draft of at least one length would give more tokens than an average round in the same time."""
        if self._tokens.events < _FIRST:
            return True
        gain, seconds, chance = 0.0, 0.0, 1.0
        for drafted in range(1, _LOOKAHEAD + 1):
            chance *= self._accepted.value
            gain += chance
            seconds += self._token_seconds(drafted)
            if gain > rate * seconds:
                return True
        return False

    def _token_seconds(self, drafted: int, *, is_lookup: bool = False) -> float:
        """Return the seconds that the last of this many draft tokens adds: the time of its step and of its row."""
        step = self._lookup_step if is_lookup and self._lookup_step.is_measured else self._step
        return step.value + self._row_seconds(drafted + 1)

    def _state(self, drafted: int, *, is_lookup: bool = False) -> WindowState:
        if not self._tokens.events or not self._step.is_measured:
            return WindowState(previous=self._previous)
        return WindowState(
            previous=self._previous,
            acceptance=self._accepted.value,
            draft_step=self._token_seconds(drafted, is_lookup=is_lookup),
            rate=self._tokens.value / self._seconds.value,
        )

    def should_end(self, confidences: Sequence[Confidence], *, is_lookup: bool = False) -> bool:
        """Return True if a draft should end with the last of its tokens so far.

        Args:
            confidences: confidences of these tokens, at least one.
            is_lookup: the token after them would be looked up, so it costs no step.
        """
        last = confidences[-1]
        if (self.acceptance(last) if isinstance(last, Match) else last) < self._min_confidence:
            return True
        if self._ends_early is None:
            return False
        chance = prod(self.acceptance(confidence) for confidence in confidences)
        return chance < self._ends_early.min_acceptance(self._state(len(confidences) + 1, is_lookup=is_lookup), self._previous)

    def record_step(self, seconds: float, *, has_row: bool = False) -> None:
        """Record the time of a draft step. It includes the input layers' row, unless a branch had computed that before (``has_row``)."""
        (self._short_step if has_row else self._step).record(seconds)

    def record_lookup(self, seconds: float) -> None:
        """Record the time that the input layers took for the row of a looked-up token."""
        self._lookup_step.record(seconds)

    def record_wait(self, seconds: float) -> None:
        """Record the time from sending rows until their deep states arrived."""
        self._wait.record(seconds)

    def record_verdict(self, confidences: Sequence[Confidence], accepted: int, *, is_branch: bool = False) -> None:
        """Record how many tokens of a draft were accepted.

        Args:
            confidences: confidences of the draft's tokens.
            accepted: number of accepted tokens.
            is_branch: True if the draft came from a branch, and so was made from guessed deep states.
        """
        if not confidences:
            return
        self._gains[is_branch].record(accepted)
        if is_branch:
            return
        self._accepted.record(float(accepted > 0))
        for place, confidence in enumerate(confidences[: accepted + 1]):
            if isinstance(confidence, Match):
                self._match_accepted[confidence.length].record(float(place < accepted))
            else:
                self._calibration.record(confidence, is_accepted=place < accepted)
                self._layer_accepted.record(float(place < accepted))

    def record_round(self, tokens: int, seconds: float) -> None:
        """Record a whole round: its tokens, including the correction, and its time, including drafting."""
        self._tokens.record(tokens)
        self._seconds.record(seconds)


def _match_prior(length: int) -> float:
    """Return the acceptance assumed at first for the token after a match: 0.55 after two tokens, 0.9 after sixteen."""
    most, less = _MATCH_ACCEPTANCE
    return most - less * (1 - length / LONGEST_MATCH)
