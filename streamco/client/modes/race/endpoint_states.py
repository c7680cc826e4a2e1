"""The state of a client's endpoints: which ones rest after a failure (``core.race.breaker``), and how long the device's queue is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from streamco.client.answer_log import describe_error
from streamco.core.race.breaker import Breaker, rests_after
from streamco.core.race.device_queue import DeviceQueue
from streamco.endpoints.base import Endpoint
from streamco.errors import EndpointError, EndpointTimeoutError
from streamco.events import Event, StreamCancelled, StreamEnded, StreamFailed, StreamRetrying, TokensReceived
from streamco.machine_driver import clock_of

__all__ = ["EndpointStates", "Watch"]


class EndpointStates:
    """The states of endpoints, shared by clients from ``with_options``, so that all answers know at once what one of them finds out.

    Args:
        device: the device, or None. A remote server in its place has no queue here.
        clock: returns the current time in seconds; None uses the running loop's clock.
    """

    def __init__(self, device: Endpoint | None, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or _now
        self._breakers: dict[str, Breaker] = {}  # breakers of endpoints that have failed
        self._device = device if device is not None and device.kind == "device" else None
        self._queue = DeviceQueue()

    def delay(self, tokens: int) -> float:
        """Return how many seconds later than the server the device would begin, because of the answers queued before this one."""
        self._queue.places = _places_of(self._device)
        return self._queue.delay(tokens, now=self._clock())

    def wait(self) -> float:
        """Return roughly how many seconds the device will be busy with the answers queued before this one; 0 if it isn't busy."""
        self._queue.places = _places_of(self._device)
        return self._queue.wait(now=self._clock()) if len(self._queue) else 0.0

    @property
    def queued(self) -> int:
        """Number of answers that the device is making or has yet to make."""
        return len(self._queue)

    def resting(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return, by name, a clause that says why an endpoint rests; endpoints that don't rest are left out."""
        if not self._breakers:
            return {}
        now = self._clock()
        found = {name: breaker for name in names if (breaker := self._breakers.get(name)) is not None and breaker.is_resting(now=now)}
        return {name: f"it has just failed ({breaker.kind})" for name, breaker in found.items()}

    def watch(self, tokens: int) -> Watch:
        """Return an object that records the failures and successes of one answer's endpoints; the prompt has ``tokens`` tokens."""
        device = self._device.name if self._device is not None else ""
        return Watch(self._breakers, self._queue, self._clock, device=device, tokens=tokens)

    async def aclose(self) -> None:
        """Forget all failures."""
        self._breakers.clear()


class Watch:
    """Records the failures and successes of one answer's endpoints.

    Args:
        breakers: the client's breakers, by endpoint.
        queue: the device's queue.
        clock: returns the current time in seconds.
        device: the device's name, or "" if there is none.
        tokens: length of the prompt.
    """

    def __init__(self, breakers: dict[str, Breaker], queue: DeviceQueue, clock: Callable[[], float], *, device: str, tokens: int) -> None:
        self._breakers = breakers
        self._queue = queue
        self._clock = clock
        self._device = device
        self._tokens = tokens
        self.was_alone = True  # the device had no other answer when this one was requested
        self._asked: dict[str, float] = {}  # endpoints without a token so far, and when they were asked
        self._tried: dict[str, Breaker] = {}  # breakers of endpoints that this answer tries after their rest

    def receive(self, event: Event) -> None:
        """Record what an event says about its endpoint."""
        match event:
            case StreamFailed():
                self.failed(event.source, event.error)
                self.left(event.source)
            case StreamRetrying():
                self.failed(event.source, event.error)
            case TokensReceived() if event.tokens:
                self.answered(event.source)
            case StreamEnded() | StreamCancelled():
                self.left(event.source, is_complete=isinstance(event, StreamEnded))

    def opened(self, name: str, *, is_whole: bool = True) -> None:
        """Record that a request is sent to an endpoint. ``is_whole`` is True if it asks for the answer from its beginning."""
        now = self._clock()
        self._asked[name] = now
        if name == self._device:
            self.was_alone = self.was_alone and not len(self._queue)
            self._queue.begin(self, self._tokens, now=now, is_whole=is_whole)
        breaker = self._breakers.get(name)
        if breaker is not None and breaker.begin(now=now):
            self._tried[name] = breaker

    def failed(self, name: str, error: EndpointError) -> None:
        """Record a failure, even if the endpoint retries its server after it."""
        if rests_after(error):
            self._breakers.setdefault(name, Breaker()).record_failure(error, describe_error(error), now=self._clock())
            if name in self._asked:
                self._asked[name] = self._clock()  # it may be retried, and answer then
            if name == self._device:
                self._queue.begin_again(self, now=self._clock())
        self._end_trial(name)

    def late(self, name: str) -> None:
        """Record that an endpoint was abandoned, because it had kept the reader waiting too long for its first token."""
        seconds = self._clock() - self._asked.get(name, self._clock())
        text = f"expected the first token within {seconds:.1f} s, got none"
        self.failed(name, EndpointTimeoutError(text, phase="first_token", limit=seconds, endpoint=name))

    def answered(self, name: str) -> None:
        """Record tokens. The first ones show that an endpoint works, unless it has failed for another answer since it was asked."""
        if (asked := self._asked.pop(name, None)) is None:
            return
        if name == self._device:
            self._queue.record_first_token(self, now=self._clock())
        else:
            self._queue.record_server(self._clock() - asked)
        breaker = self._breakers.get(name)
        if breaker is not None and asked >= breaker.failed:
            breaker.record_answer()
            del self._breakers[name]
        self._end_trial(name)

    def left(self, name: str, *, is_complete: bool = False) -> None:
        """Record that an endpoint no longer works on the answer. ``is_complete`` is True if it finished the answer."""
        if name == self._device:
            self._queue.end(self, now=self._clock(), is_complete=is_complete)
        self._end_trial(name)

    def _end_trial(self, name: str) -> None:
        if (breaker := self._tried.pop(name, None)) is not None:
            breaker.end_trial()

    def close(self) -> None:
        """Record that the answer is over."""
        for name in (self._device, *self._tried):
            self.left(name)


def _places_of(device: Endpoint | None) -> int | None:
    """Return how many answers a device can make at the same time, or None if that isn't known."""
    options = getattr(getattr(device, "engine", None), "options", None)
    return getattr(options, "max_sequences", None)


def _now() -> float:
    return clock_of(asyncio.get_running_loop())()
