"""One answer's view of the verifier: the session, the tokens in its context, and the round that is out.

    closed ── connect ──> connecting ── connected ──> open ── lost ──> connecting or closed
    any state ── failed, or the answer has ended ──> gone

Trouble is a lost connection or a refusal. ``trouble_since`` says when it began, and ``ModeSelector`` decides how long it may last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from streamco.core.speculation.answer import PeerPrefix
from streamco.core.speculation.draft import Round
from streamco.core.speculation.estimates import SpeculationEstimates
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
from streamco.errors import StreamcoError, VerifierError
from streamco.policies.drafts.tree_drafts import Sibling

__all__ = ["VerifierChannel", "record_outcome", "record_wait"]

VerifierState = Literal["closed", "connecting", "open", "gone"]
"""Whether the session has not been requested, has been requested, is usable, or can't be used for the rest of the answer."""

_RETRY_AFTER = 0.25  # seconds until a refused draft is sent again, if the refusal gives no time
_MAX_GIVEN = 64  # a round with more given tokens to read first doesn't show how long verdicts take
_MAX_PRICED = 4  # a round with more given tokens has a different mix of rows, so it doesn't show how long rows take
_MIN_RETRY_AFTER = 0.02  # seconds, whatever the refusal says, because endless retries would load the verifier even more


class VerifierChannel:
    """The verifier session of one answer, and the round that it is verifying.

    Args:
        emit: called with each command.
        first_verdict_timeout: seconds to wait for a connection's first verdict before the connection counts as dead. This must include
            the time to read a prompt.
        verdict_timeout: the same for later verdicts.

    Attributes:
        state: state of the session.
        round: the round that awaits its verdict; None if there is none.
        failure: why the verifier can't be used for the rest of the answer; None if it can, or no reason is known.
        trouble_since: when the connection was lost or requested, or the round was first refused, in seconds; None if there is no trouble.
        refused_until: time until which the verifier accepts no draft, in seconds.
        is_session_refused: True if the session was refused and hasn't been opened since.
        is_new: True if no draft has been verified on this connection yet.
    """

    def __init__(self, emit: Callable[[SpeculationCommand], None], *, first_verdict_timeout: float, verdict_timeout: float) -> None:
        self.state: VerifierState = "closed"
        self.round: Round | None = None
        self.failure: StreamcoError | None = None
        self.trouble_since: float | None = None
        self.refused_until = 0.0
        self.is_session_refused = False
        self.is_new = True
        self._emit = emit
        self._first_verdict_timeout = first_verdict_timeout
        self._verdict_timeout = verdict_timeout
        self._peer = PeerPrefix()
        self._offered: tuple[int, ...] = ()  # the answer in the last ConnectVerifier
        self._last_number = 0

    # The connection

    def connect(self, committed: Sequence[int], *, now: float) -> None:
        """Open the session, or resume it. A round that was out waits for the connection."""
        self.state = "connecting"
        self._offered = tuple(committed)
        self._start_trouble(now)
        if self.round is not None:
            self.round.record_lost_connection()
        self._emit(ConnectVerifier(self._offered))

    def record_connected(self, event: VerifierConnected, committed: Sequence[int], *, now: float) -> bool:
        """Record that the session is open, and send the waiting round if there is one. Return False if no session was requested."""
        if self.state != "connecting":
            return False
        self.state = "open"
        self.is_new = True
        self.is_session_refused = False
        self._peer.update(0, self._offered[: event.length])
        if self.round is None or self.round.number < 0:
            self.trouble_since = None
        if self.round is not None:
            self._send(self.round, committed, now)
        return True

    def record_lost(self) -> None:
        """Record that the connection is lost but isn't needed now. ``connect`` makes another one."""
        self.state = "closed"
        self.is_new = True
        self.trouble_since = None

    def record_session_refused(self, seconds: float, *, now: float) -> None:
        """Record that the verifier accepts no session for the next ``seconds``."""
        self.refused_until = now + seconds
        self.is_session_refused = True

    def fail(self, failure: StreamcoError) -> None:
        """Stop using the verifier in this answer."""
        self.state = "gone"
        self.failure = self.failure or failure

    def close(self) -> None:
        """Close the session, because the answer has ended."""
        if self.state in {"connecting", "open"}:
            self._emit(CloseVerifier())
        self.state = "gone"

    def give_up(self) -> None:
        """Close the session and stop using the verifier, because it gave no verdict within the patience."""
        self.close()
        self.fail(VerifierError("verifier: expected a verdict within the patience, got none"))

    # The round

    def submit(self, draft: Sequence[DraftToken], committed: Sequence[int], *, siblings: tuple[Sibling, ...] = (), now: float) -> Round:
        """Send a draft and its siblings to the verifier, now or as soon as there is a connection, and return their round."""
        self.round = Round(list(draft), siblings=siblings)
        if self.state == "open":
            self._send(self.round, committed, now)
        return self.round

    def send_ahead(self, draft: Sequence[DraftToken], accepted: int, token: int, committed: Sequence[int], *, now: float) -> None:
        """Send a draft that is verified only if the round that is out ends with exactly this verdict.

        Args:
            draft: tokens after that verdict.
            accepted: how many tokens the verdict accepts; in a tree, the number of the last accepted token.
            token: the token after them.
            committed: the answer without that verdict.
        """
        out = self.round
        if out is None or out.state != "sent":
            raise AssertionError("a draft is sent ahead of a verdict that is awaited")
        self._last_number += 1
        ahead = out.ahead[accepted, token] = Round(list(draft), number=self._last_number, state="sent", sent=now)
        expected = ExpectedVerdict(out.number, accepted, token)
        base = len(committed) + len(out.accepted_ids(accepted)) + 1
        self._emit(SendDraft(ahead.number, base, (), ahead.ids, _rows(ahead), expected))

    def accept_verdict(self, event: VerdictReceived, committed: Sequence[int]) -> Round | None:
        """Accept a verdict and return the round that it ends, or None if that round had already ended.

        If a draft was sent early for exactly this verdict, ``round`` becomes that draft's round.

        Args:
            event: the verdict.
            committed: the answer without the verdict.
        """
        out = self.round
        if out is None or out.state != "sent" or out.number != event.round:
            return None
        if not 0 <= event.accepted <= len(out.sent_ids):
            raise AssertionError(f"a verdict about {len(out.sent_ids)} tokens can't accept {event.accepted}")
        token = () if event.token is None else (event.token,)
        base = self._peer.common_length(committed)
        self._peer.update(base, [*committed[base:], *out.accepted_ids(event.accepted), *token])
        self.round = None if event.token is None else out.ahead.get((event.accepted, event.token))
        self.trouble_since = None
        self.is_new = False
        return out

    def record_refusal(self, event: DraftRefused, *, now: float) -> bool:
        """Record that the verifier refused the draft, and return False if its round had already ended."""
        out = self.round
        if out is None or out.state != "sent" or out.number != event.round:
            return False
        self._start_trouble(now)
        seconds = _RETRY_AFTER if event.retry_after is None else max(_MIN_RETRY_AFTER, event.retry_after)
        self.refused_until = now + seconds
        out.record_refusal(self.refused_until)
        return True

    def abandon_round(self) -> Round | None:
        """Give up the round and return it. If its verdict still arrives, it is ignored."""
        out, self.round = self.round, None
        if self.state == "open":
            self.trouble_since = None
        return out

    def next_deadline(self) -> float | None:
        """Return when ``retry`` must be called, in seconds, or None if nothing has to be retried."""
        out = self.round
        if out is None or out.state == "unsent":
            return None
        if out.state == "refused":
            return out.retry_at
        return out.awaited_since + (self._first_verdict_timeout if out.is_first else self._verdict_timeout)

    def retry(self, committed: Sequence[int], *, now: float) -> None:
        """Send a refused draft again. If a verdict did not arrive in time, open a new connection for its draft."""
        out = self.round
        if out is not None and out.state == "refused":
            self._send(out, committed, now)
        elif out is not None:
            self.connect(committed, now=now)

    def _send(self, out: Round, committed: Sequence[int], now: float) -> None:
        base = self._peer.common_length(committed)
        given = tuple(committed[base:])
        self._last_number += 1
        out.record_sent(self._last_number, len(given), is_first=self.is_new, now=now)
        self._emit(SendDraft(out.number, base, given, out.sent_ids, _rows(out), parents=out.parents))

    def _start_trouble(self, now: float) -> None:
        if self.trouble_since is None:
            self.trouble_since = now


def record_wait(estimates: SpeculationEstimates, out: Round, event: VerdictReceived, *, prompt_time: float, now: float) -> None:
    """Record how long a verdict took or, for a connection's first round, how long the session took to open."""
    if out.given <= _MAX_GIVEN and not out.is_first:
        seconds = event.queue_seconds + event.compute_seconds
        # A round that was sent ahead hid its round trip, so its own waiting time says less than a whole one.
        waited = estimates.rtt + seconds if out.was_ahead else now - out.sent
        read = out.given if out.given > _MAX_PRICED else 0
        computed = (out.given - read + len(out.sent_ids) + 1, event.compute_seconds)
        estimates.record_wait(waited, queue_depth=event.queue_depth, server_seconds=seconds, computed=computed, read=read)
    elif out.is_first and prompt_time > 0.0:
        estimates.record_opening(max(0.0, now - out.sent - estimates.wait) / prompt_time)


def record_outcome(estimates: SpeculationEstimates, out: Round, event: VerdictReceived, *, is_hit: bool | None) -> None:
    """Record the verdict on a round's draft. ``is_hit`` says whether a branch was adopted; None if there were no branches."""
    has_sibling = out.sibling(event.accepted) is not None
    estimates.record_verdict(out.confidences, out.position(event.accepted), is_hit=is_hit, has_sibling=has_sibling)


def _rows(out: Round) -> tuple[object | None, ...]:
    """Return the row of each token, which is None for siblings because they were not sampled. Return () for greedy decoding."""
    rows = tuple(token.row for token in out.draft)
    return (*rows, *(None for _ in out.siblings)) if any(row is not None for row in rows) else ()
