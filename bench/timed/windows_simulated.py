"""How good are the windows that policies choose, in virtual time? Without a processor's noise, and the same figures everywhere.

As ``bench/timed/windows_recorded.py``: the recorded draft model, the same prompts, new clients, each with a link and a server of its own,
on which the step times of Llama-2-70B on two A100 are imposed. But the world is ``streamco.sim``'s; only the core and the policies are the
live client's. Nothing is late there, and messages take no time beyond the round trip. So this says what chance and the policies do, and how
that depends on the device's speed: one with a draft model that takes the time of SmolLM2 in 4 bits on one core of an AMD EPYC, and some
that take twice and four times as long. What a new client has to learn counts: of twelve answers of each, all rounds after two short ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from random import Random

import simpy

from bench.report import Row, add_arguments, emit
from bench.timed.fidelity_live import CORE_LAW, DeviceLaw
from bench.timed.fidelity_records import Record, load_records
from bench.timed.fidelity_simulated import SERVE_EXACTLY, common_tokens, machine_options, recorded_device, scheduler_options
from bench.timed.speculate import LARGE, WARM_TOKENS, Link, Section, Tally
from bench.timed.windows_recorded import CLIENTS, DRAFT, QUICK, SECTION, WARM_UPS, rows_of
from streamco import Speculate
from streamco.client.modes.speculation.report import speculation_figures
from streamco.emulation.profiles import load_step_times
from streamco.policies.serving.batching import Alternating
from streamco.policies.serving.routing import routing_policy
from streamco.sim.driver import call_at
from streamco.sim.fleet.fleet import AnswerOutcome, Fleet
from streamco.sim.fleet.target_server import TargetServer

__all__ = ["main", "run_client", "simulate_section"]

BENCH = "windows_simulated"
SLOWER = (1.0, 2.0, 4.0)  # devices: times as long takes the draft model


def run_client(setting: Speculate | None, link: Link, records: Sequence[Record], *, warm_ups: int, tokens: int, law: DeviceLaw) -> Tally:
    """What a new client does with these records, the first of which don't count."""
    env = simpy.Environment()
    times = load_step_times(LARGE)
    server = TargetServer(env, lambda rows, read, *_: times(rows, read), scheduler_options(), Alternating(), limits=SERVE_EXACTLY)
    pair = (setting or Speculate()).estimates(1.0)
    pair.expect_rtt(link[0])
    device = recorded_device(0, law, link[0], pair)
    common = common_tokens(records)
    answers: list[AnswerOutcome] = []
    for number, record in enumerate(records):
        length = tokens if number >= warm_ups else min(tokens, WARM_TOKENS)
        fleet = Fleet(
            env,
            devices=[device],
            servers=[server],
            routing=routing_policy("round-robin"),
            execution="fused" if setting is None else "auto",
            options=machine_options(setting or Speculate(), length),
            rng=Random(0),
            on_outcome=answers.append,
        )
        request = record.request(number, device=0, tokens=length if setting is None else None, common=common)
        call_at(env, 0.0, partial(fleet.take, request))
        while len(answers) <= number:
            env.step()
    return _tally(answers[warm_ups:], tokens)


def _tally(answers: Sequence[AnswerOutcome], tokens: int) -> Tally:
    tally = Tally()
    for outcome in answers:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.first is not None, "it has ended"
        tally.seconds.append(outcome.ended - outcome.began)
        tally.first.append(outcome.first - outcome.began)
        tally.tokens.append(tokens)
        report, traffic = outcome.report, outcome.traffic
        if report is not None:
            up, down, back = traffic.bytes_up, traffic.bytes_down, report.retracted
            tally.figures.append(speculation_figures(report, budget=1.0, bytes_up=up, bytes_down=down, retracted=back, is_exact=True))
    return tally


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--records", type=Path, metavar="FILE", help="keep the prompts and their answers there, for the next time")
    options = parser.parse_args()
    section = QUICK if options.quick else SECTION
    records = load_records(section.prompts + WARM_UPS, section.tokens, DRAFT, options.records)
    rows: list[Row] = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for slower in SLOWER[:1] if options.quick else SLOWER:
            law = CORE_LAW.slower(slower)
            named = replace(section, name=f"windows, simulated, draft step {1000 * law.step_times[0]:.1f} ms")
            rows += rows_of(simulate_section(named, records, law, pool))
    emit((replace(row, bench=BENCH) for row in rows), options.json)
    return 0


def simulate_section(
    section: Section, records: Sequence[Record], law: DeviceLaw, pool: ProcessPoolExecutor
) -> list[tuple[str, dict[str, Tally]]]:
    """Link by link, what each contender's clients did, who share the prompts out."""
    clients = min(CLIENTS, section.prompts)
    running: dict[tuple[Link, str], list[Future[Tally]]] = {}
    for link, (name, setting), number in product(section.links, section.contenders.items(), range(clients)):
        mine = [*records[:WARM_UPS], *records[WARM_UPS + number :: clients]]
        task = pool.submit(run_client, setting, link, mine, warm_ups=WARM_UPS, tokens=section.tokens, law=law)
        running.setdefault((link, name), []).append(task)
    return [
        (section.case(DRAFT, link), {name: sum((each.result() for each in running[link, name]), Tally()) for name in section.contenders})
        for link in section.links
    ]


if __name__ == "__main__":
    sys.exit(main())
