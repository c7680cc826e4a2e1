"""Is a verifier's price list of rows right, and do windows that are planned with it come near the best fixed one?

The real pair of ``bench/timed/pair.py``, server and device on a core each. First, batches of 1 to 8 rows are verified through the server,
in the middle of its own answers, and their times are compared with what the welcome said: with the list as it is, and scaled by the batches
before, as a client does. Then policies that plan with the list answer prompts of both classes by drafts alone, and so do fixed windows, the
best of which is known afterwards. All of it at this machine's own speed: four rows of the 1.5B take longer here than four of a 70B on two
A100, so a large model's times can't be imposed on it. docs/research/windows.md has those.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import TypeVar

from msgspec.structs import replace

from bench.report import Row, add_arguments, emit
from bench.timed.pair import CLASSES, STREAM, WARM_UPS, Site, Tally, client_of, pair_site, prompts_of, say
from bench.timed.speculate import tuned
from streamco import Speculate
from streamco.core.speculation.averages import Ewma
from streamco.core.speculation.events import ConnectVerifier, SendDraft, VerdictReceived, VerifierConnected, VerifierFailed
from streamco.endpoints.verifiers.base import VerifierEvent
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.events import common_prefix_length
from streamco.policies.acceptance import Rule
from streamco.profiles.row_costs import RowCosts

__all__ = ["errors_of", "main"]

BATCHES = 500
MOST_DRAFTED = 7
TOKENS = 96
FIXED = (1, 2, 3, 4, 5, 7)
UNADAPTIVE = Speculate(is_adaptive=False)
CONTENDERS: Mapping[str, Speculate] = {
    **{f"window {window}": replace(tuned(), window=window) for window in FIXED},
    "confident": replace(UNADAPTIVE, window="confident"),
    "predicted": replace(UNADAPTIVE, window="predicted"),
    "adaptive": replace(UNADAPTIVE, window="adaptive"),
}
Batch = tuple[int, float]  # rows, seconds
Kind = TypeVar("Kind")


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--batches", type=int, metavar="N", help=f"batches to compare with the list (default: {BATCHES}, --quick 12)")
    parser.add_argument("--prompts", type=int, metavar="N", help="prompts of each class for the windows (default: 8, --quick 1; 0: none)")
    parser.add_argument("--target", default="Q4_0", metavar="KIND", help="format of the target's weights (default: %(default)s)")
    options = parser.parse_args()
    batches = (12 if options.quick else BATCHES) if options.batches is None else options.batches
    prompts = (1 if options.quick else 8) if options.prompts is None else options.prompts
    emit(asyncio.run(measure(options.target, batches, prompts)), options.json, against="best fixed window")
    return 0


async def measure(target: str, batches: int, prompts: int) -> list[Row]:
    """All parts."""
    rows: list[Row] = []
    async with pair_site(target=target) as site:
        if batches:
            found = [batch async for batch in live_batches(site, batches)]
            rows += errors_of(f"{target}, {len(found)} batches", site.costs, found)
        if prompts:
            rows += await windows(f"{target}, own speed, loopback", site, prompts)
    return rows


async def live_batches(site: Site, count: int) -> AsyncIterator[Batch]:
    """Rows and seconds of so many batches, drafts of the server's own answers."""
    rng, left = Random(1), count
    verifier = VerifierEndpoint(site.url)
    await verifier.start(site.engine)
    try:
        async with client_of(None, site, site.url) as client:
            for prompt in prompts_of("code", max(1, count // 10)):
                ids = site.engine.tokenize(site.engine.apply_template([{"role": "user", "content": prompt}]), special=True)
                tally = Tally()
                await say(client, prompt, TOKENS, (tally,))
                async for batch in rounds_of(verifier, ids, site.engine.tokenize(tally.texts[0]), rng):
                    yield batch
                    left -= 1
                    if not left:
                        return
                print(f"{left} batches left", file=sys.stderr, flush=True)
    finally:
        await verifier.aclose()


async def rounds_of(verifier: VerifierEndpoint, prompt: Sequence[int], answer: Sequence[int], rng: Random) -> AsyncIterator[Batch]:
    """The batches of one answer; the first reads the prompt and doesn't count."""
    events: asyncio.Queue[VerifierEvent] = asyncio.Queue()
    session = verifier.open(prompt, events.put_nowait, rule=Rule())
    held: list[int] = []
    number = position = 0
    try:
        session.run(ConnectVerifier(()))
        while position < len(answer):
            draft = tuple(answer[position : position + rng.randint(0, MOST_DRAFTED)])
            base = common_prefix_length(held, answer[:position])
            number += 1
            if number == 1:
                await heard(events, VerifierConnected)
            session.run(SendDraft(number, base, tuple(answer[base:position]), draft))
            verdict = await heard(events, VerdictReceived)
            given = position - base
            if number > 1 and not given:
                yield len(draft) + 1, verdict.compute_seconds
            if verdict.token is None:
                return
            held = [*answer[:position], *draft[: verdict.accepted], verdict.token]
            position += verdict.accepted + 1
    finally:
        await session.aclose()


async def heard(events: asyncio.Queue[VerifierEvent], kind: type[Kind]) -> Kind:
    """The next event of a kind."""
    while True:
        event = await asyncio.wait_for(events.get(), 60)
        if isinstance(event, VerifierFailed):
            raise event.error
        if isinstance(event, kind):
            return event


def errors_of(case: str, costs: RowCosts, batches: Sequence[Batch]) -> list[Row]:
    """Errors of the list as it is, and scaled by earlier batches; and the median time by rows beside the list's."""
    scale = Ewma(1.0, first_weight=1.0)
    plain, scaled = [], []
    for rows, seconds in batches:
        expected = costs.seconds(rows)
        plain.append(abs(expected - seconds) / seconds)
        scaled.append(abs(scale.value * expected - seconds) / seconds)
        scale.record(seconds / expected)
    found = [
        Row("row_costs", case, name, "error of a batch's time", "share", statistics.median(each), min(each), max(each))
        for name, each in (("the list as it was measured", plain), ("scaled by the batches before", scaled))
    ]
    for size in sorted({rows for rows, _ in batches}):
        times = [1e3 * seconds for rows, seconds in batches if rows == size]
        label = f"{size} rows" if size > 1 else "1 row"
        found.append(Row("row_costs", case, label, "measured", "ms", statistics.median(times), min(times), max(times)))
        found.append(one(case, label, "by the list", "ms", 1e3 * costs.seconds(size)))
    return found


async def windows(case: str, site: Site, count: int) -> list[Row]:
    """Rates of all contenders, and of those that choose over the best fixed one."""
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(client_of(setting, site, site.url)) for name, setting in CONTENDERS.items()}
        clients[STREAM] = await stack.enter_async_context(client_of(None, site, site.url))
        for client in clients.values():
            for prompt in WARM_UPS:
                await say(client, prompt, 32)
        tallies = {name: Tally() for name in clients}
        for turn, prompt in enumerate(prompt for kind in CLASSES for prompt in prompts_of(kind, count)):
            print(f"{case}: {turn + 1}", file=sys.stderr, flush=True)
            for name in (STREAM, "window 3"):
                await say(clients[name], prompt, 2)  # the prompt is read on both sides
            order = list(clients)
            for name in (*order[turn % len(order) :], *order[: turn % len(order)]):
                await say(clients[name], prompt, TOKENS, (tallies[name],))
    return compared(case, tallies)


def compared(case: str, tallies: Mapping[str, Tally]) -> list[Row]:
    """Rates, tokens drafted in a round, and ratios to the best fixed window."""
    fixed = [name for name in tallies if name.startswith("window ")]
    best = max(fixed, key=lambda name: tallies[name].rate)
    rows = [one(case, name, "rate", "tokens/s", tally.rate) for name, tally in tallies.items()]
    rows.append(one(case, "best fixed window", "which", "tokens", float(best.removeprefix("window "))))
    for name, tally in tallies.items():
        if name not in fixed:
            rows.append(one(case, name, f"rate over the best fixed one's, {best}", "x", tally.rate / tallies[best].rate))
        if tally.rounds:
            rows.append(one(case, name, "drafted in a round", "tokens", tally.drafted / tally.rounds))
    return rows


def one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    """A row of one figure."""
    return Row("row_costs", case, name, metric, unit, value, value, value)


if __name__ == "__main__":
    sys.exit(main())
