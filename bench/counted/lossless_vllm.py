"""Is an answer that vLLM verifies the answer that vLLM writes?

Real prompts of four tasks, greedy: the packaged model drafts, vLLM has the same weights and computes in float32 or bfloat16. It computes
a token's logits in another order when it reads the token than when it writes it, so where its two best tokens are nearly as good, it may
choose differently; in bfloat16, which has steps of 0.125 where logits are 16 to 32, the two are often equal. Each such place is listed with
the distance of the two; the bench fails if one is further apart than reading ever moved any two, or if they are more than one in a
hundred. Needs the environment of ``make vllm``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from bench.prompts import real_prompts
from bench.report import Row, add_arguments, emit
from streamco.config import Timeouts
from streamco.endpoints.base import Request
from streamco.endpoints.generation_request import request_ids
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from tests.vllm.comparing import Comparison, compare
from tests.vllm.server import CONTEXT_TOKENS, MODEL, running_vllm

__all__ = ["main"]

TOKENS = 48
PATIENT = Timeouts(connect=60, first_token=300, cancel=5)  # seconds; the first request compiles
MOST_DIFFERENT = 0.01  # of the tokens


def main() -> int:
    """Print the rows; 1 if vLLM verified something else than it writes and the two were not nearly as good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="what vLLM computes in (default: %(default)s)")
    options = parser.parse_args()
    with running_vllm(options.dtype) as server:
        found = asyncio.run(measure(server.url, real_prompts(4 if options.quick else 200)))
    figures = {
        "tokens": found.tokens,
        "rounds": found.rounds,
        "drafted tokens": found.drafted,
        "accepted tokens": found.accepted,
        "tokens that differ": len(found.differences),
        "of these, two that were equally good": sum(difference.margin == 0.0 for difference in found.differences),
        "largest distance of two that differ": max((difference.margin for difference in found.differences), default=0.0),
        "largest shift of two tokens' distance": found.largest_shift,
        "places where it shifted": found.changed_places,
    }
    case = f"{TOKENS} tokens, {options.dtype}"
    emit([Row("lossless_vllm", case, "streamco", metric, "", value, value, value) for metric, value in figures.items()], options.json)
    for difference in found.differences:
        print(difference, file=sys.stderr)
    is_near = all(difference.margin <= found.largest_shift for difference in found.differences)
    return 0 if is_near and len(found.differences) <= MOST_DIFFERENT * found.tokens else 1


async def measure(url: str, prompts: Sequence[tuple[str, str]]) -> Comparison:
    """Have the drafts of each prompt's answer verified along vLLM's own."""
    engine = await asyncio.to_thread(
        LlamaEngine, packaged_model(), EngineOptions(context_tokens=CONTEXT_TOKENS, threads=1, held_sequences=2)
    )
    verifier = VLLMVerifier(url, model=MODEL, timeouts=PATIENT)
    try:
        await verifier.start(engine)
        await verifier.probe()
        asked = [(name, request_ids(engine, Request(messages=[{"role": "user", "content": text}]))) for name, text in prompts]
        return await compare(verifier, engine, asked, tokens=TOKENS)
    finally:
        await verifier.aclose()
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
