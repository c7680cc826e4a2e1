"""The choice between ways to make an answer, by what the caller says that time, money and quality are worth.

A *way* is the device alone, the server alone, a race, a gated race, speculation or a split model. Each has a forecast for the answer that
is asked for. The weighted cost of a way is

    time x (seconds that the reader waits) + money x (US dollars) - quality x (expected quality)

The reader waits for the first word, and later on whenever the text comes slower than it is read. An answer that isn't streamed is waited
for to its end. Dollars are the servers' bill and the device's energy at the exchange rate (``policies.cost``).

``WayChooser`` takes the cheapest way. Below a budget of 1 the prompt tokens of the side that it limits have a price, too: what the answers
gain that gain most by them. So the budget is spent on those, and not on whatever comes first.

A forecast gets old, one of few measurements sooner, and a way that nothing is known of has none. Such a way is tried if it would be the
cheapest with a first word at once: the others can't win, whatever is measured. One that stays unknown is tried less and less often. Tries
of those that are known may cost 2 % more than the best way would have, in all. A race isn't tried: its forecast follows from those of both
sides, and it costs no less than the side that wins it.
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

_WINDOW = 256  # answers that a price follows from
_TRIED = 0.02  # share of the costs that tries may lose
_FACTORS = 8  # of a device's jitter, in a forecast

MAX_AGE = 50
"""Answers after which a forecast is old, because nothing has been measured since."""


class Weights(Struct, frozen=True):
    """What the caller says is worth how much; None: it doesn't count.

    Args:
        time: a second that the reader waits.
        money: a US dollar.
        quality: a good answer in the place of a bad one: a difference of 1 in quality.

    Raises:
        ConfigError: a weight that is no finite number of 0 or more, or no weight above 0.
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
    """One way to make an answer, and what is predicted of it.

    Args:
        name: "device", "server", "race", "gated race", "speculate" or "split".
        first_word: seconds to the first token; None: not known.
        late: seconds that the reader waits after it, because the text comes slower than they read.
        rate: tokens per second after the first one; None: not known, and then the reader doesn't wait for them.
        dollars: at servers; None: a price isn't known, and it counts as nothing.
        joules: of the device; None: not known.
        energy_usd: what these joules are worth, in US dollars; None: not known, and it counts as nothing.
        quality: expected, on one scale for all ways; None: not known, and it counts as 0.
        spends: prompt tokens that the side under the budget is expected to read.
        obstacle: why it isn't open, as a clause; "": it is.
        measured: what its forecast is made from: answers at "device" and "server", or of its own.
        cost: weighted; None: not known, or not open.
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
    cost: float | None = None

    def weigh(self, weights: Weights, *, at_once: bool = False) -> float | None:
        """Return the weighted cost; None: the first word isn't known. ``at_once``: the least that it may turn out to be."""
        waiting = 0.0 if at_once or not weights.time else None if self.first_word is None else self.first_word + self.late
        if waiting is None:
            return None
        money = (self.dollars or 0.0) + (self.energy_usd or 0.0)
        return (weights.time or 0.0) * waiting + (weights.money or 0.0) * money - (weights.quality or 0.0) * (self.quality or 0.0)


class ChosenWay(NamedTuple):
    """The choice for one answer.

    Args:
        way: the name of the way that goes.
        ways: all ways, with their costs.
        reason: why, in a few words.
    """

    way: str
    ways: tuple[Way, ...]
    reason: str


class WayChooser:
    """Chooses a way for each answer. One for each client, because it remembers how long ago each forecast was measured.

    Args:
        weights: what the caller says is worth how much.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._count = 0
        self._last: dict[str, int] = {}  # by what is measured: the answer that it was last measured by
        self._measurements: Counter[str] = Counter()  # the same: how often it was measured
        self._tries: Counter[str] = Counter()  # of ways that stay unknown
        self._tried: dict[str, int] = {}
        self._price = _BudgetPrice()
        self._credit = 0.0  # weighted cost that further tries may be predicted to lose

    def choose(self, ways: Iterable[Way], *, prompt_tokens: int = 0, budget: float = 1.0) -> ChosenWay:
        """Return the choice between ways, of which one at least must be open.

        Args:
            ways: what is predicted of each.
            prompt_tokens: the prompt's length.
            budget: share of all prompt tokens that one side may read, 0..1.
        """
        self._count += 1
        weighed = tuple(each if each.obstacle else replace(each, cost=each.weigh(self.weights)) for each in ways)
        able = [each for each in weighed if not each.obstacle]
        assert able, "one way is open"
        known = [each for each in able if each.cost is not None]
        cheapest = min(known, key=_cost, default=None)
        price = self._price.next(self._gains(weighed), prompt_tokens, budget) if budget < 1.0 else 0.0
        best = min(known, key=lambda each: (_cost(each) + price * each.spends, -each.spends if price else each.spends), default=None)
        if best is None or cheapest is None:
            chosen, reason = next((each for each in able if each.name == "race"), able[0]), "nothing is known yet"
        elif (tried := self._to_try(able, _cost(best))) is not None:
            chosen = tried
            self._credit -= 0.0 if tried.cost is None else tried.cost - _cost(best)
            reason = "nothing is known of it yet" if tried.cost is None else "measured again, because it may be better by now"
        elif best is not cheapest:
            chosen, reason = best, f"{cheapest.name} would be better, but the budget is for answers that gain more by it"
        else:
            chosen, reason = best, _reason(best, known)
        if best is not None:
            self._credit += _TRIED * (_cost(best) + (self.weights.quality or 0.0) * max(each.quality or 0.0 for each in able))
        self._took(chosen)
        return ChosenWay(chosen.name, weighed, reason)

    def _gains(self, ways: Sequence[Way]) -> list[tuple[float, float]]:
        """Return what each way that spends of the budget gains by a token, over the best way that doesn't, and how many it spends."""
        costs = [(each, each.weigh(self.weights)) for each in ways]
        frugal = [cost for each, cost in costs if not each.spends and not each.obstacle and cost is not None]
        if not frugal:
            return []
        return [((min(frugal) - cost) / each.spends, each.spends) for each, cost in costs if each.spends and cost is not None]

    def _to_try(self, able: Sequence[Way], best: float) -> Way | None:
        """Return the way to be measured, which might be cheaper than the best one that is known; None: there is none."""
        due = [each for each in able if len(each.measured) == 1 and self._is_due(each, best) and _least(each, self.weights) < best]
        return min(due, key=lambda each: (self._measured(each), _least(each, self.weights)), default=None)

    def _is_due(self, way: Way, best: float) -> bool:
        if way.cost is None:
            return self._count - self._tried.get(way.name, -MAX_AGE) >= min(MAX_AGE, (1 << min(9, self._tries[way.name])) - 1)
        rarest = min((self._measurements[each] for each in way.measured), default=MAX_AGE)
        is_old = self._count - self._measured(way) > min(MAX_AGE, 1 << min(9, rarest))
        return is_old and way.cost - best <= self._credit

    def _measured(self, way: Way) -> int:
        """Return the answer by which the oldest part of a forecast was measured; 0: before the first one."""
        return min((self._last.get(each, 0) for each in way.measured), default=self._count)

    def _took(self, way: Way) -> None:
        for each in way.measured:
            self._last[each] = self._count
            self._measurements[each] += 1
        if way.cost is None:
            self._tries[way.name] += 1
            self._tried[way.name] = self._count
        else:
            self._tries.pop(way.name, None)


class _BudgetPrice:
    """What a prompt token of the side under the budget is worth: the gain that the last answers with the budget's share of tokens reach."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float, int]] = deque(maxlen=_WINDOW)  # gain a token, tokens spent, prompt tokens

    def next(self, gains: Sequence[tuple[float, float]], prompt_tokens: int, budget: float) -> float:
        """Take the next answer, and return the price of a token for it, 0 or more.

        Args:
            gains: gain a token, and tokens, of each way that spends some.
            prompt_tokens: the prompt's length.
            budget: share of all prompt tokens, 0..1.
        """
        gain, spent = max(gains, default=(0.0, 0.0))
        self._answers.append((max(0.0, gain), spent, prompt_tokens))
        left = budget * sum(tokens for _, _, tokens in self._answers)
        for gain, spent, _ in sorted(self._answers, reverse=True):
            left -= spent
            if left < 0.0:
                return gain
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
        tokens: of the answer.
        reader_rate: tokens per second that the reader reads.
        is_streamed: False: they get it whole.
    """

    tokens: float
    reader_rate: float
    is_streamed: bool

    def late(self, rate: float | None) -> float:
        """Return the seconds that the reader waits after the first token of an answer that comes at this rate.

        Args:
            rate: tokens per second; None: not known, and then they don't wait.
        """
        if rate is None:
            return 0.0
        return max(0.0, self.tokens / rate - (self.tokens / self.reader_rate if self.is_streamed else 0.0))


class GateOutlook(NamedTuple):
    """What a quality gate is expected to do.

    Args:
        sure: share of the device's answers that it lets through, 0..1.
        tokens: that it holds for its score.
        quality: expected of those that it lets through; None: not known.
        max_wait: seconds after which the device's answer is shown, because the server is late.
    """

    sure: float
    tokens: int
    quality: float | None
    max_wait: float


class RaceForecast(NamedTuple):
    """What is expected of one dispatch decision.

    Args:
        first_word: seconds to the first token.
        by_device: probability that the device writes the answer.
        device_starts, server_starts: probabilities that each side reads the prompt.
    """

    first_word: float
    by_device: float
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
    """Return what is expected of a decision; None: a side that it starts is not known.

    Args:
        decision: when each side starts.
        device: its speed; None: not known.
        server: its time to first token; None: not known.
        prompt_tokens: the prompt's length.
        queue: seconds until the device comes to this prompt.
        gate: grades the device's beginning; None: there is no gate.
        rate: tokens per second of the device, for those that are held; None: not known.
    """
    device_wait, server_wait = decision.device_wait, decision.server_wait
    if (device_wait is not None and device is None) or (server is None and (server_wait is not None or gate is not None)):
        return None
    if device_wait is None:
        assert server is not None, "it is known"
        assert server_wait is not None, "a decision starts a side"
        return RaceForecast(server_wait + _mean(server), 0.0, 0.0, 1.0)
    assert device is not None, "it is known"
    parts = []
    for factor in _few(device.jitter):
        first = device_wait + queue + device.ttft(prompt_tokens) * factor
        if gate is None:
            parts.append(_plain(first, device_wait, server_wait, server))
        else:
            assert server is not None, "it is known"
            held = first + (0.0 if rate is None else (gate.tokens - 1) / rate)
            parts.append(_gated(held, device_wait, server_wait, server, gate))
    return RaceForecast(*(sum(values) / len(parts) for values in zip(*parts, strict=True)))


def _plain(first: float, device_wait: float, server_wait: float | None, server: TTFTDistribution | None) -> RaceForecast:
    """Return the forecast if the device's first token would come after ``first`` seconds."""
    if server_wait is None or server is None or server_wait >= first:
        return RaceForecast(first, 1.0, 1.0, 0.0)
    by_server = server.cdf(first - server_wait)
    starts = 1.0 if device_wait <= server_wait else server.survival_at(device_wait - server_wait)
    return RaceForecast(server_wait + float(server.mean_within(first - server_wait)), 1.0 - by_server, starts, 1.0)


def _gated(held: float, device_wait: float, server_wait: float | None, server: TTFTDistribution, gate: GateOutlook) -> RaceForecast:
    """Return the forecast if the device's beginning would have its score after ``held`` seconds."""
    is_later = server_wait is None or server_wait >= held
    plain = _plain(held, device_wait, server_wait, server)
    open_share, unsure = plain.by_device, 1.0 - gate.sure  # the server hasn't spoken before the score
    if is_later:
        rest = min(gate.max_wait, _mean(server))
    else:
        assert server_wait is not None, "it started"
        before = held - server_wait
        longer = float(server.mean_within(before + gate.max_wait)) - float(server.mean_within(before))
        rest = longer / open_share if open_share > 0.0 else 0.0
    return RaceForecast(
        first_word=plain.first_word + open_share * unsure * rest,
        by_device=open_share * gate.sure,
        device_starts=plain.device_starts,
        server_starts=max(plain.server_starts, open_share * unsure),
    )


class SideTerms(NamedTuple):
    """What one side's work costs, and how good its answers are.

    Args:
        rate: tokens per second; None: not known.
        late: seconds that the reader waits after its first token.
        quality: of its answers; None: not known.
        prompt: cost of reading the prompt.
        completion: cost of writing the whole answer.
    """

    rate: float | None
    late: float
    quality: float | None
    prompt: RequestCost
    completion: RequestCost


def least_score(weights: Weights, device: SideTerms, server: SideTerms, times: TTFTDistribution) -> float:
    """Return the lowest score, 0..1, of a device's answer that is worth more than the server's in its place.

    Args:
        weights: what the caller says is worth how much; quality counts.
        device, server: what their work costs; the server's quality is known.
        times: the server's time to first token.
    """
    assert weights.quality, "quality counts"
    assert server.quality is not None, "it is known"
    waiting = _mean(times) + server.late - device.late
    money = (server.prompt.server or 0.0) + (server.completion.server or 0.0) - (device.completion.device or 0.0)
    return min(1.0, max(0.0, server.quality - ((weights.time or 0.0) * waiting + (weights.money or 0.0) * money) / weights.quality))


def race_way(name: str, forecast: RaceForecast | None, device: SideTerms, server: SideTerms, *, graded_quality: float | None = None) -> Way:
    """Return a way in which one or both sides write the answer alone.

    Args:
        name: of the way.
        forecast: of its decision; None: a side's time isn't known.
        device, server: what their work costs.
        graded_quality: of the answers that a gate lets through; None: that of the device's answers.
    """
    of_device = device.quality if graded_quality is None else graded_quality
    if forecast is None:
        known = [each for each in (of_device, server.quality) if each is not None]
        return Way(name=name, quality=max(known, default=None) if len(known) == 2 else None)
    by_device, by_server = forecast.by_device, 1.0 - forecast.by_device
    parts = ((device, forecast.device_starts, by_device, of_device), (server, forecast.server_starts, by_server, server.quality))
    qualities = [None if quality is None else share * quality for _, _, share, quality in parts if share > 0.0]
    step = _sum([None if side.rate is None else share / side.rate for side, _, share, _ in parts if share > 0.0])
    work = [(side, starts, share) for side, starts, share, _ in parts if starts > 0.0]
    return Way(
        name=name,
        first_word=forecast.first_word,
        late=sum(share * side.late for side, _, share, _ in parts),
        rate=1.0 / step if step else None,
        dollars=_sum([_part(side, starts, share, "server") for side, starts, share in work]),
        joules=_sum([_part(side, starts, share, "device_joules") for side, starts, share in work if side is device]),
        energy_usd=_sum([_part(side, starts, share, "device") for side, starts, share in work if side is device]),
        quality=_sum(qualities),
    )


def _part(side: SideTerms, starts: float, share: float, kind: Literal["server", "device", "device_joules"]) -> float | None:
    """Return what a side's part costs, if it reads the prompt and writes the answer with these probabilities."""
    prompt, completion = getattr(side.prompt, kind), getattr(side.completion, kind)
    return None if prompt is None or completion is None else starts * prompt + share * completion


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None: a part isn't known."""
    return None if any(each is None for each in values) else sum(each for each in values if each is not None)


def _few(jitter: Sequence[float]) -> Sequence[float]:
    """Return a few factors that stand for all: the middle of each of equal parts."""
    if len(jitter) <= _FACTORS:
        return jitter
    ordered = sorted(jitter)
    return [ordered[(2 * part + 1) * len(ordered) // (2 * _FACTORS)] for part in range(_FACTORS)]


def _mean(server: TTFTDistribution) -> float:
    mean = server.mean
    return mean if math.isfinite(mean) else float(server.quantile(0.5))
