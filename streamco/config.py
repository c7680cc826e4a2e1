"""The frozen option structs for clients and endpoints, with the unit and the reason next to each default."""

from __future__ import annotations

from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, StructMeta

from streamco.errors import ConfigError

__all__ = [
    "LISTENING",
    "Limits",
    "NO_LIMIT",
    "Options",
    "Pace",
    "READING",
    "ReaderPace",
    "RetryPolicy",
    "SamplingOptions",
    "Timeouts",
    "check_instance",
    "check_share",
    "fixed_rate",
    "parse_pace",
]


class _OptionsMeta(StructMeta):
    """Metaclass of the option structs. If one is called wrongly, its error lists the valid options."""

    if not TYPE_CHECKING:  # type checkers read the fields

        def __call__(self, *values: Any, **options: Any) -> Any:
            """Create the options.

            Raises:
                TypeError: an option is passed by position, or its name is unknown.
            """
            names = self.__struct_fields__
            if values:
                shown = [f"{name}={value!r}" for name, value in zip(names, values, strict=False)]
                example = ", ".join(shown or [f"{name}=..." for name in names[:2]])
                raise TypeError(f"{self.__name__}: expected names, as in {self.__name__}({example}), got positional arguments")
            for name in options.keys() - set(names):
                near = get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{self.__name__}: expected {', '.join(names)}, got an unexpected keyword argument {name!r}{hint}")
            return super().__call__(**options)


class Options(Struct, frozen=True, kw_only=True, metaclass=_OptionsMeta):
    """Base class of the option structs that users create. Options are passed by keyword."""


READING = 4.8  # tokens/s; DiSCo section 2.2: mean silent reading speed
LISTENING = 3.5  # tokens/s; DiSCo section 2.2: mean speaking rate

Pace = float | Literal["reading", "listening", "smooth"] | None
ReaderPace = float | Literal["smooth"] | None
"""A parsed pace: tokens per second, "smooth" (as fast as the text arrives, but evenly), or None (deliver text as soon as it arrives)."""


def parse_pace(pace: float | str | None) -> ReaderPace:
    """Parse a ``pace`` setting; see ``ReaderPace`` for the result.

    Raises:
        ConfigError: the setting isn't None, a positive finite number, "reading", "listening" or "smooth".
    """
    match pace:
        case None:
            return None
        case "smooth":
            return "smooth"
        case "reading":
            return READING
        case "listening":
            return LISTENING
        case bool():
            pass
        case int() | float() if 0 < pace < inf:
            return float(pace)
    raise ConfigError(f'pace: expected None, tokens per second > 0, "reading", "listening" or "smooth", got {pace!r}')


def fixed_rate(pace: ReaderPace) -> float | None:
    """Return the fixed rate of a pace in tokens per second, or None if it is smooth or there is no pace."""
    return None if isinstance(pace, str) else pace


class Timeouts(Options, frozen=True, kw_only=True):
    """Time limits for the phases of a request, in seconds; None means no limit."""

    connect: float | None = 10.0  # DNS + TCP + TLS; a healthy host answers in well under a second
    first_token: float | None = 60.0  # from sending the request to the first content; reasoning models think this long
    next_token: float | None = 30.0  # between content; servers that stall in the middle of a stream keep the socket open
    socket: float | None = 120.0  # any bytes at all, including keep-alive comments
    total: float | None = None  # the whole answer, including retries; without it an answer may take as long as content keeps arriving
    cancel: float | None = 2.0  # a cancel is awaited this long before the connection is aborted

    def __post_init__(self) -> None:
        """Reject limits that can't be met."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
                raise ConfigError(f"timeouts: {name}: expected seconds above 0 or None, got {value!r}")


class RetryPolicy(Options, frozen=True, kw_only=True):
    """How one request to one endpoint is retried. Retries happen only before its first token."""

    attempts: int = 2  # retries after the first attempt
    backoff: float = 0.5  # seconds before the first retry; doubles each time, with full jitter
    longest_wait: float = 20.0  # seconds; a longer Retry-After is an error at once

    def __post_init__(self) -> None:
        """Reject numbers that make no sense."""
        if type(self.attempts) is not int:
            raise ConfigError(f"retry: attempts: expected a whole number, got {self.attempts!r}")
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise ConfigError(f"retry: {name}: expected 0 or more, got {value!r}")
        if self.backoff == inf:
            raise ConfigError("retry: backoff: expected seconds, got inf")


_MIN_AHEAD = 32  # tokens; with fewer, a device would be parked and woken all the time
_LEAST_AHEAD = 3  # tokens: one in the engine, one on its way and one with the reader


class Limits(Options, frozen=True, kw_only=True):
    """Size limits. Data beyond them is refused, or its source is paused."""

    event_bytes: int = 16 << 20  # one SSE event; text needs less than 100 kB, a generated image several MB
    body_bytes: int = 16 << 20  # one non-streamed answer
    answer_bytes: int = 64 << 20  # one streamed answer, all events
    unread_tokens: int = 4096  # delivered but not yet read, before the source is paused
    lookahead: float = 20.0  # seconds of reading that a device may run ahead of a paced reader: tokens that are never read waste energy

    def __post_init__(self) -> None:
        """Reject sizes that make no sense."""
        for name in self.__struct_fields__:
            value, expected = getattr(self, name), "0 s or more" if name == "lookahead" else "a whole number above 0"
            is_right = value >= 0 if name == "lookahead" and _is_number(value) else type(value) is int and value > 0
            if not is_right:
                raise ConfigError(f"limits: {name}: expected {expected}, got {value!r}")

    def tokens_ahead(self, pace: float) -> int:
        """Return how many tokens a device may be ahead of a reader with this pace (tokens per second).

        Tokens that have no text yet, because a code point or a stop string may be incomplete, aren't counted.
        """
        return max(_LEAST_AHEAD, min(self.unread_tokens, max(_MIN_AHEAD, round(pace * self.lookahead))))

    def device_buffers(self, pace: float) -> tuple[int, int]:
        """Divide the tokens that a device may be ahead among two buffers, so that together they hold at most ``tokens_ahead``.

        Returns:
            How many tokens may wait for the pace before reading from the device stops, and how many its engine may buffer. A single read
            may take everything that the engine has buffered, and the engine then fills its buffer again.
        """
        ahead = self.tokens_ahead(pace)
        kept = max(1, ahead // 4)
        return max(1, ahead - 2 * kept), kept


NO_LIMIT = -1
"""The ``max_tokens`` value that asks LM Studio, llama.cpp and Ollama for an answer of any length."""
_ANY_SEED = (-1, 0xFFFFFFFF)  # llama.cpp's default is -1 in 32 bits; LM Studio, KoboldCpp and their front ends send one of these


class SamplingOptions(Options, frozen=True, kw_only=True):
    """Sampling settings, under OpenAI's and llama.cpp's names. None means the endpoint's default.

    ``is_unlimited`` is True if the request set ``max_tokens`` to -1, which means no limit. Then ``max_tokens`` is None, and -1 is sent to
    servers that accept it.
    """

    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    is_unlimited: bool = False
    stop: tuple[str, ...] = ()
    frequency_penalty: float | None = None  # subtracted from a token's logit for each time that it is already in the answer
    presence_penalty: float | None = None  # subtracted from a token's logit if it is already in the answer
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, number that is added to its logit)

    @property
    def fixed_seed(self) -> int | None:
        """The seed for sampling. None if no seed was given, or if the given one stands for a random seed (-1 or 4294967295)."""
        return None if self.seed in _ANY_SEED else self.seed

    def adjustments(self) -> list[str]:
        """Return the names of the options that are set and change logits."""
        return [name for name in ("frequency_penalty", "presence_penalty", "logit_bias") if getattr(self, name)]


def check_share(name: str, value: float) -> None:
    """Check that a share is between 0 and 1.

    Raises:
        ConfigError: the value is outside 0..1.
    """
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}: expected a share from 0 to 1, got {value!r}")


def check_instance(name: str, value: object, kind: type, *, or_none: bool = False) -> None:
    """Check that a setting has the expected type.

    Raises:
        ConfigError: the value isn't an instance of ``kind`` (nor None, if ``or_none`` is set).
    """
    if not isinstance(value, kind) and not (or_none and value is None):
        raise ConfigError(f"{name}: expected {kind.__name__}{' or None' if or_none else ''}, got {type(value).__name__}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
