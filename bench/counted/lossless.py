"""Is the answer that a device drafts and a server verifies the server's own, token for token?

Real prompts of four tasks, greedy, budget 1; SmolLM2 Q4_0 and Q2_K draft for Q8_0, both sides in the exact mode. What ``streamco serve``
says by itself is the reference. It must not differ at all: the bench fails if one answer does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

import streamco
from bench.prompts import real_prompts
from bench.report import Row, add_arguments, emit
from streamco.client.modes.speculation.mode import Speculate
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.testing.server_process import running_server

__all__ = ["main"]

TOKENS = 48
CONTEXT = 1024


def main() -> int:
    """Print the rows; 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args()
    prompts = real_prompts(8 if options.quick else 200)
    rows: list[Row] = []
    wrong: list[str] = []
    for draft in ("Q4_0",) if options.quick else ("Q4_0", "Q2_K"):
        counts, different = asyncio.run(compare(draft, "Q8_0", prompts))
        case = f"{draft} for Q8_0, exact mode"
        rows += [Row("lossless", case, "streamco", metric, "", value, value, value) for metric, value in counts.items()]
        wrong += different
    emit(rows, options.json)
    for difference in wrong:
        print(difference, file=sys.stderr)
    return bool(wrong)


async def compare(draft: str, target: str, prompts: Sequence[tuple[str, str]]) -> tuple[Counter[str], list[str]]:
    """What was compared, and each answer that is another."""
    base = packaged_model()
    large, small = await asyncio.to_thread(derived, base, target), await asyncio.to_thread(derived, base, draft)
    options = streamco.engines.EngineOptions(threads=1, held_sequences=8, context_tokens=CONTEXT, exact=True)
    serve = ("--model", str(large), "--model-name", "large", "--threads", "1", "--context", str(CONTEXT), "--exact", "--port", "0")
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    async with running_server(*serve) as url:
        server = streamco.OpenAIEndpoint("large", base_url=url, name="server")
        again = streamco.OpenAIEndpoint("large", base_url=url, name="server")
        await again.probe()  # from then on it is asked for ids
        async with (
            streamco.Client(server=again) as alone,
            streamco.Client(
                streamco.DeviceEndpoint(small, options=options),
                server,
                mode=Speculate(is_adaptive=False),
            ) as together,
        ):
            for name, prompt in prompts:
                wanted = await say(alone, prompt)
                stream = together.stream(prompt, max_tokens=TOKENS, temperature=0)
                ids, text = await read(stream)
                figures = stream.report.speculation
                if figures is None:
                    raise SystemExit(f"{name}: expected a speculated answer, got {stream.report.dispatch}")
                counts += Counter({"answers": 1, "tokens": len(ids), "rounds": figures.rounds, "accepted tokens": figures.accepted})
                counts += Counter({"rounds whose branch was adopted": round((figures.hit_rate or 0.0) * figures.rounds)})
                counts += Counter({"rounds whose next draft was sent ahead": round((figures.ahead_rate or 0.0) * figures.rounds)})
                counts += Counter({"tokens of the server alone": figures.remote, "tokens of the device alone": figures.device})
                if (ids, text) != wanted:
                    wrong.append(f"{draft} {name}: expected {wanted}, got {(ids, text)}")
    counts["answers that differ"] = len(wrong)
    return counts, wrong


async def say(client: streamco.Client, prompt: str) -> tuple[list[int | None], str]:
    """The server's own answer."""
    return await read(client.stream(prompt, max_tokens=TOKENS, temperature=0))


async def read(stream: streamco.TokenStream) -> tuple[list[int | None], str]:
    """Ids and text."""
    tokens = [token async for token in stream]
    return [token.id for token in tokens], "".join(token.text for token in tokens)


if __name__ == "__main__":
    sys.exit(main())
