"""Decides which rows of one split-inference answer are computed, sent, and sent again after a loss (HAT, sections 3.1 and 3.3).

A prompt is sent in chunks. While some are on their way or being computed at the server, the device computes the next. Only the state of the
prompt's last row is returned. After that, each trip sends the last token and its drafts, and returns their states. The device keeps the
shallow states of all rows, so no token is lost with a session: the same server or another one continues, and gets the rows that it lacks.

After a loss, a server's rows count only as far as it has answered them. Later rows may belong to a rejected draft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import assert_never

from msgspec import Struct

from streamco.core.split.events import (
    AnswerEnded,
    CloseSession,
    ComputeRows,
    OpenSession,
    RowsAdded,
    RowsComputed,
    SendRows,
    SessionLost,
    SessionReady,
    SplitCommand,
    SplitEvent,
    StatesArrived,
    Truncated,
)
from streamco.policies.chunking import PromptPlan

__all__ = ["SplitCounts", "SplitMachine"]


class SplitCounts(Struct):
    """Counts of the messages that were sent and received for one answer.

    Args:
        chunks: number of frames with rows.
        rows: number of rows in these frames.
        repeated: number of rows that were sent again after a loss, or because an overloaded server refused them.
        trips: how many times states came back.
        sessions: number of sessions that were opened or resumed.
    """

    chunks: int = 0
    rows: int = 0
    repeated: int = 0
    trips: int = 0
    sessions: int = 0


class SplitMachine:
    """Manages the rows of one answer. It implements ``Machine``, but has no deadlines.

    Args:
        plan: called with the number of rows still to be sent, and the number of these rows that are computed or being computed. Returns
            how to cut them into chunks. It is called once for a prompt, and again when its session is open and after a loss.
        max_rows: maximum number of rows in a frame.
    """

    def __init__(self, *, plan: Callable[[int, int], PromptPlan], max_rows: int = 512) -> None:
        self.counts = SplitCounts()
        self._make_plan = plan
        self._max_rows = max_rows
        self._plan: PromptPlan | None = None  # for the rows that are being sent; None if not requested, or if they fit the last frame
        self._goal: RowsAdded | None = None
        self._computed = 0
        self._computing: int | None = None  # end of the rows that are being computed; None if there are none
        self._sent = 0
        self._answered = 0
        self._most_sent = 0  # rows up to here were sent before and have not been dropped
        self._unanswered: deque[SendRows] = deque()
        self._next_stop: int | None = None  # where the next chunk ends; None if not decided
        self._attempt = -1
        self._is_open = False
        self._is_over = False
        self._commands: list[SplitCommand] = []

    @property
    def is_waiting(self) -> bool:
        """True while deep states are awaited."""
        return self._goal is not None

    @property
    def is_over(self) -> bool:
        """True if the answer has ended."""
        return self._is_over

    def start(self, *, now: float) -> None:
        """Do nothing. A session is opened only for the first rows, because an answer may have to wait for its turn on the device."""

    def receive(self, event: SplitEvent, *, now: float) -> None:
        """Handle an event. Events of an earlier attempt, or after the answer's end, change nothing."""
        if self._is_over:
            return
        match event:
            case AnswerEnded():
                self._end()
            case RowsAdded():
                self._add(event)
            case Truncated():
                self._truncate(event.length)
            case RowsComputed():
                self._computed, self._computing = event.stop, None
            case SessionReady():
                self._handle_opened(event)
            case SessionLost():
                self._handle_lost(event)
            case StatesArrived():
                self._handle_states(event)
            case _ as never:
                assert_never(never)
        self._advance()

    def take_commands(self) -> list[SplitCommand]:
        """Return the commands since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """Return None, because nothing here depends on time."""
        return None

    def handle_deadline(self, *, now: float) -> None:
        """Do nothing, because there are no deadlines."""

    def _add(self, event: RowsAdded) -> None:
        if self._goal is not None:
            raise AssertionError("rows are added when the last ones are answered")
        if not 1 <= event.wanted <= min(self._max_rows, event.length - self._sent):
            raise AssertionError("as many states are wanted as new rows fit one frame")
        self._goal, self._plan = event, None
        if self._attempt < 0:
            self._open(may_resume=False)

    def _truncate(self, length: int) -> None:
        if self._goal is not None:
            raise AssertionError("tokens are dropped when the last rows are answered")
        self._computed = min(self._computed, length)
        self._sent = min(self._sent, length)
        self._answered = min(self._answered, length)
        self._most_sent = min(self._most_sent, length)

    def _end(self) -> None:
        self._is_over, self._goal = True, None
        if self._attempt >= 0:
            self._commands.append(CloseSession())

    def _open(self, *, may_resume: bool) -> None:
        self._attempt += 1
        self._is_open = False
        self._commands.append(OpenSession(self._attempt, may_resume))

    def _handle_opened(self, event: SessionReady) -> None:
        if event.attempt != self._attempt or self._is_open:
            return
        self.counts.sessions += event.is_new
        self._is_open = True
        self._sent = self._answered = min(event.length, self._answered)
        self._next_stop = self._plan = None

    def _handle_lost(self, event: SessionLost) -> None:
        if event.attempt != self._attempt:
            return
        self._unanswered.clear()
        self._next_stop = self._plan = None
        self._open(may_resume=event.may_resume)

    def _handle_states(self, event: StatesArrived) -> None:
        if event.attempt != self._attempt or not self._unanswered:
            return
        rows = self._unanswered.popleft()
        self._answered = rows.stop
        if rows.wanted:
            self.counts.trips += 1
            self._goal = None

    def _advance(self) -> None:
        goal = self._goal
        if goal is None:
            return
        while self._sent < goal.length:
            stop = self._decide_stop(goal)
            if self._computed < stop:
                self._compute(stop)
                return
            if not self._is_open or (self._plan is not None and len(self._unanswered) >= self._plan.max_unanswered):
                return
            self._send(goal, stop)

    def _decide_stop(self, goal: RowsAdded) -> int:
        """Return where the next chunk ends. The last chunk must contain all wanted rows."""
        if self._next_stop is None:
            left = goal.length - self._sent
            if self._plan is None and left > goal.wanted:
                self._plan = self._make_plan(left, max(0, (self._computing or self._computed) - self._sent))
            size = min(left, self._max_rows, left if self._plan is None else max(1, self._plan.size))
            if 0 < left - size < goal.wanted:
                size = left if left <= self._max_rows else left - goal.wanted
            self._next_stop = self._sent + size
        return self._next_stop

    def _compute(self, stop: int) -> None:
        if self._computing is None:
            self._computing = stop
            self._commands.append(ComputeRows(self._computed, stop))

    def _send(self, goal: RowsAdded, stop: int) -> None:
        rows = SendRows(self._attempt, self._sent, stop, goal.wanted if stop == goal.length else 0)
        self._commands.append(rows)
        self._unanswered.append(rows)
        self.counts.chunks += 1
        self.counts.rows += stop - rows.start
        self.counts.repeated += max(0, min(stop, self._most_sent) - rows.start)
        self._sent, self._next_stop = stop, None
        self._most_sent = max(self._most_sent, stop)
