"""The mode that chooses between other modes for each answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from msgspec.structs import replace

from streamco.client.modes.base import (
    AskedAnswer,
    ClientPlanner,
    Fallback,
    Mode,
    ModeContext,
    Obstacle,
    PlannedWay,
    Planner,
    Prepared,
)
from streamco.core.report import Report
from streamco.core.report_parts import AnswerPlan
from streamco.errors import ConfigError, EndpointError
from streamco.policies.ways import ChosenWay, Way, WayChooser, Weights

__all__ = ["Auto"]


class Auto:
    """Makes each answer in the mode that is predicted to be the best for it, based on earlier answers (docs/howto/cost.md).

    Without weights, that is the fastest mode. With weights, there are several ways to make an answer: the device alone, the server alone,
    both in a race, a race with a quality gate, speculation, and a split model if one is given. The way that is cheapest by the weights is
    chosen, and ``report.plan`` contains the predictions for each. The three weights share one unit of your choice.

    Args:
        modes: the modes to choose from, at most one of each kind. A ``Race`` among them makes the answers that no other mode makes; without
            one, a race with default settings does. If you give no modes, Auto uses ``Race()`` and, without weights, ``Speculate()`` too. A
            ``Split`` is only allowed with weights.
        time: cost of each second that a reader waits, for the first word or because text arrives more slowly than they read.
        money: cost of each US dollar of a server's bill and of the device's energy (``Race.exchange_rate``). If the client has no
            ``budget``, this alone decides how much the server does.
        quality: how much more a good answer is worth than a bad one. The quality of the device's answers comes from ratings, where the
            server's answers count as 1, or from ``MigrationOptions.quality`` and a measured profile. Until it is known, it counts as 0.
            A ``Race`` without ``quality`` gets ``quality="gate"``.

    Raises:
        ConfigError: two modes are of one kind, an argument isn't one of these modes, or a weight isn't a finite number of 0 or more.
    """

    name: ClassVar[str] = "auto"
    endpoint: ClassVar[None] = None

    def __init__(self, *modes: Mode, time: float | None = None, money: float | None = None, quality: float | None = None) -> None:
        is_weighed = any(each is not None for each in (time, money, quality))
        self.weights = Weights(time, money, quality) if is_weighed else None
        names = ["" if isinstance(mode, type) else getattr(mode, "name", "") for mode in modes]
        possible = ("race", "speculate", "split") if is_weighed else ("race", "speculate")
        for name in names:
            if name not in possible or names.count(name) > 1:
                kinds = "Race(...), Speculate(...) and Split(...)" if is_weighed else "Race(...) and Speculate(...)"
                raise ConfigError(f"auto: expected {kinds}, one of each, got {', '.join(map(repr, modes))}")
        if "race" in names and any(getattr(mode, "otherwise", None) is not None for mode in modes):
            raise ConfigError("auto: Speculate(otherwise=...) can't be combined with a Race, which makes all other answers")
        self.modes = modes

    def __repr__(self) -> str:
        weights = {} if self.weights is None else {name: getattr(self.weights, name) for name in self.weights.__struct_fields__}
        return f"Auto({', '.join([*map(repr, self.modes), *(f'{name}={value}' for name, value in weights.items() if value is not None)])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Auto) and (self.modes, self.weights) == (other.modes, other.weights)

    def __hash__(self) -> int:
        return hash((self.modes, self.weights))

    @property
    def members(self) -> tuple[Mode, ...]:
        """The modes that may make an answer."""
        return tuple(member for mode in self.modes for member in mode.members)

    def planner(self, context: ModeContext) -> ClientPlanner:
        """Return the planner of a client's answers."""
        others = [mode for mode in self.modes if mode.name != "race"]
        last = next((mode for mode in self.members if mode.name == "race"), context.fallback)
        if self.weights is not None:
            first = tuple(mode.own_planner(context) for mode in others)
            further = frozenset(mode.endpoint.name for mode in others if mode.endpoint is not None)
            budget = 1.0 if self.weights.money and context.budget is None else context.budget  # then the weight of money decides
            own = context._replace(budget=budget, further=further)
            return WeighingPlanner(first, _learning(last, self.weights).planner(own), self.weights)
        if not self.modes:
            from streamco.client.modes.speculation.mode import Speculate

            others = [Speculate()]
        return Fallback(tuple(mode.own_planner(context) for mode in others), last.planner(context), if_faster=True)

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner for this mode's own answers."""
        return self.planner(context)


class WeighingPlanner(Fallback):
    """Chooses the cheapest way to make each answer, according to the caller's weights.

    Args:
        first: the planners of all modes except the race.
        last: the race's planner, which makes the answers that can't be made in another way.
        weights: the caller's weights.
    """

    def __init__(self, first: tuple[Planner, ...], last: ClientPlanner, weights: Weights) -> None:
        super().__init__(first, last, if_faster=False)
        self._chooser = WayChooser(weights)

    @property
    def problem(self) -> str:
        """Why nothing can be speculated; see ``Planner``."""
        problems = [each.problem for each in self.first if each.may_draft]
        return problems[0] if problems and all(problems) else ""

    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> Prepared[Any] | Obstacle:
        """Prepare the answer in the best way that is available, and return it."""
        if self.kept_out is not None:  # excluding a side is a promise, which no weight overrides
            return await super().prepare(asked)
        prompt_tokens = (await asked.describe()).prompt_tokens
        found = [(planner, each) for planner in self.first for each in await planner.forecast(asked, self._chooser.weights)]
        try:
            found += [(self.last, each) for each in await self.last.forecast(asked, self._chooser.weights)]
        except (ConfigError, EndpointError):  # no endpoint of the race can serve it, but another mode may
            if all(each.way.obstacle for _, each in found):
                raise
        is_again = False
        while any(not each.way.obstacle for _, each in found):
            asked.passed_over = _passed_over(found)
            ways = [each.way for _, each in found]
            choice = self._chooser.choose(ways, prompt_tokens=prompt_tokens, budget=self.last.budget, is_again=is_again)
            asked.plan = self._plan(asked, choice)
            outcome = await next(each for _, each in found if each.way.name == choice.way).prepare()
            if isinstance(outcome, Prepared):
                return outcome
            found = [(planner, _closed(each, outcome) if each.way.name == choice.way else each) for planner, each in found]
            is_again = True
        asked.plan, asked.passed_over = None, _passed_over(found)
        return await self.last.prepare(asked)  # raises an exception if no way is available for the answer

    def _plan(self, asked: AskedAnswer, choice: ChosenWay) -> AnswerPlan:
        weights = self._chooser.weights
        return AnswerPlan(
            way=choice.way,
            reason=f"{choice.reason}{self._unknown(asked, choice)}",
            ways=choice.ways,
            tokens=asked.reading.tokens,
            time=weights.time,
            money=weights.money,
            quality=weights.quality,
        )

    def _unknown(self, asked: AskedAnswer, choice: ChosenWay) -> str:
        """Return text to append to the reason: which quantities are unknown and counted as 0."""
        device, servers = asked.settings.endpoints.available()
        sides = [each for each in (device, *servers[:1]) if each is not None]
        ways = {way.name: way for way in choice.ways if not way.obstacle}
        weights, cost, unknown = self._chooser.weights, self.costs(), "isn't known and counts as 0"
        found = [f"the quality of {each.name} {unknown}" for each in sides if weights.quality and self.quality(each) is None]
        found += [f"the price of {each.name} {unknown}" for each in sides if weights.money and cost(each, 1, 1, 0).known is None]
        others = [ways[name] for name in ("speculate", "split") if name in ways]
        found += [f"the quality of {way.name} {unknown}" for way in others if weights.quality and way.quality is None]
        found += [f"the price of {way.name} {unknown}" for way in others if weights.money and way.dollars is None]
        return "".join(f"; {each}" for each in found)

    def record(self, asked: AskedAnswer, report: Report) -> None:
        """Let the modes learn from the report of an answer that has ended."""
        device = asked.settings.endpoints.device
        shown = [each for each in report.endpoints if each.ttft is not None or each.outcome == "lost"]
        raced = {"device" if device is not None and each.name == device.name else "server" for each in shown}
        self._chooser.record(raced if report.mode == "race" else {report.mode})
        for planner in self.first:
            planner.record(asked, report)


def _passed_over(found: Iterable[tuple[Planner, PlannedWay]]) -> tuple[Planner, Obstacle] | None:
    """Return the first mode that was requested but can't be used, and why; None if there is none."""
    return next(((planner, each.obstacle) for planner, each in found if each.obstacle is not None), None)


def _closed(planned: PlannedWay, obstacle: Obstacle) -> PlannedWay:
    """Return a way that turned out to be unavailable, marked as such."""
    return planned._replace(way=Way(name=planned.way.name, obstacle=obstacle.text), obstacle=obstacle)


def _learning(race: Mode, weights: Weights) -> Mode:
    """Return the race, with a quality gate if quality has a weight, because the gate learns from ratings."""
    if weights.quality and getattr(race, "quality", "") is None:
        return replace(race, quality="gate")  # type: ignore[type-var]
    return race
