"""Endpoints that are numbers: how soon they answer, how fast they write, what they have to read, and what that takes of them.

They know how long the answer is, not what it says, so every token is the same chunk. A session of a hundred tokens takes some milliseconds,
and hundreds of thousands can be run. ``sim.writer`` is for what the text goes through.

What an endpoint did is counted where it is done: tokens read and made for a race that was lost, behind a change of endpoints or while a
cancel was under way are in the counts, whether or not a client ever hears of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from random import Random

import simpy
from msgspec import Struct

from streamco.core.race.commands import ContinueStream, OpenStream, PrepareStream
from streamco.errors import ConfigError
from streamco.events import Event, StreamEnded, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, PromptTokensDetails
from streamco.partial import PreCopy
from streamco.profiles import DeviceSpeed, TTFTDistribution
from streamco.sim.driver import call_at
from streamco.sim.race.session import Opening, SimulatedStream

__all__ = ["SimulatedAnswer", "SimulatedDevice", "SimulatedServer", "UsageCounter"]

_TOKEN = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content="word "))])
_SLACK = 1e-9  # tokens; sums of gaps stray by less


class SimulatedAnswer(Struct, frozen=True, kw_only=True):
    """A request and its answer, in tokens.

    Args:
        prompt_tokens: of the request.
        tokens: of the whole answer, whoever writes it.
        max_tokens: where it is cut off; None: nowhere.
    """

    prompt_tokens: int
    tokens: int
    max_tokens: int | None = None

    @property
    def made(self) -> int:
        """Tokens that are written at most."""
        return self.tokens if self.max_tokens is None else min(self.tokens, self.max_tokens)

    @property
    def finish_reason(self) -> str:
        """How it ends."""
        return "stop" if self.made == self.tokens else "length"


class UsageCounter:
    """What an endpoint has done so far.

    Attributes:
        read: prompt tokens, as a server bills them and as a device computes them: what a device has kept it does not compute again.
        cached: of those, tokens a server had in its cache.
        made: completion tokens, those nobody got included.
    """

    __slots__ = ("cached", "made", "read")

    def __init__(self) -> None:
        self.read = self.cached = self.made = 0


class SimulatedDevice:
    """A device: reads k l + c seconds for l tokens it has not kept, and keeps what it has read and written; see ``SimulatedSource``.

    Args:
        name: what the session calls it.
        speed: k, c, jitter and decode rate. Each reading has a jitter of its own.
        rng: for the jitter.
        answer: what it writes.
        chunk: tokens it reads at once; a cancel loses what of one has been read.
        burst: tokens an event, behind the first.
        cancel_takes: seconds a cancel needs.

    Attributes:
        work: what it has done.
        kept: tokens of prompt and answer it need not read again.

    Raises:
        ConfigError: the speed has no decode rate, or a burst below 1.
    """

    def __init__(
        self,
        name: str,
        speed: DeviceSpeed,
        rng: Random,
        answer: SimulatedAnswer,
        *,
        chunk: int = 128,
        burst: int = 1,
        cancel_takes: float = 0.0,
    ) -> None:
        if speed.decode_tokens_per_s is None:
            raise ConfigError(f"{name}: expected a device speed with a decode rate, got none")
        _check_burst(name, burst)
        self.name = name
        self.answer = answer
        self.chunk = chunk
        self.burst = burst
        self.cancel_takes = cancel_takes
        self.work = UsageCounter()
        self.kept = 0
        self._speed = speed
        self._gap = 1.0 / speed.decode_tokens_per_s
        self._rng = rng

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Begin the answer, go on with it, or only read it."""
        position = _position(command)
        length = self.answer.prompt_tokens + position
        fresh = max(1, length - self.kept)  # the last token is always computed: its logits are needed
        jitter = self._rng.choice(self._speed.jitter)
        seconds_per_token, overhead = self._speed.seconds_per_token * jitter, self._speed.overhead * jitter
        first = overhead + seconds_per_token * fresh
        total = 0 if isinstance(command, PrepareStream) else max(0, self.answer.made - position)

        def account(elapsed: float, made: int) -> None:
            is_read = elapsed >= first - _SLACK
            read = fresh if is_read else max(0, int((elapsed - overhead) / seconds_per_token + _SLACK))
            self.work.read += read
            self.work.made += made
            self.kept = max(self.kept, length - fresh + (read if is_read else read - read % self.chunk) + made)

        end = StreamEnded(
            self.name,
            None if isinstance(command, PrepareStream) else self.answer.finish_reason,
            _usage(length, total, cached=length - fresh),
        )
        return _Stream(env, emit, account, end, first=first, gap=self._gap, total=total, burst=self.burst, cancel_takes=self.cancel_takes)


class SimulatedServer:
    """A server: its first token comes when it comes, whatever the length (DiSCo section 3); see ``SimulatedSource``.

    Args:
        name: what the session calls it.
        ttft: seconds to the first token: a distribution, or recorded ones, taken in order, one an opening, from the first again at the end.
        rate: tokens per second it writes.
        rng: for the distribution.
        answer: what it writes.
        pre_copy: "warm": what it is told to read is cached afterwards, and billed with one token; "none": it takes no such request.
        rtt: seconds; a cancel takes so long, and until then it goes on, and bills it.
        burst: tokens an event, behind the first.

    Attributes:
        work: what it bills.

    Raises:
        ConfigError: a rate that is not above zero, no times, a burst below 1, or pre_copy "append".
    """

    def __init__(
        self,
        name: str,
        ttft: TTFTDistribution | Sequence[float],
        rate: float,
        rng: Random,
        answer: SimulatedAnswer,
        *,
        pre_copy: PreCopy = "none",
        rtt: float = 0.1,
        burst: int = 1,
    ) -> None:
        if not rate > 0:
            raise ConfigError(f"{name}: expected a rate > 0 tokens/s, got {rate!r}")
        if pre_copy == "append":
            raise ConfigError(f'{name}: expected pre_copy "none" or "warm", got {pre_copy!r}')
        _check_burst(name, burst)
        self.name = name
        self.answer = answer
        self.pre_copy = pre_copy
        self.rtt = rtt
        self.burst = burst
        self.work = UsageCounter()
        self.cached = 0
        self._times = _draw(name, ttft, rng)
        self._gap = 1.0 / rate

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Begin the answer, go on with it, or read it into the cache."""
        position = _position(command)
        length = self.answer.prompt_tokens + position
        is_prepare = isinstance(command, PrepareStream)
        if is_prepare and self.pre_copy == "none":
            raise AssertionError(f"{self.name}: expected no request to read ahead")
        total = 1 if is_prepare else max(0, self.answer.made - position)
        cached = min(length, self.cached)
        self.work.read += length
        self.work.cached += cached

        def account(_: float, made: int) -> None:
            self.work.made += made
            if is_prepare and made:
                self.cached = length

        end = StreamEnded(self.name, None if is_prepare else self.answer.finish_reason, _usage(length, total, cached=cached))
        first = next(self._times)
        return _Stream(
            env, emit, account, end, first=first, gap=self._gap, total=total, burst=self.burst, cancel_takes=self.rtt, runs_on=self.rtt
        )


class _Stream:
    """A first token, then the rest at a steady rate.

    ``account`` is told once, at the end or when a cancel has taken effect: seconds of work and tokens made. ``runs_on``: seconds of work
    behind a cancel.
    """

    def __init__(
        self,
        env: simpy.Environment,
        emit: Callable[[Event], None],
        account: Callable[[float, int], None],
        end: StreamEnded,
        *,
        first: float,
        gap: float,
        total: int,
        burst: int,
        cancel_takes: float,
        runs_on: float = 0.0,
    ) -> None:
        self._env = env
        self._emit = emit
        self._account = account
        self._end = end
        self._first = first
        self._gap = gap
        self._total = total
        self._burst = burst
        self._cancel_takes = cancel_takes
        self._runs_on = runs_on
        self._since = env.now
        self._sent = 0
        self._is_over = False
        call_at(env, first, self._emit_next)

    def cancel(self, released: Callable[[], None]) -> None:
        """Stop it; the account is closed now, with what it will have done by the time the cancel takes effect."""
        if not self._is_over:
            self._is_over = True
            elapsed = self._env.now - self._since + self._runs_on
            self._account(elapsed, self._made_within(elapsed))
        call_at(self._env, self._cancel_takes, released)

    def _made_within(self, elapsed: float) -> int:
        since_first = elapsed - self._first
        if since_first < -_SLACK or not self._total:
            return 0
        return min(self._total, 1 + math.floor(since_first / self._gap + _SLACK))

    def _emit_next(self) -> None:
        if self._is_over:
            return
        count = min(self._burst if self._sent else 1, self._total - self._sent)
        is_last = self._sent + count >= self._total
        if is_last:
            self._is_over = True
            self._account(self._env.now - self._since, self._total)
        if count and self._end.finish_reason is not None:
            self._sent += count
            self._emit(TokensReceived(self._end.source, [_TOKEN] * count, count))
        if is_last:
            self._emit(self._end)
        else:
            call_at(self._env, self._gap * min(self._burst, self._total - self._sent), self._emit_next)


def _position(command: Opening) -> int:
    match command:
        case OpenStream():
            return 0
        case ContinueStream(_, partial) | PrepareStream(_, partial):
            return partial.tokens


def _usage(length: int, made: int, *, cached: int) -> CompletionUsage:
    details = PromptTokensDetails(cached_tokens=cached)
    return CompletionUsage(prompt_tokens=length, completion_tokens=made, total_tokens=length + made, prompt_tokens_details=details)


def _draw(name: str, ttft: TTFTDistribution | Sequence[float], rng: Random) -> Iterator[float]:
    if isinstance(ttft, TTFTDistribution):
        return iter(lambda: ttft.quantile(rng.random()), None)
    if not ttft:
        raise ConfigError(f"{name}: expected one or more times to first token, got none")
    return cycle(ttft)


def _check_burst(name: str, burst: int) -> None:
    if burst < 1:
        raise ConfigError(f"{name}: expected a burst >= 1, got {burst!r}")
