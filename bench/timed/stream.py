"""What does one streamed event cost the client?

CPU time of this process per event, from the socket to the fields a caller reads (content, finish reason, usage of every chunk), over real
HTTP from a server in a process of its own; and what the client adds to the time to first token. ``floor`` reads the same bytes from a
bare socket and counts lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bench.report import Row, add_arguments, emit, summarise

Read = Callable[[str], Awaitable[int]]
"""Ask for a model's stream, read all of it, return the number of chunks with choices."""

MESSAGES: Any = [{"role": "user", "content": "Say something."}]


@contextlib.contextmanager
def server() -> Iterator[int]:
    command = [sys.executable, "-m", "bench.timed.dripserver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())  # it stops when its standard input closes


def chunk_reader(create: Callable[..., Any]) -> Read:
    """For clients with OpenAI's surface: the same call, the same fields."""

    async def read(model: str) -> int:
        count = 0
        stream = await create(messages=MESSAGES, model=model, stream=True, stream_options={"include_usage": True})
        async for chunk in stream:
            for choice in chunk.choices:
                _ = choice.delta.content, choice.finish_reason
                count += 1
            _ = chunk.usage
        return count

    return read


async def open_streamco(stack: contextlib.AsyncExitStack, port: int) -> Read:
    import streamco

    endpoint = streamco.OpenAIEndpoint("bench", base_url=f"http://127.0.0.1:{port}/v1")
    client = await stack.enter_async_context(streamco.Client(server=endpoint))

    return chunk_reader(client.chat.completions.create)


async def open_openai(stack: contextlib.AsyncExitStack, port: int) -> Read:
    import openai

    client = await stack.enter_async_context(openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0))

    return chunk_reader(client.chat.completions.create)


async def open_aiohttp(stack: contextlib.AsyncExitStack, port: int) -> Read:
    import aiohttp
    import msgspec

    from streamco.openai_types import ChatCompletionChunk

    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    decoder = msgspec.json.Decoder(ChatCompletionChunk)

    async def read(model: str) -> int:
        count, rest = 0, b""
        body = {"model": model, "messages": MESSAGES, "stream": True}
        async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
            async for data in response.content.iter_any():
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if event != b"data: [DONE]":
                        chunk = decoder.decode(event[6:])
                        for choice in chunk.choices:
                            _ = choice.delta.content, choice.finish_reason
                            count += 1
                        _ = chunk.usage
        return count

    return read


async def open_httpx_sse(stack: contextlib.AsyncExitStack, port: int) -> Read:
    import httpx

    aconnect_sse: Any = import_module("httpx_sse").aconnect_sse  # of the group bench, which mypy doesn't need
    client = await stack.enter_async_context(httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60))

    async def read(model: str) -> int:
        count = 0
        body = {"model": model, "messages": MESSAGES, "stream": True}
        async with aconnect_sse(client, "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as source:
            async for event in source.aiter_sse():
                if event.data != "[DONE]":
                    chunk = json.loads(event.data)
                    for choice in chunk["choices"]:
                        _ = choice["delta"].get("content"), choice["finish_reason"]
                        count += 1
                    _ = chunk["usage"]
        return count

    return read


async def open_litellm(stack: contextlib.AsyncExitStack, port: int) -> Read:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its import asks the network for prices
    litellm: Any = import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.telemetry = False

    async def read(model: str) -> int:
        count = 0
        stream = await litellm.acompletion(
            model=f"openai/{model}",
            api_base=f"http://127.0.0.1:{port}/v1",
            api_key="none",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                _ = choice.delta.content, choice.finish_reason
                count += 1
            _ = getattr(chunk, "usage", None)
        return count

    return read


async def open_floor(stack: contextlib.AsyncExitStack, port: int) -> Read:
    async def read(model: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"model": model, "messages": MESSAGES, "stream": True}).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        mark = b'"choices":[{'
        count, tail = 0, b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = tail + await reader.read(1 << 16)
            count += data.count(mark)
            tail = data[1 - len(mark) :]
        writer.close()
        return count

    return read


Opener = Callable[[contextlib.AsyncExitStack, int], Awaitable[Read]]
CONTENDERS: dict[str, Opener] = {
    "streamco": open_streamco,
    "openai-python": open_openai,
    "aiohttp + msgspec": open_aiohttp,
    "httpx-sse + json": open_httpx_sse,
    "litellm": open_litellm,
    "floor": open_floor,
}


async def cost(read: Read, mode: str, events: int, streams: int) -> float:
    """CPU microseconds an event."""
    start = time.process_time()
    counts = await asyncio.gather(*(read(f"{mode}-{events}") for _ in range(streams)))
    spent = time.process_time() - start
    assert all(count >= events for count in counts), counts
    return spent / (events * streams) * 1e6


async def first_token(read: Read) -> float:
    """Milliseconds of a whole one-token answer on a warm connection: everything a client does for a first token."""
    start = time.perf_counter()
    await read("bulk-1")
    return (time.perf_counter() - start) * 1000


async def run(contenders: dict[str, Opener], port: int, *, quick: bool) -> list[Row]:
    rows: list[Row] = []
    rounds = 3 if quick else 6
    cases = [("bulk, one stream", "bulk", 2000 if quick else 5000, 1), ("bulk, 100 streams", "bulk", 100 if quick else 500, 100)]
    cases += [("one event a wake-up", "drip", 300 if quick else 600, 1)]
    async with contextlib.AsyncExitStack() as stack:
        readers = {name: await opener(stack, port) for name, opener in contenders.items()}
        for read in readers.values():
            await read("bulk-10")
        for case, mode, events, streams in cases:
            samples: dict[str, list[float]] = {name: [] for name in readers}
            for turn in range(rounds):
                for name, read in readers.items():
                    if name == "litellm" and turn % 3:  # a third of the rounds: it takes longer than all the others together
                        continue
                    samples[name].append(await cost(read, mode, events, streams))
            rows += [summarise(s, bench="stream", case=case, contender=n, metric="CPU an event", unit="us") for n, s in samples.items()]
        waits: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(20 if quick else 200):
            for name, read in readers.items():
                waits[name].append(await first_token(read))
        case = "one-token answer, warm connection"
        rows += [summarise(s, bench="stream", case=case, contender=n, metric="wall time", unit="ms") for n, s in waits.items()]
    return rows


FIRST_REQUEST = """
import asyncio, contextlib, gc, sys, time
sys.path.insert(0, {root!r})
from bench.timed.stream import CONTENDERS
async def main():
    async with contextlib.AsyncExitStack() as stack:
        read = await CONTENDERS[{name!r}](stack, {port})
        gc.collect()  # else a collection of what the imports left falls into the request, or doesn't, by chance
        start = time.perf_counter()
        await read("bulk-1")
        print((time.perf_counter() - start) * 1000)
asyncio.run(main())
"""


def first_request(name: str, port: int) -> float:
    """Milliseconds of the first request of a new process; imports and the client's construction are done."""
    code = FIRST_REQUEST.format(root=".", name=name, port=port)
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--only", nargs="*", choices=list(CONTENDERS), help="these contenders (default: all that are installed)")
    args = parser.parse_args()
    contenders = {name: opener for name, opener in CONTENDERS.items() if not args.only or name in args.only}
    for name, module in (("litellm", "litellm"), ("httpx-sse + json", "httpx_sse")):
        if name in contenders and find_spec(module) is None:
            del contenders[name]
            print(f"{name}: not installed, left out", file=sys.stderr)
    with server() as port:
        rows = asyncio.run(run(contenders, port, quick=args.quick))
        samples: dict[str, list[float]] = {name: [] for name in contenders if name != "litellm"}
        for _ in range(3 if args.quick else 15):
            for name, values in samples.items():
                values.append(first_request(name, port))
        case = "first request of a process"
        rows += [summarise(s, bench="stream", case=case, contender=n, metric="wall time", unit="ms") for n, s in samples.items()]
    emit(rows, args.json)


if __name__ == "__main__":
    main()
