"""What every verifier offers: drafts of a small model go in, verdicts of a large one of the same vocabulary come out.

A ``Verifier`` is a server; a ``VerifierSession`` is one answer being made with it. The session takes the speculator's own commands and
tells its events (``streamco.core.speculation.events``), on the event loop and never from inside ``run``. Reconnecting, resuming and trying
again are its business; what a lost round, a refusal or a lasting failure mean for the answer is the speculator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.endpoints.base import Endpoint
from streamco.engines.base import Engine
from streamco.policies.acceptance import Rule, RuleKind

__all__ = ["Emit", "Verifier", "VerifierCommand", "VerifierEvent", "VerifierFacts", "VerifierSession", "continuation_seed"]

VerifierCommand = ConnectVerifier | SendDraft | CloseVerifier
VerifierEvent = VerifierConnected | VerifierLost | VerifierFailed | VerdictReceived | DraftRefused
Emit = Callable[[VerifierEvent], None]


def continuation_seed(seed: int | None, tokens: int) -> int | None:
    """Return the seed of whoever goes on behind so many tokens of an answer: the dice that these fell by aren't thrown once more."""
    return seed if seed is None or not tokens else (seed + 0x9E3779B9 * tokens) & 0xFFFFFFFF


class VerifierFacts(Struct, frozen=True, kw_only=True):
    """What a verifier says of itself once it was asked. Its vocabulary is the draft model's, or there would be none.

    Args:
        model: as the server calls it.
        rules: by which it judges.
        draft_tokens: ids that one round may ask about.
        top_k: ids in each row of a verdict at most; 0: it gives no rows.
        context_tokens: prompt and answer together; None: it doesn't say.
        samples_exactly: sampling keeps the target's distribution whatever its filters; False: only where its top_k is within ``top_k``.
        holds_context: it keeps a session's context; False: every round sends and reads all of it.
        ahead: drafts that may be sent before the verdict that they bet on, behind each round.
    """

    model: str
    rules: frozenset[RuleKind]
    draft_tokens: int
    top_k: int
    context_tokens: int | None = None
    samples_exactly: bool = False
    holds_context: bool = False
    ahead: int = 0

    def is_exact(self, rule: Rule) -> bool:
        """Return True if answers made by this rule are the target's own: token for token where greedy, in distribution where sampled."""
        match rule.kind:
            case RuleKind.GREEDY:
                return True
            case RuleKind.SAMPLE:
                return self.samples_exactly or 0 < rule.top_k <= self.top_k
        return False


class VerifierSession(Protocol):
    """One answer's place at a verifier. All its methods belong to the event loop."""

    @property
    def bytes_up(self) -> int:
        """Sent for this session: frames or request bodies, without the transport's own."""
        ...

    @property
    def bytes_down(self) -> int:
        """Received for this session, counted alike."""
        ...

    @property
    def rounds(self) -> int:
        """Verdicts received."""
        ...

    def run(self, command: VerifierCommand) -> None:
        """Begin what is asked; never blocks, never raises for what the other side does.

        ``ConnectVerifier`` is answered with ``VerifierConnected`` or ``VerifierFailed``. ``SendDraft`` is answered with
        ``VerdictReceived``, ``DraftRefused``, ``VerifierLost`` or ``VerifierFailed``; its rows are ``streamco.wire.verify.topk.TopK``.
        Nothing is told after ``CloseVerifier`` or ``VerifierFailed``.
        """
        ...

    async def aclose(self) -> None:
        """Give the session up and release what it holds; idempotent."""
        ...


class Verifier(Protocol):
    """A server that verifies."""

    @property
    def name(self) -> str:
        """What reports and errors call it."""
        ...

    @property
    def facts(self) -> VerifierFacts | None:
        """What ``probe`` or the first session learned; None: nothing yet."""
        ...

    @property
    def rtt(self) -> float | None:
        """Seconds of a round trip on the link, smoothed; None: not measured."""
        ...

    @property
    def remote(self) -> Endpoint | None:
        """Generates alone behind given ids (``Request.prompt_ids``), by the same model; None: nobody does."""
        ...

    async def start(self, draft: Engine) -> None:
        """Make ready for drafts of this model: imports, its vocabulary. Doesn't fail where the server can't be reached; idempotent."""
        ...

    async def probe(self) -> VerifierFacts:
        """Ask the server what it can, and whether its vocabulary is the draft model's. Comes behind ``start``.

        Raises:
            EndpointError: it can't be reached, or answers something else than such servers do.
            VerifierError: it refuses, has another vocabulary, or can't verify.
        """
        ...

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> VerifierSession:
        """Return a session for one answer; nothing happens before its first ``ConnectVerifier``. Comes behind ``start``.

        Args:
            prompt_ids: the context without the answer.
            emit: is told what happens.
            rule: how drafts are judged.
            top_k: ids in each row of its verdicts; 0: no rows. Cut to what the verifier gives.
            reserve: tokens that prompt and answer will reach at most; 0: not known.
        """
        ...

    async def aclose(self) -> None:
        """Close every session and connection; idempotent."""
        ...
