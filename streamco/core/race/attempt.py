"""One endpoint's part in an answer.

The life of an attempt::

    waiting ──▶ open ──▶ won ──▶ ended | failed | lost   (the answer moved on, planned: the rest of it is a new attempt's)
       │          ├────▶ lost ──▶ cancelled              (another attempt had the first content token)
       │          └────▶ failed
       └─────▶ spared                                    (never started)

    preparing ──▶ prepared | failed | cancelled          (it reads ahead, to take over later)
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from streamco.core.race.restart import RestartFilter
from streamco.errors import EndpointError
from streamco.openai_types import ChatCompletionChunk, CompletionUsage
from streamco.partial import Partial

__all__ = ["Attempt", "AttemptState", "AttemptPlan"]


class AttemptPlan(Struct, frozen=True):
    """When an attempt starts, and what it can do.

    Args:
        source: the endpoint's name.
        wait: seconds after the request; None: only if the others fail.
        continues: it can go on with an answer that another attempt has begun.
        vocabulary: fingerprint of its tokenizer; None: not known.
    """

    source: str
    wait: float | None
    continues: bool = False
    vocabulary: str | None = None


class AttemptState(Enum):
    """Where an attempt stands."""

    WAITING = auto()
    OPEN = auto()
    WON = auto()
    ENDED = auto()
    LOST = auto()
    CANCELLED = auto()
    FAILED = auto()
    SPARED = auto()
    PREPARING = auto()
    PREPARED = auto()


_LIVE = (AttemptState.OPEN, AttemptState.WON, AttemptState.LOST, AttemptState.PREPARING)
_OUT = (AttemptState.FAILED, AttemptState.WON)

_RATE_TOKENS = 32  # a rate is taken from the first of them: later a paced reader may hold the endpoint back
_LEAST_RATE_TOKENS = 4


class Attempt:
    """One endpoint's part: times in seconds since the request began, tokens as far as they are known."""

    def __init__(self, start: AttemptPlan) -> None:
        self.start = start
        self.source = start.source
        self.wait = start.wait
        self.continues = start.continues
        self.vocabulary = start.vocabulary
        self.state = AttemptState.WAITING
        self.opened: float | None = None
        self.first_token: float | None = None
        self.stopped: float | None = None
        self.tokens = 0
        self.late = 0  # of these, what came when nobody took it any more
        self.has_won = False
        self.takeover_position: int | None = None  # it goes on with an answer of so many tokens
        self.kept: int | None = None  # tokens of the answer it has read ahead, beside the whole prompt; None: nothing
        self.restart_filter: RestartFilter | None = None  # it makes the answer anew, and still makes what the reader has
        self.is_restart = False  # it was asked the request without the answer's beginning
        self.is_ahead = False  # it reads ahead, it does not write
        self.copies = 0  # tokens of the answer it is reading ahead
        self.reads = 0  # of prompt and answer, those it had not read before
        self.is_stopping = False  # its cancel was commanded and has not taken effect: till then its endpoint takes nothing new
        self.finish_reason: str | None = None
        self.usage: CompletionUsage | None = None
        self.error: EndpointError | None = None
        self.held: list[ChatCompletionChunk] = []  # chunks without content from before the race was decided
        self._first_tokens = 0  # that came at ``first_token``
        self._seen: tuple[int, float] | None = None  # tokens and time of the last of the first few

    def succeed(self, position: int, opened: float) -> Attempt:
        """Return the same endpoint's new part, as the one who goes on with the answer from ``position`` (tokens)."""
        attempt = Attempt(self.start)
        attempt.state, attempt.takeover_position, attempt.opened, attempt.kept = AttemptState.WON, position, opened, self.kept
        return attempt

    def restart(self, partial: Partial, opened: float) -> Attempt:
        """Return the same endpoint's new part, as the one who makes the answer anew; what ``partial`` holds is taken out."""
        attempt = self.succeed(partial.tokens, opened)
        attempt.is_restart, attempt.restart_filter = True, RestartFilter(partial, self.vocabulary)
        return attempt

    def prepare(self, opened: float) -> Attempt:
        """Return the same endpoint's new part, as one that reads ahead."""
        attempt = Attempt(self.start)
        attempt.state, attempt.opened, attempt.kept, attempt.is_ahead = AttemptState.PREPARING, opened, self.kept, True
        return attempt

    def count(self, tokens: int, at: float) -> None:
        """Content tokens have come ``at`` (seconds since the request)."""
        self.tokens += tokens
        if self.first_token is None:
            self.first_token, self._first_tokens = at, tokens
        elif self.tokens <= _RATE_TOKENS:
            self._seen = self.tokens, at

    @property
    def is_new(self) -> bool:
        """True if its rate is still being found out."""
        return self.tokens <= _RATE_TOKENS

    @property
    def rate(self) -> float | None:
        """Tokens per second it made at its beginning; None: too few to tell."""
        if self._seen is None or self.first_token is None:
            return None
        tokens, at = self._seen[0] - self._first_tokens, self._seen[1] - self.first_token
        return tokens / at if tokens >= _LEAST_RATE_TOKENS and at > 0 else None

    @property
    def given(self) -> int:
        """Tokens of the answer that were in its prompt."""
        return 0 if self.is_restart else self.copies or self.takeover_position or 0

    @property
    def can_take_over(self) -> bool:
        """True if it may still go on with the answer; nobody does twice, nor who had nothing to say."""
        return self.continues and self._is_left

    @property
    def can_restart(self) -> bool:
        """True if it can't go on with the answer, but may still be asked for all of it."""
        return not self.continues and self._is_left

    @property
    def _is_left(self) -> bool:
        if self.takeover_position is not None or self.state in _OUT:
            return False
        return self.state is not AttemptState.ENDED or self.tokens > 0

    @property
    def is_last_resort(self) -> bool:
        """True if it could go on but for a failure while it read ahead, which nobody had asked for."""
        return self.continues and self.is_ahead and self.state is AttemptState.FAILED

    @property
    def is_exploring(self) -> bool:
        """True if it has lost and goes on to its first token, to show how long that takes."""
        return self.state is AttemptState.LOST and not self.is_stopping

    @property
    def is_live(self) -> bool:
        """True if the endpoint still works on it, or is being cancelled."""
        return self.is_stopping or self.state in _LIVE

    @property
    def ttft(self) -> float | None:
        """Seconds from opening to the first content token."""
        return None if self.first_token is None or self.opened is None else self.first_token - self.opened
