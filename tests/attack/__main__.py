"""Carry out all attacks at full size: ``make attack``. The exit status is 1 if one of them does harm."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.attack.attack import table
from tests.attack.campaign import CAMPAIGNS


async def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("listeners", nargs="*", choices=[*CAMPAIGNS, []], help="those to attack (all)")
    parser.add_argument("--size", type=int, default=1, help="how large the attacks are (%(default)s)")
    args = parser.parse_args()
    began, outcomes = time.monotonic(), []
    for name in args.listeners or CAMPAIGNS:
        async for outcome in CAMPAIGNS[name](args.size):
            print(f"{'ok' if outcome.is_harmless else 'HARM':5}{outcome.listener}: {outcome.attack}", file=sys.stderr, flush=True)
            outcomes.append(outcome)
    print(table(outcomes))
    harmful = sum(not outcome.is_harmless for outcome in outcomes)
    print(f"\n{len(outcomes)} attacks, {harmful} harmful, {time.monotonic() - began:.0f} s")
    return int(harmful > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
