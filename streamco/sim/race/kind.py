"""``kind: race``: one user's requests to a service and a device that race for the first token (DiSCo).

The live client makes the decisions (``sim.race.client``), and this module computes the metrics of an experiment. Requests come one after
another, so that the time to first token depends only on the race. With arrival times, they may have to wait for others at the device.

Quality is measured at the virtual reader (``core.meter``), which begins with the first token and reads tokens at a fixed rate. The time
between tokens is measured at this reader over all answers together, as in DiSCo's Table 3. ``tpot`` tells how fast answers were delivered.
If neither a pace nor a migration depends on single tokens, an answer takes only a few events, and its tokens' times are computed
afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from random import Random

from msgspec.structs import replace

from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.report import describe_hand_overs
from streamco.config import parse_pace
from streamco.core.meter import FRAME
from streamco.policies.cost import RATE_DEVICE_CONSTRAINED, RATE_SERVER_CONSTRAINED
from streamco.profiles import Profile
from streamco.sim.experiment.metrics import Metric, RequestRow, Sink
from streamco.sim.experiment.scenario import Named, Scenario
from streamco.sim.race.client import RaceOutcome, RequestDraw, SimulatedClient, draw_request
from streamco.sim.race.options import RaceOptions, RacePolicy, find_lengths, find_phone, find_prices, find_server, find_service
from streamco.sim.workload.trace_files import read_gaps

__all__ = ["KIND", "RaceRun", "RaceKind", "RaceRow"]

_WHOLE = 1 << 20  # tokens per event if nothing depends on single tokens, so a whole answer
_STEP = 1e-4  # seconds; resolution of the gaps between tokens


class RaceRow(RequestRow, frozen=True, kw_only=True):
    """The row of one answer. ``mode`` lists the endpoints that wrote it, in order; ``device`` and ``server`` are 0 if they worked on it.

    Args:
        is_spent: True if the answer used the constrained side's budget.
        moves: number of migrations.
        delayed: tokens that came after the virtual reader wanted them.
        cost: cost in US dollars, including energy, or None if it isn't known.
    """

    is_spent: bool
    moves: int
    delayed: int
    cost: float | None = None


class RaceKind:
    """The kind ``race``; see ``scenario.Kind``."""

    options = RaceOptions
    metrics: Mapping[str, Metric] = {
        "budget_share": Metric("prompt tokens that the constrained side processed", "share"),
        "device_wins": Metric("answers that the device began", "share"),
        "cost_per_1000": Metric("cost of a thousand answers, energy included", "US dollars", "lower"),
        "tbt_mean": Metric("time between tokens at the reader, mean", "s", "lower"),
        "tbt_p99": Metric("time between tokens at the reader, 99th percentile", "s", "lower"),
        "delayed_mean": Metric("delayed tokens an answer", "tokens", "lower"),
        "moves_mean": Metric("moves an answer"),
        "delayed_move_mean": Metric("delayed tokens a move, mean", "tokens", "lower"),
        "delayed_move_p99": Metric("delayed tokens a move, 99th percentile", "tokens", "lower"),
        "unnoticed": Metric("moves without a delayed token", "share", "higher"),
    }
    columns = ("ttft_mean", "ttft_p99", "budget_share", "cost_per_1000", "tbt_p99", "delayed_mean", "moves_mean")

    def describe(self, options: RaceOptions) -> str:
        """Return a description of the requests only, because device and service are usually varied, and the file names them."""
        workload = options.workload
        lengths = "Alpaca prompts" if workload.lengths == "alpaca" else f"prompts as long as those of {workload.lengths}"
        limit = "" if workload.max_tokens is None else f", answers of {workload.max_tokens} tokens at most"
        order = "one after the other" if workload.arrivals is None else "as they arrive"
        return f"a device and a service race for {workload.requests} {lengths}, {order}{limit}"

    def names(self, options: RaceOptions, scenario: Scenario) -> Iterator[Named]:
        """Yield the service, and the recorded lengths and arrivals. Devices and prices were checked with the options."""
        service, lengths = options.world.service, options.workload.lengths
        yield Named(("world", "service"), repr(service), partial(find_service, service, scenario))
        yield Named(("workload", "lengths"), lengths, partial(find_lengths, lengths, scenario))
        if options.workload.arrivals is not None and (recorded := options.workload.arrivals.azure) is not None:
            yield Named(("workload", "arrivals", "azure"), recorded, lambda: read_gaps(_locate_arrivals(recorded, scenario)))

    def run(self, options: RaceOptions, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        """Run the client's requests, one after another or as they arrive."""
        race, tally = RaceRun(options, scenario), RaceTotals()
        for outcome, number in race.run():
            if number is not None:
                sink(tally.add(race, outcome, number))
        return tally.metrics()


KIND = RaceKind()


class RaceRun:
    """A simulated client with its device, service and length distributions.

    Args:
        options: options of the experiment.
        scenario: provides the seed and locates files.

    Raises:
        ConfigError: a name isn't known, or a file is missing.
    """

    def __init__(self, options: RaceOptions, scenario: Scenario) -> None:
        world, workload, policy = options.world, options.workload, options.policy
        self._world = world
        self.phone = find_phone(world.device)
        self.service = find_service(world.service, scenario)
        self.lengths = find_lengths(workload.lengths, scenario)
        self.rate = world.reader_tokens_per_s
        self._prices, self._provider = find_prices(world), find_server(world)
        self._seed, self._workload = scenario.seed, workload
        self.arrivals = workload.arrivals
        if self.arrivals is not None and self.arrivals.azure is not None:
            self.arrivals = replace(self.arrivals, azure=_locate_arrivals(self.arrivals.azure, scenario))
        self.is_coarse = policy.pace is None and policy.migration == "none"
        self.client = self._client(policy)

    def draw(self, name: str) -> RequestDraw:
        """Return the request with this name, which doesn't depend on the policy."""
        return draw_request(f"{self._seed} {name}", self.lengths, self.service, self._workload.max_tokens)

    def run(self) -> Iterator[tuple[RaceOutcome, int | None]]:
        """Yield (answer, number) in the order in which answers end. The number is None if the client only learns from the answer."""
        numbers: dict[str, int | None] = {f"warm-up {index}": None for index in range(self._workload.warm_up)}
        numbers |= {f"request {index}": index for index in range(self._workload.requests)}
        if self.arrivals is None:
            yield from ((self.client.run(self.draw(name)), number) for name, number in numbers.items())
            return
        by_draw = {self.draw(name): number for name, number in numbers.items()}
        times = self.arrivals.times(Random(f"{self._seed} arrivals"))
        yield from ((outcome, by_draw[outcome.draw]) for outcome in self.client.run_arriving(zip(times, by_draw, strict=False)))

    def _client(self, policy: RacePolicy) -> SimulatedClient:
        default = RATE_DEVICE_CONSTRAINED if policy.constrained == "device" else RATE_SERVER_CONSTRAINED
        rate = default if policy.exchange_rate is None else policy.exchange_rate
        dispatcher = Dispatcher(
            DispatchOptions(
                policy=policy.dispatch,
                burst=policy.burst,
                constrained=policy.constrained,
                exchange_rate=rate,
                tail=policy.tail,
                tail_weight=policy.tail_weight,
                explore=policy.explore,
                reader_rate=self.rate,
            ),
            budget=policy.budget,
            profile=self._known() if policy.prior else None,
            seed=self._seed,
        )
        return SimulatedClient(
            dispatcher,
            self.phone.speed,
            prices=self._prices,
            shape=self.phone.shape,
            exchange_rate=rate,
            provider=self._provider,
            migration=self._migration(policy),
            pace=parse_pace(policy.pace),
            burst=_WHOLE if self.is_coarse else 1,
            server_burst=self.service.burst,
            reader_rate=self.rate,
            places=self._world.places,
            requests_per_min=self._world.requests_per_min,
        )

    def _migration(self, policy: RacePolicy) -> MigrationOptions | None:
        if policy.migration == "none":
            return None
        return MigrationOptions(rule=policy.migration, min_quality=policy.min_quality, unpaced=True)

    def _known(self) -> Profile:
        return Profile(
            server_ttft=self.service.ttft,
            device=self.phone.speed,
            lengths=self.lengths.prompts,
            answers=self.lengths.answers,
            prices=self._prices,
            shape=self.phone.shape,
        )

    def times(self, outcome: RaceOutcome) -> list[float] | None:
        """Return the seconds at which each token was delivered, or None if no token came after the virtual reader wanted it."""
        if not self.is_coarse:
            return [time for time, delivery in outcome.session.deliveries for _ in delivery.chunks]
        gap, burst = (
            (self._device_gap(outcome), 1) if outcome.machine.winner == "device" else (1.0 / outcome.draw.reply.rate, self.service.burst)
        )
        if gap * burst * self.rate <= 1.0:
            return None
        first, last = outcome.ttft, outcome.draw.answer.made - 1
        return [first + gap * min(last, -(-index // burst) * burst) for index in range(last + 1)]

    def _device_gap(self, outcome: RaceOutcome) -> float:
        """Return the seconds per token of an answer that the device wrote alone. The device is slower while it makes other answers."""
        decode, meter = self.phone.speed.decode_tokens_per_s, outcome.machine.meter
        assert decode is not None, "every simulated device has a decode rate"
        return 1.0 / decode if self.arrivals is None else (outcome.seconds - outcome.ttft) / max(1, meter.tokens - 1)


class RaceTotals:
    """Sums and counts over the answers of a run."""

    def __init__(self) -> None:
        self._answers = self._tokens = self._spent = self._delayed = self._device_wins = 0
        self._cost: float | None = 0.0
        self._now = 0.0
        self._gaps: dict[int, int] = {}  # number of gaps by their length in steps
        self._delayed_by_move: list[int] = []

    def add(self, race: RaceRun, outcome: RaceOutcome, number: int) -> RaceRow:
        """Count an answer, and return its row."""
        machine, dispatched = outcome.machine, outcome.dispatched
        constrained = dispatched.plan.constrained
        attempts = (*machine.past_attempts, *machine.attempts.values())
        # counted as in the client's budget
        is_spent = any(attempt.source == constrained and attempt.opened is not None for attempt in attempts)
        delayed = self._count_gaps(race.times(outcome), machine.meter.tokens, 1.0 / race.rate)
        moves = [move.delayed_tokens for move in describe_hand_overs(machine, dispatched, race.client.endpoints) if move.is_planned]
        self._answers += 1
        self._tokens += dispatched.prompt_tokens
        self._spent += dispatched.prompt_tokens * is_spent
        self._delayed += delayed
        self._device_wins += machine.winner == "device"
        self._cost = None if self._cost is None or outcome.cost is None else self._cost + outcome.cost
        self._delayed_by_move += moves
        meter, seconds = machine.meter, outcome.seconds
        self._now += seconds
        return RaceRow(
            number=number,
            arrival=self._now - seconds if race.arrivals is None else outcome.began,
            tokens=meter.tokens,
            prompt_tokens=dispatched.prompt_tokens,
            seconds=seconds,
            ttft=outcome.ttft,
            tpot=(seconds - outcome.ttft) / (meter.tokens - 1) if meter.tokens > 1 else None,
            device=0 if outcome.device.read else None,
            server=0 if outcome.server.read else None,
            mode=", ".join(filter(None, (machine.winner, *(move.target for move in machine.hand_overs)))),
            is_spent=is_spent,
            moves=len(moves),
            delayed=delayed,
            cost=outcome.cost,
        )

    def _count_gaps(self, times: list[float] | None, tokens: int, period: float) -> int:
        """Count the gaps that the virtual reader sees, and return how many tokens were delayed."""
        if times is None:
            self._record_gap(period, tokens - 1)
            return 0
        wanted = [times[0] + index * period for index in range(tokens)]
        for earlier, later in pairwise(map(max, times, wanted)):
            self._record_gap(later - earlier, 1)
        return sum(time > due + FRAME for time, due in zip(times, wanted, strict=True))

    def _record_gap(self, seconds: float, count: int) -> None:
        gap = round(seconds / _STEP)
        self._gaps[gap] = self._gaps.get(gap, 0) + count

    def metrics(self) -> dict[str, float]:
        """Return the metrics that the sink can't compute."""
        found = {
            "budget_share": self._spent / self._tokens,
            "device_wins": self._device_wins / self._answers,
            "delayed_mean": self._delayed / self._answers,
            "moves_mean": len(self._delayed_by_move) / self._answers,
        }
        if self._cost is not None:
            found["cost_per_1000"] = 1000.0 * self._cost / self._answers
        if total := sum(self._gaps.values()):
            found["tbt_mean"] = _STEP * sum(gap * count for gap, count in self._gaps.items()) / total
            found["tbt_p99"] = _STEP * _quantile(self._gaps, 0.99)
        if moves := sorted(self._delayed_by_move):
            found["delayed_move_mean"] = sum(moves) / len(moves)
            found["delayed_move_p99"] = moves[math.ceil(0.99 * len(moves)) - 1]
            found["unnoticed"] = sum(not delayed for delayed in moves) / len(moves)
        return found


def _locate_arrivals(path: str, scenario: Scenario) -> str:
    """Return the path of a file next to the experiment's. A missing file may be in ``$STREAMCO_DATA``, where it is looked for later."""
    beside = scenario.locate(path)
    return str(beside) if beside.exists() else path


def _quantile(counts: Mapping[int, int], share: float) -> int:
    """Return the smallest value that at least this share of all values don't exceed."""
    left = math.ceil(share * sum(counts.values()))
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    raise AssertionError("a share is at most one")
