"""A split server in virtual time, which computes rows of many devices in batches that pass through pipeline stages.

The live batch policy forms a batch whenever the first stage is free (HAT 3.2 and 3.3). A stage takes the batch's time divided by the number
of stages, as in equation 3, and batches stay in order. A session's next chunk may follow while the previous one is in a later stage,
because each layer has read the earlier rows by then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import simpy
from msgspec import Struct

from streamco.policies.chunking import ServerLoad
from streamco.policies.serving.batching import BatchContext, BatchPolicy, Kind, Portion, Waiting
from streamco.profiles.row_costs import RowCosts
from streamco.sim.driver import call_at

__all__ = ["BatchSeconds", "SimulatedSplitServer", "SentRows"]

BatchSeconds = Callable[[int, int, int], float]
"""Function that returns the seconds of a batch over all stages, given its rows, its sessions' cached rows, and the number of sessions."""


class SentRows(Struct, kw_only=True):
    """Rows that a device has sent, with a callback for when they have been computed.

    Args:
        session: name that identifies the session.
        device: name of its device.
        kind: ``prefill`` for a prompt's chunk, ``verify`` for the rows of a round.
        position: index of the first row in its sequence. Rows that the server already has from there on were rejected, and it drops them.
        rows: number of rows.
        emit: called when the last stage has computed the last of these rows.
    """

    session: str
    device: str
    kind: Kind
    position: int
    rows: int
    emit: Callable[[], None]


class _Session:
    """A session's cached rows, its waiting rows, and the time since which they have been waiting."""

    __slots__ = ("cached", "messages", "since", "unread")

    def __init__(self) -> None:
        self.cached = 0
        self.unread = 0
        self.messages: deque[tuple[int, SentRows]] = deque()  # each with the number of its rows still to be read
        self.since = 0.0


class SimulatedSplitServer:
    """A split server for many devices in virtual time.

    Args:
        seconds: returns the seconds of a batch.
        costs: seconds of a batch by number of rows, measured before there was any load.
        policy: forms the batches.
        stages: number of pipeline stages.
        is_merged: True if all waiting chunks of a session are one part of a batch, False if they are read one after the other.
        on_batch: called with the rows and the seconds of each batch.

    Attributes:
        load: moving averages of the batches, which are sent to devices (equations 1 and 2).
        stages: number of pipeline stages.
        busy: seconds for which the first stage has been busy.
        rows: number of rows computed.
    """

    def __init__(
        self,
        env: simpy.Environment,
        seconds: BatchSeconds,
        costs: RowCosts,
        policy: BatchPolicy,
        *,
        stages: int = 1,
        is_merged: bool = True,
        on_batch: Callable[[int, float], None] = lambda rows, seconds: None,
    ) -> None:
        self.load = ServerLoad(costs)
        self.stages = stages
        self.busy = 0.0
        self.rows = 0
        self._env = env
        self._seconds = seconds
        self._policy = policy
        self._is_merged = is_merged
        self._on_batch = on_batch
        self._sessions: dict[str, _Session] = {}
        self._served: dict[str, float] = {}
        self._free = [0.0] * stages  # time at which each stage finishes its last batch
        self._is_running = False
        self._verified = 0

    def submit(self, message: SentRows) -> None:
        """Accept rows that arrive now. A session's rows are computed in the order in which they arrive."""
        session = self._sessions.setdefault(message.session, _Session())
        if not session.unread:
            session.since = self._env.now
            present = {other.messages[0][1].device for other in self._sessions.values() if other.messages}
            if message.device not in present:  # an absent device collects no credit
                own = self._served.get(message.device, 0.0)
                self._served[message.device] = max([own, *(self._served[each] for each in present)])
            session.cached = message.position
        session.messages.append((message.rows, message))
        session.unread += message.rows
        self._run_next()

    def close(self, session: str) -> None:
        """Forget a session, which must not have waiting rows."""
        if self._sessions.pop(session, _Session()).unread:
            raise AssertionError(f"{session}: expected a session without waiting rows")

    def _waiting(self) -> list[Waiting]:
        found = [_work(name, session, is_merged=self._is_merged) for name, session in self._sessions.items() if session.unread]
        return sorted(found, key=lambda work: work.since)

    def _run_next(self) -> None:
        if self._is_running:
            return
        now = self._env.now
        state = BatchContext(
            now=now, served=self._served, verified=self._verified, step=lambda rows, context: self._seconds(rows, context, 1)
        )
        batch = self._policy.choose(self._waiting(), state)
        if batch is None:
            return
        self._is_running = True
        self._verified = 0 if batch.kind == "prefill" else self._verified + 1
        context = sum(self._sessions[portion.session].cached for portion in batch.portions)
        rows = sum(portion.tokens for portion in batch.portions)
        seconds = self._seconds(rows, context, len(batch.portions))
        prompts = sum(portion.tokens for portion in batch.portions if self._sessions[portion.session].messages[0][1].kind == "prefill")
        ended = [message for portion in batch.portions for message in self._read(portion)]
        self._pass_stages(rows, prompts, seconds, ended)

    def _pass_stages(self, rows: int, prompt_rows: int, seconds: float, ended: list[SentRows]) -> None:
        """Pass a batch through all stages. The first stage is free for the next batch before the last stage has computed this one."""
        each, moment = seconds / self.stages, self._env.now
        for stage, free in enumerate(self._free):
            moment = max(moment, free) + each
            self._free[stage] = moment
        self.busy += each
        self.rows += rows
        call_at(self._env, self._free[0] - self._env.now, self._release)
        call_at(self._env, moment - self._env.now, lambda: self._end(rows, prompt_rows, seconds, ended))

    def _release(self) -> None:
        self._is_running = False
        self._run_next()

    def _end(self, rows: int, prompt_rows: int, seconds: float, ended: list[SentRows]) -> None:
        self.load.record(rows, seconds, prompt_rows=prompt_rows)
        self._on_batch(rows, seconds)
        for message in ended:
            message.emit()

    def _read(self, portion: Portion) -> list[SentRows]:
        """Count a portion as read, and return the messages that end with it."""
        session, left = self._sessions[portion.session], portion.tokens
        session.cached += left
        session.unread -= left
        self._served[session.messages[0][1].device] += left
        session.since = self._env.now
        ended = []
        while left:
            rows, message = session.messages.popleft()
            if rows > left:
                session.messages.appendleft((rows - left, message))
                break
            left -= rows
            ended.append(message)
        return ended


def _work(name: str, session: _Session, *, is_merged: bool) -> Waiting:
    """Return a session's waiting work: all its chunks together, or its first one, or the rows of its round."""
    rows, first = session.messages[0]
    return Waiting(
        session=name,
        device=first.device,
        kind=first.kind,
        tokens=session.unread if is_merged else rows,
        verify_rows=session.unread if first.kind == "verify" else 0,
        context=session.cached,
        since=session.since,
        due=math.inf,
    )
