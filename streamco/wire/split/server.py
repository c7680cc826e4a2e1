"""The server's side of one split protocol connection, without IO. It checks which frames are allowed when, and refuses the others.

The shell hands every message to ``receive``, carries out the frame that it returns, if any, and sends what ``take_messages`` returns.
Frames that ``receive`` returns obey the protocol's rules for order, numbers and lengths. Any other message is answered with a refusal
here, and the connection continues unless ``is_closed`` is set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from streamco.wire.row_costs import COSTS_BYTES, RowCost
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import (
    SPLIT_VERSIONS,
    Close,
    LayersMark,
    Rows,
    ServerBatches,
    SplitClientFrame,
    SplitHello,
    SplitOpen,
    SplitOpened,
    SplitResume,
    SplitResumed,
    SplitWelcome,
    States,
)
from streamco.wire.verify.codec import HELLO, MIN_FRAME_BYTES, frame_number, hello_versions
from streamco.wire.verify.connection_ends import ServerEnd
from streamco.wire.verify.errors import (
    ContextFullError,
    HelloExpectedError,
    ModelMismatchError,
    SessionLimitError,
    SessionNumberError,
    StaleRoundError,
    UnexpectedFrameError,
    UnknownSessionError,
    VerifyProtocolError,
    VersionError,
    WrongBaseError,
)
from streamco.wire.verify.server import MAX_FAULTS

__all__ = ["SplitServer"]

_CHANGE = 1.1  # a batch's time is sent again if it differs from the time that the client knows by more than this factor


class _Pending(Struct, frozen=True, gc=False):
    """A round that the server hasn't answered yet."""

    round_number: int
    position: int
    wanted: int


@dataclass(slots=True)
class _ServerSession:
    length: int | None  # positions, including unanswered rounds; None until a resume is answered
    last_round: int = -1
    rounds: deque[_Pending] = field(default_factory=deque)  # unanswered, in order


class SplitServer(ServerEnd[SplitCodec, SplitClientFrame]):
    """The server's state for one connection.

    Args:
        codec: codec for the model's states, with the limits that the welcome announces.
        mark: the layers that the server computes.
        model: the model's name in the welcome.
        row_costs: measured times of the server's batches.
        batches: sizes of the server's batches.
        stages: number of pipeline stages.
        resume_s: how long sessions of a lost connection are kept, in seconds.
        max_faults: the connection ends after this many faulty frames.
    """

    def __init__(
        self,
        codec: SplitCodec,
        mark: LayersMark,
        *,
        model: str = "",
        row_costs: Sequence[RowCost],
        batches: ServerBatches,
        stages: int = 1,
        resume_s: int = 60,
        max_faults: int = MAX_FAULTS,
        is_exact: bool = False,
    ) -> None:
        welcome = SplitWelcome(SPLIT_VERSIONS[1], model, codec.limits, resume_s, stages, tuple(row_costs), batches, is_exact)
        super().__init__(codec, welcome, max_faults=max_faults)
        self.mark = mark
        self._known_costs = welcome.row_costs  # the costs that the client knows
        self._longest = MIN_FRAME_BYTES  # size of a message that the client certainly accepts, bytes
        self._sessions: dict[int, _ServerSession] = {}
        self._last = -1

    @property
    def sessions(self) -> tuple[int, ...]:
        """The numbers of the live sessions."""
        return tuple(self._sessions)

    def send(self, frame: SplitOpened | States) -> bool:
        """Answer an open, or the oldest unanswered round. Returns False and sends nothing if the session or the round is already over.

        An answer's row costs are left out if they are nearly what the client already knows, or if the frame has no room for them.

        Raises:
            VerifyProtocolError: the codec can't write this frame.
        """
        session = self._sessions.get(frame.session)
        if session is None:
            return False
        if isinstance(frame, States):
            if not session.rounds or session.rounds[0].round_number != frame.round_number:
                return False
            assert len(frame.states) == session.rounds[0].wanted, "as many states come back as were wanted"
            message = self._encode_states(frame)
            session.rounds.popleft()
        else:
            message = self.codec.encode(frame)
        self._messages.append(message)
        return True

    def _encode_states(self, frame: States) -> bytes:
        message = self.codec.encode(replace(frame, row_costs=()))
        if not frame.row_costs or not _have_changed(self._known_costs, frame.row_costs) or len(message) + COSTS_BYTES > self._longest:
            return message
        self._known_costs = frame.row_costs
        return self.codec.encode(frame)

    def resume(self, frame: SplitResumed) -> bool:
        """Answer a resume. Returns False and sends nothing if the session is gone."""
        session = self._sessions.get(frame.session)
        if session is None:
            return False
        session.length = frame.length
        self._messages.append(self.codec.encode(frame))
        return True

    def refuse(self, error: VerifyProtocolError) -> None:
        """Send the shell's error to the client, and end the round, session or connection that it affects (``error.scope``).

        After a refused round, the session has only the positions before it, so later rounds that build on it are refused, too.
        """
        later = self._drop_rounds(error) if error.scope == "round" else []
        self._answer(error)
        for number in later:
            message = f"session {error.session}: expected the rows before it to be computed, got a refusal of round {error.round_number}"
            self._answer(StaleRoundError(message, session=error.session, round_number=number))

    def _drop_rounds(self, error: VerifyProtocolError) -> list[int]:
        """Drop a refused round and all later rounds, and return the numbers of the later rounds."""
        session = self._sessions.get(-1 if error.session is None else error.session)
        if session is None or not any(each.round_number == error.round_number for each in session.rounds):
            return []
        later: list[int] = []
        while session.rounds[-1].round_number != error.round_number:
            later.insert(0, session.rounds.pop().round_number)
        session.length = session.rounds.pop().position
        return later

    def _has_session(self, session: int | None) -> bool:
        return session in self._sessions

    def _end_session(self, session: int | None) -> bool:
        return session is not None and self._sessions.pop(session, None) is not None

    # Frames

    def _read(self, message: bytes) -> SplitClientFrame | None:
        if not self._has_hello:
            return self._read_hello(message)
        if not self._is_welcome:
            raise HelloExpectedError("connection: expected nothing between a hello and its welcome, got a frame")
        frame = self.codec.decode_up(message)
        self._longest = max(self._longest, len(message))
        match frame:
            case Rows():
                self._begin_round(frame)
            case SplitOpen():
                self._open(frame)
            case SplitResume():
                self._add(frame.session, None)
            case Close():
                return frame if self._sessions.pop(frame.session, None) is not None else None
            case SplitHello():
                raise UnexpectedFrameError("hello: expected one per connection, got a second one")
            case _ as never:
                assert_never(never)
        return frame

    def _read_hello(self, message: bytes) -> SplitHello:
        number = frame_number(message)
        if number != HELLO:
            raise HelloExpectedError(f"connection: expected a hello first (frame {HELLO}), got frame {number}")
        first, last = hello_versions(message)
        if first > SPLIT_VERSIONS[1] or last < SPLIT_VERSIONS[0]:
            expected = f"a version from {SPLIT_VERSIONS[0]} to {SPLIT_VERSIONS[1]}, because this server computes middle layers"
            raise VersionError(f"hello: expected {expected}, got {first} to {last}")
        hello = self.codec.decode_up(message)
        assert isinstance(hello, SplitHello), "its number says so"
        if hello.mark != self.mark:
            raise ModelMismatchError(f"hello: expected {self.mark}, got {hello.mark}")
        self._has_hello = True
        return hello

    def _open(self, frame: SplitOpen) -> None:
        if frame.reserve > self.codec.limits.context_rows:
            message = f"open: expected at most {self.codec.limits.context_rows} positions, got {frame.reserve}"
            self._last = max(self._last, frame.session)
            raise ContextFullError(message, session=frame.session)
        self._add(frame.session, 0)

    def _add(self, number: int, length: int | None) -> None:
        if number <= self._last:
            raise SessionNumberError(f"session {number}: expected a number above {self._last}, the last one's")
        self._last = number
        limit = self.codec.limits.sessions
        if len(self._sessions) >= limit:
            raise SessionLimitError(f"session {number}: the limit is {limit} sessions at once", session=number)
        self._sessions[number] = _ServerSession(length)

    def _begin_round(self, rows: Rows) -> None:
        """Check that a round fits its session, and add its rows."""
        number, where = rows.session, {"session": rows.session, "round_number": rows.round_number}
        session = self._sessions.get(number)
        if session is None:
            raise UnknownSessionError(f"session {number}: is not open", session=number)
        if session.length is None:
            raise UnexpectedFrameError(f"session {number}: expected nothing before it is resumed, got rows", **where)
        if rows.round_number <= session.last_round:
            raise StaleRoundError(f"session {number}: expected a round above {session.last_round}, got {rows.round_number}", **where)
        most = self.codec.limits.rounds
        if session.rounds and (rows.position != session.length or len(session.rounds) >= most):
            expected = f"at most {most} unanswered rounds, each where the one before ends (position {session.length})"
            raise StaleRoundError(f"session {number}: expected {expected}, got another one at {rows.position}", **where)
        if rows.position > session.length:
            raise WrongBaseError(f"session {number}: expected a position of at most {session.length}, got {rows.position}", **where)
        if rows.end > self.codec.limits.context_rows:
            limit = self.codec.limits.context_rows
            raise ContextFullError(f"session {number}: expected at most {limit} positions, got {rows.end}", **where)
        session.last_round, session.length = rows.round_number, rows.end
        session.rounds.append(_Pending(rows.round_number, rows.position, rows.wanted))


def _have_changed(known: Sequence[RowCost], costs: Sequence[RowCost]) -> bool:
    """Return True if there are batch sizes that the client doesn't know, or if a time differs by more than a tenth."""
    if [cost.rows for cost in known] != [cost.rows for cost in costs]:
        return True
    times = ((old.microseconds, new.microseconds) for old, new in zip(known, costs, strict=True))
    return any(max(old, new) > _CHANGE * min(old, new) for old, new in times)
