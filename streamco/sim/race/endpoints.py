"""Simulated endpoints of a race, which have times and token counts but no text.

They know the length of the answer but not its words, so every token is the same chunk. A race of a hundred tokens takes a few milliseconds
to simulate, so hundreds of thousands can be run. ``bench/counted/simulated_writer.py`` has an endpoint that writes text.

Each endpoint counts its own work. This includes tokens that it read and made for a lost race, after a migration or while a cancel was on
its way, even if the client never receives them. This file is longer than others, because the streams of both endpoints have nearly all
their code in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from random import Random

import simpy
from msgspec import Struct

from streamco.config import RetryPolicy
from streamco.core.race.commands import ContinueStream, OpenStream, PrepareStream
from streamco.endpoints.retry import Retries
from streamco.errors import ConfigError, EndpointStatusError
from streamco.events import Event, PreCopy, StreamEnded, StreamFailed, StreamRetrying, TokenConfidence, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, PromptTokensDetails
from streamco.profiles import DeviceSpeed, TTFTDistribution
from streamco.sim.driver import call_at
from streamco.sim.race.session import Opening, SimulatedStream

__all__ = ["DevicePlaces", "RequestLimit", "SimulatedAnswer", "SimulatedDevice", "SimulatedServer", "UsageCounter"]

_TOKEN = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content="word "))])
_ROW_COST = 1 / 3  # cost of a batch's further rows, relative to the first: four rows cost twice one (``row_costs``, a 1.5B model on a CPU)
_SLACK = 1e-9  # tokens; the rounding error of summed gaps is smaller


class SimulatedAnswer(Struct, frozen=True, kw_only=True):
    """The lengths of a request and its answer, in tokens.

    Args:
        prompt_tokens: tokens of the prompt.
        tokens: tokens of the whole answer, the same at both endpoints.
        max_tokens: length at which the answer is cut off, or None for no limit.
        probabilities: the device model's probabilities of the first tokens of its answer; later ones aren't known.
    """

    prompt_tokens: int
    tokens: int
    max_tokens: int | None = None
    probabilities: tuple[float, ...] = ()

    @property
    def made(self) -> int:
        """Tokens of the answer, at most ``max_tokens``."""
        return self.tokens if self.max_tokens is None else min(self.tokens, self.max_tokens)

    @property
    def finish_reason(self) -> str:
        """Finish reason of the answer: ``stop``, or ``length`` if it is cut off."""
        return "stop" if self.made == self.tokens else "length"


class UsageCounter:
    """The tokens that one endpoint has read and made so far.

    Attributes:
        read: prompt tokens that a server bills, or that a device computes. A device doesn't recompute tokens that it has kept.
        cached: how many of these tokens a server had in its cache.
        made: completion tokens, including those that were never delivered.
    """

    __slots__ = ("cached", "made", "read")

    def __init__(self) -> None:
        self.read = self.cached = self.made = 0


class DevicePlaces:
    """The capacity of a device, which its answers share. It makes a few answers at a time, and reads their prompts one after another.

    An answer that begins while others are in progress takes longer for each of its tokens, because larger batches take longer.

    Args:
        places: number of answers that it makes at a time.
    """

    def __init__(self, env: simpy.Environment, places: int) -> None:
        self.answers = simpy.Resource(env, places)
        self.reading = simpy.Resource(env, 1)

    @property
    def slower(self) -> float:
        """Factor by which a token takes longer than when the device makes no other answer."""
        return 1.0 + _ROW_COST * (self.answers.count - 1)


class RequestLimit:
    """A server's limit on requests: it accepts a number of them each minute, and refuses all others until the next minute begins.

    Args:
        requests: number of requests per minute.
        clock: returns the current time in seconds.
    """

    def __init__(self, requests: int, clock: Callable[[], float]) -> None:
        self.requests = requests
        self._clock = clock
        self._minute, self._taken = 0, 0

    def refuse(self) -> int | None:
        """Return the whole seconds after which a request may be sent again, or None if it is accepted and counted."""
        now = self._clock()
        if (minute := int(now // 60.0)) != self._minute:
            self._minute, self._taken = minute, 0
        if self._taken == self.requests:
            return math.ceil(60.0 * (minute + 1) - now)
        self._taken += 1
        return None


class SimulatedDevice:
    """A simulated device. It reads l tokens in k l + c seconds, and keeps everything that it reads and writes; see ``SimulatedSource``.

    Args:
        name: name of the endpoint in the race.
        speed: k, c, jitter and decode rate. The jitter is drawn for each prefill.
        rng: random source for the jitter.
        answer: the answer that it writes.
        chunk: tokens of a prompt that it reads at once; a cancel discards a chunk that isn't complete.
        burst: tokens per event, after the first token.
        cancel_takes: seconds that a cancel takes.
        places: its capacity for this answer and others, or None if it has no other answer.

    Attributes:
        work: tokens that it has read and made.
        kept: tokens of prompt and answer that it needn't read again.

    Raises:
        ConfigError: the speed has no decode rate, or the burst is below 1.
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
        places: DevicePlaces | None = None,
    ) -> None:
        if speed.decode_tokens_per_s is None:
            raise ConfigError(f"{name}: expected a device speed with a decode rate, got none")
        _check_burst(name, burst)
        self.name = name
        self.answer = answer
        self.chunk = chunk
        self.burst = burst
        self.cancel_takes = cancel_takes
        self.places = places
        self.work = UsageCounter()
        self.kept = 0
        self._speed = speed
        self._gap = 1.0 / speed.decode_tokens_per_s
        self._rng = rng

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Start the answer, continue it, or only read the prompt and the partial answer."""
        position = _position(command)
        length = self.answer.prompt_tokens + position
        fresh = max(1, length - self.kept)  # the last token is always computed, because its logits are needed
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

        def begin(emit: Callable[[Event], None], slower: float = 1.0) -> _Stream:
            gap = self._gap * slower
            known = self.answer.probabilities[position:]
            cancel_takes = self.cancel_takes
            return _Stream(
                env, emit, account, end, first=first, gap=gap, total=total, burst=self.burst, cancel_takes=cancel_takes, known=known
            )

        return begin(emit) if self.places is None else _PlacedStream(env, emit, self.places, begin, cancel_takes=self.cancel_takes)


class SimulatedServer:
    """A simulated server. Its time to first token doesn't depend on the prompt's length (DiSCo section 3); see ``SimulatedSource``.

    Args:
        name: name of the endpoint in the race.
        ttft: seconds to the first token, as a distribution, or as recorded times, which requests use in turn, again and again.
        rate: tokens per second that it writes.
        rng: random source for the distribution.
        answer: the answer that it writes.
        pre_copy: with "warm", a pre-copied prefix is cached afterwards, and billed with one token; with "none", it can't pre-copy.
        rtt: seconds that a round trip takes. A cancel takes as long, and until then the server keeps writing and billing.
        burst: tokens per event, after the first token.
        limit: its limit on requests, shared with others, or None for no limit.

    Attributes:
        work: tokens that it bills.

    Raises:
        ConfigError: the rate isn't above 0, there are no times, the burst is below 1, or pre_copy is "append".
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
        limit: RequestLimit | None = None,
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
        self.limit = limit
        self.work = UsageCounter()
        self.cached = 0
        self._rng = rng
        self._times = _draw(name, ttft, rng)
        self._gap = 1.0 / rate

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        """Start the answer, continue it, or read the prompt and the partial answer into the cache."""
        position = _position(command)
        length = self.answer.prompt_tokens + position
        is_prepare = isinstance(command, PrepareStream)
        if is_prepare and self.pre_copy == "none":
            raise AssertionError(f"{self.name}: expected no request to read ahead")
        total = 1 if is_prepare else max(0, self.answer.made - position)
        cached = min(length, self.cached)

        def account(_: float, made: int) -> None:
            self.work.made += made
            if is_prepare and made:
                self.cached = length

        end = StreamEnded(self.name, None if is_prepare else self.answer.finish_reason, _usage(length, total, cached=cached))
        first = next(self._times)

        def begin() -> _Stream:
            self.work.read += length
            self.work.cached += cached
            return _Stream(
                env, emit, account, end, first=first, gap=self._gap, total=total, burst=self.burst, cancel_takes=self.rtt, runs_on=self.rtt
            )

        if self.limit is None:
            return begin()
        return _LimitedStream(env, emit, self, limit=self.limit, begin=begin, retries=Retries(RetryPolicy(), self._rng))


class _Stream:
    """A stream that sends a first token, and then the others at a steady rate.

    Args:
        account: called once, at the end or on a cancel, with the seconds of work and the tokens made.
        runs_on: seconds for which the endpoint keeps working after a cancel.
        known: probabilities of the first tokens.
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
        known: Sequence[float] = (),
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
        self._known = known
        self._since = env.now
        self._sent = 0
        self._is_over = False
        self._paused_at: float | None = None
        self._next_at = 0.0
        self._turn = 0  # number of the wait for the next tokens; a pause ends it
        self._wait(first)

    def _wait(self, seconds: float) -> None:
        self._next_at, self._turn = self._env.now + seconds, self._turn + 1
        if self._paused_at is None:
            call_at(self._env, seconds, partial(self._emit_next, self._turn))

    def pause(self) -> None:
        """Pause the stream. Has no effect once it has ended."""
        self._paused_at, self._turn = self._env.now, self._turn + 1

    def resume(self) -> None:
        """Continue after ``pause``."""
        if self._paused_at is not None and not self._is_over:
            paused_at, self._paused_at = self._paused_at, None
            self._since += self._env.now - paused_at
            self._wait(self._next_at - paused_at)

    def cancel(self, released: Callable[[], None]) -> None:
        """Stop the stream. Its work is counted now, including the work that it will do before the cancel takes effect."""
        if not self._is_over:
            self._is_over = True
            elapsed = (self._env.now if self._paused_at is None else self._paused_at) - self._since + self._runs_on
            self._account(elapsed, self._made_within(elapsed))
        call_at(self._env, self._cancel_takes, released)

    def _made_within(self, elapsed: float) -> int:
        since_first = elapsed - self._first
        if since_first < -_SLACK or not self._total:
            return 0
        return min(self._total, 1 + math.floor(since_first / self._gap + _SLACK))

    def _emit_next(self, turn: int) -> None:
        if self._is_over or turn != self._turn:
            return
        count = min(self._burst if self._sent else 1, self._total - self._sent)
        is_last = self._sent + count >= self._total
        if is_last:
            self._is_over = True
            self._account(self._env.now - self._since, self._total)
        if count and self._end.finish_reason is not None:
            known = tuple(TokenConfidence(each, ends_sentence=False) for each in self._known[self._sent : self._sent + count])
            self._sent += count
            self._emit(TokensReceived(self._end.source, [_TOKEN] * count, count, known))
        if is_last:
            self._emit(self._end)
        else:
            self._wait(self._gap * min(self._burst, self._total - self._sent))


class _DeferredStream:
    """A stream that begins later than it was requested, or never.

    Args:
        cancel_takes: seconds that a cancel takes if the stream hasn't begun.
    """

    def __init__(self, env: simpy.Environment, emit: Callable[[Event], None], *, cancel_takes: float) -> None:
        self._env = env
        self._emit = emit
        self._cancel_takes = cancel_takes
        self._stream: _Stream | None = None
        self._is_cancelled = False

    def cancel(self, released: Callable[[], None]) -> None:
        """Stop the stream. If it hasn't begun, it never does."""
        self._is_cancelled = True
        if self._stream is None:
            call_at(self._env, self._cancel_takes, released)
        else:
            self._stream.cancel(released)

    def pause(self) -> None:
        """Pause the stream."""
        if self._stream is not None:
            self._stream.pause()

    def resume(self) -> None:
        """Continue after ``pause``."""
        if self._stream is not None:
            self._stream.resume()


class _PlacedStream(_DeferredStream):
    """A device's stream that begins when there is a place for it, and the prompts before it have been read.

    Args:
        begin: begins the stream, given the factor by which its tokens take longer than without other answers.
    """

    def __init__(
        self,
        env: simpy.Environment,
        emit: Callable[[Event], None],
        places: DevicePlaces,
        begin: Callable[[Callable[[Event], None], float], _Stream],
        *,
        cancel_takes: float,
    ) -> None:
        super().__init__(env, emit, cancel_takes=cancel_takes)
        self._places = places
        self._begin = begin
        self._held = [places.answers.request()]
        self._held[0].callbacks.append(self._wait_for_turn)

    def cancel(self, released: Callable[[], None]) -> None:
        """Stop the stream, or stop waiting to begin it."""
        self._free()
        super().cancel(released)

    def _wait_for_turn(self, _: simpy.Event) -> None:
        if not self._is_cancelled:
            self._held.append(self._places.reading.request())
            self._held[-1].callbacks.append(self._read)

    def _read(self, _: simpy.Event) -> None:
        if not self._is_cancelled:
            self._stream = self._begin(self._pass_on, self._places.slower)

    def _pass_on(self, event: Event) -> None:
        self._free(keeps=isinstance(event, TokensReceived))
        self._emit(event)

    def _free(self, *, keeps: bool = False) -> None:
        """Give back the turn to read, and the place, unless the answer ``keeps`` it."""
        while len(self._held) > keeps:
            request = self._held.pop()
            request.cancel()
            request.resource.release(request)


class _LimitedStream(_DeferredStream):
    """A server's stream that begins if the request limit allows it. If not, the client retries when told to, as a live client does.

    Args:
        begin: begins the stream.
        retries: decides whether and when to retry.
    """

    def __init__(
        self,
        env: simpy.Environment,
        emit: Callable[[Event], None],
        server: SimulatedServer,
        *,
        limit: RequestLimit,
        begin: Callable[[], _Stream],
        retries: Retries,
    ) -> None:
        super().__init__(env, emit, cancel_takes=0.0)
        self._server = server
        self._limit = limit
        self._begin = begin
        self._retries = retries
        self._ask()

    def _ask(self) -> None:
        if self._is_cancelled:
            return
        seconds = self._limit.refuse()
        if seconds is None:
            self._stream = self._begin()
        else:
            name = self._server.name
            error = EndpointStatusError("too many requests", status=429, retry_after=float(seconds), endpoint=name)
            call_at(self._env, self._server.rtt, lambda: self._refuse(error))

    def _refuse(self, error: EndpointStatusError) -> None:
        if self._is_cancelled:
            return
        wait = self._retries.next_wait(error)
        if wait is None:
            self._emit(StreamFailed(self._server.name, error))
            return
        call_at(self._env, wait, self._ask)
        self._emit(StreamRetrying(self._server.name, error, wait))


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
