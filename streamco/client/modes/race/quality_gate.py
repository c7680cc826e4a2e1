"""The quality gate of a client's races: its settings, and what it has learned about the device's answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from numbers import Real
from statistics import fmean

from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.config import Options, check_share
from streamco.core.race.attempt import AttemptState
from streamco.core.race.gate import GatePlan, HeldBeginning
from streamco.core.race.learner import Plan
from streamco.core.race.machine import RaceMachine
from streamco.endpoints.base import Endpoint
from streamco.errors import ConfigError, UsageError, shorten
from streamco.policies.budget_control import BudgetSteering, Reservation
from streamco.policies.eligibility import RequestFacts
from streamco.policies.quality import MAX_TOKENS, MIN_RATED, AnswerFacts, Judge, LearnedScore, Perplexity, Score, SteeredThreshold
from streamco.policies.ways import GateOutlook

__all__ = ["Grader", "QualityGate", "facts_of", "why_alone", "why_not_graded"]

_REMEMBERED = 1000  # answers that can still be rated
_BLIND = 3  # after this many answers without any probability, no more are held
_TRIED_AGAIN = 20  # after this many answers, one is held again


class QualityGate(Options, frozen=True, kw_only=True):
    """Decides whether the device's answer is good enough, and holds its first tokens until a score says that it is (docs/howto/quality.md).

    Without ``min_score`` and ``score``, the score is learned from ratings of this app's answers; the gate is off until there are enough.

    Args:
        min_score: lowest score at which the device's answer is shown, 0..1. Without ``score`` it is the mean probability that the device
            gave its first tokens. With None, the threshold is chosen so that the budget is spent.
        score: your own score, an object with ``score(facts)`` that returns 0..1 for ``streamco.types.AnswerFacts``.
        tokens: how many tokens are held until they have a score, 1 to 16.
        max_wait: seconds that a reader waits for the server after a low score; then the device's answer is shown after all.
        shadow: share of the answers written by the device alone after which a server writes one as well, within the budget.
            The two are compared, and the score learns from that as it does from a rating. 0 for none.
        judge: a function that compares both answers, given as a ``streamco.types.ShadowPair``, and returns True if the device's is as good,
            False if not, or None if it can't say. It must not block the event loop; a coroutine function may take a minute. With None,
            answers of up to 16 tokens are compared word for word, and longer ones aren't compared.

    Raises:
        ConfigError: a setting is out of range, or ``score`` has no ``score`` method.
    """

    min_score: float | None = None
    score: Score | None = None
    tokens: int = MAX_TOKENS
    max_wait: float = 5.0
    shadow: float = 0.0
    judge: Judge | None = None

    def __post_init__(self) -> None:
        """Reject settings that can't grade an answer."""
        if self.min_score is not None:
            check_share("quality gate: min_score", self.min_score)
        check_share("quality gate: shadow", self.shadow)
        if self.judge is not None and not callable(self.judge):
            raise ConfigError(f"quality gate: judge: expected a function of a ShadowPair or None, got {type(self.judge).__name__}")
        if self.judge is not None and not self.shadow:
            raise ConfigError("quality gate: judge: only valid with shadow above 0, without which it has nothing to judge")
        if self.score is not None and not callable(getattr(self.score, "score", None)):
            raise ConfigError(f"quality gate: score: expected an object with score(facts), got {type(self.score).__name__}")
        if isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or not 1 <= self.tokens <= MAX_TOKENS:
            raise ConfigError(f"quality gate: tokens: expected 1 to {MAX_TOKENS}, got {self.tokens!r}")
        if isinstance(self.max_wait, bool) or not isinstance(self.max_wait, int | float) or not 0 < self.max_wait <= 3600:
            raise ConfigError(f"quality gate: max_wait: expected seconds above 0 and up to 3600, got {self.max_wait!r}")


def why_not_graded(facts: RequestFacts, *, hedges: bool) -> str:
    """Return why a device's answer to a request isn't graded, as a clause, or "" if it can be."""
    if not hedges:
        return "its tools would be called twice"
    return "it has several choices" if facts.choices > 1 else ""


class Grader:
    """Scores the device's answers for one client, and finds the threshold.

    Args:
        options: the settings.
        budget: share of all prompt tokens that servers may process because of low scores, 0..1.
        learned: what was learned before, or None.

    Attributes:
        account: counts the tokens of servers that were asked because of low scores.
    """

    def __init__(self, options: QualityGate, budget: float, learned: LearnedScore | None = None) -> None:
        self.options = options
        self.account = BudgetSteering(budget)
        self.learned = learned or LearnedScore()
        self._threshold = SteeredThreshold()
        self._blind = 0  # consecutive answers without any probability
        self._passed = 0  # answers since then
        self._answers: OrderedDict[str, tuple[str, AnswerFacts | None]] = OrderedDict()  # by key; with the ids of their requests
        self._keys: dict[str, str] = {}  # key of the latest answer for each id

    def share(self, other: Grader) -> None:
        """Share the ratings of another grader, and the answers that can be rated."""
        self.learned, self._answers, self._keys = other.learned, other._answers, other._keys

    @property
    def why_off(self) -> str:
        """Why answers aren't graded, as a clause, or "" if they are."""
        if self._blind >= _BLIND:
            return "it doesn't tell how sure it is of its tokens"
        if self._score is not self.learned or self.learned.is_ready:
            return ""
        return f"too few answers have been rated ({self.learned.labels} so far)"

    @property
    def _score(self) -> Score:
        if self.options.score is not None:
            return self.options.score
        return self.learned if self.options.min_score is None else Perplexity()

    @property
    def quality(self) -> float | None:
        """Share of the device's answers that are good, according to scores or ratings, or None if too little is known."""
        return fmean(self._scores) if self.is_calibrated else self.learned.good_share

    @property
    def is_calibrated(self) -> bool:
        """True if scores are probabilities of a good answer, so that one can compute the score at which the device's answer pays."""
        return self._score is self.learned and self.learned.is_ready and self.options.min_score is None

    @property
    def has_rule(self) -> bool:
        """True if the caller has set a requirement for the device's answers: a score of their own, or a lowest score."""
        return self.options.score is not None or self.options.min_score is not None

    def outlook(self, share: float, min_score: float | None = None) -> GateOutlook:
        """Return what the gate is expected to do.

        Args:
            share: share of the prompt tokens that servers may process because of low scores.
            min_score: lowest score of an answer that is shown; None uses the same one as ``plan``.
        """
        scores = self._scores
        least = self._least(share) if min_score is None else min_score
        sure, unsure = [score for score in scores if score >= least], [score for score in scores if score < least]
        return GateOutlook(
            sure=len(sure) / len(scores) if scores else 1.0 - share,
            tokens=self.options.tokens,
            max_wait=self.options.max_wait,
            sure_score=fmean(sure) if sure and self.is_calibrated else None,
            unsure_score=fmean(unsure) if unsure and self.is_calibrated else None,
        )

    def steered(self, share: float) -> float:
        """Return the threshold at which servers process this share of the prompt tokens."""
        return self._threshold.threshold(share)

    @property
    def _scores(self) -> Sequence[float]:
        """Scores of the most recent answers, or of the rated ones while few others are known."""
        known = self._threshold.scores
        return known if len(known) >= MIN_RATED or not self.is_calibrated else self.learned.rated_scores

    def _least(self, share: float) -> float:
        return self._threshold.threshold(share) if self.options.min_score is None else self.options.min_score

    def plan(
        self, facts: RequestFacts, device: Endpoint | None, plan: Plan, obstacle: str, *, min_score: float | None = None
    ) -> GatePlan | None:
        """Return the gate for an answer, or None if there is no device.

        Args:
            facts: facts about its request.
            device: the device, or None.
            plan: the dispatch plan, which says which side the budget limits.
            obstacle: as in ``GatePlan``.
            min_score: lowest score of an answer that is shown; None uses the caller's setting, or the score at which the budget is spent.
        """
        if device is None:
            return None
        options = self.options

        def score(probabilities: Sequence[float], is_complete: bool) -> float | str:
            given = AnswerFacts(
                probabilities=tuple(probabilities), is_complete=is_complete, prompt_tokens=facts.prompt_tokens, task=facts.task
            )
            return self._checked_score(given)

        share = self.account.budget if plan.constrained == "server" else 1.0
        return GatePlan(
            source=device.name,
            score=score,
            min_score=self._least(share) if min_score is None else min_score,
            tokens=options.tokens,
            max_wait=options.max_wait,
            obstacle=obstacle,
        )

    def record(self, reservation: Reservation, held: HeldBeginning | None, *, is_exempt: bool) -> None:
        """Settle the account of an answer that has ended, and learn the distribution of scores.

        Args:
            reservation: its reservation in this account.
            held: what the gate held, or None if the answer wasn't graded.
            is_exempt: True if the answer doesn't count against the budget.
        """
        self._watch_sight(held)
        self.account.settle(reservation, started=held is not None and held.asked is not None, exempt=is_exempt)
        decided = held is not None and (held.asked is not None or held.verdict == "sure")
        self._threshold.record(held.score if held is not None and decided else None, reservation.tokens)

    def _watch_sight(self, held: HeldBeginning | None) -> None:
        """Stop holding answers of a device that reports no probabilities, except for one now and then, to see if it has begun to."""
        if held is not None and held.graded_tokens:
            self._blind = 0
        elif held is not None and held.is_blind:
            self._blind, self._passed = self._blind + 1, 0
        elif held is None and self._blind >= _BLIND:
            self._passed += 1
            if self._passed >= _TRIED_AGAIN:
                self._blind = _BLIND - 1

    def remember(self, key: str, request_id: str, facts: AnswerFacts | None) -> None:
        """Remember what is known about an answer until it is rated, or until there have been 1,000 later ones.

        Args:
            key: identifies only this answer.
            request_id: id of its request, which other answers may share.
            facts: what is known about it, or None if the device didn't write all of it.
        """
        self._answers[key] = request_id, facts
        self._keys[request_id] = key
        if len(self._answers) > _REMEMBERED:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: str) -> AnswerFacts | None:
        request_id, facts = self._answers.pop(key)
        if self._keys.get(request_id) == key:
            del self._keys[request_id]
        return facts

    def rate(self, name: str, good: bool) -> bool:
        """Learn from the rating of an answer; return False if nothing can be learned, because the device didn't write all of it.

        ``name`` is its key, or the id of its request, which stands for the latest answer with that id.

        Raises:
            UsageError: the answer has already been rated, or isn't one of the last 1,000.
        """
        key = name if name in self._answers else self._keys.get(name, "")
        if key not in self._answers:
            raise UsageError(f"rate: expected an answer that has ended, is one of the last 1,000 and was not rated yet, got {name!r}")
        facts = self._forget(key)
        if facts is None:
            return False
        self.learned.observe(facts, good)
        return True

    def _checked_score(self, facts: AnswerFacts) -> float | str:
        try:
            found: object = self._score.score(facts)
        except Exception as error:  # noqa: BLE001  the caller's, and its text may quote anything
            return f"its score raised {type(error).__name__}"
        if isinstance(found, bool) or not isinstance(found, Real) or not 0.0 <= float(found) <= 1.0:
            return f"expected a score of 0..1, got {shorten(repr(found))}"
        return float(found)


def facts_of(dispatched: DispatchRecord, machine: RaceMachine, tokens: int) -> AnswerFacts | None:
    """Return what is known about an answer that the device wrote from beginning to end; None if it didn't, or if nothing is known.

    ``tokens`` is the maximum number of tokens that make up a score.
    """
    attempt = machine.attempts.get(dispatched.device or "")
    if attempt is None or attempt.state is not AttemptState.ENDED or not attempt.has_won or not attempt.confidence.first:
        return None
    if attempt.thinks:
        return None  # such answers aren't graded
    return AnswerFacts(
        probabilities=tuple(attempt.confidence.first[:tokens]),
        is_complete=attempt.tokens <= tokens,
        prompt_tokens=dispatched.prompt_tokens,
        task=dispatched.facts.task,
    )


def why_alone(plan: Plan, reservation: Reservation, server: Endpoint | None, resting: Mapping[str, str], *, may_ask: bool) -> str:
    """Return why no server can be used after a low score, as a clause, or "". ``may_ask`` is False once the gate's budget is spent."""
    if server is None:
        return "there is no server"
    if plan.constrained == "server" and not (reservation.is_allowed and may_ask):
        return "the budget is spent"
    return f"{server.name} rests, because {resting[server.name]}" if server.name in resting else ""
