"""Estimates how long a new answer would wait for its first token at a device that must finish other answers first.

The device reads prompts one after another, and generates a fixed number of answers at a time. The estimate is deliberately coarse, because
it decides only one question: would the answers before it make this one begin more than a second later than the server's?
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median

from msgspec import Struct

__all__ = ["DeviceQueue"]

_LONG = 64  # tokens of a prompt long enough that nearly all its time is spent reading
_SHORT_S = 0.1  # seconds to the first token after a shorter prompt, before any was measured
_TOKEN_S = 0.005  # seconds per token of a longer one, before any was measured
_ANSWER_S = 5.0  # seconds from an answer's first token to its end, before any was measured
_SERVER_S = 1.0  # seconds to a server's first token, before any was measured
_WEIGHT = 0.3  # of the newest measurement
_SERVER_SAMPLES = 16


class _Answer(Struct, gc=False):
    tokens: int
    began: float
    is_measured: bool  # its times show how fast the device is
    first_token: float | None = None


class DeviceQueue:
    """Tracks the answers at a device and its speed. Times are in seconds, and may come from any clock that is used throughout.

    Args:
        places: how many answers the device generates at a time; None if not known.
    """

    def __init__(self, places: int | None = None) -> None:
        self.places = places
        self._answers: dict[Hashable, _Answer] = {}  # in the order in which they began
        self._short_s: float | None = None
        self._token_s: float | None = None
        self._answer_s: float | None = None
        self._server: deque[float] = deque(maxlen=_SERVER_SAMPLES)

    def __len__(self) -> int:
        return len(self._answers)

    def begin(self, key: Hashable, tokens: int, *, now: float, is_whole: bool = True) -> None:
        """Record that the device is asked to answer a prompt of ``tokens`` tokens, or to finish a begun answer if not ``is_whole``."""
        self._answers[key] = _Answer(max(1, tokens), now, is_whole and not self._answers)

    def begin_again(self, key: Hashable, *, now: float) -> None:
        """Record that the device is asked again after a failure. This answer's time to first token is then not measured."""
        if (answer := self._answers.get(key)) is not None:
            answer.began, answer.is_measured = now, False

    def record_first_token(self, key: Hashable, *, now: float) -> None:
        """Record that an answer's first token has arrived."""
        answer = self._answers.get(key)
        if answer is None or answer.first_token is not None:
            return
        answer.first_token = now
        if answer.is_measured and answer.tokens < _LONG:
            self._short_s = _newer(self._short_s, now - answer.began)
        elif answer.is_measured:
            self._token_s = _newer(self._token_s, (now - answer.began) / answer.tokens)

    def end(self, key: Hashable, *, now: float, is_complete: bool) -> None:
        """Record that the device has stopped working on an answer. ``is_complete`` says whether it was written to the end."""
        answer = self._answers.pop(key, None)
        if answer is not None and is_complete and answer.first_token is not None:
            self._answer_s = _newer(self._answer_s, now - answer.first_token)

    def record_server(self, seconds: float) -> None:
        """Record a server's time to its first token."""
        self._server.append(seconds)

    def delay(self, tokens: int, *, now: float) -> float:
        """Return how many seconds later than the server's answer the device's would begin, because of the answers queued before it.

        Args:
            tokens: length of the answer's prompt.
            now: the current time.
        """
        wait = self.wait(now=now)
        server = median(self._server) if self._server else _SERVER_S
        return min(wait, wait + self._reading(tokens) - server)

    def wait(self, *, now: float) -> float:
        """Return about how many seconds pass before the device gets to a new prompt, or 0 if it can begin at once."""
        unread = [each for each in self._answers.values() if each.first_token is None]
        reading = sum(self._reading(each.tokens) for each in unread)
        oldest = max((now - each.began for each in unread), default=0.0)
        turns = 0.0 if self.places is None else max(0, len(self._answers) - self.places + 1) / self.places
        return max(reading, oldest) + turns * (_ANSWER_S if self._answer_s is None else self._answer_s)

    def _reading(self, tokens: int) -> float:
        if tokens < _LONG:
            return _SHORT_S if self._short_s is None else self._short_s
        return tokens * (_TOKEN_S if self._token_s is None else self._token_s)


def _newer(known: float | None, measured: float) -> float:
    return measured if known is None else (1.0 - _WEIGHT) * known + _WEIGHT * measured
