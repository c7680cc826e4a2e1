"""The quality gate of a race, which holds the device's first tokens until a score says whether its answer is good enough.

A device that is sure of its beginning wins as in any race. A device that isn't sure pauses and keeps its text: another endpoint's answer
is preferred, but if that fails or makes the reader wait too long, the device's own answer is better than none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from streamco.core.race.attempt import has_said
from streamco.events import TokensReceived

__all__ = ["GatePlan", "HeldBeginning", "Verdict"]

_FIRST = 4  # tokens; if their probabilities aren't reported, no others will be

Verdict = Literal["sure", "unsure", "not graded"]


class GatePlan(Struct, frozen=True, kw_only=True):
    """The rules by which the gate decides whether a device's answer is good enough.

    Args:
        source: the endpoint whose answer is graded.
        score: called with the probabilities of the answer's first tokens and whether the answer has ended with them. Returns the chance
            that the answer is good, 0..1, or a clause that says why it can't tell. It must not raise.
        min_score: lowest score of an answer that is good enough, 0..1.
        tokens: maximum number of tokens to hold.
        max_wait: how many seconds after the grade the reader waits for another endpoint's first token.
        until: when the reader stops waiting because the answer's total time is limited, in seconds since the request; None if it isn't.
        obstacle: why no endpoint may be asked apart from the ones that the plan starts anyway; "" if one may be.
    """

    source: str
    score: Callable[[Sequence[float], bool], float | str]
    min_score: float
    tokens: int = 16
    max_wait: float = 5.0
    until: float | None = None
    obstacle: str = ""


class HeldBeginning:
    """The beginning of an answer that the gate holds, owned by the race machine.

    Args:
        plan: the rules for whether the answer is good enough.

    Attributes:
        tokens: number of tokens that arrived before the gate was opened.
        verdict: the result of grading; None if not graded yet.
        score: the score; None if there is none.
        unscored_because: why the answer could not be scored, as a clause; "" if it has a score, or isn't graded yet.
        graded_at: when it was graded, in seconds since the request; None if not graded yet.
        asked: the endpoint that was asked because of the score; None if one was already working, or none could be asked.
        passed_because: why an answer was delivered although the device was unsure of it, as a clause; "" otherwise.
        is_paused: True if the endpoint is paused until it has been decided which endpoint answers.
        is_open: True if nothing is held back any more.
        thinks: True if the answer began with reasoning, which is not graded.
        patience: how many seconds the reader waits for another endpoint.
    """

    def __init__(self, plan: GatePlan) -> None:
        self.plan = plan
        self.tokens = 0
        self.verdict: Verdict | None = None
        self.score: float | None = None
        self.unscored_because = ""
        self.graded_at: float | None = None
        self.asked: str | None = None
        self.passed_because = ""
        self.is_paused = False
        self.is_open = False
        self.thinks = False
        self._text_tokens = 0
        self._probabilities: list[float] = []
        self.patience = plan.max_wait
        self._deadline: float | None = None

    @property
    def graded_tokens(self) -> int:
        """Number of tokens that the score is based on."""
        return min(len(self._probabilities), self.plan.tokens)

    @property
    def is_ready(self) -> bool:
        """True if the score needs no more tokens, or more tokens would not help."""
        needed = self.plan.tokens if self._probabilities else min(_FIRST, self.plan.tokens)
        return self.thinks or self._text_tokens >= needed

    @property
    def is_blind(self) -> bool:
        """True if the endpoint reported no probabilities for the graded text. One token is too few to tell, as it may lack one."""
        is_enough = self._text_tokens >= min(2, self.plan.tokens)
        return self.verdict is not None and is_enough and not self.thinks and not self._probabilities

    @property
    def waits(self) -> bool:
        """True if the device was unsure, and it hasn't been decided yet which endpoint answers."""
        return self.verdict == "unsure" and not self.is_open

    @property
    def deadline(self) -> float | None:
        """When the reader will have waited long enough, or None if nobody waits."""
        return self._deadline if self.waits else None

    @property
    def is_holding(self) -> bool:
        """True if tokens are held back now."""
        return not self.is_open and self.tokens > 0

    def holds(self, source: str) -> bool:
        """Return True if tokens of this endpoint are held back."""
        return not self.is_open and source == self.plan.source

    def take(self, event: TokensReceived, *, thinks: bool) -> None:
        """Add tokens of the answer's beginning. ``thinks`` says whether the answer began with reasoning."""
        self.tokens += event.tokens
        self.thinks = thinks
        if any(choice.delta.content or has_said(choice.delta) for chunk in event.chunks for choice in chunk.choices[:1]):
            self._text_tokens += event.tokens
        if self.verdict is None and not self.thinks:
            self._probabilities += (each.probability for each in event.confidences)

    def grade(self, *, is_complete: bool, at: float) -> bool:
        """Grade the tokens so far, and return True if the answer is good enough or can't be graded.

        Args:
            is_complete: True if the answer has ended.
            at: the current time, in seconds since the request.
        """
        given = self._probabilities[: self.plan.tokens]
        if self.thinks:
            found: float | str = "it thinks before it answers"
        else:
            found = self.plan.score(given, is_complete) if given else "it doesn't tell how sure it is of its tokens"
        self.graded_at = at
        if isinstance(found, str):
            self.verdict, self.unscored_because = "not graded", found
        else:
            self.verdict, self.score = "sure" if found >= self.plan.min_score else "unsure", found
        return self.verdict != "unsure"

    def has_time(self, at: float) -> bool:
        """Return True if the reader may still be kept waiting ``at`` seconds after the request."""
        return self.plan.until is None or at < self.plan.until

    def wait(self, now: float, *, at: float, asked: str | None) -> None:
        """Let the reader wait for another endpoint.

        Args:
            now: the current time.
            at: the current time in seconds since the request.
            asked: the endpoint that was asked because of the score; None if none was.
        """
        self.asked = asked
        if self.plan.until is not None:
            self.patience = min(self.patience, self.plan.until - at)
        self._deadline = now + self.patience

    def open(self, because: str = "") -> None:
        """Hold nothing back from now on. ``because`` says why the device's answer is delivered, if the device was unsure of it."""
        self.is_open, self.passed_because = True, because
