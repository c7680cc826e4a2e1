"""The interface of every verifier: drafts of a small model go in, verdicts of a large one of the same vocabulary come out.

A ``Verifier`` is a server; a ``VerifierSession`` is one answer made with it. The session takes the speculator's own commands and emits its
events (``streamco.core.speculation.events``), on the event loop and never from inside ``run``. It reconnects, resumes and tries again by
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
    """Return the seed for an answer that continues after ``tokens`` tokens, so that their random draws are not used again.

    Args:
        seed: the answer's seed. None: it has none, and so has the continuation.
        tokens: tokens of the answer that are made.
    """
    return seed if seed is None or not tokens else (seed + 0x9E3779B9 * tokens) & 0xFFFFFFFF


class VerifierFacts(Struct, frozen=True, kw_only=True):
    """Facts that a verifier gave when it was probed. Its vocabulary is the draft model's, else it could not verify.

    Args:
        model: the target model's name at the server.
        rules: the rules that drafts can be verified by.
        draft_tokens: most ids in the draft of one round.
        top_k: most ids in each row of a verdict; 0: verdicts have no rows.
        context_tokens: size of the context, prompt and answer together. None: the server doesn't say.
        samples_exactly: sampling keeps the target's distribution with every filter; False: only if the target's top_k is within ``top_k``.
        holds_context: the server keeps a session's context; False: every round sends and reads all of it.
        max_ahead: drafts that may be sent ahead after each round.
        row_costs: seconds of a verification by its rows, without load; None: the server doesn't say.
        max_paths: most paths in the draft of one round; 1: chains alone.
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
        """Return True if this rule keeps answers the target's own.

        Greedy answers are its own token for token, sampled ones in distribution.
        """
        match rule.kind:
            case RuleKind.GREEDY:
                return True
            case RuleKind.SAMPLE:
                return self.samples_exactly or 0 < rule.top_k <= self.top_k
        return False


class VerifierSession(Protocol):
    """One answer's session at a verifier. All its methods belong to the event loop."""

    @property
    def bytes_up(self) -> int:
        """Bytes sent for this session: frames or request bodies, without the transport's own."""
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
        """Begin a command; never blocks, and never raises because of the server.

        ``ConnectVerifier`` is answered with ``VerifierConnected`` or ``VerifierFailed``. ``SendDraft`` is answered with
        ``VerdictReceived``, ``DraftRefused``, ``VerifierLost`` or ``VerifierFailed``. Its rows are
        ``streamco.wire.verify.topk.TopK``. Nothing is emitted after ``CloseVerifier`` or ``VerifierFailed``.
        """
        ...

    async def aclose(self) -> None:
        """End the session and release what it holds; idempotent."""
        ...


class Verifier(Protocol):
    """A server that verifies drafts."""

    @property
    def name(self) -> str:
        """Name in reports and errors."""
        ...

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts from ``probe`` or the first session. None: there are none yet."""
        ...

    @property
    def rtt(self) -> float | None:
        """Round-trip time of the connection in seconds, smoothed. None: not measured."""
        ...

    @property
    def timeouts(self) -> Timeouts:
        """Limits by phase, in seconds, which bound the silence of an answer, too."""
        ...

    @property
    def remote(self) -> Endpoint | None:
        """Endpoint of the same model that generates without drafts, after given ids (``Request.prompt_ids``). None: there is none."""
        ...

    async def start(self, draft: TokenVocabulary) -> None:
        """Prepare for drafts of this vocabulary: the draft model's, or the server's own. Idempotent.

        Doesn't fail if the server can't be reached.
        """
        ...

    async def probe(self) -> VerifierFacts:
        """Ask the server for its facts, and whether its vocabulary is the draft model's. Must come after ``start``.

        Raises:
            EndpointError: the server can't be reached, or its answer is not a verifier's.
            VerifierError: the server refuses, has another vocabulary, or can't verify.
        """
        ...

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> VerifierSession:
        """Return a session for one answer; nothing happens before its first ``ConnectVerifier``. Must come after ``start``.

        Args:
            prompt_ids: the context without the answer.
            emit: called with each event.
            rule: how drafts are verified.
            top_k: ids wanted in each row of a verdict, cut to what the verifier gives; 0: no rows.
            reserve: most tokens that prompt and answer will have together; 0: not known.
        """
        ...

    async def aclose(self) -> None:
        """Close every session and connection; idempotent."""
        ...


@runtime_checkable
class TellsVocabulary(Protocol):
    """A verifier that tells its vocabulary, so that drafts need no model of the client's."""

    async def read_vocabulary(self) -> ServedVocabulary:
        """Return the vocabulary. May come before ``Verifier.start``.

        Raises:
            EndpointError: the server doesn't tell it.
            VerifierError: it can't.
        """
        ...

    async def read_prompt(self, request: Request, within: float) -> list[int]:
        """Return the token ids of a request's prompt, as the server reads it. Must come after ``Verifier.start``.

        Args:
            request: the request.
            within: seconds that the server may take.

        Raises:
            EndpointError: the server doesn't answer in time, or refuses the prompt.
        """
        ...
