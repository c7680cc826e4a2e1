"""The faults of a ``FaultProxy`` as data, and plans that draw them at random from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.testing.responses import DONE, ScriptedResponse, json_answer, sse_event

__all__ = ["FAULT_KINDS", "FaultPlan", "Faults", "BodyFault", "draw_faults"]


class BodyFault(Struct, frozen=True, kw_only=True):
    """A fault in the middle of a response's body. Its position is counted in bytes of the body, without headers and chunk framing.

    Args:
        kind: what happens, after ``data`` has been sent as part of the body:
            ``cut``: the connection is closed (FIN), inside a chunk if the position is inside one;
            ``reset``: the connection is reset (RST);
            ``stall``: nothing more comes, and the connection stays open;
            ``pause``: nothing comes for ``seconds``, then the rest comes;
            ``end``: the body ends as HTTP requires, and the rest of the server's body is dropped;
            ``garbage``: ``data`` is sent in place of framing and body, then FIN.
        events: number of whole server-sent events (or MessagePack objects) that pass before the fault.
        offset: number of further bytes of the body that pass.
        in_character: move the fault to the middle of the next multi-byte character.
        answers: number of earlier responses on the same connection that pass untouched.
        seconds: length of a pause.
        data: bytes that are sent at the position.
    """

    kind: Literal["cut", "reset", "stall", "pause", "end", "garbage"]
    events: int = 0
    offset: int = 0
    in_character: bool = False
    answers: int = 0
    seconds: float = 0.0
    data: bytes = b""


class Faults(Struct, frozen=True, kw_only=True):
    """The faults of a connection. "Downstream" means from the server to the client. None, 0 and False mean no such fault.

    Args:
        delay: seconds by which each piece is delayed, in both directions; the order of pieces is kept.
        piece_bytes: pass on at most this number of bytes per write, with an iteration of the event loop between two writes.
        cut_after: close (FIN) after this number of downstream bytes.
        reset_after: reset (RST) after this number of downstream bytes.
        stall_after: pass on nothing more after this number of downstream bytes, and keep the connection open.
        refuse: reset new connections as soon as they arrive.
        body_fault: a fault inside the body of a response.
        answer: answer every request with this response; the server receives none.
    """

    delay: float = 0.0
    piece_bytes: int | None = None
    cut_after: int | None = None
    reset_after: int | None = None
    stall_after: int | None = None
    refuse: bool = False
    body_fault: BodyFault | None = None
    answer: ScriptedResponse | None = None

    def limit(self) -> int | None:
        """Return the number of downstream bytes that pass, or None if there is no limit."""
        limits = (self.cut_after, self.reset_after, self.stall_after)
        return min((limit for limit in limits if limit is not None), default=None)


class _FaultDraws:
    """Random draws for the functions that make faults."""

    def __init__(self, rng: random.Random, events: int, seconds: float) -> None:
        self.rng = rng
        self.events = events
        self.seconds = seconds

    def event(self) -> int:
        return self.rng.randrange(self.events)

    def offset(self) -> int:
        """Draw a position inside an event; even OpenAI's shortest chunks are twice as long as the largest position."""
        return self.rng.randrange(1, 80)

    def maybe_offset(self) -> int:
        return self.rng.choice([0, self.offset()])

    def noise(self) -> bytes:
        """Draw bytes without a line ending, so that they can't be mistaken for framing."""
        return self.rng.randbytes(200).replace(b"\n", b"")

    def few_bytes(self) -> int:
        """Draw a number of bytes so small that it ends inside the response's head."""
        return self.rng.randrange(60)


def _refusal(status: int, message: str, wait: float | None = None) -> Faults:
    headers = {"Connection": "close"} if wait is None else {"Connection": "close", "Retry-After": f"{wait:g}"}
    return Faults(answer=json_answer({"error": {"message": message, "type": None, "code": None}}, status=status, headers=headers))


_IN_BAND: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {"error": {"message": "the engine died", "type": "server_error", "code": 500}}),
    ("", {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}),
    ("event: error\n", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    ("", {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}),
)


def _in_band(draw: _FaultDraws) -> Faults:
    name, body = draw.rng.choice(_IN_BAND)
    data = name.encode() + sse_event(body) + draw.rng.choice([b"", DONE])
    return Faults(body_fault=BodyFault(kind="end", events=draw.event(), data=data))


def _before_the_body(draw: _FaultDraws) -> Faults:
    size = draw.few_bytes()
    return draw.rng.choice([Faults(cut_after=size), Faults(reset_after=size), Faults(stall_after=size)])


_MAKERS: dict[str, Callable[[_FaultDraws], Faults]] = {
    "delay": lambda draw: Faults(delay=draw.rng.uniform(0.0, draw.seconds / 10)),
    "split": lambda draw: Faults(piece_bytes=draw.rng.randrange(3, 60)),
    "pause": lambda draw: Faults(
        body_fault=BodyFault(kind="pause", events=draw.event(), offset=draw.offset(), seconds=draw.rng.uniform(0.0, draw.seconds))
    ),
    "stall": lambda draw: Faults(body_fault=BodyFault(kind="stall", events=draw.event(), offset=draw.offset())),
    "cut": lambda draw: Faults(body_fault=BodyFault(kind="cut", events=draw.event(), offset=draw.offset())),
    "cut between events": lambda draw: Faults(body_fault=BodyFault(kind="cut", events=draw.event())),
    "cut in a character": lambda draw: Faults(body_fault=BodyFault(kind="cut", events=draw.event(), in_character=True)),
    "cut in a chunk's size": lambda draw: Faults(body_fault=BodyFault(kind="garbage", events=draw.event(), data=b"1")),
    "reset": lambda draw: Faults(body_fault=BodyFault(kind="reset", events=draw.event(), offset=draw.offset())),
    "early end": lambda draw: Faults(body_fault=BodyFault(kind="end", events=draw.event(), offset=draw.maybe_offset())),
    "error event": _in_band,
    "malformed event": lambda draw: Faults(body_fault=BodyFault(kind="end", events=draw.event(), data=b'data: {"choices": [{"delta"\n\n')),
    "garbage": lambda draw: Faults(
        body_fault=BodyFault(kind="garbage", events=draw.event(), offset=draw.maybe_offset(), data=draw.noise())
    ),
    "429": lambda draw: _refusal(429, "too many requests"),
    "429 with Retry-After": lambda draw: _refusal(429, "too many requests", draw.rng.choice([0.0, draw.seconds, 3600.0])),
    "500": lambda draw: _refusal(500, "the engine died"),
    "503": lambda draw: _refusal(503, "shutting down"),
    "refused": lambda draw: Faults(refuse=True),
    "lost before the body": _before_the_body,
}

FAULT_KINDS: tuple[str, ...] = tuple(_MAKERS)
"""The names of all kinds that ``draw_faults`` knows."""


def draw_faults(kind: str, rng: random.Random, *, events: int = 20, seconds: float = 0.1) -> Faults:
    """Draw faults of this kind, with random positions and times.

    Args:
        kind: one of ``FAULT_KINDS``.
        rng: the random source.
        events: the fault comes before this many events have passed.
        seconds: length of the longest pause.

    Raises:
        ConfigError: there is no such kind.
    """
    if kind not in _MAKERS:
        raise ConfigError(f"kind: expected one of {', '.join(FAULT_KINDS)}, got {kind!r}")
    return _MAKERS[kind](_FaultDraws(rng, events, seconds))


class FaultPlan:
    """Draws random faults for each connection; pass it to ``FaultProxy`` as ``faults``. Its repr shows the seed and all draws.

    Args:
        seed: the same seed draws the same faults in the same order.
        kinds: the ``FAULT_KINDS`` to draw from, all with the same probability.
        faultless: share of connections without a fault, 0..1.
        events: a fault comes before this many events have passed.
        seconds: length of the longest pause.

    Attributes:
        drawn: kinds drawn so far, in order; "none" for a connection without a fault.
    """

    def __init__(
        self, seed: int | str, *, kinds: Sequence[str] = FAULT_KINDS, faultless: float = 0.25, events: int = 20, seconds: float = 0.1
    ) -> None:
        self.seed = seed
        self.drawn: list[str] = []
        self._rng = random.Random(seed)
        self._kinds = tuple(kinds)
        self._faultless = faultless
        self._events = events
        self._seconds = seconds
        self._faults: list[Faults] = []

    def __call__(self) -> Faults:
        """Draw the faults of the next connection."""
        is_faultless = self._rng.random() < self._faultless
        kind = self._rng.choice(self._kinds)
        faults = draw_faults(kind, self._rng, events=self._events, seconds=self._seconds)
        self.drawn.append("none" if is_faultless else kind)
        self._faults.append(Faults() if is_faultless else faults)
        return self._faults[-1]

    def __repr__(self) -> str:
        drawn = ", ".join(f"{kind}: {faults!r}" for kind, faults in zip(self.drawn, self._faults, strict=True))
        return f"FaultPlan(seed={self.seed!r}, drawn=[{drawn}])"
