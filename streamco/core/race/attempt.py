"""One endpoint's work on one answer.

The life of an attempt::

    waiting ──▶ open ──▶ won ──▶ ended | failed | lost   (lost: the answer migrated, another attempt generates the rest)
       │          ├────▶ lost ──▶ cancelled              (another attempt had the first content token)
       │          └────▶ failed
       └─────▶ spared                                    (never opened)

    preparing ──▶ prepared | failed | cancelled          (it reads in advance, to take over later)

An endpoint that takes over or reads in advance gets a new attempt. Its earlier attempt stays unchanged, for the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from streamco.core.confidence import ConfidenceMeter
from streamco.core.race.restart import Diverged, RestartFilter
from streamco.errors import EndpointError
from streamco.events import Partial, TokenConfidence, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, CompletionUsage

__all__ = ["Attempt", "AttemptState", "AttemptPlan", "ReadAhead", "has_said"]


def has_said(delta: ChoiceDelta) -> bool:
    """Return True if a delta contains part of the answer itself, and not just whitespace or reasoning."""
    return bool((delta.content or "").strip() or delta.tool_calls or delta.refusal or delta.function_call is not None)


class AttemptPlan(Struct, frozen=True):
    """The plan for an attempt: when it is opened, and what its endpoint can do.

    Args:
        source: the endpoint's name.
        wait: how many seconds after the request it starts; None to start only if the others fail.
        continues: True if the endpoint can continue an answer that another one has begun.
        vocabulary: fingerprint of the endpoint's tokenizer; None if not known.
        is_unknown: True while the client is still finding out what the endpoint can do. Until then ``continues`` is True only if that is
            certain.
    """

    source: str
    wait: float | None
    continues: bool = False
    vocabulary: str | None = None
    is_unknown: bool = False


class AttemptState(Enum):
    """The states of an attempt; the module's docstring shows the transitions."""

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


class ReadAhead(Struct, frozen=True, gc=False):
    """The text that an attempt reads in advance, in case it has to continue the answer.

    Args:
        position: how many tokens of the answer it reads, counted from the beginning.
        unread: how many tokens of the prompt and of this part of the answer the endpoint had not read before.
    """

    position: int
    unread: int


_LIVE = (AttemptState.OPEN, AttemptState.WON, AttemptState.LOST, AttemptState.PREPARING)
_OUT = (AttemptState.FAILED, AttemptState.WON)

_RATE_TOKENS = 32  # the rate is measured over these first tokens, because later a paced reader may hold the endpoint back
_MIN_RATE_TOKENS = 4


class _EarlyTokens(Struct, gc=False):
    """The first tokens of an attempt, over which its rate is measured."""

    first: int  # tokens that arrived together with the very first one; a burst says nothing about the rate
    first_at: float
    last: int
    last_at: float

    def rate(self) -> float | None:
        tokens, seconds = self.last - self.first, self.last_at - self.first_at
        return tokens / seconds if tokens >= _MIN_RATE_TOKENS and seconds > 0 else None


class Attempt:
    """One endpoint's work on an answer, owned by the race machine. Times are in seconds since the request.

    Args:
        plan: when the attempt is opened, and what its endpoint can do.
    """

    __slots__ = (
        "_early",
        "confidence",
        "error",
        "finish_reason",
        "first_token",
        "has_won",
        "held",
        "is_new",
        "is_restart",
        "is_stopping",
        "kept",
        "late",
        "opened",
        "plan",
        "read_ahead",
        "restart_filter",
        "setback",
        "source",
        "state",
        "stopped",
        "takeover_position",
        "thinks",
        "tokens",
        "usage",
    )

    def __init__(self, plan: AttemptPlan) -> None:
        self.plan = plan
        self.source = plan.source
        self.state = AttemptState.WAITING
        self.opened: float | None = None
        self.first_token: float | None = None
        self.stopped: float | None = None
        self.tokens = 0
        self.late = 0  # how many of these arrived when they were no longer used
        self.has_won = False
        self.takeover_position: int | None = None  # tokens of the answer before the first one of this attempt
        self.kept: int | None = None  # answer tokens that the endpoint read in advance, after the prompt; None if none
        self.restart_filter: RestartFilter | None = None  # set while a restarted answer still repeats text that the reader has
        self.is_restart = False  # the endpoint was asked for the whole answer, not for its rest
        self.read_ahead: ReadAhead | None = None  # set if the attempt reads in advance and doesn't write
        self.is_stopping = False  # its cancel was commanded but has not taken effect; until then the endpoint accepts nothing new
        self.finish_reason: str | None = None
        self.usage: CompletionUsage | None = None
        self.error: EndpointError | None = None
        self.setback: EndpointError | None = None  # a failure after which the endpoint retried its server
        self.held: list[ChatCompletionChunk] = []  # chunks without content from before the race was decided
        self.confidence = ConfidenceMeter()
        self.thinks: bool | None = None  # the answer began with a model's thinking; None if it hasn't begun
        self._early: _EarlyTokens | None = None
        self.is_new = True
        """True if the attempt's rate is still being measured."""

    def learn(self, *, continues: bool, vocabulary: str | None) -> None:
        """Record what the endpoint can do, once the client knows."""
        self.plan = replace(self.plan, continues=continues, vocabulary=vocabulary, is_unknown=False)

    # The next attempt of the same endpoint

    def take_over(self, position: int, opened: float) -> Attempt:
        """Return the endpoint's next attempt, which continues the answer from ``position`` (tokens)."""
        attempt = Attempt(self.plan)
        attempt.state, attempt.takeover_position, attempt.opened, attempt.kept = AttemptState.WON, position, opened, self.kept
        return attempt

    def restart(self, partial: Partial, opened: float) -> Attempt:
        """Return the endpoint's next attempt, which generates the whole answer again. The text in ``partial`` is dropped from it."""
        attempt = self.take_over(partial.tokens, opened)
        attempt.is_restart, attempt.restart_filter = True, RestartFilter(partial, self.plan.vocabulary)
        return attempt

    def prepare(self, opened: float, read_ahead: ReadAhead) -> Attempt:
        """Return the endpoint's next attempt, which only reads in advance."""
        attempt = Attempt(self.plan)
        attempt.state, attempt.opened, attempt.kept, attempt.read_ahead = AttemptState.PREPARING, opened, self.kept, read_ahead
        return attempt

    # Transitions

    def open(self, at: float) -> None:
        """Record that the request was sent to the endpoint."""
        self.state, self.opened = AttemptState.OPEN, at

    def win(self) -> None:
        """Record that the attempt's first content token decided the race."""
        self.state, self.has_won = AttemptState.WON, True

    def win_after_end(self) -> None:
        """Record that this attempt, whose answer has already ended, wins the race. Its state stays ENDED."""
        self.has_won = True

    def spare(self) -> None:
        """Record that the attempt will not be opened."""
        self.state = AttemptState.SPARED

    def lose(self) -> None:
        """Record that tokens generated from now on will not be used."""
        self.state = AttemptState.LOST

    def end(self, at: float, finish_reason: str | None, usage: CompletionUsage | None) -> None:
        """Record that the stream ended properly, ``at`` seconds after the request."""
        self.state, self.stopped, self.finish_reason, self.usage, self.setback = AttemptState.ENDED, at, finish_reason, usage, None

    def finish_reading(self) -> ReadAhead:
        """Record that the endpoint has finished reading in advance, and return what it has read."""
        assert self.read_ahead is not None, "an attempt that prepares reads ahead"
        self.state, self.kept = AttemptState.PREPARED, self.read_ahead.position
        return self.read_ahead

    def fail(self, at: float, error: EndpointError) -> None:
        """Record that the stream failed, or that its answer can't be used."""
        self.state, self.stopped, self.error = AttemptState.FAILED, at, error

    @property
    def trouble(self) -> EndpointError | None:
        """The error with which the attempt failed, or the setback that explains why it has no token yet; None if there is neither."""
        return self.setback if self.error is None and self.first_token is None else self.error

    def request_stop(self) -> bool:
        """Return True if the cancellation must be commanded now, or False if it was already commanded."""
        was_stopping, self.is_stopping = self.is_stopping, True
        return not was_stopping

    def cancel(self, at: float) -> None:
        """Record that the cancellation has taken effect. A stream that ended or failed before keeps its state."""
        self.is_stopping = False
        if self.is_live:
            self.state, self.stopped = AttemptState.CANCELLED, at

    # Tokens

    def count(self, tokens: int, at: float, confidences: Sequence[TokenConfidence] = ()) -> None:
        """Record content tokens that arrived ``at`` seconds after the request, and how sure the model was of them, if known."""
        self.tokens += tokens
        self.is_new = self.is_new and self.tokens <= _RATE_TOKENS
        if confidences:
            self.confidence.record(confidences)
        early = self._early
        if self.first_token is None:
            self.first_token, self._early = at, _EarlyTokens(tokens, at, tokens, at)
        elif early is not None and self.is_new:
            early.last, early.last_at = self.tokens, at

    def end_rating(self) -> None:
        """Stop measuring the rate, because the endpoint pauses. The rate is computed from the tokens so far."""
        self.is_new = False

    def count_late(self, tokens: int) -> None:
        """Record that ``tokens`` of the tokens counted so far are not used."""
        self.late += tokens

    def hold(self, chunks: list[ChatCompletionChunk]) -> None:
        """Keep chunks until the race is decided."""
        self.held += chunks
        for delta in (choice.delta for chunk in chunks for choice in chunk.choices[:1]):
            if self.thinks is None and has_said(delta):
                self.thinks = False
            elif self.thinks is None and (delta.reasoning_content or delta.reasoning or "").strip():
                self.thinks = True

    def take_held(self) -> list[ChatCompletionChunk]:
        """Return the held chunks and stop holding them."""
        held, self.held = self.held, []
        return held

    def drop_repeated(self, event: TokensReceived) -> TokensReceived | Diverged | None:
        """Return the new part of an event, ``Diverged`` if the restarted answer differs from the first, or None if nothing is new yet."""
        if self.restart_filter is None:
            return event
        new = self.restart_filter.feed(event)
        self.late += event.tokens - (new.tokens if isinstance(new, TokensReceived) else 0)
        if not self.restart_filter.is_open:
            self.restart_filter = None
        return new

    @property
    def rate(self) -> float | None:
        """Tokens per second at the beginning of the attempt; None if there are too few tokens."""
        return None if self._early is None else self._early.rate()

    @property
    def ttft(self) -> float | None:
        """Seconds from opening to the first content token, or None if that token has not arrived."""
        return None if self.first_token is None or self.opened is None else self.first_token - self.opened

    @property
    def given(self) -> int:
        """Number of the answer's tokens that were in the attempt's prompt."""
        if self.is_restart:
            return 0
        return self.read_ahead.position if self.read_ahead is not None else self.takeover_position or 0

    # State

    @property
    def can_take_over(self) -> bool:
        """True if the endpoint may still continue the answer. No endpoint does so twice, or after its own answer was empty."""
        return self.plan.continues and self._is_left

    @property
    def may_take_over(self) -> bool:
        """True if the endpoint may still be asked to continue the answer, but it isn't known yet whether it can."""
        return self.plan.is_unknown and not self.plan.continues and self._is_left

    @property
    def can_restart(self) -> bool:
        """True if the endpoint can't continue the answer, but may still be asked for the whole answer."""
        return not self.plan.continues and self._is_left

    @property
    def _is_left(self) -> bool:
        if self.takeover_position is not None or self.state in _OUT:
            return False
        return self.state is not AttemptState.ENDED or self.tokens > 0

    @property
    def is_last_resort(self) -> bool:
        """True if the endpoint can continue the answer, but has failed to read it in advance."""
        return self.plan.continues and self.read_ahead is not None and self.state is AttemptState.FAILED

    @property
    def is_exploring(self) -> bool:
        """True if the attempt has lost but still runs until its first token, to measure how long that takes."""
        return self.state is AttemptState.LOST and not self.is_stopping

    @property
    def may_begin(self) -> bool:
        """True if the attempt is at work, or will start when its wait is over."""
        return self.is_live or (self.state is AttemptState.WAITING and self.plan.wait is not None)

    @property
    def is_live(self) -> bool:
        """True if the endpoint is still working on the attempt, or if the attempt is being cancelled."""
        return self.is_stopping or self.state in _LIVE
