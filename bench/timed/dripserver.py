"""The other end of bench/timed/stream.py, bench/timed/proxy.py and bench/timed/load_tool.py: a bare HTTP server in a process of its own.

It sends recorded-looking chat chunks, and the model name says how: ``bulk-2000`` sends 2,000 events as fast as the socket takes them,
``drip-500`` one event a write, a millisecond apart, ``slow-20`` the same a fifth of a second apart, and ``model-50`` the same 20 ms apart,
after the 100 ms that a prompt takes. A request without a body, such as ``GET /health``, gets an empty object.
"""

from __future__ import annotations

import asyncio
import json
import sys

GAPS = {"drip": 0.001, "slow": 0.2}  # seconds after each event
PROMPT_S, STEP_S = 0.1, 0.02  # of "model"
WORDS = ["The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", "."]


def make_events(count: int) -> list[bytes]:
    """``count`` content events between a role delta, a finish reason and usage, as OpenAI sends them."""
    base = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "bench",
        "system_fingerprint": "fp_1",
    }

    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b"data: " + json.dumps({**base, "choices": [choice], "usage": None}, separators=(",", ":")).encode() + b"\n\n"

    usage = {"prompt_tokens": 12, "completion_tokens": count, "total_tokens": count + 12}
    last = b"data: " + json.dumps({**base, "choices": [], "usage": usage}, separators=(",", ":")).encode() + b"\n\ndata: [DONE]\n\n"
    contents = [event({"content": WORDS[index % len(WORDS)]}) for index in range(count)]
    return [event({"role": "assistant", "content": ""}), *contents, event({}, "stop"), last]


def frame(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until it closes."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            begun = loop.time()
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            if not length:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
                continue
            mode, _, count = json.loads(await reader.readexactly(length))["model"].rpartition("/")[2].partition("-")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            events = make_events(int(count))
            if mode == "bulk":
                for start in range(0, len(events), 256):
                    writer.write(frame(b"".join(events[start : start + 256])))
                    await writer.drain()
            else:
                for number, event in enumerate(events):
                    if mode == "model":  # due at a fixed time: a late wake-up delays no later event
                        await asyncio.sleep(begun + PROMPT_S + number * STEP_S - loop.time())
                    if writer.is_closing():
                        return
                    writer.write(frame(event))
                    if mode != "model":
                        await asyncio.sleep(GAPS[mode])
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        writer.close()  # the client has what it wanted, or the bench is over


async def main() -> None:
    """Print the port, then serve until standard input closes."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
