"""Hostile peers of the split protocol; ``python -m tests.fuzz.split --cases 1000000`` for long.

A case is one message to the codec or to one end of a connection. Whatever comes in, what comes out is a frame with finite states, or a
documented error. A server's end accepts a round only if it continues the positions that its session has. The cases of a seed are always the
same ones.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamco.errors import UsageError
from streamco.wire.row_costs import RowCost
from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import (
    FORMATS,
    SPLIT_VERSIONS,
    Close,
    LayersMark,
    Refusal,
    Rows,
    ServerBatches,
    SplitClientFrame,
    SplitHello,
    SplitLimits,
    SplitOpen,
    SplitOpened,
    SplitResume,
    SplitResumed,
    SplitServerFrame,
    SplitWelcome,
    States,
)
from streamco.wire.split.server import SplitServer
from streamco.wire.verify.errors import OverloadedError, VerifyProtocolError
from tests.fuzz.verify import CODES, KEY, damage
from tests.wire.split.peers import make_states

WIDTH = 5
LIMITS = SplitLimits(context_rows=14, rows=6, sessions=4, rounds=4)
CODEC = SplitCodec(WIDTH, LIMITS)
MARK = LayersMark("digest", 2, 28, WIDTH)
OTHER = LayersMark("another", 2, 28, WIDTH)
COSTS = (RowCost(1, 5000), RowCost(64, 40_000))
BATCHES = ServerBatches(64, 9, 3)
WELCOME = SplitWelcome(SPLIT_VERSIONS[1], "m", LIMITS, 60, 1, COSTS, BATCHES)

_NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.1, 1e-8, -3.5, 700.0, 65504.0, -65505.0, 8.4e6, 3e38]
_NOT_FINITE = [struct.pack("<f", value) for value in (float("nan"), float("inf"), float("-inf"))]
_NOT_FINITE += [struct.pack("<e", value) for value in (float("nan"), float("inf"), float("-inf"))]


def some_states(rng: random.Random, rows: int) -> NDArray[np.float32]:
    return np.array([rng.choice(_NUMBERS) for _ in range(rows * WIDTH)], np.float32).reshape(rows, WIDTH)


def grow_up(rng: random.Random, latest: int = 4, turn: int = 0, ends: tuple[int, ...] = ()) -> SplitClientFrame:
    """A frame of a client, as a rule one that is allowed somewhere. ``turn`` is above its rounds, ``ends`` are its sessions' lengths."""
    session = max(0, latest - rng.randrange(3)) if rng.random() < 0.9 else rng.randrange(latest + 2)
    kind = rng.randrange(12)
    if kind == 0:
        return SplitHello(rng.choice([1, 2, 2, 3]), rng.choice([1, 2, 2, 9]), rng.choice([MARK, MARK, OTHER]), rng.choice([None, "t"]))
    if kind <= 2:
        return SplitOpen(latest + 1, rng.choice([0, 0, 14, 15]))
    if kind == 3:
        return SplitResume(latest + rng.randrange(2), KEY)
    if kind == 4:
        return Close(session)
    rows = rng.choice([1, 1, 2, 4, 6])
    position = rng.choice(ends) if ends and rng.random() < 0.7 else rng.choice([0, 0, 1, 3, 8, 13, 14, 40])
    return Rows(session, turn or rng.randrange(20), position, rng.randrange(rows + 1), rng.choice(FORMATS), some_states(rng, rows))


def grow_down(rng: random.Random) -> SplitServerFrame:
    """A frame of a server."""
    session, kind = rng.randrange(3), rng.randrange(7)
    if kind == 0:
        return WELCOME
    if kind == 1:
        return SplitOpened(session, KEY)
    if kind == 2:
        return SplitResumed(session, rng.choice([0, 3, 14, 15]))
    if kind == 3:
        code = rng.choice([*sorted(CODES), "new"]) if rng.random() < 0.3 else "overloaded"
        return Refusal(code, "text", rng.choice([None, session]), rng.choice([None, 0, 1, 2]), rng.choice([None, 0, 100]))
    return States(session, rng.choice([0, 0, 1, 2, 3]), rng.choice(FORMATS), some_states(rng, rng.choice([0, 1, 1, 2])), 1, 2, 3, 4)


def spoil(message: bytes, rng: random.Random) -> bytes:
    """The message damaged as any other, or with other bytes for its states, some of which are no finite numbers."""
    fields = msgspec.msgpack.decode(message)
    places = [place for place, value in enumerate(fields) if isinstance(value, bytes)]
    if not places or rng.random() < 0.6:
        return damage(message, rng)
    size = rng.choice([len(fields[places[0]]), rng.randrange(200)])
    states = bytearray(rng.randbytes(size))
    if states and rng.random() < 0.5:
        at = rng.randrange(0, len(states), 2)
        states[at : at + 4] = rng.choice(_NOT_FINITE)
    fields[places[0]] = bytes(states)
    return msgspec.msgpack.encode(fields)


def check_states(frame: object) -> None:
    """Fail if a frame has states that are not finite or of a shape that the limits exclude, or wants more than it has."""
    if isinstance(frame, Rows | States):
        assert frame.states.ndim == 2
        assert frame.states.shape[1] == WIDTH
        assert len(frame.states) <= LIMITS.rows
        assert np.isfinite(frame.states).all()
    if isinstance(frame, Rows):
        assert len(frame.states) >= max(1, frame.wanted)


def check_codec(rng: random.Random) -> str:
    """One message to the codec: a frame that survives writing and reading again, or an error of the two that a codec has."""
    is_up = rng.random() < 0.5
    message = CODEC.encode(grow_up(rng) if is_up else grow_down(rng))
    if rng.random() < 0.9:
        message = spoil(message, rng)
    try:
        frame: SplitClientFrame | SplitServerFrame = CODEC.decode_up(message) if is_up else CODEC.decode_down(message)
    except VerifyProtocolError as error:
        if error.code in {"malformed", "too_large"}:
            return error.code
        raise
    check_states(frame)
    written = CODEC.encode(frame)
    again = CODEC.decode_up(written) if is_up else CODEC.decode_down(written)
    if isinstance(frame, Rows | States):
        assert isinstance(again, type(frame))
        assert (again.session, again.round_number) == (frame.session, frame.round_number)
        assert again.form in {frame.form, "f32"}
        step = np.abs(frame.states).max(initial=0.0) / 127 if again.form == "i8" else 0.0
        assert np.abs(again.states - frame.states).max(initial=0.0) <= step, message
    else:
        assert again == frame, message
    return type(frame).__name__


class SplitEnds:
    """Both ends of connections that don't listen to each other, each fed with what a hostile peer might send, by turns."""

    def __init__(self) -> None:
        self._sent: list[bytes] = []
        self._waiting: list[Rows] = []
        self._lengths: dict[int, int] = {}  # positions of the server's sessions
        self._begin_server(16)
        self._begin_client()
        self.turn, self.latest = 0, -1

    def _begin_server(self, max_faults: int) -> None:
        self.server = SplitServer(CODEC, MARK, model="m", row_costs=COSTS, batches=BATCHES, max_faults=max_faults)
        self._waiting.clear()
        self._lengths.clear()
        self._sent.clear()
        self.latest = -1

    def _begin_client(self) -> None:
        self.client = SplitClient(CODEC, MARK)
        self.client.receive(CODEC.encode(WELCOME))
        for _ in range(2):
            self.client.open()
        self.client.resume(KEY)
        self.client.rows(0, 0, np.ones((2, WIDTH), np.float32), wanted=0)
        self.client.rows(0, 2, np.ones((2, WIDTH), np.float32), wanted=1)

    # The server's end

    def check_server(self, rng: random.Random) -> str:
        """One message to the server's end, perhaps one that came before: it never raises, and says only frames with documented codes."""
        if self.server.is_closed or self.turn % 60 == 0:
            self._begin_server(rng.choice([1, 16, 1000, 1000]))
            if rng.random() < 0.8:
                self.server.receive(CODEC.encode(SplitHello(*SPLIT_VERSIONS, MARK)))
                self.server.welcome()
                self.server.take_messages()
        self.turn += 1
        frame = self.server.receive(self._message(rng))
        check_states(frame)
        self._serve(frame, rng)
        assert len(self.server.sessions) <= LIMITS.sessions
        answers = [CODEC.decode_down(answer) for answer in self.server.take_messages()]
        codes = [each.code for each in answers if isinstance(each, Refusal)]
        assert CODES.issuperset(codes)
        return codes[0] if codes else type(frame).__name__

    def _message(self, rng: random.Random) -> bytes:
        if self._sent and rng.random() < 0.1:
            return rng.choice(self._sent)  # a replay, or an older frame after a later one
        message = CODEC.encode(grow_up(rng, self.latest, self.turn, tuple(self._lengths.values())))
        self._sent.append(message)
        return spoil(message, rng) if rng.random() < 0.2 else message

    def _serve(self, frame: SplitClientFrame | None, rng: random.Random) -> None:
        """Do what a shell would do, now or later."""
        match frame:
            case SplitHello():
                self.server.welcome()
            case SplitOpen():
                self._open(frame.session, 0)
                self.server.send(SplitOpened(frame.session, KEY))
            case SplitResume():
                length = rng.randrange(5)
                self._open(frame.session, length)
                self.server.resume(SplitResumed(frame.session, length))
            case Rows():
                self._begin_round(frame)
            case _:
                pass
        if self._waiting and rng.random() < 0.5:
            self._answer(rng)

    def _open(self, session: int, length: int) -> None:
        self.latest, self._lengths[session] = min(session, 1 << 31), length

    def _begin_round(self, rows: Rows) -> None:
        """Fail unless the round continues what its session has read, or what it will have read after its unanswered rounds."""
        others = [each for each in self._waiting if each.session == rows.session]
        assert rows.position <= self._lengths[rows.session]
        assert not others or rows.position == self._lengths[rows.session]
        assert len(others) < LIMITS.rounds
        assert rows.end <= LIMITS.context_rows
        self._lengths[rows.session] = rows.end
        self._waiting.append(rows)

    def _answer(self, rng: random.Random) -> None:
        rows = self._waiting.pop(0)
        if rng.random() < 0.8:
            self.server.send(make_states(rows.session, rows.round_number, rows.form, rows.states[len(rows.states) - rows.wanted :]))
            return
        self.server.refuse(OverloadedError("busy", session=rows.session, round_number=rows.round_number))
        self._waiting = [each for each in self._waiting if each.session != rows.session]
        self._lengths[rows.session] = rows.position

    # The client's end

    def check_client(self, rng: random.Random) -> str:
        """One message to the client's end: a frame, nothing, or an error of the family."""
        if self.client.is_closed:
            self._begin_client()
        with suppress(UsageError):  # not allowed now, or the session is gone
            count = rng.randrange(1, 4)
            self.client.rows(0, rng.randrange(6), some_states(rng, count), wanted=rng.randrange(count + 1), form=rng.choice(FORMATS))
        message = CODEC.encode(grow_down(rng))
        try:
            frame = self.client.receive(spoil(message, rng) if rng.random() < 0.1 else message)
        except VerifyProtocolError as error:
            if error.code in CODES and self.client.is_closed:
                return error.code
            raise
        check_states(frame)
        self.client.take_messages()
        return type(frame).__name__


def run(cases: int, seed: int) -> Counter[str]:
    """Run so many cases of a seed and count what each kind came to. Raises what should not have come."""
    rng, ends, seen = random.Random(f"split {seed}"), SplitEnds(), Counter[str]()
    checks: dict[str, Callable[[random.Random], str]] = {"codec": check_codec, "server": ends.check_server, "client": ends.check_client}
    names = ["codec", "server", "codec", "server", "client"]
    with np.errstate(over="ignore"):  # differences of numbers near the largest of 32 bits
        for number in range(cases):
            name = names[number % len(names)]
            try:
                seen[f"{name}: {checks[name](rng)}"] += 1
            except Exception as error:
                error.add_note(f"seed {seed}, case {number}, {name}")
                raise
    return seen


def main() -> None:
    """Run cases of several seeds, in processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    portion = 50_000
    portions = [min(portion, options.cases - start) for start in range(0, options.cases, portion)]
    started, seen = time.perf_counter(), Counter[str]()
    with ProcessPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(run, cases, options.seed + number) for number, cases in enumerate(portions)]:
            seen += future.result()
    for name, count in sorted(seen.items()):
        print(f"{count:>10,}  {name}")
    took = time.perf_counter() - started
    print(f"{seen.total():,} cases from seed {options.seed}, {took:.0f} s: frames and documented errors only")


if __name__ == "__main__":
    main()
