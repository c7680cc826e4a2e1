"""What does a client gain in its first answers if the server tells how long its recent answers took (``/v1/models``)?

In virtual time, 300 new clients ask one question after another. Each learns the server's times after its first answer, as a live client
does, and has a twin that isn't told, with the same prompts and the same times of the server. There are three kinds of clients: the default
one, one whose budget limits the device, and one that weighs time (``Auto(time=1)``).

The device reads 160 and writes 40 tokens a second, and gets Azure's prompts of up to 800 tokens. The server's times are log-normal. A
client asks for them only once, so two of the servers have become faster or slower since they told theirs.

The column "median" holds the mean of all clients, and "min" and "max" are single clients. For the twins' difference they are its 95 %
interval.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from bench.counted.arrivals import BUDGET, FILES, LONGEST_PROMPT
from bench.report import Row, add_arguments, emit
from bench.traces import data_folder
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.migration import MigrationOptions
from streamco.policies.cost import RATE_SERVER_CONSTRAINED
from streamco.policies.ways import WayChooser, Weights
from streamco.profiles import DeviceSpeed
from streamco.server.first_token_times import FirstTokenTimes
from streamco.sim.race.client import RaceOutcome, SimulatedClient, draw_request
from streamco.sim.race.lengths import RecordedLengths, RequestLengths, read_request_lengths
from streamco.sim.race.services import JITTER, OVERHEAD, RecordedService

__all__ = ["CLIENTS", "SERVERS", "compare", "main", "run_client"]

BENCH = "told"
FIRST = (10, 30)  # answers of a client that count
TOLD, NOT_TOLD = "streamco", "not told"
DEVICE = DeviceSpeed(seconds_per_token=1 / 160, overhead=OVERHEAD, decode_tokens_per_s=40.0, jitter=JITTER)
LIMIT = 128  # tokens of an answer
OTHERS = 100  # answers to other clients, whose times the server tells
RATE = 40.0  # tokens a second of the server


class Client(NamedTuple):
    """A kind of client: its race, and what it weighs; None: the race's policy decides."""

    options: DispatchOptions
    weights: Weights | None = None


CLIENTS: Mapping[str, Client] = {
    "default": Client(DispatchOptions()),
    "device limited": Client(DispatchOptions(constrained="device")),
    "Auto(time=1)": Client(DispatchOptions(), Weights(time=1.0)),
}


def _times(median: float, deviation: float = 0.15) -> list[tuple[float, float]]:
    """Return a server's equally likely answers: seconds to the first token, log-normal, and tokens per second."""
    shares = ((place + 0.5) / 100 for place in range(100))
    return [(median * math.exp(deviation * NormalDist().inv_cdf(share)), RATE) for share in shares]


SERVERS: Mapping[str, RecordedService] = {  # what others have met, which is what it tells, and what the client meets
    "0.3 s": RecordedService(_times(0.3), _times(0.3)),
    "2 s": RecordedService(_times(2.0), _times(2.0)),
    "0.1 to 13 s": RecordedService(_times(1.0, 1.0), _times(1.0, 1.0)),
    "0.3 s, told 2 s": RecordedService(_times(2.0), _times(0.3)),
    "2 s, told 0.3 s": RecordedService(_times(0.3), _times(2.0)),
}


def run_client(client: Client, service: RecordedService, lengths: RequestLengths, *, is_told: bool, seed: int) -> list[RaceOutcome]:
    """Return a new client's first answers."""
    simulated = SimulatedClient(
        Dispatcher(client.options, budget=BUDGET, seed=seed),
        DEVICE,
        prices=None,
        shape=None,
        exchange_rate=RATE_SERVER_CONSTRAINED,
        pace=None,
        burst=LIMIT,
    )
    chooser = None if client.weights is None else WayChooser(client.weights)
    outcomes: list[RaceOutcome] = []
    for number in range(max(FIRST)):
        if is_told and number == 1:  # the first answer's race asks the server what it is
            simulated.endpoints["server"].first_token_times = _told_times(service, seed)
            simulated.dispatcher.take_told_times([simulated.endpoints["server"]])
        draw = draw_request(f"{seed} {number}", lengths, service, LIMIT)
        if chooser is None:
            outcomes.append(simulated.run(draw))
            continue
        ways = dict(simulated.forecast(draw, chooser.weights, MigrationOptions(), is_streamed=True))
        name = chooser.choose(ways, prompt_tokens=draw.answer.prompt_tokens, budget=BUDGET).way
        outcomes.append(simulated.run(draw, next(asked for way, asked in ways.items() if way.name == name)))
        chooser.record(each.source for each in outcomes[-1].machine.attempts.values() if each.opened is not None)
    return outcomes


def _told_times(service: RecordedService, seed: int) -> Sequence[float]:
    """Return what a server tells after its answers to others."""
    rng, times = Random(f"others {seed}"), FirstTokenTimes()
    for _ in range(OTHERS):
        times.record(rng.choice(service.known)[0], now=0.0)
    return times.quantiles(now=0.0)


def compare(told: Sequence[float], not_told: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of twins, and its 95 % interval."""
    gaps = [one - other for one, other in zip(told, not_told, strict=True)]
    mean, half = fmean(gaps), NormalDist().inv_cdf(0.975) * stdev(gaps) / math.sqrt(len(gaps))
    return mean, mean - half, mean + half


def _rows_of(case: str, clients: Mapping[str, Sequence[Sequence[RaceOutcome]]]) -> list[Row]:
    """Return the rows of one case: both contenders' figures, and how far apart the twins are."""
    metrics: Mapping[tuple[str, str], Callable[[Sequence[RaceOutcome]], float]] = {
        ("first word", "s"): lambda answers: fmean(each.ttft for each in answers),
        ("answers by the server", "share"): lambda answers: fmean(each.machine.winner == "server" for each in answers),
        ("prompt tokens at the server", "share"): lambda answers: (
            sum(each.server.read for each in answers) / sum(each.draw.answer.prompt_tokens for each in answers)
        ),
    }
    rows = []
    for (metric, unit), measure in metrics.items():
        found = {who: [measure(answers) for answers in runs] for who, runs in clients.items()}
        rows += [Row(BENCH, case, who, metric, unit, fmean(values), min(values), max(values)) for who, values in found.items()]
        rows.append(Row(BENCH, case, "told - not told", metric, unit, *compare(found[TOLD], found[NOT_TOLD])))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    pairs = read_request_lengths(data_folder() / "arrivals" / FILES["Azure"])
    lengths = RecordedLengths.halves([(prompt, answer) for prompt, answer in pairs if prompt <= LONGEST_PROMPT])
    rows = []
    for name, client in CLIENTS.items():
        for server, service in SERVERS.items():
            runs = {
                who: [run_client(client, service, lengths, is_told=who == TOLD, seed=seed) for seed in range(30 if options.quick else 300)]
                for who in (TOLD, NOT_TOLD)
            }
            for count in FIRST:
                rows += _rows_of(
                    f"{name}, server {server}, first {count}", {who: [each[:count] for each in found] for who, found in runs.items()}
                )
    emit(rows, options.json, against=NOT_TOLD)


if __name__ == "__main__":
    main()
