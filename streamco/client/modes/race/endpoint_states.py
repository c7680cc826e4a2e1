"""How a client's endpoints are: which rest because they have failed (``core.race.breaker``), and how long the device's queue is."""

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
    """The states of endpoints, shared by clients from ``with_options``: what one answer meets, the others know at once.

    Args:
        device: the device; None: there is none. A remote server in its place has no queue here.
        clock: gives the present in seconds; None: the running loop's.
    """

    def __init__(self, device: Endpoint | None, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or _now
        self._breakers: dict[str, Breaker] = {}  # of endpoints that have failed
        self._device = device if device is not None and device.kind == "device" else None
        self._queue = DeviceQueue()

    def delay(self, tokens: int) -> float:
        """Return by how many seconds later than the server the device would begin, because of the answers before this one."""
        self._queue.places = _places_of(self._device)
        return self._queue.delay(tokens, now=self._clock())

    def wait(self) -> float:
        """Return about how many seconds the device is busy with the answers before this one; 0: it isn't."""
        self._queue.places = _places_of(self._device)
        return self._queue.wait(now=self._clock()) if len(self._queue) else 0.0

    @property
    def queued(self) -> int:
        """Number of answers at the device."""
        return len(self._queue)

    def resting(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return why endpoints rest, as a clause, by name; those that don't are left out."""
        if not self._breakers:
            return {}
        now = self._clock()
        found = {name: breaker for name in names if (breaker := self._breakers.get(name)) is not None and breaker.is_resting(now=now)}
        return {name: f"it has just failed ({breaker.kind})" for name, breaker in found.items()}

    def watch(self, tokens: int) -> Watch:
        """Return what an answer to a prompt of ``tokens`` tells about its endpoints."""
        device = self._device.name if self._device is not None else ""
        return Watch(self._breakers, self._queue, self._clock, device=device, tokens=tokens)

    async def aclose(self) -> None:
        """Forget all failures."""
        self._breakers.clear()


class Watch:
    """What one answer meets at its endpoints.

    Args:
        breakers: those of the client, by endpoint.
        queue: the device's.
        clock: gives the present in seconds.
        device: the device's name; "": there is none.
        tokens: length of the prompt.
    """

    def __init__(self, breakers: dict[str, Breaker], queue: DeviceQueue, clock: Callable[[], float], *, device: str, tokens: int) -> None:
        self._breakers = breakers
        self._queue = queue
        self._clock = clock
        self._device = device
        self._tokens = tokens
        self.was_alone = True  # the device had no other answer when it was asked for this one
        self._asked: dict[str, float] = {}  # endpoints that have given no token yet, and when they were asked
        self._tried: dict[str, Breaker] = {}  # those that this answer tries after their rest

    def receive(self, event: Event) -> None:
        """Record what an event says about the endpoint that it comes from."""
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
        """Record that an endpoint is asked; ``is_whole``: for an answer from its beginning on."""
        now = self._clock()
        self._asked[name] = now
        if name == self._device:
            self.was_alone = self.was_alone and not len(self._queue)
            self._queue.begin(self, self._tokens, now=now, is_whole=is_whole)
        breaker = self._breakers.get(name)
        if breaker is not None and breaker.begin(now=now):
            self._tried[name] = breaker

    def failed(self, name: str, error: EndpointError) -> None:
        """Record a failure, also one after which the endpoint asks its server again."""
        if rests_after(error):
            self._breakers.setdefault(name, Breaker()).record_failure(error, describe_error(error), now=self._clock())
            if name in self._asked:
                self._asked[name] = self._clock()  # it may be asked again, and answer that
            if name == self._device:
                self._queue.begin_again(self, now=self._clock())
        self._end_trial(name)

    def late(self, name: str) -> None:
        """Record that an endpoint was given up, because its first token had kept the reader waiting for too long."""
        seconds = self._clock() - self._asked.get(name, self._clock())
        text = f"expected the first token within {seconds:.1f} s, got none"
        self.failed(name, EndpointTimeoutError(text, phase="first_token", limit=seconds, endpoint=name))

    def answered(self, name: str) -> None:
        """Record tokens; the first ones show that an endpoint works, if it hasn't failed for another answer since it was asked."""
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
        """Record that the answer isn't at an endpoint any more; ``is_complete``: it was written to its end there."""
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
    """Return how many answers a device makes at a time; None: not known."""
    options = getattr(getattr(device, "engine", None), "options", None)
    return getattr(options, "max_sequences", None)


def _now() -> float:
    return clock_of(asyncio.get_running_loop())()
