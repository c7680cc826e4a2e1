"""Drafts for an engine's own answers: proposed tokens, verified in the engine's next batch with each answer's next token (DSD: fused mode).

The engine draws from each row of the batch as usual, so drafts don't change an answer, even if it is sampled: a draft token that differs
from the drawn one is dropped, along with the tokens after it. The engine's row costs say how long a batch takes. The engine learns how
often proposals are right, even from tokens that weren't verified. The measured gain decides whether there are any drafts. Everything here
runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from time import perf_counter
from typing import Protocol

from msgspec import Struct

from streamco.core.speculation.averages import DecayedRatio, Ewma
from streamco.engines.generation import RunningGeneration
from streamco.policies.drafts.batch_drafts import draft_length, draft_rows
from streamco.policies.drafts.prompt_lookup import LONGEST_MATCH, PromptLookup, match_confidence
from streamco.profiles.row_costs import RowCosts

__all__ = ["BatchDrafts", "DraftSource", "LookupSource", "Proposal"]

LONGEST = 15
"""Maximum number of draft tokens that an answer may have in a batch."""

_MEMORY = 0.98  # weight of an event after the next one
_PRIOR_EVENTS = 4.0  # number of events that ``match_confidence`` counts as
_PIECE = 1024  # tokens of a text that are searched per batch, which takes a millisecond
_FIRST_GAIN = 1.2  # ratio of tokens per second with drafts to those without, until it is known
_GAIN_WEIGHT = 0.05  # weight of one batch
_REFRESH = 32  # after this many batches with drafts, one batch has none, to measure the time without them
_ODD = 4.0  # a batch without drafts counts as a fourth to four times the list's seconds: beyond that it was disturbed
_TRIALS = 0.01  # share of the time that may be lost to see whether drafts pay again, while it looks as if they didn't
_MOST_TRIALS = 4.0  # how many batches' worth of that time may be saved up
_TRIAL = 4  # tokens of a trial draft


class Proposal(Struct, frozen=True):
    """Tokens that are proposed as the continuation of an answer.

    Args:
        tokens: their ids.
        chances: for each token, the chance that it and all tokens before it are accepted, 0..1.
        evidence: for each token, its probability in the draft model, or how many tokens before it matched.
    """

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()
    evidence: Sequence[float] = ()


class DraftSource(Protocol):
    """The interface of a source of proposals."""

    @property
    def acceptance(self) -> float | None:
        """Chance that a proposed token is accepted if all tokens before it are; None if proposals take no time and so are always made."""
        ...

    def step(self, answers: int) -> float:
        """Return how many seconds it takes to propose one token for each of this many answers."""
        ...

    def propose(self, answers: Sequence[RunningGeneration], longest: int, token_seconds: float) -> list[Proposal]:
        """Return a proposal for each answer.

        Args:
            answers: the answers in the next batch.
            longest: maximum number of tokens for each.
            token_seconds: seconds that a token takes without drafts; a proposal gets one more token only if that is likely to save more
                time than it takes.

        Raises:
            EngineError: the source can no longer propose anything.
        """
        ...

    def record(self, answer: RunningGeneration, proposal: Proposal, right: int, *, is_wrong: bool) -> None:
        """Learn that the first ``right`` tokens of a proposal were drawn.

        Args:
            answer: the answer that they were proposed for.
            proposal: the proposal.
            right: how many of its first tokens were drawn.
            is_wrong: True if the next token wasn't drawn; False if that isn't known.
        """
        ...

    def forget(self, answer: RunningGeneration) -> None:
        """Discard everything that was kept for an answer."""
        ...

    def close(self) -> None:
        """Free memory; idempotent."""
        ...


class LookupSource:
    """Proposes the tokens that followed an earlier occurrence of the answer's last tokens in the prompt or in the answer itself."""

    acceptance = None

    def __init__(self) -> None:
        self._texts: dict[RunningGeneration, PromptLookup] = {}
        self._accepted = [DecayedRatio(_MEMORY, match_confidence(length), _PRIOR_EVENTS) for length in range(LONGEST_MATCH + 1)]

    def step(self, answers: int) -> float:
        """Return 0, because looking up one more token takes no time."""
        return 0.0

    def propose(self, answers: Sequence[RunningGeneration], longest: int, token_seconds: float) -> list[Proposal]:
        """Return the tokens that followed the longest match of each answer's last tokens; none until its prompt has been searched."""
        return [self._propose(answer, longest) for answer in answers]

    def _propose(self, answer: RunningGeneration, longest: int) -> Proposal:
        text = self._texts.get(answer)
        if text is None:
            text = self._texts[answer] = PromptLookup()
        assert answer.slot is not None, "it is being written"
        ids = answer.slot.ids
        text.extend(ids[len(text) : len(text) + _PIECE])
        if len(text) < len(ids):
            return Proposal()
        if len(text) == len(ids) and answer.next_token is not None:  # otherwise it is already there, because the last batch failed
            text.extend([answer.next_token])
        tokens, match = text.continuation(longest)
        lengths = [min(match + place, LONGEST_MATCH) for place in range(len(tokens))]
        return Proposal(tokens, list(accumulate((self._accepted[length].value for length in lengths), mul)), lengths)

    def record(self, answer: RunningGeneration, proposal: Proposal, right: int, *, is_wrong: bool) -> None:
        """Learn how often the tokens after a match of each length are right."""
        for place in range(right + is_wrong):
            self._accepted[int(proposal.evidence[place])].record(float(place < right))

    def forget(self, answer: RunningGeneration) -> None:
        """Drop an answer's text."""
        self._texts.pop(answer, None)

    def close(self) -> None:
        """Drop all texts."""
        self._texts.clear()


class BatchDrafts:
    """Chooses the draft tokens of each batch.

    Whether drafts pay off is measured separately for each number of rows that a batch has without them. The measure is tokens per second
    with drafts (including the time to propose them), divided by tokens per second without. While it is below 1, up to one percent of the
    time may be lost in batches that test whether it has changed.

    Args:
        source: the source of proposals; ``close`` closes it.
        costs: seconds that a batch takes, by its number of rows.
        most: maximum number of rows in a batch.
        longest: maximum number of draft tokens that an answer may have in a batch.
        padding: number of rows that each answer takes in a batch in addition to its own, even without drafts.
        clock: returns monotonic time in seconds.

    Attributes:
        clock: the given clock.
    """

    def __init__(
        self,
        source: DraftSource,
        costs: Mapping[int, float],
        *,
        most: int,
        longest: int = LONGEST,
        padding: int = 0,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._source = source
        self._costs = RowCosts(costs)
        self._most = min(most, max(costs))
        self._longest = min(longest, LONGEST)
        self._padding = padding
        self.clock = clock
        self._plain = Ewma(1.0, first_weight=1.0)  # seconds of batches without drafts, relative to the list's
        self._since_plain = _REFRESH
        self._gains: dict[int, Ewma] = {}  # by the number of rows without drafts
        self._allowance = 0.0  # seconds that may be lost in trials
        self._proposals: dict[RunningGeneration, Proposal] = {}
        self._rows = 1  # of the next batch, without drafts
        self._began = 0.0
        self._proposing = 0.0  # seconds of the proposals for the next batch
        self._accepted = 0

    def choose(self, answers: Sequence[RunningGeneration], rows: int, *, is_allowed: bool = True) -> list[Sequence[int]]:
        """Return the draft tokens of each answer for the next batch, which has ``rows`` rows without them.

        Args:
            answers: the answers in the batch.
            rows: number of rows in the batch without drafts: one for each answer, and any others.
            is_allowed: False if the batch must have no drafts.

        Raises:
            EngineError: drafts are no longer possible.
        """
        self._began, self._rows, self._accepted, self._proposals, self._proposing = self.clock(), rows, 0, {}, 0.0
        most = self._most - self._padding * rows
        may_draft = is_allowed and self._since_plain < _REFRESH and rows < most
        longest = self._length(rows, most) if may_draft else 0
        if not longest and self._source.acceptance is not None:
            return [()] * len(answers)
        found = self._source.propose(answers, longest or 1, self._plain.value * self._costs.seconds(rows) / rows)
        self._proposals = dict(zip(answers, found, strict=True))
        began, self._began = self._began, self.clock()
        self._proposing = self._began - began
        chances = [each.chances[: max(0, min(longest, answer.room - 1))] for each, answer in zip(found, answers, strict=True)]
        taken = draft_rows(chances, rows, self._costs.seconds, most=most)
        return [each.tokens[:count] for each, count in zip(found, taken, strict=True)]

    def _length(self, rows: int, most: int) -> int:
        """Return the maximum number of an answer's draft tokens, or 0 if drafts wouldn't pay off."""
        gain = self._gains.get(rows)
        acceptance, seconds = self._source.acceptance, self._costs.seconds
        longest = self._longest
        if acceptance is not None:
            step = self._source.step(rows) / self._plain.value  # in the list's seconds
            longest = draft_length(acceptance, step, rows, seconds, most=most, longest=longest)
        if longest and (gain is None or gain.value >= 1.0):
            return longest
        is_affordable = self._allowance > self._plain.value * seconds(rows)
        return min(longest or _TRIAL, self._longest) if is_affordable else 0

    def end_batch(self, drafted: int) -> None:
        """Record a batch with ``drafted`` rows of drafts: its time since ``choose``, and what its drafts gained."""
        seconds = self.clock() - self._began
        listed = self._costs.seconds(self._rows)
        if drafted:
            self._since_plain += 1
        else:
            self._since_plain = 0
            self._plain.record(min(_ODD, max(1.0 / _ODD, seconds / listed)))
        plain = self._plain.value * listed
        spent = seconds + self._proposing
        self._allowance = min(_MOST_TRIALS * plain, self._allowance + _TRIALS * spent)
        if (not drafted and self._source.acceptance is None) or not self._proposals:
            return
        worth = (1.0 + self._accepted / self._rows) * plain
        if not drafted:
            spent = worth + self._proposing
        gain = self._gains.setdefault(self._rows, Ewma(_FIRST_GAIN, _GAIN_WEIGHT))
        if gain.value < 1.0:
            self._allowance -= max(0.0, spent - worth)
        gain.record(worth / max(spent, 1e-9))

    def record(self, answer: RunningGeneration, taken: int, accepted: int) -> None:
        """Record how many of the ``taken`` draft tokens of an answer were drawn; the token after them is its ``next_token``."""
        self._accepted += accepted
        proposal = self._proposals.get(answer)
        if proposal is None:
            return
        if accepted == taken and taken < len(proposal.tokens) and not answer.is_done:  # the drawn token tells about the next one
            is_next = proposal.tokens[taken] == answer.next_token
            self._source.record(answer, proposal, accepted + is_next, is_wrong=not is_next)
        else:
            is_wrong = accepted < taken and not (answer.is_parked or answer.is_done)
            self._source.record(answer, proposal, accepted, is_wrong=is_wrong)

    def forget(self, answer: RunningGeneration) -> None:
        """Discard everything that was kept for an answer that has ended."""
        self._proposals.pop(answer, None)
        self._source.forget(answer)

    def close(self) -> None:
        """Free the memory of the source; idempotent."""
        self._source.close()
