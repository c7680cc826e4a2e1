"""The verifier's side of an answer: its connection, what its context holds, and the round that is out.

Trouble (a lost connection, a refusal) has a beginning; how long it is borne is for whoever asks ``trouble_since``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from streamco.core.speculation.answer import PeerPrefix
from streamco.core.speculation.draft import Round
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    DraftToken,
    ExpectedVerdict,
    SendDraft,
    SpeculationCommand,
    VerdictReceived,
    VerifierConnected,
)
from streamco.errors import StreamcoError

__all__ = ["VerifierChannel"]

VerifierState = Literal["closed", "connecting", "open", "gone"]
"""Not asked for yet; asked for; usable; out for the rest of the answer."""

_RETRY_AFTER = 0.25  # seconds, where a refusal doesn't say
_RETRY_LEAST = 0.02  # seconds, whatever it says: what is asked without end is answered by nobody


class VerifierChannel:
    """What the verifier is at.

    Args:
        say: takes commands.
        verdict_patience: seconds until a verdict that doesn't come means that the connection is dead.
        prompt_patience: the same for the first verdict of a connection, for a prompt is read in it.

    Attributes:
        state: of the connection.
        round: to be judged; None: none.
        failure: why the verifier is out for the rest of the answer; None: it is not, or nobody said.
        trouble_since: when the connection was lost or asked for, or the round first refused; None: all is well.
        refused_until: no draft is taken before.
        is_turned_away: the session was refused, and there has been none since.
        is_new: nothing was judged on this connection yet.
    """

    def __init__(self, say: Callable[[SpeculationCommand], None], *, verdict_patience: float, prompt_patience: float) -> None:
        self.state: VerifierState = "closed"
        self.round: Round | None = None
        self.failure: StreamcoError | None = None
        self.trouble_since: float | None = None
        self.refused_until = 0.0
        self.is_turned_away = False
        self._say = say
        self._verdict_patience = verdict_patience
        self._prompt_patience = prompt_patience
        self._mirror = PeerPrefix()
        self._named: tuple[int, ...] = ()  # with the last ConnectVerifier
        self._last_number = 0
        self.is_new = True

    def connect(self, settled: Sequence[int], *, now: float) -> None:
        """Open the session, or take it up again; a round that was out waits for that."""
        self.state = "connecting"
        self._named = tuple(settled)
        self._begin_trouble(now)
        if self.round is not None:
            self.round.state = "cut"
        self._say(ConnectVerifier(self._named))

    def connected(self, event: VerifierConnected, settled: Sequence[int], *, now: float) -> bool:
        """Return the session is there; gives False where none was asked for."""
        if self.state != "connecting":
            return False
        self.state = "open"
        self.is_new = True
        self.is_turned_away = False
        self._mirror.write(0, self._named[: event.length])
        if self.round is None or self.round.number < 0:
            self.trouble_since = None
        if self.round is not None:
            self._send(self.round, settled, now)
        return True

    def forget(self) -> None:
        """The connection was lost and nobody needs it now; ``connect`` makes another one."""
        self.state = "closed"
        self.is_new = True
        self.trouble_since = None

    def turn_away(self, seconds: float, *, now: float) -> None:
        """The verifier takes no session for so long."""
        self.refused_until = now + seconds
        self.is_turned_away = True

    def submit(self, draft: Sequence[DraftToken], settled: Sequence[int], *, now: float) -> Round:
        """Have this judged, now or as soon as there is a connection."""
        self.round = Round(list(draft))
        if self.state == "open":
            self._send(self.round, settled, now)
        return self.round

    def send_ahead(self, draft: Sequence[DraftToken], accepted: int, token: int, settled: Sequence[int], *, now: float) -> None:
        """Send a draft that is to be judged if the round that is out ends just so. ``settled``: without that."""
        out = self.round
        if out is None or out.state != "out":
            raise AssertionError("a draft is sent ahead of a verdict that is awaited")
        self._last_number += 1
        ahead = out.ahead[accepted, token] = Round(list(draft), number=self._last_number, state="out", sent=now)
        foreseen = ExpectedVerdict(out.number, accepted, token)
        self._say(SendDraft(ahead.number, len(settled) + accepted + 1, (), ahead.ids, _rows(draft), foreseen))

    def accept(self, event: VerdictReceived, settled: Sequence[int]) -> Round | None:
        """Return a verdict came; gives its round, which is over, or None where that was over before. ``settled``: without the verdict.

        The next round is out already where a draft was sent ahead for just this verdict.
        """
        waiting = self.round
        if waiting is None or waiting.state != "out" or waiting.number != event.round:
            return None
        if not 0 <= event.accepted <= len(waiting.draft):
            raise AssertionError(f"a verdict about {len(waiting.draft)} tokens can't accept {event.accepted}")
        token = () if event.token is None else (event.token,)
        base = self._mirror.meet(settled)
        self._mirror.write(base, [*settled[base:], *waiting.ids[: event.accepted], *token])
        self.round = None if event.token is None else waiting.ahead.get((event.accepted, event.token))
        self.trouble_since = None
        self.is_new = False
        return waiting

    def refuse(self, event: DraftRefused, *, now: float) -> bool:
        """Return a draft was refused; gives False where its round was over before."""
        waiting = self.round
        if waiting is None or waiting.state != "out" or waiting.number != event.round:
            return False
        self._begin_trouble(now)
        seconds = _RETRY_AFTER if event.retry_after is None else max(_RETRY_LEAST, event.retry_after)
        waiting.state = "held"
        waiting.ahead.clear()
        waiting.retry_at = self.refused_until = now + seconds
        return True

    def abandon(self) -> Round | None:
        """Give the round up; a verdict that is on its way is over."""
        waiting, self.round = self.round, None
        if self.state == "open":
            self.trouble_since = None
        return waiting

    def fail(self, failure: StreamcoError) -> None:
        """The verifier is out for the rest of the answer."""
        self.state = "gone"
        self.failure = self.failure or failure

    def close(self) -> None:
        """The session is not needed any more."""
        if self.state in {"connecting", "open"}:
            self._say(CloseVerifier())
        self.state = "gone"

    def due(self) -> float | None:
        """When ``retry`` or ``connect`` is to be called; None: never."""
        waiting = self.round
        if waiting is None or waiting.state == "cut":
            return None
        if waiting.state == "held":
            return waiting.retry_at
        return waiting.since + (self._prompt_patience if waiting.is_first else self._verdict_patience)

    def retry(self, settled: Sequence[int], *, now: float) -> None:
        """The time has come: send what was refused again; what got no verdict, on a new connection."""
        waiting = self.round
        if waiting is not None and waiting.state == "held":
            self._send(waiting, settled, now)
        elif waiting is not None:
            self.connect(settled, now=now)

    def _send(self, waiting: Round, settled: Sequence[int], now: float) -> None:
        base = self._mirror.meet(settled)
        given = tuple(settled[base:])
        self._last_number += 1
        waiting.number, waiting.state, waiting.sent = self._last_number, "out", now
        waiting.given, waiting.is_first, waiting.begun = len(given), self.is_new, None
        waiting.ahead.clear()
        self._say(SendDraft(waiting.number, base, given, waiting.ids, _rows(waiting.draft)))

    def _begin_trouble(self, now: float) -> None:
        if self.trouble_since is None:
            self.trouble_since = now


def _rows(draft: Sequence[DraftToken]) -> tuple[object | None, ...]:
    rows = tuple(token.row for token in draft)
    return rows if any(row is not None for row in rows) else ()
