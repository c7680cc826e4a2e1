"""Uses several verifiers with the same model as one; a routing policy chooses one of them for each answer (DSD section 3.4).

An answer stays with its verifier, which has the context in memory. If that verifier fails, is unreachable or doesn't accept a session,
another one reads the context and continues the answer. A verifier that failed is left out until it responds again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import reduce
from random import Random
from time import monotonic

from streamco.config import Timeouts
from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.network.credentials import ApiKey
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.endpoints.served_vocabulary import ServedVocabulary
from streamco.endpoints.verifiers.base import Emit, TellsVocabulary, Verifier, VerifierFacts, VerifierSession
from streamco.endpoints.verifiers.pool_member import PoolMember
from streamco.endpoints.verifiers.pool_session import AssignedVerifier
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.engines.base import TokenVocabulary
from streamco.errors import ConfigError, EndpointError, EndpointStatusError, EndpointTimeoutError, StreamcoError, VerifierError
from streamco.policies.acceptance import Rule
from streamco.policies.serving.routing import ShortestQueue, routing_policy

__all__ = ["VerifierPool"]

_RETRY_AFTER = 30.0  # seconds after which a left-out verifier is probed again
_LATE_SECONDS = 2.0  # seconds for the others to reply to the first probe once one has replied


class _Probes(LoopState):
    """The probes of left-out verifiers on one event loop."""

    def __init__(self) -> None:
        self.tasks: dict[PoolMember, asyncio.Task[None]] = {}

    async def aclose(self) -> None:
        """Cancel the probes and wait until they have ended; see ``LoopState``."""
        for task in (tasks := list(self.tasks.values())):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class VerifierPool:
    """Several verifiers with the same model, among which answers are distributed. Implements ``Verifier``.

    Args:
        verifiers: URLs of ``streamco serve``, or verifiers; all with the same model.
        routing: "join-shortest-queue" (or "jsq") chooses the verifier with the fewest waiting verifications, according to its last verdict,
            plus this client's answers there; "in-order" chooses the first one that works; the others are "round-robin", "random" and
            "power-of-two-choices".
        token: bearer token for the URLs, or a sync or async function that returns the token for each connection, or None.
        retry_after: seconds after which a left-out verifier is probed again.
        rng: random generator for choosing verifiers; by default one with a random seed.

    Raises:
        ConfigError: there is no verifier, two have the same name, the routing is unknown, or a URL is malformed.
    """

    def __init__(
        self,
        verifiers: Sequence[str | Verifier],
        *,
        routing: str = ShortestQueue.name,
        token: ApiKey | None = None,
        retry_after: float = _RETRY_AFTER,
        rng: Random | None = None,
    ) -> None:
        if isinstance(verifiers, str) or not verifiers:
            raise ConfigError(f"verifier: expected a list of one verifier or more, got {verifiers!r}")
        if not retry_after > 0.0:
            raise ConfigError(f"verifier: retry_after: expected more than 0 s, got {retry_after:g}")
        self.members = tuple(PoolMember(VerifierEndpoint(each, token=token) if isinstance(each, str) else each) for each in verifiers)
        names = [member.name for member in self.members]
        if len(set(names)) < len(names):
            raise ConfigError(f"verifier: expected verifiers with different names, got {', '.join(names)}")
        self._routing = routing_policy(routing)
        self._retry_after = retry_after
        self._rng = rng or Random()
        self._model: str | None = None  # the model of all of them
        self._probes = LoopBound(_Probes, owner="verifier")
        self._is_closed = False

    # The pool as a verifier

    @property
    def name(self) -> str:
        """Names of all verifiers."""
        return " or ".join(member.name for member in self.members)

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts that apply to every verifier that was probed, so that an answer may move between them; None if none was."""
        model = self._common_model()
        known = [facts for member in self.members if (facts := member.verifier.facts) is not None and facts.model == model]
        return reduce(_common, known) if known else None

    @property
    def rtt(self) -> float | None:
        """Mean round-trip time of the working verifiers in seconds, or None if not measured."""
        times = [rtt for member in self.members if not member.problem and (rtt := member.verifier.rtt) is not None]
        return sum(times) / len(times) if times else None

    @property
    def timeouts(self) -> Timeouts:
        """Limits of the first verifier, in seconds; an answer uses its own verifier's limits."""
        return self.members[0].verifier.timeouts

    @property
    def remote(self) -> Endpoint | None:
        """Remote endpoint of the first working verifier; an answer uses its own verifier's endpoint."""
        return next((member.verifier.remote for member in self.members if not member.problem), None)

    async def start(self, draft: TokenVocabulary) -> None:
        """Prepare all verifiers for drafts of this model; see ``Verifier.start``."""
        self._probes.get()
        for member in self.members:
            await member.verifier.start(draft)

    async def read_vocabulary(self) -> ServedVocabulary:
        """Return the vocabulary of the first verifier that sends it; see ``TellsVocabulary``.

        Raises:
            EndpointError: the first one's error, if all fail.
            VerifierError: none of them is a ``streamco serve``.
        """
        failure: EndpointError | None = None
        for member in self.members:
            if isinstance(member.verifier, TellsVocabulary):
                try:
                    return await member.verifier.read_vocabulary()
                except EndpointError as error:
                    failure = failure or error
        raise failure or VerifierError(f"{self.name}: expected a verifier that tells its vocabulary (streamco serve), got none")

    async def read_prompt(self, request: Request, within: float) -> list[int]:
        """Return the token ids of a request's prompt, as read by any working verifier; see ``TellsVocabulary``.

        All of them have the vocabulary that one of them sent. A verifier that doesn't respond is left out.

        Raises:
            EndpointError: the prompt is rejected, or none of them responds.
        """
        failure: EndpointError | None = None
        for member in sorted(self.members, key=lambda each: bool(each.problem)):
            if not isinstance(member.verifier, TellsVocabulary) or (member.problem and failure is not None):
                continue
            try:
                return await member.verifier.read_prompt(request, within)
            except EndpointStatusError as error:
                if error.status < 500:
                    raise
                failure = self._record_error(member, error)
            except EndpointError as error:
                failure = self._record_error(member, error)
        raise failure or EndpointError("expected a verifier that reads prompts (streamco serve), got none", endpoint=self.name)

    def _record_error(self, member: PoolMember, error: EndpointError) -> EndpointError:
        self.record_failure(member, str(error))
        return error

    async def probe(self) -> VerifierFacts:
        """Probe all verifiers concurrently; the ones that fail are left out, and probed again later.

        Once one has replied, the others have two more seconds, so that a host that drops packets doesn't delay the client's start.

        Raises:
            EndpointError, VerifierError: the first one's error, if all fail.
        """
        found = await _probe_all(self.members)
        errors = [error or self._refuse_other_model(member) for member, error in zip(self.members, found, strict=True)]
        for member, error in zip(self.members, errors, strict=True):
            member.problem = ""
            if error is not None:
                self.record_failure(member, str(error))
        if all(errors):
            raise next(error for error in errors if error is not None)
        facts = self.facts
        assert facts is not None, "a verifier that works has facts"
        return facts

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> VerifierSession:
        """Return a session for one answer, at the verifier that the routing chooses; see ``Verifier.open``."""
        return AssignedVerifier(self).open(prompt_ids, emit, rule=rule, top_k=top_k, reserve=reserve)

    async def aclose(self) -> None:
        """Close all verifiers; idempotent."""
        self._is_closed = True
        await self._probes.aclose()
        await asyncio.gather(*(member.verifier.aclose() for member in self.members))

    # Choosing

    def choose(self, *, without: Collection[PoolMember] = (), needed: VerifierFacts | None = None) -> PoolMember | None:
        """Return the verifier for an answer, or None if no working one has room.

        Args:
            without: verifiers that must not be chosen.
            needed: facts that the answer was planned with, or None if it hasn't been planned.
        """
        now = monotonic()
        for member in self.members:
            if not member.problem and (problem := self.why_other_model(member)):  # it was restarted with another model
                self.record_failure(member, problem)
        free = [each for each in self.members if each not in without and each.is_free(now=now)]
        found = [each for each in free if _covers(each.verifier.facts, needed)]
        return found[self._routing.choose([each.load(now=now) for each in found], self._rng)] if found else None

    def choose_first(self) -> PoolMember:
        """Return the verifier for a new answer; if none works, the one with the fewest answers, which may have recovered.

        A verifier with another model is never chosen, and one that was never reached only if there is no other.
        """
        now = monotonic()
        if (free := self.choose()) is not None:
            return free
        found = [member for member in self.members if not self.why_other_model(member)]
        return min(found, key=lambda each: (each.verifier.facts is None, bool(each.problem), each.load(now=now)))

    @property
    def is_free(self) -> bool:
        """True if a verifier works and hasn't just refused a session."""
        now = monotonic()
        return any(member.is_free(now=now) for member in self.members)

    @property
    def left_out(self) -> dict[str, str]:
        """Why verifiers are currently left out, by name."""
        return {member.name: member.problem for member in self.members if member.problem}

    def record_failure(self, member: PoolMember, problem: str) -> None:
        """Leave out a verifier until it replies to a probe again."""
        member.problem = problem
        probes = self._probes.current
        if probes is not None and member not in probes.tasks and not self._is_closed:
            task = asyncio.create_task(self._bring_back(member, probes.tasks), name=f"streamco probe {member.name} again")
            probes.tasks[member] = task

    async def trouble_of(self, member: PoolMember, *, within: float) -> str:
        """Return why a verifier can't be used, or "" if it responds. ``within`` is the time limit for the response, in seconds."""
        try:
            async with PeerTimeout(within):
                await member.verifier.probe()
        except TimeoutError:
            return f"{member.name}: expected an answer within {within:g} s, got none"
        except (EndpointError, VerifierError) as error:
            return str(error)
        return self.why_other_model(member)

    async def _bring_back(self, member: PoolMember, returning: dict[PoolMember, asyncio.Task[None]]) -> None:
        while member.problem:
            await asyncio.sleep(self._retry_after)
            with suppress(EndpointError, VerifierError):
                await member.verifier.probe()
                member.problem = self.why_other_model(member)
        del returning[member]

    def why_other_model(self, member: PoolMember) -> str:
        """Return why a verifier can't continue another one's answer; "" if it has the common model, or was never reached."""
        facts, model = member.verifier.facts, self._common_model()
        if facts is None or facts.model == model:
            return ""
        return f"{member.name}: expected the model of the others, {model}, got {facts.model}"

    def _refuse_other_model(self, member: PoolMember) -> VerifierError | None:
        problem = self.why_other_model(member)
        return VerifierError(problem) if problem else None

    def _common_model(self) -> str | None:
        """Return the model of the first verifier that was reached, as long as any verifier has it; None if none was reached."""
        known = [facts.model for member in self.members if (facts := member.verifier.facts) is not None]
        if known and self._model not in known:
            self._model = known[0]
        return self._model


async def _probe_all(members: Sequence[PoolMember]) -> list[StreamcoError | None]:
    """Probe verifiers concurrently; return each one's error or None, in order."""
    tasks = [asyncio.create_task(_probe(member), name=f"streamco probe {member.name}") for member in members]
    late = set(tasks)
    try:
        while late and not any(task.done() and task.result() is None for task in tasks):
            _, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        if late:
            _, late = await asyncio.wait(late, timeout=_LATE_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return [_late(member) if task in late else task.result() for member, task in zip(members, tasks, strict=True)]


def _late(member: PoolMember) -> EndpointTimeoutError:
    text = f"expected an answer within {_LATE_SECONDS:g} s of another verifier's, got none"
    return EndpointTimeoutError(text, phase="connect", limit=_LATE_SECONDS, endpoint=member.name)


async def _probe(member: PoolMember) -> StreamcoError | None:
    """Probe a verifier; return the error, or None."""
    try:
        await member.verifier.probe()
    except (EndpointError, VerifierError) as error:
        return error
    return None


def _common(one: VerifierFacts, other: VerifierFacts) -> VerifierFacts:
    """Return the facts that apply to both verifiers."""
    contexts = [facts.context_tokens for facts in (one, other) if facts.context_tokens is not None]
    return VerifierFacts(
        model=one.model,
        rules=one.rules & other.rules,
        draft_tokens=min(one.draft_tokens, other.draft_tokens),
        top_k=min(one.top_k, other.top_k),
        context_tokens=min(contexts, default=None),
        samples_exactly=one.samples_exactly and other.samples_exactly,
        holds_context=one.holds_context and other.holds_context,
        max_ahead=min(one.max_ahead, other.max_ahead),
        max_paths=min(one.max_paths, other.max_paths),
        row_costs=one.row_costs,  # not guaranteed: an answer is planned with its own verifier's costs
    )


def _covers(facts: VerifierFacts | None, needed: VerifierFacts | None) -> bool:
    """Return True if an answer that was planned with certain facts can continue at a verifier."""
    return facts is not None and (needed is None or _common(needed, facts) == needed)
