"""One greedy answer with drafts by lookup, in virtual time: a link, a server that streams and verifies, and the machine between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from msgspec import Struct

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    AdoptBranch,
    CloseRemote,
    ConnectVerifier,
    DraftBranch,
    DraftTokens,
    DropDrafts,
    FinishAnswer,
    OpenRemote,
    RemoteEnded,
    RemoteTokensReceived,
    SendDraft,
    SpeculationEvent,
    VerdictReceived,
    VerifierConnected,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.report import SpeculationReport
from streamco.endpoints.lookup_drafter import LookupDrafter
from streamco.profiles.row_costs import RowCosts

__all__ = ["Link", "LookedUp", "look_up_answer"]


class Link(Struct, frozen=True, kw_only=True):
    """Times of a link and a server, in seconds."""

    rtt: float
    step: float  # between two tokens of the stream
    rows: RowCosts | None = None  # of a verification; None: each takes a step, and the server doesn't say so
    ahead: int = 3  # drafts that the server takes ahead of a verdict


class LookedUp(Struct, frozen=True):
    """An answer: its tokens, the seconds from its first one to its last, and what the machine counted."""

    ids: list[int]
    seconds: float
    report: SpeculationReport


async def look_up_answer(
    prompt: Sequence[int], answer: Sequence[int], link: Link, estimates: SpeculationEstimates, **options: Any
) -> LookedUp:
    """Return the answer as it comes, token for token the one that is given."""
    run = _Run(prompt, answer, link, estimates, options)
    return await run.finish()


class _Run:
    def __init__(self, prompt: Sequence[int], answer: Sequence[int], link: Link, estimates: SpeculationEstimates, options: Any) -> None:
        self.answer, self.link = list(answer), link
        given = {"max_tokens": len(answer), "is_lookup": True, "max_ahead": link.ahead, "is_parallel": link.ahead > 0, "max_branches": 2}
        estimates.expect_rtt(link.rtt)
        estimates.expect_row_costs(link.rows)
        self.machine = SpeculationMachine(estimates, SpeculationMachineOptions(**{**given, **options}), Random(1))
        self.drafter = LookupDrafter(prompt, emit=lambda event: self.later(0.0, event), context_tokens=1 << 20)
        self.now, self.first = 0.0, 0.0
        self.number = count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.is_finished = False
        self.stream: int | None = None  # version of the open one
        self.decided: dict[int, VerdictReceived] = {}
        self.waiting: dict[tuple[int, int, int | None], SendDraft] = {}  # at the server, ahead of their verdicts

    async def finish(self) -> LookedUp:
        self.machine.start(now=0.0)
        await self.carry_out()
        while not self.is_finished:
            self.now, _, act = heappop(self.events)
            act()
            await self.carry_out()
        return LookedUp(list(self.machine.answer.ids), self.now - self.first, self.machine.report)

    def later(self, seconds: float, event: SpeculationEvent) -> None:
        self.at(self.now + seconds, lambda: self.machine.receive(event, now=self.now))

    def at(self, time: float, act: Callable[[], None]) -> None:
        heappush(self.events, (time, next(self.number), act))

    async def carry_out(self) -> None:
        self.first = self.first or (self.now if self.machine.answer.length else 0.0)
        for command in self.machine.take_commands():
            match command:
                case DraftTokens() | DraftBranch() | AdoptBranch() | DropDrafts():
                    self.drafter.run(command)
                case ConnectVerifier(ids):
                    self.later(self.link.rtt, VerifierConnected(len(ids)))
                case SendDraft():
                    self.at(self.now + self.link.rtt / 2, partial(self.arrive, command))
                case OpenRemote(version, ids, _):
                    self.stream = version
                    self.at(self.now + self.link.rtt + self.link.step, partial(self.give, version, len(ids)))
                case CloseRemote():
                    self.stream = None
                case FinishAnswer():
                    self.is_finished = True
        await asyncio.sleep(0)  # what was looked up is emitted

    def give(self, version: int, place: int) -> None:
        """Have the stream give the token at a place."""
        if version != self.stream:
            return
        self.machine.receive(RemoteTokensReceived(version, (self.answer[place],)), now=self.now)
        if place + 1 < len(self.answer):
            self.at(self.now + self.link.step, partial(self.give, version, place + 1))
        else:
            self.later(0.0, RemoteEnded(version, "length"))

    def arrive(self, draft: SendDraft) -> None:
        """Have a draft come to the server."""
        expected = draft.if_verdict
        if expected is None:
            self.verify(draft)
        elif (verdict := self.decided.get(expected.round)) is None:
            self.waiting[expected.round, expected.accepted, expected.token] = draft
        elif verdict.outcome == expected:
            self.verify(draft)

    def verify(self, draft: SendDraft) -> None:
        place = draft.base + len(draft.given)
        truth = self.answer[place:]
        accepted = next((i for i, token in enumerate(draft.ids) if i >= len(truth) or token != truth[i]), len(draft.ids))
        token = truth[accepted] if accepted < len(truth) else None
        seconds = self.link.step if self.link.rows is None else self.link.rows.seconds(len(draft.ids) + 1)
        verdict = VerdictReceived(round=draft.round, accepted=accepted, token=token, compute_seconds=seconds)
        self.at(self.now + seconds, partial(self.decide, verdict))

    def decide(self, verdict: VerdictReceived) -> None:
        self.decided[verdict.round] = verdict
        self.later(self.link.rtt / 2, verdict)
        following = self.waiting.pop((verdict.round, verdict.accepted, verdict.token), None)
        if following is not None:
            self.verify(following)
