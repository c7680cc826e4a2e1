"""Does the reader notice when an answer moves to the cheaper endpoint?

Answers read at 4.8 tokens/s, recorded services and the paper's phones, in virtual time (``bench.counted.worlds``): Table 3's experiment.
Moves go from the server to the phone (energy at Appendix E's lower rate) and from the phone to the server (at the higher one), at
GPT-4o-mini's price. All services can go on with an answer here, and the phone's model is good enough for all, which a client doesn't assume
(``bench.counted.cost``).

Contenders are the two rules, with t_m as the client learns it, seldom exceeded, and with the mean of what it has seen, without slack, as
the paper has it. The first answers of a client, which knows no t_m yet, count apart; the rest comes from the second halves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from msgspec import structs

from bench.counted.worlds import PHONE_MODELS, Phone, RaceOutcome, RequestDraws, Service, World, price_of, recorded_lengths, services
from bench.report import Row, add_arguments, emit
from streamco.client.modes.base import CostOf
from streamco.client.modes.race.dispatcher import Dispatcher
from streamco.client.modes.race.migration import MigrationOptions, MigrationPlanner
from streamco.client.modes.race.report import describe_hand_overs
from streamco.config import READING
from streamco.core.race.estimators import DeviceFit, ProductLimit
from streamco.endpoints.base import Endpoint
from streamco.policies.cost import RATE_DEVICE_CONSTRAINED, RATE_SERVER_CONSTRAINED
from streamco.policies.dispatch import Side
from streamco.policies.migration import SLACK, Terms, TransferRule

__all__ = ["Tally", "main", "run_world"]

FIRST = 30  # answers of a client
ANSWERS = 150  # of the second half, a client
DIRECTIONS: dict[Side, float] = {"server": RATE_SERVER_CONSTRAINED, "device": RATE_DEVICE_CONSTRAINED}
RULES: dict[str, tuple[TransferRule, bool]] = {
    "streamco": ("pre-copy", False),
    "full-buffer": ("full-buffer", False),
    "pre-copy, mean t_m": ("pre-copy", True),
    "full-buffer, mean t_m": ("full-buffer", True),
}
PAPER: dict[tuple[Side, str], tuple[float, float, float]] = {  # Table 3, lowest, mean and highest of its four services
    ("server", "delayed tokens a move, mean"): (3.25, 5.28, 8.13),
    ("server", "delayed tokens a move, p99"): (8.0, 9.85, 11.0),
    ("server", "time between tokens, p99"): (0.209, 0.209, 0.209),
    ("device", "delayed tokens a move, mean"): (6.59, 10.58, 17.17),
    ("device", "delayed tokens a move, p99"): (6.59, 10.58, 17.17),
    ("device", "time between tokens, p99"): (0.217, 0.217, 0.217),
}


class MeanPlanner(MigrationPlanner):
    """Takes t_m as the mean of what was seen, without slack: equation 6 as it is printed."""

    def _terms(self, endpoint: Endpoint, cost: CostOf) -> Terms | None:
        terms = super()._terms(endpoint, cost)
        samples = self._switching.timing(endpoint.name, is_device=endpoint.kind == "device")._samples
        if terms is None or not samples:
            return terms
        if endpoint.kind == "device":
            fit = DeviceFit()
            for tokens, seconds, _ in samples:
                fit.observe(tokens, seconds)
            speed = fit.estimate()
            assert speed is not None, "it has samples"
            return structs.replace(terms, setup=speed.overhead - SLACK, per_token=speed.seconds_per_token)
        times = ProductLimit(prior_weight=0.0)
        for _, seconds, is_censored in samples:
            times.observe(seconds, is_censored=is_censored)
        curve = times.estimate()
        return terms if curve is None else structs.replace(terms, setup=curve.mean - SLACK, per_token=0.0)


def take_means(dispatcher: Dispatcher) -> None:
    """Have a client's moves planned with mean times."""
    dispatcher._migration = MeanPlanner(dispatcher._migration.answers)


@dataclass(slots=True)
class Tally:
    """What many moves came to: one entry a move, and all gaps of the answers that moved."""

    answers: int = 0
    delayed: list[int] = field(default_factory=list)
    buffered: list[float] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    overrun: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        both = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return Tally(**both)

    @property
    def unnoticed(self) -> float:
        """Share of moves with no delayed token, per cent."""
        return 100.0 * sum(not count for count in self.delayed) / len(self.delayed)

    def add(self, outcome: RaceOutcome, world: World) -> None:
        """Count an answer."""
        self.answers += 1
        moves = [move for move in describe_hand_overs(outcome.machine, outcome.dispatched, world.endpoints) if move.is_planned]
        for move in moves:
            made = (outcome.server if move.source == "server" else outcome.device).made
            self.delayed.append(move.delayed_tokens)
            self.buffered.append(move.buffered)
            self.position.append(move.position)
            self.overrun.append(made - move.position)
        if moves:
            self.gaps += gaps_seen(outcome)


def gaps_seen(outcome: RaceOutcome) -> Iterable[float]:
    """Seconds between what the virtual reader sees, as ``Meter`` has it."""
    times = [time for time, delivery in outcome.session.deliveries for _ in delivery.chunks]
    seen = [max(time, times[0] + place / READING) for place, time in enumerate(times)]
    return (round(later - earlier, 6) for earlier, later in pairwise(seen))


def run_world(service: Service, phone: Phone, side: Side, contender: str, *, answers: int) -> tuple[Tally, Tally]:
    """A client's first answers, and those after them."""
    rule, is_mean = RULES[contender]
    planned, judged = recorded_lengths()
    world = World(
        service,
        phone,
        constrained=side,
        budget=1.0,
        exchange_rate=DIRECTIONS[side],
        migration=MigrationOptions(rule=rule, min_quality=0.0),
        adapt=take_means if is_mean else None,
    )
    first, later = Tally(), Tally()
    for count, draws, tally in (
        (FIRST, RequestDraws(service.planned, planned, "first"), first),
        (answers, RequestDraws(service.judged, judged, "later"), later),
    ):
        for index in range(count):
            tally.add(world.run(draws[index]), world)
    return first, later


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    found = services()[:: 5 if options.quick else 1]
    prices = price_of("gpt-4o-mini")
    rows: list[Row] = []
    for side in DIRECTIONS:
        for contender in RULES:
            firsts, laters = {}, {}
            for service in found:
                pairs = [
                    run_world(
                        replace(service, prices=prices, can_continue=True),
                        phone,
                        side,
                        contender,
                        answers=ANSWERS // (3 if options.quick else 1),
                    )
                    for phone in PHONE_MODELS
                ]
                firsts[service.name], laters[service.name] = (sum(part, Tally()) for part in zip(*pairs, strict=True))
            rows += rows_of(side, contender, laters) + rows_of(side, f"{contender}, first answers", firsts, only_unnoticed=True)
    rows += [
        Row("moves", case_of(side), "paper (its services)", metric, "s" if "time" in metric else "tokens", middle, low, high)
        for (side, metric), (low, middle, high) in PAPER.items()
    ]
    emit(rows, options.json)


def case_of(side: Side) -> str:
    """Which way."""
    return "server to device" if side == "server" else "device to server"


def rows_of(side: Side, contender: str, tallies: dict[str, Tally], *, only_unnoticed: bool = False) -> list[Row]:
    """All moves together; min and max are the services with the least and the most."""
    whole = sum(tallies.values(), Tally())
    parts = [tally for tally in tallies.values() if tally.delayed]
    if not parts:
        return []

    def row(metric: str, unit: str, measure: Callable[[Tally], float]) -> Row:
        values = [measure(part) for part in parts]
        return Row("moves", case_of(side), contender, metric, unit, measure(whole), min(values), max(values))

    rows = [
        row("moves", "", lambda tally: len(tally.delayed)),
        row("moves without a delayed token", "%", lambda tally: tally.unnoticed),
    ]
    if only_unnoticed:
        return rows
    return [
        *rows,
        row("delayed tokens a move, mean", "tokens", lambda tally: float(np.mean(tally.delayed))),
        row("delayed tokens a move, p99", "tokens", lambda tally: float(np.percentile(tally.delayed, 99))),
        row("time between tokens, p99", "s", lambda tally: float(np.percentile(tally.gaps, 99))),
        row("source's tokens until the change", "tokens", lambda tally: float(np.mean(tally.position))),
        row("of the source's tokens, made for nobody", "tokens", lambda tally: float(np.mean(tally.overrun))),
        row("tokens buffered at the change", "tokens", lambda tally: float(np.mean(tally.buffered))),
    ]


if __name__ == "__main__":
    main()
