"""The choice between several modes, answer by answer."""

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
    """Each answer is made in the mode that is predicted to be the best for it, by what earlier answers have shown (docs/howto/cost.md).

    Without weights that is the fastest mode. With weights each answer has several ways: the device alone, the server alone, both in a
    race, a race with a quality gate, speculation, and a split model if one is given. The cheapest one by the weights goes, and
    ``report.plan`` has what was predicted of each. The three weights are in one unit of your choice.

    Args:
        modes: the modes, one of each kind. A ``Race`` among them makes the answers that no other mode makes; without one, a race by its
            defaults does. None at all: ``Race()``, and ``Speculate()`` too without weights. A ``Split`` takes part by weights alone.
        time: what a second is worth in which a reader waits: for the first word, and for text that comes slower than they read.
        money: what a US dollar is worth, of a server's bill and of the device's energy (``Race.exchange_rate``). Without a ``budget`` of
            the client it decides alone how much the server does.
        quality: what a good answer is worth in the place of a bad one. The quality of the device's answers comes from ratings, beside
            which the server's count as 1, or from ``MigrationOptions.quality`` and a measured profile. As long as it isn't known it
            counts as 0. A ``Race`` without ``quality`` gets "gate".

    Raises:
        ConfigError: two modes of one kind, something that is no mode of its own, or a weight that is no finite number of 0 or more.
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
            raise ConfigError("auto: expected Speculate without otherwise=... beside a Race, which makes all other answers, got both")
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
            budget = 1.0 if self.weights.money and context.budget is None else context.budget  # then a dollar's worth decides
            own = context._replace(budget=budget, further=further)
            return WeighingPlanner(first, _learning(last, self.weights).planner(own), self.weights)
        if not self.modes:
            from streamco.client.modes.speculation.mode import Speculate

            others = [Speculate()]
        return Fallback(tuple(mode.own_planner(context) for mode in others), last.planner(context), if_faster=True)

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner of the answers in this mode alone."""
        return self.planner(context)


class WeighingPlanner(Fallback):
    """Chooses the cheapest way to make each answer, by weights.

    Args:
        first: the modes beside the race.
        last: the race, which makes the answers that no other way makes.
        weights: what the caller says is worth how much.
    """

    def __init__(self, first: tuple[Planner, ...], last: ClientPlanner, weights: Weights) -> None:
        super().__init__(first, last, if_faster=False)
        self._chooser = WayChooser(weights)

    @property
    def problem(self) -> str:
        """See ``Planner``: why nothing can be speculated."""
        problems = [each.problem for each in self.first if each.may_draft]
        return problems[0] if problems and all(problems) else ""

    async def prepare(self, asked: AskedAnswer, *, if_faster: bool = False) -> Prepared[Any] | Obstacle:
        """Return the answer, ready to start, made in the best way that is open."""
        if self.kept_out is not None:  # a promise, which no weight outweighs
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
        return await self.last.prepare(asked)  # which makes an exception of an answer that no way is open to

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
        """Return what counts without being known, for the reason."""
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
    """Return the first mode that was asked for and isn't open, and what is in its way; None: there is none."""
    return next(((planner, each.obstacle) for planner, each in found if each.obstacle is not None), None)


def _closed(planned: PlannedWay, obstacle: Obstacle) -> PlannedWay:
    """Return a way that isn't open after all."""
    return planned._replace(way=Way(name=planned.way.name, obstacle=obstacle.text), obstacle=obstacle)


def _learning(race: Mode, weights: Weights) -> Mode:
    """Return the race as the weights need it: ratings are learned from if quality counts."""
    if weights.quality and getattr(race, "quality", "") is None:
        return replace(race, quality="gate")  # type: ignore[type-var]
    return race
