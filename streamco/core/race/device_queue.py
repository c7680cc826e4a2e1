"""How long a new answer would wait for its first token at a device that has others before it.

The device reads prompts one after another, and makes a fixed number of answers at a time. The estimate is deliberately coarse, because it
decides one thing: whether an answer would come more than a second later than the server's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median

from msgspec import Struct

__all__ = ["DeviceQueue"]

_TOKEN_S = 0.005  # seconds a prompt token, before any was measured
_ANSWER_S = 5.0  # seconds from an answer's first token to its end, before any was measured
_SERVER_S = 1.0  # seconds to a server's first token, before any was measured
_WEIGHT = 0.3  # of the newest measurement
_SERVER_SAMPLES = 16


class _Answer(Struct, gc=False):
    tokens: int
    began: float
    was_alone: bool
    first_token: float | None = None


class DeviceQueue:
    """The answers at a device, and what is known of its times. Times are seconds of any one clock.

    Args:
        places: answers that it makes at a time; None: not known.
    """

    def __init__(self, places: int | None = None) -> None:
        self.places = places
        self._answers: dict[Hashable, _Answer] = {}  # in the order of their begin
        self._token_s: float | None = None
        self._answer_s: float | None = None
        self._server: deque[float] = deque(maxlen=_SERVER_SAMPLES)

    def __len__(self) -> int:
        return len(self._answers)

    def begin(self, key: Hashable, tokens: int, *, now: float) -> None:
        """Record that the device is asked for an answer to a prompt of ``tokens``."""
        self._answers[key] = _Answer(max(1, tokens), now, not self._answers)

    def record_first_token(self, key: Hashable, *, now: float) -> None:
        """Record an answer's first token."""
        answer = self._answers.get(key)
        if answer is not None and answer.first_token is None:
            answer.first_token = now
            if answer.was_alone:
                self._token_s = _newer(self._token_s, (now - answer.began) / answer.tokens)

    def end(self, key: Hashable, *, now: float, is_complete: bool) -> None:
        """Record that an answer's place is free again; ``is_complete``: it was written to its end."""
        answer = self._answers.pop(key, None)
        if answer is not None and is_complete and answer.first_token is not None:
            self._answer_s = _newer(self._answer_s, now - answer.first_token)

    def record_server(self, seconds: float) -> None:
        """Record a server's time to its first token."""
        self._server.append(seconds)

    def device_wait(self, tokens: int, *, now: float) -> float:
        """Return about how long a new answer to a prompt of ``tokens`` would wait for its first token at the device."""
        unread = [each for each in self._answers.values() if each.first_token is None]
        token_s = _TOKEN_S if self._token_s is None else self._token_s
        reading = token_s * (tokens + sum(each.tokens for each in unread))
        waiting = 0.0 if self.places is None else max(0, len(self._answers) - self.places + 1) / self.places
        oldest = max((now - each.began for each in unread), default=0.0)
        return max(reading, oldest) + waiting * (_ANSWER_S if self._answer_s is None else self._answer_s)

    def server_wait(self) -> float:
        """Return about how long a server takes to its first token."""
        return median(self._server) if self._server else _SERVER_S

    def delay(self, tokens: int, *, now: float) -> float:
        """Return by how much later than the server's a new answer of the device would begin, because of those before it; 0: none is."""
        return self.device_wait(tokens, now=now) - self.server_wait() if self._answers else 0.0


def _newer(known: float | None, measured: float) -> float:
    return measured if known is None else (1.0 - _WEIGHT) * known + _WEIGHT * measured
