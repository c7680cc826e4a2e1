"""One answer at a server that verifies with log-probabilities: its context, its rounds, and its verdicts from the server's scores."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, assert_never

from streamco.core.speculation.events import (
    Candidates,
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.endpoints.retry import Backoff, is_transient
from streamco.endpoints.verifiers.base import Emit, VerifierCommand, VerifierFacts
from streamco.engines.sampling import candidates
from streamco.errors import EndpointError, EndpointStatusError, EndpointTimeoutError, StreamcoError, UsageError, VerifierError
from streamco.policies.acceptance import Distribution, Rule, RuleKind, Verdict, verify
from streamco.wire.prompt_logprobs import PositionLogprobs, PromptLogprobs
from streamco.wire.verify.topk import TopK

__all__ = ["Scorer", "LogprobSession", "verify_logprobs"]

_BACKOFF = (0.2, 5.0)  # seconds: `first` and `max_wait` of `Backoff`
_BUSY = frozenset({408, 425, 429, 503})  # statuses that refuse a draft and change nothing else


class Scorer(Protocol):
    """The server's interface for its sessions."""

    @property
    def name(self) -> str:
        """Name in errors."""
        ...

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts from the last probe, or None if not yet probed."""
        ...

    @property
    def rtt(self) -> float | None:
        """Seconds that a small request took, or None if not measured."""
        ...

    async def probe(self) -> VerifierFacts:
        """Ask the server for its facts; see ``Verifier.probe``."""
        ...

    async def check(self) -> None:
        """Send the server a small request.

        Raises:
            EndpointError: the server doesn't respond.
        """
        ...

    async def score(self, ids: Sequence[int], pending: int, *, top: int) -> tuple[PromptLogprobs, int, int]:
        """Return the scores of the last ``pending`` ids and of the position after them, and the bytes sent and received.

        Args:
            ids: context and draft.
            pending: number of ids to score.
            top: number of ids wanted in each row.

        Raises:
            EndpointError: the server doesn't respond, or refuses the request.
            VerifierError: its response has no scores.
        """
        ...


class LogprobSession:
    """One answer at a server that verifies with log-probabilities. Implements ``VerifierSession``.

    Args:
        verifier: the server.
        prompt_ids, emit, rule, top_k: see ``Verifier.open``.
        rng: random generator, used if the rule has no seed.
    """

    def __init__(self, verifier: Scorer, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int, rng: random.Random) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self.rounds = 0
        self.is_over = False
        self._verifier = verifier
        self._prompt = tuple(prompt_ids)
        self._context = list(prompt_ids)
        self._emit = emit
        self._rule = rule
        self._top_k = top_k
        self._rng = random.Random(rule.seed) if rule.seed is not None else rng
        self._was_lost = False
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, command: VerifierCommand) -> None:
        """Start carrying out a command; see ``VerifierSession.run``.

        Raises:
            UsageError: a draft begins after the end of the context.
        """
        if self.is_over:
            return
        match command:
            case ConnectVerifier(ids):
                self._was_lost = self._was_lost or self._is_running()  # the speculator gave up on it: does the server still respond?
                self._begin(self._connect(ids))
            case SendDraft():
                base = len(self._prompt) + command.base
                if base > len(self._context):
                    raise UsageError(f"draft: expected a base of at most {len(self._context) - len(self._prompt)}, got {command.base}")
                self._begin(self._verify(command, [*self._context[:base], *command.given]))
            case CloseVerifier():
                self._end()
            case _ as never:
                assert_never(never)

    async def aclose(self) -> None:
        """End the session; idempotent. A round in progress is cancelled, and its connection closed."""
        self._end()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._cancel()
        task = asyncio.get_running_loop().create_task(work, name=f"streamco verifier session {self._verifier.name}")
        self._task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_running(self) -> bool:
        return self._task is not None and not self._task.done() and self._task is not asyncio.current_task()

    def _cancel(self) -> None:
        if self._task is not None and self._is_running():
            self._task.cancel()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._cancel()

    def _fail(self, error: StreamcoError) -> None:
        self._end()
        self._emit(VerifierFailed(error))

    async def _connect(self, ids: Sequence[int]) -> None:
        backoff = Backoff(*_BACKOFF, random.Random())
        while True:
            try:
                if self._verifier.facts is None:
                    await self._verifier.probe()
                elif self._was_lost:
                    await self._verifier.check()
            except EndpointError as error:
                if not is_transient(error):
                    self._fail(error)
                    return
                await asyncio.sleep(backoff.next_wait(getattr(error, "retry_after", None)))
            except StreamcoError as error:
                self._fail(error)
                return
            else:
                self._context = [*self._prompt, *ids]
                self._was_lost = False
                self._emit(VerifierConnected(len(ids)))
                return

    async def _verify(self, command: SendDraft, context: list[int]) -> None:
        facts = self._verifier.facts
        if facts is None or self._was_lost:
            return  # VerifierLost was emitted
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            ids = [*context, *command.ids]
            if facts.context_tokens is not None and len(ids) >= facts.context_tokens:
                raise VerifierError(f"context: expected less than {facts.context_tokens} tokens, draft included, got {len(ids)}")
            scores, up, down = await self._verifier.score(ids, len(command.ids), top=self._top(facts))
            self.bytes_up += up
            self.bytes_down += down
            rows = [row for row in command.rows if isinstance(row, TopK)]
            verdict = verify_logprobs(self._rule, command.ids, rows, scores, self._rng)
        except EndpointError as error:
            self._handle_error(error, command.round)
            return
        except StreamcoError as error:
            self._fail(error)
            return
        self.rounds += 1
        self._context = [*context, *command.ids[: verdict.accepted], verdict.token]
        self._emit(
            VerdictReceived(
                round=command.round,
                accepted=verdict.accepted,
                token=verdict.token,
                rows=tuple(_candidates(position, self._rule, self._top_k) for position in scores.positions) if self._top_k else (),
                compute_seconds=max(0.0, loop.time() - started - (self._verifier.rtt or 0.0)),
            )
        )

    def _top(self, facts: VerifierFacts) -> int:
        """Return how many ids to request in a row: enough for the verdict's rows and for a draw."""
        drawn = 0
        if self._rule.kind is RuleKind.SAMPLE:
            drawn = self._rule.top_k or facts.top_k
        return max(1, min(max(self._top_k, drawn), facts.top_k))

    def _handle_error(self, error: EndpointError, number: int) -> None:
        if isinstance(error, EndpointStatusError) and error.status in _BUSY:
            self._emit(DraftRefused(number, error.retry_after))
        elif is_transient(error) or isinstance(error, EndpointTimeoutError):
            self._was_lost = True
            self._emit(VerifierLost())
        else:
            self._fail(error)


def verify_logprobs(rule: Rule, draft: Sequence[int], rows: Sequence[TopK], scores: PromptLogprobs, rng: random.Random) -> Verdict:
    """Compute the verdict of ``policies.acceptance.verify`` from a target's log-probabilities.

    Args:
        rule: how tokens are accepted.
        draft: ids, shape (window,).
        rows: the row that each token was drawn from, shape (window,); used only by the rule "sample".
        scores: the target's scores, shape (window + 1,).
        rng: random generator for the rule "sample".

    Raises:
        ConfigError: the rule is "sample" but there are no rows.
    """
    drafted_from = [row.distribution() for row in rows]
    return verify(rule, draft, drafted_from, [_ScoredRow(position) for position in scores.positions], rng)


class _ScoredRow:
    """The target's row at one position, as far as its server reports it. Implements ``TargetRow``."""

    __slots__ = ("_position", "best")

    def __init__(self, position: PositionLogprobs) -> None:
        self.best = position.best
        self._position = position

    def distribution(self, rule: Rule, /) -> Distribution:
        """Return the rule's distribution over the ids that the server reported."""
        return _distribution(self._position, rule)


def _distribution(position: PositionLogprobs, rule: Rule) -> Distribution:
    """Return the distribution that a token is drawn from, which is the reported ids after the target's filters."""
    import numpy as np

    logits = np.array([max(value, -1e4) for value in position.logprobs], dtype=np.float32)
    indices, shares = candidates(logits, temperature=rule.temperature, top_k=rule.top_k, top_p=rule.top_p, min_p=rule.min_p)
    return Distribution(np.array(position.ids)[indices], shares)


def _candidates(position: PositionLogprobs, rule: Rule, count: int) -> Candidates:
    """Return the likeliest ids with their probabilities, or with their shares among the reported ids if the temperature isn't 1."""
    if rule.kind is RuleKind.SAMPLE and rule.temperature != 1.0:
        reported = _distribution(position, Rule(RuleKind.SAMPLE, rule.temperature))
        return tuple(zip(reported.ids.tolist(), reported.probabilities.tolist(), strict=True))[:count]
    return tuple((token, min(1.0, math.exp(value))) for token, value in zip(position.ids, position.logprobs, strict=True))[:count]
