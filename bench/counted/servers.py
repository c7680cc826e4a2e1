"""What does the default client find out about real servers by itself, and do answers go on at them and from them?

The packaged model is the device and each server's model. No server is named, declared or probed: the client asks it in the background what
it is. Then answers are broken off after a random number of tokens at the device, and as many at the server. Greedy; a server that rounds
otherwise than the device may choose another word of two that are nearly as likely, so a text may differ although nothing was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import streamco
from bench.counted.migration_live import Breaking
from bench.report import Row, add_arguments, emit
from streamco.core.race.learner import PolicyName
from streamco.endpoints.base import Endpoint, EndpointStream, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.base import EngineOptions
from streamco.errors import AllEndpointsFailed, EndpointError
from streamco.testing.server_process import running_server
from tests.support.peer_servers import running_peer
from tests.vllm.server import VLLM, running_vllm

__all__ = ["main"]

BENCH = "servers"
MODEL = "smollm2"
TOKENS = 24
PROMPTS = (
    "List three colours.",
    "Write a Python function that adds two numbers.",
    "What is the capital of France?",
    "Tell me about the sea.",
)


class _Breaking(Breaking):
    """An endpoint of a client's own, whose first part of an answer breaks, if it is told so."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.endpoint, name)

    def open(self, request: Request) -> EndpointStream:
        """Begin an answer, which may break, or go on with one."""
        return super().open(request) if request.partial is None else self.endpoint.open(request)

    async def aclose(self) -> None:
        """Close the endpoint."""
        await self.endpoint.aclose()


async def _measure(name: str, url: str, cuts: int) -> list[Row]:
    options = EngineOptions(context_tokens=512, threads=1, max_sequences=2)
    device = _Breaking(DeviceEndpoint(streamco.packaged_model(), options=options))
    server = _Breaking(streamco.OpenAIEndpoint(MODEL, base_url=url, name="server"))
    rng, counted = random.Random(7), {}
    async with streamco.Client(device, server, budget=1.0) as client:
        ways: tuple[tuple[str, _Breaking, PolicyName], ...] = (
            ("to the device", server, "server-first"),
            ("to the server", device, "device-first"),
        )
        for way, broken, policy in ways:
            asking = client.with_options(mode=streamco.Race(policy=policy))
            counted[way] = await _cut(asking, broken, cuts, rng)
    found = f"{name}: found as {server.provider}, goes on by {server.capabilities.continuation}"
    return [
        Row(BENCH, f"{found}; {way}", name, metric, "answers", value, value, value)
        for way, figures in counted.items()
        for metric, value in figures.items()
    ]


async def _cut(client: streamco.Client, broken: _Breaking, cuts: int, rng: random.Random) -> dict[str, float]:
    figures = dict.fromkeys(("handed over", "of these the same text", "ended before", "failed"), 0.0)
    for number in range(cuts):
        prompt = PROMPTS[number % len(PROMPTS)]
        broken.after = None
        whole, _ = await _answer(client, prompt)
        broken.after = rng.randint(1, TOKENS - 4)
        try:
            text, has_moved = await _answer(client, prompt)
        except (EndpointError, AllEndpointsFailed):
            figures["failed"] += 1
            continue
        figures["handed over" if has_moved else "ended before"] += 1
        figures["of these the same text"] += has_moved and text == whole
    return figures


async def _answer(client: streamco.Client, prompt: str) -> tuple[str, bool]:
    stream = client.stream(prompt, max_tokens=TOKENS, temperature=0)
    text = "".join([token.text async for token in stream])
    return text, bool(stream.report.hand_overs)


async def _run(cuts: int, wanted: list[str]) -> list[Row]:
    rows: list[Row] = []
    peers: dict[str, Callable[[ExitStack], str]] = {
        "llama.cpp's server": lambda stack: stack.enter_context(running_peer("xllamacpp")),
        "llama-cpp-python": lambda stack: stack.enter_context(running_peer("llama-cpp-python")),
        "vLLM": lambda stack: stack.enter_context(running_vllm()).url,
    }
    if "streamco serve" in wanted:
        model = ("--model", str(streamco.packaged_model()), "--model-name", MODEL, "--threads", "1")
        async with AsyncExitStack() as stack:
            rows += await _measure("streamco serve", await stack.enter_async_context(running_server("--port", "0", *model)), cuts)
    for name, start in peers.items():
        if name in wanted and (name != "vLLM" or VLLM.exists()):
            with ExitStack() as started:
                rows += await _measure(name, await asyncio.to_thread(start, started), cuts)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    names = ["streamco serve", "llama.cpp's server", "llama-cpp-python", "vLLM"]
    parser.add_argument("--servers", nargs="+", choices=names, default=names, help="vLLM needs the environment of make vllm")
    options = parser.parse_args()
    emit(asyncio.run(_run(4 if options.quick else 24, options.servers[:1] if options.quick else options.servers)), options.json)


if __name__ == "__main__":
    main()
