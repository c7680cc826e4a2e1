"""The client's side of one split protocol connection, without IO. It builds frames, reads answers and checks their order and sizes.

The shell calls a method for each frame and sends what ``take_messages`` returns. It hands every message that arrives to ``receive``.
Answers for sessions and rounds that are over are dropped. An answer that breaks the protocol raises an error and ends the connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

from streamco.errors import UsageError
from streamco.wire.row_costs import RowCost
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import (
    SPLIT_VERSIONS,
    LayersMark,
    Refusal,
    Rows,
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
from streamco.wire.tensors import StateFormat
from streamco.wire.verify.connection_ends import ClientEnd, ClientSession
from streamco.wire.verify.errors import MalformedFrameError, ModelMismatchError, UnexpectedFrameError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SplitClient"]


class _Sent(Struct, frozen=True, gc=False):
    """A round that the server hasn't answered yet."""

    round_number: int
    position: int
    wanted: int
    form: StateFormat


@dataclass(slots=True)
class _RowsSession(ClientSession):
    rounds: deque[_Sent] = field(default_factory=deque)  # unanswered, in order


class SplitClient(ClientEnd[SplitCodec, SplitServerFrame, SplitWelcome, _RowsSession]):
    """The client's state for one connection, which begins with hello and welcome and then carries sessions.

    Args:
        codec: codec for the model's states.
        mark: the layers that the server must compute.
        token: bearer token, or None if the WebSocket's HTTP request carries it or the server needs none.
        agent: name of this client for the server's log.
        exact: True to refuse a server that isn't in exact mode.

    Attributes:
        row_costs: the server's latest report of how long its batches take. Empty before the welcome.
    """

    def __init__(
        self, codec: SplitCodec, mark: LayersMark, *, token: str | None = None, agent: str = "streamco", exact: bool = False
    ) -> None:
        super().__init__(codec, SplitHello(*SPLIT_VERSIONS, mark, token, agent), versions=SPLIT_VERSIONS, server="split server")
        self.row_costs: tuple[RowCost, ...] = ()
        self._exact = exact

    @property
    def limits(self) -> SplitLimits:
        """The smaller of both sides' limits, or the client's own limits until the welcome has come."""
        return self.codec.limits

    @property
    def frame_bytes(self) -> int:
        """Maximum size of a message in bytes."""
        return self.codec.frame_bytes

    @property
    def has_room(self) -> bool:
        """True if another session may be opened, because the connection has fewer sessions than the limit."""
        return len(self._sessions) < self.limits.sessions

    def unanswered(self, session: int) -> int:
        """Return how many rounds of a session are unanswered, or 0 if there is no such session."""
        state = self._sessions.get(session)
        return 0 if state is None else len(state.rounds)

    def open(self, *, reserve: int = 0) -> int:
        """Begin a session and return its number. You may send rows at once, before ``SplitOpened`` comes.

        Args:
            reserve: largest number of positions that the session will reach, or 0 if that isn't known.

        Raises:
            UsageError: the welcome hasn't come, or the connection is closed.
        """
        number = self._next_number()
        self._queue(SplitOpen(number, reserve))
        self._add(number, _RowsSession(0))
        return number

    def rows(self, session: int, position: int, states: NDArray[np.float32], *, wanted: int, form: StateFormat = "f16") -> int:
        """Begin a round and return its number. The server drops all positions from ``position`` on, and computes these rows in their place.

        Args:
            session: number that identifies the session on this connection.
            position: position of the first row. While rounds are unanswered, this must be the position where the last of them ends.
            states: states before the middle layers, shape (rows, width).
            wanted: number of states that the server sends back, for the last rows.
            form: format of the states in both directions.

        Raises:
            UsageError: the position is not allowed now, or there are already ``limits.rounds`` unanswered rounds.
            VerifyProtocolError: the rows don't fit a frame, or aren't finite.
        """
        state = self._find_resumed(session)
        if not 0 <= position <= state.length or (state.rounds and position != state.length):
            where = f"position {state.length}" if state.rounds else f"a position of at most {state.length}"
            raise UsageError(f"session {session}: expected {where}, got {position}")
        if len(state.rounds) >= self.limits.rounds:
            raise UsageError(f"session {session}: the limit is {self.limits.rounds} unanswered rounds")
        rows = Rows(session, state.last_round + 1, position, wanted, form, states)
        self._queue(rows)
        state.last_round, state.length = rows.round_number, rows.end
        state.rounds.append(_Sent(rows.round_number, position, wanted, form))
        return rows.round_number

    def resume(self, key: bytes) -> int:
        """Continue a session of a lost connection, and return its new number. ``SplitResumed`` says how many positions the server has.

        Raises:
            UsageError: the welcome hasn't come, or the connection is closed.
        """
        number = self._next_number()
        self._queue(SplitResume(number, key))
        self._add(number, _RowsSession(0, is_resuming=True))
        return number

    def _handle(self, frame: SplitServerFrame) -> SplitServerFrame | None:
        if not isinstance(frame, SplitWelcome | Refusal):
            self._check_welcome(frame)
        match frame:
            case States():
                return self._handle_states(frame)
            case SplitOpened():
                return self._handle_opened(frame)
            case SplitResumed():
                return self._handle_resumed(frame)
            case Refusal():
                return self._handle_refusal(frame)
            case SplitWelcome():
                return self._handle_welcome(frame)
            case _ as never:
                assert_never(never)

    def _check_server(self, frame: SplitWelcome) -> None:
        super()._check_server(frame)
        if self._exact and not frame.is_exact:
            raise ModelMismatchError("welcome: expected a server in exact mode (streamco serve --middle --exact), got one that isn't")
        self.row_costs = frame.row_costs

    def _handle_states(self, frame: States) -> States | None:
        self.row_costs = frame.row_costs or self.row_costs  # they are valid even if the round is over
        state = self._sessions.get(frame.session)
        if state is None or all(rows.round_number != frame.round_number for rows in state.rounds):
            return None
        rows, where = state.rounds[0], f"session {frame.session}"
        if rows.round_number != frame.round_number:
            raise UnexpectedFrameError(
                f"{where}: expected round {rows.round_number} first, got {frame.round_number}", session=frame.session
            )
        if len(frame.states) != rows.wanted:
            raise MalformedFrameError(f"{where}: expected {rows.wanted} states, got {len(frame.states)}", session=frame.session)
        if frame.form not in {rows.form, "f32"}:
            raise MalformedFrameError(f"{where}: expected states as {rows.form} or f32, got {frame.form}", session=frame.session)
        state.rounds.popleft()
        return frame

    def _handle_resumed(self, frame: SplitResumed) -> SplitResumed | None:
        state = self._sessions.get(frame.session)
        if state is None:
            return None
        if not state.is_resuming:
            raise UnexpectedFrameError(f"session {frame.session}: resumed by the server without being asked to", session=frame.session)
        if frame.length > self.limits.context_rows:
            message = f"session {frame.session}: expected at most {self.limits.context_rows} positions, got {frame.length}"
            raise MalformedFrameError(message, session=frame.session)
        state.length, state.is_resuming, state.is_opened = frame.length, False, True
        return frame

    def _drop_round(self, state: _RowsSession, frame: Refusal) -> bool:
        """Drop a refused round and the unanswered rounds after it, which the server refuses too. Returns False if the round is over."""
        if all(sent.round_number != frame.round_number for sent in state.rounds):
            return False
        first = state.rounds[0].round_number
        if frame.round_number != first and frame.code != "context_full":  # which is refused before its rows are queued
            raise UnexpectedFrameError(
                f"session {frame.session}: expected an answer to round {first} first, got a refusal of {frame.round_number}",
                session=frame.session,
            )
        while True:
            sent = state.rounds.pop()
            state.length = sent.position
            if sent.round_number == frame.round_number:
                return True
