"""The choice between ways to make an answer, by what time, money and quality are worth to the caller.

A *way* is the device alone, the server alone, a race, a gated race, speculation or a split model. Each has a forecast for the requested
answer. The weighted cost of a way is

    time x (seconds that the reader waits) + money x (US dollars) - quality x (expected quality)

The reader waits for the first word, and later whenever the text comes slower than they read. For an answer that isn't streamed, they wait
until its end. Dollars are the servers' bill and the device's energy at the exchange rate (``policies.cost``).

``WayChooser`` takes the cheapest way. With a budget below 1, the prompt tokens of the side that it limits have a price, too, which only
the answers that gain most by them can pay. So the budget is spent on those, and not on whatever comes first.

A forecast gets old, sooner if it is based on few measurements, and a way that nothing is known about has none. Such a way is tried if it
would be the cheapest with an immediate first word; otherwise it can't win, whatever is measured. One that stays unknown is tried less and
less often. In total, trying known ways may cost 2 % more than the best way would have. A race isn't tried: its forecast follows from both
sides' forecasts, and it costs no less than the side that wins it.
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
_TRIED = 0.02  # share of the costs that tries may lose
_TIE = 1e-6
_LONGEST = 60.0  # seconds that a server without an answer counts for
_FACTORS = 8  # factors of a device's jitter that a forecast uses

MAX_AGE = 50
"""Answers after which a forecast is old, because nothing has been measured since."""


class Weights(Struct, frozen=True):
    """What time, money and quality are worth to the caller; None if one of them doesn't count.

    Args:
        time: a second that the reader waits.
        money: a US dollar.
        quality: a good answer instead of a bad one: a difference of 1 in quality.

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
        first_word: seconds to the first token; None if not known.
        late: seconds that the reader waits after the first token, because the text comes slower than they read.
        rate: tokens per second after the first one; None if not known, and then the reader doesn't wait for them.
        dollars: cost at servers, US dollars; None if a price isn't known, which counts as nothing.
        joules: of the device; None if not known.
        energy_usd: what these joules are worth, in US dollars; None if not known, which counts as nothing.
        quality: expected quality, on one scale for all ways; None if not known, which counts as 0.
        spends: prompt tokens that the side under the budget is expected to read.
        obstacle: why it isn't open, as a clause; "" if it is.
        measured: what its forecast is based on: answers at "device" and "server", or its own answers.
        is_unknown: not even who will write the answer is known, nor what it costs. Its quality is then the best that is possible.
        cost: weighted cost; None if not known, or not open.
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
        """Return the weighted cost, with ``at_once`` the least that it may turn out to be. None if it isn't known."""
        if self.is_unknown and not at_once:
            return None
        waiting = 0.0 if at_once or not weights.time else None if self.first_word is None else self.first_word + self.late
        if waiting is None:
            return None
        money = (self.dollars or 0.0) + (self.energy_usd or 0.0)
        return (weights.time or 0.0) * waiting + (weights.money or 0.0) * money - (weights.quality or 0.0) * (self.quality or 0.0)


class ChosenWay(NamedTuple):
    """The choice for one answer.

    Args:
        way: the name of the chosen way.
        ways: all ways, with their costs.
        reason: why, in a few words.
    """

    way: str
    ways: tuple[Way, ...]
    reason: str


class WayChooser:
    """Chooses a way for each answer. Each client has one, because it remembers how long ago each forecast was measured.

    Args:
        weights: what the caller says is worth how much.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._count = 0
        self._last: dict[str, int] = {}  # by what is measured: the answer that last measured it
        self._measurements: Counter[str] = Counter()  # the same: how often it was measured
        self._tries: Counter[str] = Counter()  # of ways that stay unknown
        self._tried: dict[str, int] = {}  # the answer that last tried each way
        self._price = _BudgetPrice()
        self._credit = 0.0  # weighted cost that further tries may be predicted to lose

    def choose(self, ways: Iterable[Way], *, prompt_tokens: int = 0, budget: float = 1.0, is_again: bool = False) -> ChosenWay:
        """Return the choice between ways, at least one of which must be open.

        Args:
            ways: the ways and their forecasts.
            prompt_tokens: the prompt's length.
            budget: share of all prompt tokens that one side may read, 0..1.
            is_again: True if the way chosen before for this answer turned out not to be open.
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
        """For each way that spends some of the budget, return its gain per token over the best way that spends none, and its tokens."""
        costs = [(each, each.weigh(self.weights)) for each in ways]
        frugal = [cost for each, cost in costs if not each.spends and not each.obstacle and cost is not None]
        if not frugal:
            return []
        return [((min(frugal) - cost) / each.spends, each.spends) for each, cost in costs if each.spends and cost is not None]

    def _to_try(self, able: Sequence[Way], best: float) -> Way | None:
        """Return the way to measure next, which might be cheaper than the best known one, or None if there is none."""
        single = {each.measured[0] for each in able if len(each.measured) == 1}
        due = [each for each in able if self._is_due(each, single, best) and _least(each, self.weights) < best]
        return min(due, key=lambda each: (self._measured(each), _least(each, self.weights)), default=None)

    def _is_due(self, way: Way, single: set[str], best: float) -> bool:
        """Return True if a way is to be tried. ``single`` names what other ways measure alone."""
        waited = self._count - self._tried.get(way.name, -MAX_AGE)
        if way.cost is None:
            is_own = len(way.measured) == 1 or not single.issuperset(way.measured)
            return is_own and waited >= min(MAX_AGE, (1 << min(9, self._tries[way.name])) - 1)
        rarest = min((self._measurements[each] for each in way.measured), default=MAX_AGE)
        age = min(MAX_AGE, 1 << min(9, rarest))
        is_old = self._count - self._measured(way) > age and waited > age
        return is_old and len(way.measured) == 1 and way.cost - best <= self._credit

    def _measured(self, way: Way) -> int:
        """Return the number of the answer that measured the oldest part of a forecast, or 0 for before the first answer."""
        return min((self._last.get(each, 0) for each in way.measured), default=self._count)


class _BudgetPrice:
    """What a prompt token under the budget is worth: the gain per token above which the last answers spend just the budget's share."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float, int]] = deque(maxlen=_WINDOW)  # gain per token, tokens spent, prompt tokens

    def next(self, gains: Sequence[tuple[float, float]], prompt_tokens: int, budget: float) -> float:
        """Take the next answer, and return the price of a token for it, 0 or more.

        Args:
            gains: gain per token, and tokens, of each way that spends some.
            prompt_tokens: the prompt's length.
            budget: share of all prompt tokens, 0..1.
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
        tokens: length of the answer.
        reader_rate: tokens per second that the reader reads.
        is_streamed: False if they get it whole.
    """

    tokens: float
    reader_rate: float
    is_streamed: bool

    def late(self, rate: float | None) -> float:
        """Return the seconds that the reader waits after the first token if an answer comes at this rate.

        Args:
            rate: tokens per second; None if not known, and then they don't wait.
        """
        if rate is None:
            return 0.0
        return max(0.0, self.tokens / rate - (self.tokens / self.reader_rate if self.is_streamed else 0.0))


class GateOutlook(NamedTuple):
    """What a quality gate is expected to do with answers that the device begins.

    Args:
        sure: share of them that it lets through, 0..1.
        tokens: number of tokens that it holds for its score.
        max_wait: seconds after which an answer is shown although the device is unsure of it, because the server is late.
        sure_score, unsure_score: how good the answers are that it lets through, and the others, 0..1; None if not known.
    """

    sure: float
    tokens: int
    max_wait: float
    sure_score: float | None = None
    unsure_score: float | None = None


class RaceForecast(NamedTuple):
    """What is expected of one dispatch decision.

    Args:
        first_word: seconds to the first token; None if not known.
        by_device: probability that the device writes the answer.
        unsure: probability that it does although it is unsure of it.
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
    """Return what is expected of a decision, or None if it isn't known who writes the answer, because one of two sides is unknown.

    Args:
        decision: when each side starts.
        device: its speed; None if not known.
        server: its time to first token; None if not known.
        prompt_tokens: the prompt's length.
        queue: seconds until the device gets to this prompt.
        gate: grades the beginning of a device that starts alone; None if there is no gate.
        rate: tokens per second of the device, for the tokens that are held; None if not known.
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
    """Return the parts of a forecast if the device's first token would come after ``first`` seconds."""
    if server_wait is None or server is None or server_wait >= first:
        return first, 1.0, 0.0, 1.0, 0.0
    by_server = server.cdf(first - server_wait)
    starts = 1.0 if device_wait <= server_wait else server.survival_at(device_wait - server_wait)
    return server_wait + float(server.mean_within(first - server_wait)), 1.0 - by_server, 0.0, starts, 1.0


def _gated(held: float, server: TTFTDistribution, gate: GateOutlook) -> tuple[float, float, float, float, float]:
    """Like ``_plain``, for a device that starts alone, has its score after ``held`` seconds, and has the server asked only then."""
    unsure = 1.0 - gate.sure
    shown = unsure * server.survival_at(gate.max_wait)
    return held + unsure * float(server.mean_within(gate.max_wait)), gate.sure + shown, shown, 1.0, unsure


class SideTerms(NamedTuple):
    """What one side's work costs, and how good its answers are.

    Args:
        rate: tokens per second; None if not known.
        late: seconds that the reader waits after its first token.
        quality: quality of its answers; None if not known.
        prompt: cost of reading the prompt.
        completion: cost of writing the whole answer.
    """

    rate: float | None
    late: float
    quality: float | None
    prompt: RequestCost
    completion: RequestCost


def least_score(weights: Weights, device: SideTerms, server: SideTerms, times: TTFTDistribution) -> float:
    """Return the lowest score, 0..1, at which a device's answer is worth more than the server's would be.

    Args:
        weights: what time, money and quality are worth; quality must count.
        device, server: what their work costs; the server's quality is above 0. The score is a device answer's share of that quality.
        times: the server's time to first token.
    """
    assert weights.quality, "quality counts"
    assert server.quality, "it is known, and above 0"
    waiting = _mean(times) + server.late - device.late
    money = (server.prompt.server or 0.0) + (server.completion.server or 0.0) - (device.completion.device or 0.0)
    price = ((weights.time or 0.0) * waiting + (weights.money or 0.0) * money) / weights.quality
    return min(1.0, max(0.0, 1.0 - price / server.quality))


def race_way(name: str, forecast: RaceForecast | None, device: SideTerms, server: SideTerms, gate: GateOutlook | None = None) -> Way:
    """Return a way in which one or both sides write the answer alone.

    Args:
        name: name of the way.
        forecast: forecast of its decision; None if it isn't known who writes the answer.
        device, server: what their work costs.
        gate: says how good the device's shown answers are; None if they are as good as all its answers.
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
    """Return the quality of the device's answers that a gate lets through, and of the others; a score is a share of the server's."""
    scores = (None, None) if gate is None else (gate.sure_score, gate.unsure_score)
    sure, unsure = (device if score is None or server is None else score * server for score in scores)
    return sure, unsure


def _part(side: SideTerms, starts: float, share: float, kind: Literal["server", "device", "device_joules"]) -> float | None:
    """Return what a side's part costs, if it reads the prompt and writes the answer with these probabilities."""
    prompt, completion = getattr(side.prompt, kind), getattr(side.completion, kind)
    return None if prompt is None or completion is None else starts * prompt + share * completion


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum, or None if a part isn't known."""
    return None if any(each is None for each in values) else sum(each for each in values if each is not None)


def _few(jitter: Sequence[float]) -> Sequence[float]:
    """Return a few factors that stand for all: the middle of each of equal parts."""
    if len(jitter) <= _FACTORS:
        return jitter
    ordered = sorted(jitter)
    return [ordered[(2 * part + 1) * len(ordered) // (2 * _FACTORS)] for part in range(_FACTORS)]


def _mean(server: TTFTDistribution) -> float:
    return float(server.mean_within(_LONGEST))
