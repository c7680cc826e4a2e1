"""The interface of verifiers: drafts from a small model go in, verdicts from a large one with the same vocabulary come out.

A ``Verifier`` is a server; a ``VerifierSession`` is one answer's session there. The session accepts the speculator's commands and emits its
events (``streamco.core.speculation.events``), on the event loop and never from inside ``run``. It reconnects, resumes and retries by
itself. The speculator decides what a lost round, a refusal or a lasting failure means for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from streamco.config import Timeouts
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
from streamco.endpoints.base import Endpoint, Request
from streamco.engines.base import TokenVocabulary
from streamco.policies.acceptance import Rule, RuleKind
from streamco.profiles.row_costs import RowCosts

if TYPE_CHECKING:
    from streamco.endpoints.served_vocabulary import ServedVocabulary

__all__ = [
    "Emit",
    "TellsVocabulary",
    "Verifier",
    "VerifierCommand",
    "VerifierEvent",
    "VerifierFacts",
    "VerifierSession",
    "continuation_seed",
]

VerifierCommand = ConnectVerifier | SendDraft | CloseVerifier
VerifierEvent = VerifierConnected | VerifierLost | VerifierFailed | VerdictReceived | DraftRefused
Emit = Callable[[VerifierEvent], None]


def continuation_seed(seed: int | None, tokens: int) -> int | None:
    """Return the seed for continuing an answer after ``tokens`` tokens, so that the random draws for these tokens aren't repeated.

    Args:
        seed: the answer's seed; if it is None, the continuation has no seed either.
        tokens: number of tokens that the answer already has.
    """
    return seed if seed is None or not tokens else (seed + 0x9E3779B9 * tokens) & 0xFFFFFFFF


class VerifierFacts(Struct, frozen=True, kw_only=True):
    """Facts that a verifier reported when it was probed. Its vocabulary is the same as the draft model's; otherwise it couldn't verify.

    Args:
        model: the target model's name at the server.
        rules: the rules by which drafts can be verified.
        draft_tokens: maximum number of ids in the draft of one round.
        top_k: maximum number of ids in each row of a verdict; 0 if verdicts have no rows.
        context_tokens: size of the context, prompt and answer together, or None if the server doesn't say.
        samples_exactly: True if sampling keeps the target's distribution with every filter; False if it does so only with a rule whose
            top_k is at most ``top_k``.
        holds_context: True if the server keeps a session's context; False if every round sends and reads all of it.
        max_ahead: number of drafts that may be sent in advance after each round.
        row_costs: seconds that a verification takes without other load, by its number of rows, or None if the server doesn't say.
        max_paths: maximum number of paths in the draft of one round; 1 for chains only.
    """

    model: str
    rules: frozenset[RuleKind]
    draft_tokens: int
    top_k: int
    context_tokens: int | None = None
    samples_exactly: bool = False
    holds_context: bool = False
    max_ahead: int = 0
    row_costs: RowCosts | None = None
    max_paths: int = 1

    def is_exact(self, rule: Rule) -> bool:
        """Return True if answers under this rule are the same as the target's own.

        Greedy answers are the same token for token, and sampled answers have the same distribution.
        """
        match rule.kind:
            case RuleKind.GREEDY:
                return True
            case RuleKind.SAMPLE:
                return self.samples_exactly or 0 < rule.top_k <= self.top_k
        return False


class VerifierSession(Protocol):
    """One answer's session at a verifier. Its methods must be called on the event loop."""

    @property
    def bytes_up(self) -> int:
        """Bytes sent for this session: frames or request bodies, without the transport's overhead."""
        ...

    @property
    def bytes_down(self) -> int:
        """Bytes received for this session, counted as in ``bytes_up``."""
        ...

    @property
    def rounds(self) -> int:
        """Number of verdicts received."""
        ...

    def run(self, command: VerifierCommand) -> None:
        """Start carrying out a command; never blocks, and never raises an error because of the server.

        ``ConnectVerifier`` is followed by ``VerifierConnected`` or ``VerifierFailed``. ``SendDraft`` is followed by ``VerdictReceived``,
        ``DraftRefused``, ``VerifierLost`` or ``VerifierFailed``; a verdict's rows are ``streamco.wire.verify.topk.TopK``. Nothing is
        emitted after ``CloseVerifier`` or ``VerifierFailed``.
        """
        ...

    async def aclose(self) -> None:
        """End the session and release its resources; idempotent."""
        ...


class Verifier(Protocol):
    """A server that verifies drafts."""

    @property
    def name(self) -> str:
        """Name in reports and errors."""
        ...

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts from ``probe`` or the first session, or None if there are none yet."""
        ...

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time of the connection in seconds, or None if not measured."""
        ...

    @property
    def timeouts(self) -> Timeouts:
        """Limits by phase, in seconds, which also limit how long an answer may be silent."""
        ...

    @property
    def remote(self) -> Endpoint | None:
        """An endpoint with the same model that continues given ids (``Request.prompt_ids``) without drafts, or None."""
        ...

    async def start(self, draft: TokenVocabulary) -> None:
        """Prepare for drafts in this vocabulary: the draft model's, or the server's own. Idempotent.

        Doesn't fail if the server can't be reached.
        """
        ...

    async def probe(self) -> VerifierFacts:
        """Ask the server for its facts, and check that its vocabulary is the draft model's. Must be called after ``start``.

        Raises:
            EndpointError: the server can't be reached, or doesn't respond like a verifier.
            VerifierError: the server refuses, has another vocabulary, or can't verify.
        """
        ...

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> VerifierSession:
        """Return a session for one answer; nothing happens before its first ``ConnectVerifier``. Must be called after ``start``.

        Args:
            prompt_ids: the context without the answer.
            emit: called with each event.
            rule: how drafts are verified.
            top_k: number of ids wanted in each row of a verdict, up to the verifier's maximum; 0 for no rows.
            reserve: maximum number of tokens that prompt and answer will have together, or 0 if not known.
        """
        ...

    async def aclose(self) -> None:
        """Close every session and connection; idempotent."""
        ...


@runtime_checkable
class TellsVocabulary(Protocol):
    """A verifier that can send its vocabulary, so that the client needs no model for drafts."""

    async def read_vocabulary(self) -> ServedVocabulary:
        """Return the vocabulary. May be called before ``Verifier.start``.

        Raises:
            EndpointError: the server doesn't send it.
            VerifierError: the server can't send it.
        """
        ...

    async def read_prompt(self, request: Request, within: float) -> list[int]:
        """Return the token ids of a request's prompt, as the server reads it. Must be called after ``Verifier.start``.

        Args:
            request: the request.
            within: time limit in seconds.

        Raises:
            EndpointError: the server doesn't respond in time, or rejects the prompt.
        """
        ...
