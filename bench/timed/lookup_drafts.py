"""How much faster than the server's plain stream are answers with drafts that are looked up, without a model on this machine?

The packaged model answers, in a process of its own over an emulated link, with the step times of Llama-2-70B on two A100 imposed on it.
Code that is repeated with an edit, a summary in the text's own words, and prose, which repeats nothing. Both contenders get the same greedy
texts from one server, prompt by prompt, and take turns at being first. Tokens a second are those of whole answers, the first token and the
trip for the prompt's ids included. Each client says one answer before it counts, so that it knows the stream's pace.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import streamco
from bench.report import Row, add_arguments, emit, rows_from
from streamco.reports import Report
from streamco.testing import LinkProxy
from streamco.testing.server_process import running_server

__all__ = ["main"]

BENCH = "lookup_drafts"
SERVER = "llama2-70b-a100x2"
RTTS_MS = (10.0, 30.0, 60.0)
PLAIN, LOOKUPS = "plain stream", "streamco"
CODE = """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("expected positive sides")
    return width * height


def volume(width, height, depth):
    if width < 0 or height < 0 or depth < 0:
        raise ValueError("expected positive sides")
    return width * height * depth
"""
TEXT = (
    "The committee met on Tuesday in the old town hall of Brigham to discuss the repair of the bridge across the river Ouse. Mrs Eleanor "
    "Whitcombe, the chairwoman, said that the bridge had been closed to lorries since March, and that the estimate of the engineers had "
    "risen from two hundred thousand pounds to three hundred and fifty thousand pounds."
)
PROMPTS = {
    "code edit": f"Repeat this code with a comment above each function:\n\n{CODE}",
    "summary": f"Summarise this text in its own words:\n\n{TEXT}",
    "prose": "Why is the sky blue, and why is it red in the evening?",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    rtts, rounds, tokens = (RTTS_MS[1:2], 1, 48) if options.quick else (RTTS_MS, 5, 128)
    emit(asyncio.run(_measure(rtts, rounds=rounds, tokens=tokens)), options.json, against=PLAIN)


async def _measure(rtts: Sequence[float], *, rounds: int, tokens: int) -> list[Row]:
    rows: list[Row] = []
    model = ("--model", str(streamco.packaged_model()), "--model-name", "large", "--threads", "1")
    async with running_server(*model, "--port", "0", "--step-times", SERVER) as url:
        for rtt_ms in rtts:
            async with LinkProxy(urlsplit(url).port or 0, rtt=rtt_ms / 1000) as link:
                rows += await _over_link(f"http://127.0.0.1:{link.port}/v1", f"RTT {rtt_ms:g} ms", rounds=rounds, tokens=tokens)
    return rows


async def _over_link(url: str, case: str, *, rounds: int, tokens: int) -> list[Row]:
    async with (
        streamco.Client(server=streamco.OpenAIEndpoint("large", base_url=url, name="server")) as plain,
        streamco.Client(
            server=streamco.OpenAIEndpoint("large", base_url=url, name="server"), mode=streamco.Speculate(drafter="lookup")
        ) as lookups,
    ):
        clients = {PLAIN: plain, LOOKUPS: lookups}
        for client in clients.values():
            await _answer(client, "Name three rivers.", 32)
        rows = []
        for name, prompt in PROMPTS.items():
            samples: dict[str, list[float]] = {contender: [] for contender in clients}
            for turn in range(rounds):
                reports = {each: await _answer(clients[each], prompt, tokens) for each in sorted(clients, reverse=bool(turn % 2))}
                for contender, report in reports.items():  # the texts are the same, and the verified one's tokens are counted by ids
                    samples[contender].append(reports[LOOKUPS].tokens / report.duration)
            rows += rows_from(BENCH, f"{name}, {case}", "rate", "tokens/s", samples)
        return rows


async def _answer(client: streamco.Client, prompt: str, tokens: int) -> Report:
    stream = client.stream(prompt, max_tokens=tokens, temperature=0)
    async for _ in stream:
        pass
    return stream.report


if __name__ == "__main__":
    main()
