"""How fast does ``streamco serve`` write with drafts of its own, beside the same server without?

Servers of one model, each a process of its own with one thread and else the default settings, take the same requests in turns: edits of
code and text, whose answers repeat much of their prompts, code, summaries and prose; one stream and four at once, with the servers' default
sampling and with temperature 0. Tokens a second are those between the first words and the ends. ``--target`` names a GGUF file, or 1.5B of
the fetched pair; ``--drafts`` lookup and files, or 0.5B.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import streamco
from bench.fetch_models import MODELS
from bench.pairs import model_file
from bench.report import Row, add_arguments, emit, rows_from
from streamco.testing.server_process import running_server

BENCH = "server_drafts"
PLAIN = "without drafts"
TOKENS = 128
FEWEST = 5  # samples of a cell: medians of three vary by 5 %

_CODE = '''class Rectangle:
    """A rectangle with sides parallel to the axes."""

    def __init__(self, width, height):
        if width < 0 or height < 0:
            raise ValueError("expected sides of 0 or more")
        self.width = width
        self.height = height

    def area(self):
        """Return the area."""
        return self.width * self.height

    def perimeter(self):
        """Return the perimeter."""
        return 2 * (self.width + self.height)
'''
_LETTER = """The tide pools of the northern coast are home to sea stars, anemones and small crabs. Visitors are asked not to touch the
animals, because the oil of the skin harms them. Rangers lead walks at low tide on Saturdays, and children under ten walk for free. The path
down to the beach is steep and often wet. In winter the lower steps are closed when the wind comes from the west."""
PROMPTS = {
    "edits": (
        f"Write this class again, whole, with `width` renamed to `w`:\n\n```python\n{_CODE}```",
        f"Correct the spelling, and repeat the text whole:\n\n{_LETTER.replace('animals', 'animels').replace('steep', 'steap')}",
        f"Add type hints to this class and give me all of it:\n\n```python\n{_CODE}```",
        f"Repeat this text, with each sentence on a line of its own:\n\n{_LETTER}",
    ),
    "code": (
        "Write a Python function that returns the n-th Fibonacci number, with tests.",
        "Write a Python class for a stack with push, pop and peek, with docstrings.",
        "Write a function in JavaScript that sorts a list of people by age and then by name.",
        "Write a Python program that counts the words of a text file and prints the ten most frequent ones.",
    ),
    "summaries": (
        f"Summarise this text in three sentences:\n\n{_LETTER}",
        f"What does this class do? Name each method:\n\n```python\n{_CODE}```",
        f"List the rules for visitors in this text:\n\n{_LETTER}",
        f"Write a short review of this code:\n\n```python\n{_CODE}```",
    ),
    "prose": (
        "Tell me a story about a lighthouse keeper who finds a letter in a bottle.",
        "Why is the sky blue? Explain it to a child.",
        "Give me advice for a first visit to a large city.",
        "Describe an autumn morning in a village by a river.",
    ),
}


async def _answer(url: str, prompt: str, temperature: float | None) -> tuple[float, float]:
    """Return when the first and the last token came. All answers have as many tokens, because after a shorter one the others go faster."""
    first = 0.0
    server = streamco.OpenAIEndpoint("m", base_url=url, name="server", probe=False)
    async with streamco.Client(server=server) as client:
        stream = client.stream(prompt, max_tokens=TOKENS, temperature=temperature, seed=11, extra_body={"ignore_eos": True})
        async for _ in stream:
            first = first or time.perf_counter()
    usage = stream.usage
    if usage.is_estimated or usage.completion_tokens != TOKENS:
        raise RuntimeError(f"answer: expected {TOKENS} tokens, counted by the server, got {usage}")
    return first, time.perf_counter()


async def _pace(url: str, prompts: Sequence[str], temperature: float | None) -> float:
    """Return the tokens a second of answers at once, after the first word of each."""
    answers = await asyncio.gather(*(_answer(url, prompt, temperature) for prompt in prompts))
    began, ended = max(first for first, _ in answers), max(end for _, end in answers)
    tokens = TOKENS * sum(min(1.0, (end - began) / (end - first)) for first, end in answers if end > began)
    return tokens / (ended - began)


async def _measure(target: Path, drafts: Sequence[str], *, threads: int, rounds: int, quick: bool) -> list[Row]:
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        options = ("--port", "0", "--model", str(target), "--model-name", "m", "--threads", str(threads))
        urls = {PLAIN: await stack.enter_async_context(running_server(*options))}
        for draft in drafts:
            file = str(model_file(draft)) if draft in MODELS else draft
            name = draft if draft in MODELS else Path(draft).stem
            urls[f"drafts by {name}"] = await stack.enter_async_context(running_server(*options, "--draft", file))
        for temperature in (None,) if quick else (None, 0.0):
            for streams in (1, 4):
                for kind, prompts in PROMPTS.items():
                    samples: dict[str, list[float]] = {name: [] for name in urls}
                    for number in range(2 if quick else max(FEWEST, rounds * len(prompts) // streams)):
                        asked = [prompts[(number + place) % len(prompts)] for place in range(streams)]
                        for name in list(urls)[:: 1 if number % 2 else -1]:
                            samples[name].append(await _pace(urls[name], asked, temperature))
                    how = "default sampling" if temperature is None else "temperature 0"
                    rows += rows_from(BENCH, f"{kind}, {streams} at once, {how}", "pace", "tokens/s", samples)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--target", help="a GGUF file, or 1.5B (default: the packaged model)")
    parser.add_argument("--quantisation", help="one that 1.5B is derived in (default: as it is)")
    parser.add_argument("--drafts", nargs="+", default=["lookup"], help="lookup, a GGUF file or 0.5B (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of each server: the client takes time, too (default: %(default)s)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        help=f"times that each prompt is asked, with at least {FEWEST} samples a cell (default: %(default)s)",
    )
    options = parser.parse_args()
    target = options.target
    file = streamco.packaged_model() if target is None else model_file(target, options.quantisation) if target in MODELS else Path(target)
    rows = asyncio.run(_measure(file, options.drafts, threads=options.threads, rounds=options.rounds, quick=options.quick))
    emit(rows, options.json, against=PLAIN)


if __name__ == "__main__":
    main()
