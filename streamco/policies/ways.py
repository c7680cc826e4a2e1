"""Chooses between ways to make an answer, by what time, money and quality are worth to the caller.

A *way* is the device alone, the server alone, a race, a gated race, speculation or a split model. Each has a forecast for the requested
answer. The weighted cost of a way is

    time x (seconds that the reader waits) + money x (US dollars) - quality x (expected quality)

The reader waits for the first word, and later whenever the text comes slower than they read. If an answer isn't streamed, they wait until
its end. Dollars are the servers' bill and the device's energy at the exchange rate (``policies.cost``).

``WayChooser`` takes the cheapest way. With a budget below 1, the prompt tokens of the side that it limits have a price, too, which only
the answers that gain most from these tokens can pay. So the budget is spent on these answers, and not on whatever comes first.

A forecast gets old, and sooner if it is based on few measurements. A way about which nothing is known has no forecast. A way of either kind
is tried if it would be the cheapest with an immediate first word. Otherwise it can't win, whatever is measured. A way that stays unknown is
tried less and less often. In total, trying known ways may cost 2 % more than the best way would have. A race isn't tried, because its
forecast follows from both sides' forecasts, and it costs no less than the side that wins it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from streamco.errors import ConfigError
from streamco.policies.cost import RequestCost
from streamco.policies.dispatch import Decision
from streamco.profiles import DeviceSpeed, TTFTDistribution

__all__ = [
    "MAX_AGE",
    "ChosenWay",
    "GateOutlook",
    "RaceForecast",
    "Reading",
    "SideTerms",
    "Way",
    "WayChooser",
    "Weights",
    "forecast_race",
    "least_score",
    "race_way",
]

_WINDOW = 256  # answers that a price is computed from
_TRIED = 0.02  # share of the costs that may be lost by tries
_TIE = 1e-6
_LONGEST = 60.0  # seconds that a server without an answer counts for
_FACTORS = 8  # factors of a device's jitter that a forecast uses

MAX_AGE = 50
"""A forecast is old if it hasn't been measured again for this many answers."""


class Weights(Struct, frozen=True):
    """How much time, money and quality are worth to the caller. None means that something doesn't count.

    Args:
        time: worth of a second that the reader waits.
        money: worth of a US dollar.
        quality: worth of a good answer instead of a bad one, which is a difference of 1 in quality.

    Raises:
        ConfigError: a weight isn't a finite number of 0 or more, or none is above 0.
    """

    time: float | None = None
    money: float | None = None
    quality: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"auto: {name}: expected a finite number of 0 or more, or None, got {value!r}")
        if not (self.time or self.money or self.quality):
            raise ConfigError("auto: expected at least one of time, money and quality above 0, got none")


class Way(Struct, frozen=True, kw_only=True):
    """One way to make an answer, and the forecast for it.

    Args:
        name: "device", "server", "race", "gated race", "speculate" or "split".
        first_word: seconds to the first token, or None if not known.
        late: seconds that the reader waits after the first token, because the text comes slower than they read.
        rate: tokens per second after the first token. None if not known, in which case the reader is assumed not to wait.
        dollars: cost at servers in US dollars. None if a price isn't known, which counts as 0.
        joules: energy that the device needs, or None if not known.
        energy_usd: how much this energy is worth in US dollars. None if not known, which counts as 0.
        quality: expected quality, on one scale for all ways. None if not known, which counts as 0.
        spends: number of prompt tokens that the side under the budget is expected to read.
        obstacle: a clause that says why the way isn't open, or "" if it is.
        measured: names of the measurements behind the forecast: "device" and "server" for the sides' answers, or the way's own name.
        is_unknown: True if not even the writer and the cost of the answer are known. The quality is then the best that is possible.
        cost: weighted cost, or None if it isn't known or the way isn't open.
    """

    name: str
    first_word: float | None = None
    late: float = 0.0
    rate: float | None = None
    dollars: float | None = None
    joules: float | None = None
    energy_usd: float | None = None
    quality: float | None = None
    spends: float = 0.0
    obstacle: str = ""
    measured: tuple[str, ...] = ()
    is_unknown: bool = False
    cost: float | None = None

    def weigh(self, weights: Weights, *, at_once: bool = False) -> float | None:
        """Return the weighted cost, or None if it isn't known. With ``at_once``, return the lowest cost that is possible."""
        if self.is_unknown and not at_once:
            return None
        waiting = 0.0 if at_once or not weights.time else None if self.first_word is None else self.first_word + self.late
        if waiting is None:
            return None
        money = (self.dollars or 0.0) + (self.energy_usd or 0.0)
        return (weights.time or 0.0) * waiting + (weights.money or 0.0) * money - (weights.quality or 0.0) * (self.quality or 0.0)


class ChosenWay(NamedTuple):
    """The way chosen for one answer.

    Args:
        way: name of the chosen way.
        ways: all ways, with their costs.
        reason: the reason in a few words.
    """

    way: str
    ways: tuple[Way, ...]
    reason: str


class WayChooser:
    """Chooses a way for each answer. Each client has one, because it remembers how long ago each forecast was measured.

    Args:
        weights: how much time, money and quality are worth to the caller.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._count = 0
        self._last: dict[str, int] = {}  # number of the answer that last measured each name in ``Way.measured``
        self._measurements: Counter[str] = Counter()  # how often each of these names was measured
        self._tries: Counter[str] = Counter()  # how often each way that stays unknown was tried
        self._tried: dict[str, int] = {}  # number of the answer that last tried each way
        self._price = _BudgetPrice()
        self._credit = 0.0  # weighted cost that further tries may be predicted to lose

    def choose(self, ways: Iterable[Way], *, prompt_tokens: int = 0, budget: float = 1.0, is_again: bool = False) -> ChosenWay:
        """Choose a way for the next answer. At least one way must be open.

        Args:
            ways: the ways and their forecasts.
            prompt_tokens: the prompt's length.
            budget: share of all prompt tokens that the limited side may read, 0..1.
            is_again: True if a way was already chosen for this answer but turned out not to be open.
        """
        self._count += not is_again
        weighed = tuple(each if each.obstacle else replace(each, cost=each.weigh(self.weights)) for each in ways)
        able = [each for each in weighed if not each.obstacle]
        assert able, "one way is open"
        known = [each for each in able if each.cost is not None]
        price = 0.0
        if budget < 1.0:
            price = self._price.next(() if is_again else self._gains(weighed), 0 if is_again else prompt_tokens, budget)
        cheapest = min(known, key=_cost, default=None)
        best = min(known, key=lambda each: (_cost(each) + price * each.spends, each.spends), default=None)
        if best is None or cheapest is None:
            chosen, reason = min(able, key=lambda each: (self._tries[each.name], each.name != "race")), "nothing is known yet"
        elif (tried := self._to_try(able, _cost(best))) is not None:
            chosen = tried
            self._credit -= 0.0 if tried.cost is None else tried.cost - _cost(best)
            reason = "nothing is known of it yet" if tried.cost is None else "measured again, because it may be better by now"
        elif best is not cheapest:
            chosen, reason = best, f"{cheapest.name} would be better, but the budget is for answers that gain more by it"
        else:
            chosen, reason = best, _reason(best, known)
        if best is not None and not is_again:
            self._credit += _TRIED * (_cost(best) + (self.weights.quality or 0.0) * max(each.quality or 0.0 for each in able))
        if chosen is not best:
            self._tried[chosen.name] = self._count
        if chosen.cost is None:
            self._tries[chosen.name] += 1
        else:
            self._tries.pop(chosen.name, None)
        return ChosenWay(chosen.name, weighed, reason)

    def record(self, measured: Iterable[str]) -> None:
        """Record which of the names in ``Way.measured`` an answer has measured."""
        for each in measured:
            self._last[each] = self._count
            self._measurements[each] += 1

    def _gains(self, ways: Sequence[Way]) -> list[tuple[float, float]]:
        """Return (gain per token, tokens) for each way that spends some of the budget. The gain is over the best way that spends none."""
        costs = [(each, each.weigh(self.weights)) for each in ways]
        frugal = [cost for each, cost in costs if not each.spends and not each.obstacle and cost is not None]
        if not frugal:
            return []
        return [((min(frugal) - cost) / each.spends, each.spends) for each, cost in costs if each.spends and cost is not None]

    def _to_try(self, able: Sequence[Way], best: float) -> Way | None:
        """Return the way to try next, which might be cheaper than the best known way, or None if there is none."""
        single = {each.measured[0] for each in able if len(each.measured) == 1}
        due = [each for each in able if self._is_due(each, single, best) and _least(each, self.weights) < best]
        return min(due, key=lambda each: (self._measured(each), _least(each, self.weights)), default=None)

    def _is_due(self, way: Way, single: set[str], best: float) -> bool:
        """Return True if it is time to try a way. ``single`` contains the names that some way measures alone."""
        waited = self._count - self._tried.get(way.name, -MAX_AGE)
        if way.cost is None:
            is_own = len(way.measured) == 1 or not single.issuperset(way.measured)
            return is_own and waited >= min(MAX_AGE, (1 << min(9, self._tries[way.name])) - 1)
        rarest = min((self._measurements[each] for each in way.measured), default=MAX_AGE)
        age = min(MAX_AGE, 1 << min(9, rarest))
        is_old = self._count - self._measured(way) > age and waited > age
        return is_old and len(way.measured) == 1 and way.cost - best <= self._credit

    def _measured(self, way: Way) -> int:
        """Return the number of the answer that measured the oldest part of a way's forecast, or 0 if a part was never measured."""
        return min((self._last.get(each, 0) for each in way.measured), default=self._count)


class _BudgetPrice:
    """Finds the price of a prompt token under the budget: the gain per token above which recent answers spend the budget's share."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float, int]] = deque(maxlen=_WINDOW)  # gain per token, tokens spent, prompt tokens

    def next(self, gains: Sequence[tuple[float, float]], prompt_tokens: int, budget: float) -> float:
        """Record the next answer, and return the price of a token for it, 0 or more.

        Args:
            gains: (gain per token, tokens) of each way that spends some of the budget.
            prompt_tokens: the prompt's length.
            budget: share of all prompt tokens that may be spent, 0..1.
        """
        gain, spent = max(gains, default=(0.0, 0.0))
        self._answers.append((max(0.0, gain), spent, prompt_tokens))
        left = budget * sum(tokens for _, _, tokens in self._answers)
        for gain, spent, _ in sorted(self._answers, reverse=True):
            left -= spent
            if left < 0.0:
                return gain * (1.0 - _TIE)  # equal gains are worth the price
        return 0.0


def _cost(way: Way) -> float:
    assert way.cost is not None, "it is known"
    return way.cost


def _least(way: Way, weights: Weights) -> float:
    least = way.weigh(weights, at_once=True)
    assert least is not None, "no time counts"
    return least


def _reason(best: Way, known: Sequence[Way]) -> str:
    others = [each for each in known if each is not best]
    if not others:
        return "no other way is known and open"
    second = min(others, key=_cost)
    return f"costs {_cost(best):.3g} by the weights, {second.name} {_cost(second):.3g}"


class Reading(NamedTuple):
    """How an answer is read, and how long it is expected to be.

    Args:
        tokens: the answer's expected length.
        reader_rate: tokens per second that the reader reads.
        is_streamed: False if the reader gets the answer as a whole.
    """

    tokens: float
    reader_rate: float
    is_streamed: bool

    def late(self, rate: float | None) -> float:
        """Return how many seconds the reader waits after the first token if the answer comes at this rate.

        Args:
            rate: tokens per second. None if not known, in which case the reader is assumed not to wait.
        """
        if rate is None:
            return 0.0
        return max(0.0, self.tokens / rate - (self.tokens / self.reader_rate if self.is_streamed else 0.0))


class GateOutlook(NamedTuple):
    """How a quality gate is expected to treat answers that the device begins.

    Args:
        sure: share of these answers that the gate lets through, 0..1.
        tokens: number of tokens that the gate holds for its score.
        max_wait: seconds after which an answer is shown although the device is unsure of it, because the server is late.
        sure_score, unsure_score: mean score of the answers that the gate lets through, and of the others, 0..1. None if not known.
    """

    sure: float
    tokens: int
    max_wait: float
    sure_score: float | None = None
    unsure_score: float | None = None


class RaceForecast(NamedTuple):
    """The expected outcome of one dispatch decision.

    Args:
        first_word: seconds to the first token, or None if not known.
        by_device: probability that the device writes the answer.
        unsure: probability that the device writes the answer although it is unsure of it.
        device_starts, server_starts: probabilities that each side reads the prompt.
    """

    first_word: float | None
    by_device: float
    unsure: float
    device_starts: float
    server_starts: float


def forecast_race(
    decision: Decision,
    *,
    device: DeviceSpeed | None,
    server: TTFTDistribution | None,
    prompt_tokens: int,
    queue: float = 0.0,
    gate: GateOutlook | None = None,
    rate: float | None = None,
) -> RaceForecast | None:
    """Forecast the outcome of a decision. Returns None if a side's speed isn't known, so that either side might write the answer.

    Args:
        decision: when each side starts.
        device: the device's speed, or None if not known.
        server: the server's time to first token, or None if not known.
        prompt_tokens: the prompt's length.
        queue: seconds until the device can start on this prompt.
        gate: the quality gate for the first tokens of a device that starts alone, or None if there is no gate.
        rate: the device's tokens per second, for the tokens that the gate holds, or None if not known.
    """
    device_wait, server_wait = decision.device_wait, decision.server_wait
    if device_wait is None:
        assert server_wait is not None, "a decision starts a side"
        return RaceForecast(None if server is None else server_wait + _mean(server), 0.0, 0.0, 0.0, 1.0)
    if device is None:
        return RaceForecast(None, 1.0, 0.0, 1.0, 0.0) if server_wait is None and gate is None else None
    if server is None and (server_wait is not None or gate is not None):
        return None
    parts = []
    for factor in _few(device.jitter):
        first = device_wait + queue + device.ttft(prompt_tokens) * factor
        if gate is None:
            parts.append(_plain(first, device_wait, server_wait, server))
        else:
            assert server is not None, "it is known"
            parts.append(_gated(first + (0.0 if rate is None else (gate.tokens - 1) / rate), server, gate))
    return RaceForecast(*(sum(values) / len(parts) for values in zip(*parts, strict=True)))


def _plain(
    first: float, device_wait: float, server_wait: float | None, server: TTFTDistribution | None
) -> tuple[float, float, float, float, float]:
    """Return the fields of a ``RaceForecast`` for a race in which the device's first token would come after ``first`` seconds."""
    if server_wait is None or server is None or server_wait >= first:
        return first, 1.0, 0.0, 1.0, 0.0
    by_server = server.cdf(first - server_wait)
    starts = 1.0 if device_wait <= server_wait else server.survival_at(device_wait - server_wait)
    return server_wait + float(server.mean_within(first - server_wait)), 1.0 - by_server, 0.0, starts, 1.0


def _gated(held: float, server: TTFTDistribution, gate: GateOutlook) -> tuple[float, float, float, float, float]:
    """Like ``_plain``, for a device that starts alone and is scored after ``held`` seconds. Only then may the server be asked."""
    unsure = 1.0 - gate.sure
    shown = unsure * server.survival_at(gate.max_wait)
    return held + unsure * float(server.mean_within(gate.max_wait)), gate.sure + shown, shown, 1.0, unsure


class SideTerms(NamedTuple):
    """The cost of one side's work, and the quality of its answers.

    Args:
        rate: tokens per second, or None if not known.
        late: seconds that the reader waits after the side's first token.
        quality: quality of the side's answers, or None if not known.
        prompt: cost of reading the prompt.
        completion: cost of writing the whole answer.
    """

    rate: float | None
    late: float
    quality: float | None
    prompt: RequestCost
    completion: RequestCost


def least_score(weights: Weights, device: SideTerms, server: SideTerms, times: TTFTDistribution) -> float:
    """Return the lowest score, 0..1, at which the device's answer is worth more than the server's answer would be.

    Args:
        weights: how much time, money and quality are worth. Quality must count.
        device, server: the sides' costs. The server's quality must be above 0. A score is the answer's share of that quality.
        times: the server's time to first token.
    """
    assert weights.quality, "quality counts"
    assert server.quality, "it is known, and above 0"
    waiting = _mean(times) + server.late - device.late
    money = (server.prompt.server or 0.0) + (server.completion.server or 0.0) - (device.completion.device or 0.0)
    price = ((weights.time or 0.0) * waiting + (weights.money or 0.0) * money) / weights.quality
    return min(1.0, max(0.0, 1.0 - price / server.quality))


def race_way(name: str, forecast: RaceForecast | None, device: SideTerms, server: SideTerms, gate: GateOutlook | None = None) -> Way:
    """Build the way for a dispatch decision, in which one side writes the whole answer.

    Args:
        name: name of the way.
        forecast: forecast for the decision, or None if it isn't known which side writes the answer.
        device, server: the sides' costs.
        gate: tells how good the answers are that readers get from the device. None means that they are as good as all its answers.
    """
    if forecast is None:
        ends = (device.quality, server.quality)
        return Way(name=name, quality=None if None in ends else max(each or 0.0 for each in ends), is_unknown=True)
    sure, unsure = _graded(device.quality, server.quality, gate)
    by_server = 1.0 - forecast.by_device
    parts = ((forecast.by_device - forecast.unsure, sure), (forecast.unsure, unsure), (by_server, server.quality))
    shares = ((device, forecast.device_starts, forecast.by_device), (server, forecast.server_starts, by_server))
    step = _sum([None if side.rate is None else share / side.rate for side, _, share in shares if share > 0.0])
    work = [each for each in shares if each[1] > 0.0]
    return Way(
        name=name,
        first_word=forecast.first_word,
        late=sum(share * side.late for side, _, share in shares),
        rate=1.0 / step if step else None,
        dollars=_sum([_part(side, starts, share, "server") for side, starts, share in work]),
        joules=_sum([_part(side, starts, share, "device_joules") for side, starts, share in work]),
        energy_usd=_sum([_part(side, starts, share, "device") for side, starts, share in work]),
        quality=_sum([None if quality is None else share * quality for share, quality in parts if share > 0.0]),
    )


def _graded(device: float | None, server: float | None, gate: GateOutlook | None) -> tuple[float | None, float | None]:
    """Return the quality of the device's answers that a gate lets through, and of the others. Scores are shares of the server's quality."""
    scores = (None, None) if gate is None else (gate.sure_score, gate.unsure_score)
    sure, unsure = (device if score is None or server is None else score * server for score in scores)
    return sure, unsure


def _part(side: SideTerms, starts: float, share: float, kind: Literal["server", "device", "device_joules"]) -> float | None:
    """Return the expected cost of a side that reads the prompt with probability ``starts`` and writes the answer with ``share``."""
    prompt, completion = getattr(side.prompt, kind), getattr(side.completion, kind)
    return None if prompt is None or completion is None else starts * prompt + share * completion


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values, or None if one of them is None."""
    return None if any(each is None for each in values) else sum(each for each in values if each is not None)


def _few(jitter: Sequence[float]) -> Sequence[float]:
    """Return a few factors that represent all: the sorted factors are cut into equal parts, and the middle one of each part is taken."""
    if len(jitter) <= _FACTORS:
        return jitter
    ordered = sorted(jitter)
    return [ordered[(2 * part + 1) * len(ordered) // (2 * _FACTORS)] for part in range(_FACTORS)]


def _mean(server: TTFTDistribution) -> float:
    return float(server.mean_within(_LONGEST))
