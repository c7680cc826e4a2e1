"""Sums over all answers of a client: tokens, waste, money, energy, and the share of its budget that it used."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from streamco.core.report_parts import Ending, EndpointReport, ShadowReport
from streamco.core.report_text import Section, format_joules, format_share, format_usd, sections_to_text
from streamco.policies.budget_control import BudgetSteering

__all__ = ["AnswerCost", "EndpointTotals", "ShadowTotals", "TotalsRecorder", "Totals"]

_COUNTS = ("answers", "complete", "failed", "left", "hand_overs", "tokens", "wasted_tokens", "wasted_prompt_tokens")  # of all answers
_COSTS = ("cost_usd", "energy_j", "unified_cost_usd")  # of one endpoint: None as soon as it is unknown for one request


class AnswerCost(Struct, frozen=True, kw_only=True):
    """The cost of one answer at all endpoints. It contains the figures of the answer's report that can be summed.

    Args:
        endpoints: each endpoint's part; endpoints that were not started cost nothing.
        ending: how it ended; None if it is in progress, or its driver failed.
        hand_overs: number of its hand-overs.
        tokens: tokens delivered to the reader.
        cost_usd, energy_j, unified_cost_usd, wasted_tokens, wasted_prompt_tokens: as in ``Report``.
    """

    endpoints: list[EndpointReport]
    ending: Ending | None
    hand_overs: int
    tokens: int
    cost_usd: float | None
    energy_j: float | None
    unified_cost_usd: float | None
    wasted_tokens: int
    wasted_prompt_tokens: int


class EndpointTotals(Struct, frozen=True, kw_only=True):
    """One endpoint's part in all answers.

    Args:
        kind: device or server.
        requests: number of requests to it. If it lost an answer, or read it in advance, and took it over later, that counts twice or more.
        won, took_over, read_ahead, lost, speculated: requests by outcome; speculated means that it drafted or verified.
        failed: requests that ended in an error, including requests that it had won.
        prompt_tokens: prompt tokens that it read.
        completion_tokens: tokens that it generated, including tokens that the reader never got.
        estimated_prompt_tokens, estimated_completion_tokens: the estimated part of each (cancelled streams send no usage).
        wasted_tokens: completion tokens that the reader never got.
        wasted_prompt_tokens: prompt tokens that were read for nothing.
        cost_usd, energy_j, unified_cost_usd: as in ``EndpointReport``; None as soon as it is unknown for one request.
    """

    kind: str
    requests: int = 0
    won: int = 0
    took_over: int = 0
    read_ahead: int = 0
    lost: int = 0
    speculated: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_prompt_tokens: int = 0
    estimated_completion_tokens: int = 0
    wasted_tokens: int = 0
    wasted_prompt_tokens: int = 0
    cost_usd: float | None = 0.0
    energy_j: float | None = 0.0
    unified_cost_usd: float | None = 0.0

    def plus(self, part: EndpointReport) -> EndpointTotals:
        """Return the totals with one more request."""
        return EndpointTotals(
            kind=self.kind,
            requests=self.requests + 1,
            won=self.won + (part.outcome == "won"),
            took_over=self.took_over + (part.outcome == "took over"),
            read_ahead=self.read_ahead + (part.outcome == "read ahead"),
            lost=self.lost + (part.outcome == "lost"),
            speculated=self.speculated + (part.outcome in {"drafted", "verified"}),
            failed=self.failed + (part.error is not None),
            prompt_tokens=self.prompt_tokens + part.prompt_tokens,
            completion_tokens=self.completion_tokens + part.completion_tokens,
            estimated_prompt_tokens=self.estimated_prompt_tokens + part.prompt_tokens * part.is_estimated,
            estimated_completion_tokens=self.estimated_completion_tokens + part.completion_tokens * part.is_estimated,
            wasted_tokens=self.wasted_tokens + part.wasted_tokens,
            wasted_prompt_tokens=self.wasted_prompt_tokens + part.wasted_prompt_tokens,
            cost_usd=_sum(self.cost_usd, part.cost_usd),
            energy_j=_sum(self.energy_j, part.energy_j),
            unified_cost_usd=_sum(self.unified_cost_usd, part.unified_cost_usd),
        )

    def joined(self, other: EndpointTotals) -> EndpointTotals:
        """Return the sum of these totals and others of the same endpoint."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__ if name not in {"kind", *_COSTS}}
        return replace(self, **counts, **{name: _sum(getattr(self, name), getattr(other, name)) for name in _COSTS})


class ShadowTotals(Struct, frozen=True, kw_only=True):
    """Sums over a client's shadow answers, which no other figure includes.

    Args:
        answers: number of shadow answers that have ended.
        good, bad: how often the device's answer was as good, and how often it wasn't.
        prompt_tokens, completion_tokens: tokens that servers read and generated for them.
        cost_usd: US dollars; None as soon as one has no known price.
    """

    answers: int = 0
    good: int = 0
    bad: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0

    def plus(self, shadow: ShadowReport) -> ShadowTotals:
        """Return the sums with one more shadow answer."""
        return ShadowTotals(
            answers=self.answers + 1,
            good=self.good + (shadow.good is True),
            bad=self.bad + (shadow.good is False),
            prompt_tokens=self.prompt_tokens + shadow.prompt_tokens,
            completion_tokens=self.completion_tokens + shadow.completion_tokens,
            cost_usd=_sum(self.cost_usd, shadow.cost_usd),
        )

    def joined(self, other: ShadowTotals) -> ShadowTotals:
        """Return these sums and the others added together."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__ if name != "cost_usd"}
        return ShadowTotals(**counts, cost_usd=_sum(self.cost_usd, other.cost_usd))


class Totals(Struct, frozen=True, kw_only=True):
    """The figures of a client's answers so far. An answer counts once all work for it has ended.

    Args:
        answers: number of answers that have ended: ``complete``, ``failed``, or ``left`` by their reader before the end.
        hand_overs: number of all hand-overs.
        tokens: tokens delivered to readers.
        wasted_tokens: completion tokens that no reader got, because an attempt lost or the reader left before they were delivered.
        wasted_prompt_tokens: prompt tokens that were read for nothing, mostly by losing attempts.
        cost_usd: cost of all endpoints together; None as soon as one of them did work whose price isn't known.
        energy_j: energy in joules, measured or estimated, of all devices whose model's shape is known; None if there was none.
        unified_cost_usd: money and energy together; None as soon as either isn't known for an answer.
        budget: share of prompt tokens that the constrained side may process; None before the first answer.
        budget_share: share that it has processed, over the answers that both sides could serve; None before the first such answer.
        endpoints: each endpoint's part, by name; endpoints without a request are left out.
        shadows: answers that nobody reads, made only to judge a device's answers; no other figure includes their cost.
    """

    answers: int = 0
    complete: int = 0
    failed: int = 0
    left: int = 0
    hand_overs: int = 0
    tokens: int = 0
    wasted_tokens: int = 0
    wasted_prompt_tokens: int = 0
    cost_usd: float | None = 0.0
    energy_j: float | None = None
    unified_cost_usd: float | None = 0.0
    budget: float | None = None
    budget_share: float | None = None
    endpoints: dict[str, EndpointTotals] = field(default_factory=dict)
    shadows: ShadowTotals = ShadowTotals()

    def plus(self, cost: AnswerCost) -> Totals:
        """Return the totals with one more answer."""
        endpoints = dict(self.endpoints)
        for part in cost.endpoints:
            if part.opened is not None:
                endpoints[part.name] = (endpoints.get(part.name) or EndpointTotals(kind=part.kind)).plus(part)
        return replace(
            self,
            answers=self.answers + 1,
            complete=self.complete + (cost.ending == "complete"),
            failed=self.failed + (cost.ending in {"failed", None}),
            left=self.left + (cost.ending == "left"),
            hand_overs=self.hand_overs + cost.hand_overs,
            tokens=self.tokens + cost.tokens,
            wasted_tokens=self.wasted_tokens + cost.wasted_tokens,
            wasted_prompt_tokens=self.wasted_prompt_tokens + cost.wasted_prompt_tokens,
            cost_usd=_sum(self.cost_usd, cost.cost_usd),
            energy_j=self.energy_j if cost.energy_j is None else (self.energy_j or 0.0) + cost.energy_j,
            unified_cost_usd=_sum(self.unified_cost_usd, cost.unified_cost_usd),
            endpoints=endpoints,
        )

    def joined(self, other: Totals) -> Totals:
        """Return the sum of these totals and others, with this client's budget and share."""
        endpoints = dict(self.endpoints)
        for name, each in other.endpoints.items():
            endpoints[name] = endpoints[name].joined(each) if name in endpoints else each
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS},
            cost_usd=_sum(self.cost_usd, other.cost_usd),
            energy_j=self.energy_j if other.energy_j is None else (self.energy_j or 0.0) + other.energy_j,
            unified_cost_usd=_sum(self.unified_cost_usd, other.unified_cost_usd),
            endpoints=endpoints,
            shadows=self.shadows.joined(other.shadows),
        )

    def __str__(self) -> str:
        """Return the figures as text tables. ``repr`` and JSON contain the fields."""
        return sections_to_text([_answers_section(self), *([_endpoints_section(self.endpoints)] if self.endpoints else [])])


class TotalsRecorder:
    """Sums up a client's answers. The client owns it."""

    def __init__(self) -> None:
        self._budget: BudgetSteering | None = None
        self._sums = Totals()

    def record(self, cost: AnswerCost) -> None:
        """Add an answer. Call this once for each answer, when all work for it has ended."""
        self._sums = self._sums.plus(cost)

    def record_shadow(self, shadow: ShadowReport) -> None:
        """Add a shadow answer. Call this once for each one, when it has ended."""
        self._sums = replace(self._sums, shadows=self._sums.shadows.plus(shadow))

    def use_budget(self, budget: BudgetSteering) -> None:
        """From now on, report the limit and the share of this budget, under which the newest answer was made."""
        self._budget = budget

    def totals(self) -> Totals:
        """Return the sums so far, with the budget's current share."""
        budget = self._budget
        if budget is None:
            return self._sums
        return replace(self._sums, budget=budget.budget, budget_share=budget.share if budget.requests else None)


def _sum(known: float | None, more: float | None) -> float | None:
    """Return the sum, or None if one of the two is not known."""
    return None if known is None or more is None else known + more


def _answers_section(totals: Totals) -> Section:
    """Return the table of all answers together, without rows about things that never happened."""
    ends = [f"{count} {name}" for name in ("complete", "failed", "left") if (count := getattr(totals, name))]
    rows = [("answers", f"{totals.answers} ({', '.join(ends)})" if ends else str(totals.answers))]
    if totals.hand_overs:
        rows.append(("hand-overs", str(totals.hand_overs)))
    rows.append(("tokens, and those that nobody read", f"{totals.tokens}, {totals.wasted_tokens}"))
    rows.append(("prompt tokens read in vain", str(totals.wasted_prompt_tokens)))
    rows.append(("cost", format_usd(totals.cost_usd)))
    if totals.energy_j is not None:
        rows += [("energy of devices", format_joules(totals.energy_j)), ("money and energy", format_usd(totals.unified_cost_usd))]
    if totals.budget is not None:
        rows.append(("share of the expensive side, its budget", f"{format_share(totals.budget_share)}, {format_share(totals.budget)}"))
    if (shadows := totals.shadows).answers:
        judged = f"{shadows.good} as good and {shadows.bad} better than the device's"
        rows.append(("shadow answers", f"{shadows.answers}, {judged}, {format_usd(shadows.cost_usd)}"))
    return Section("totals", (), list(rows))


def _endpoints_section(endpoints: Mapping[str, EndpointTotals]) -> Section:
    """Return the table of the endpoints' parts, with "~" before counts that are estimated in part."""
    has_device = any(part.kind == "device" for part in endpoints.values())
    heads = ("endpoint", "requests", "won", "failed", "prompt", "made", "cost", *(["energy"] if has_device else []))
    rows: list[tuple[str, ...]] = []
    for name, part in endpoints.items():
        prompt = f"{'~' if part.estimated_prompt_tokens else ''}{part.prompt_tokens}"
        made = f"{'~' if part.estimated_completion_tokens else ''}{part.completion_tokens}"
        energy = [format_joules(part.energy_j)] if has_device else []
        rows.append((name, str(part.requests), str(part.won), str(part.failed), prompt, made, format_usd(part.cost_usd), *energy))
    return Section("endpoints", heads, rows)
