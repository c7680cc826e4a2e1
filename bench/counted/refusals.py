"""When does an answer begin whose server refuses it by 429?

In virtual time: a server takes four requests in each minute and refuses all others, saying when to ask again (``Retry-After``). An answer
comes every five seconds for five minutes. The server is asked first, and DiSCo's Xiaomi 14 only if it fails.

Contenders are the live client, in which a server that has failed rests until it may be asked again, and one in which nothing rests, so that
each answer asks it first. Each answer has a row, with the seconds to its first word.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.report import Row, add_arguments, emit, summarise
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.core.race.attempt import Attempt
from streamco.policies.cost import RATE_SERVER_CONSTRAINED
from streamco.sim.race.client import RaceOutcome, SimulatedClient, draw_request
from streamco.sim.race.lengths import ALPACA, QuantileLengths
from streamco.sim.race.services import PHONES, PRICES, PackagedService

__all__ = ["main", "run_client"]

BENCH = "refusals"
SEED = 7
SERVICE = "openai-gpt-4-0125-preview"
ANSWERS = 60
FIRST, EVERY = 2.0, 5.0  # seconds
A_MINUTE = 4
LIMIT = 128  # tokens of an answer
CONTENDERS = {"streamco": True, "nothing rests": False}


def run_client(*, rests: bool) -> list[RaceOutcome]:
    """Return the answers of one client, in the order of their arrival."""
    phone, service, lengths = PHONES["xiaomi14-qwen-0.5b"], PackagedService.load(SERVICE), QuantileLengths(*ALPACA)
    client = SimulatedClient(
        Dispatcher(DispatchOptions(policy="server-first"), budget=0.3, seed=SEED),
        phone.speed,
        prices=PRICES[SERVICE],
        shape=phone.shape,
        exchange_rate=RATE_SERVER_CONSTRAINED,
        pace=None,
        burst=LIMIT,
        server_burst=service.burst,
        requests_per_min=A_MINUTE,
        rests=rests,
    )
    draws = [draw_request(f"{SEED} {number}", lengths, service, LIMIT) for number in range(ANSWERS)]
    outcomes = client.run_arriving([(FIRST + EVERY * number, draw) for number, draw in enumerate(draws)])
    return sorted(outcomes, key=lambda outcome: outcome.began)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    rows, firsts = [], []
    for contender, rests in CONTENDERS.items():
        outcomes = run_client(rests=rests)
        by_device = [outcome.ttft for outcome in outcomes if outcome.machine.winner == "device"]
        refused = sum(attempt.trouble is not None for outcome in outcomes for attempt in _server_attempts(outcome))
        rows += [
            summarise(by_device, bench=BENCH, case="answers by the device", contender=contender, metric="first word", unit="s"),
            summarise([len(by_device)], bench=BENCH, case="all", contender=contender, metric="answers by the device", unit="answers"),
            summarise([refused], bench=BENCH, case="all", contender=contender, metric="refused requests", unit="requests"),
        ]
        for number, outcome in enumerate(outcomes):
            firsts.append(
                Row(BENCH, f"answer at {FIRST + EVERY * number:g} s", contender, "first word", "s", *[round(outcome.ttft, 4)] * 3)
            )
    emit([*rows, *sorted(firsts, key=lambda row: float(row.case.split()[2]))], options.json, against="streamco")


def _server_attempts(outcome: RaceOutcome) -> list[Attempt]:
    attempts = (*outcome.machine.past_attempts, *outcome.machine.attempts.values())
    return [attempt for attempt in attempts if attempt.source == "server"]


if __name__ == "__main__":
    main()
