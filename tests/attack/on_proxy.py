"""Attacks on ``streamco proxy``: by its callers, and by the server whose answers it passes on."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamco.testing import ScriptedServer, json_answer, stream_answer
from streamco.testing.responses import DONE, Cut, Pause, RecordedRequest, Reset, ScriptedResponse, Stall, Step, chunk_event, sse_event
from tests.attack.attack import Harm, Register
from tests.attack.processes import CHAT, HELLO, Program

__all__ = ["ProxyVictim", "attack", "proxy_config"]

attack = Register("proxy")

EVENTS = {"Content-Type": "text/event-stream"}
JSON = {"Content-Type": "application/json"}
ORDINARY = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
}


def proxy_config(folder: Path, port: int, policy: str = "server-only") -> Path:
    """Write the configuration of a proxy in front of a scripted server, which also has the name of an Azure deployment."""
    file = folder / "proxy.toml"
    file.write_text(
        f'[proxy]\nmax_streams = 16\n\n[[server]]\nmodel = "m"\nbase_url = "http://127.0.0.1:{port}/v1"\nname = "upstream"\n'
        "prices = { prompt = 1.0, completion = 2.0 }\n"
        "timeouts = { connect = 3.0, first_token = 4.0, next_token = 3.0, socket = 5.0 }\n\n"
        f'[dispatch]\npolicy = "{policy}"\n'
    )
    return file


class ProxyVictim:
    """A proxy and the scripted server that it asks."""

    def __init__(self, program: Program, upstream: ScriptedServer) -> None:
        self.program = program
        self.upstream = upstream

    async def check(self) -> str:
        """Return "" if an ordinary request is answered, else what happened instead."""
        self.upstream.script(_well_behaved)
        return await self.program.check()

    async def answer(self, script: ScriptedResponse, *, stream: bool = True) -> tuple[int, str]:
        """Have the upstream answer in this manner; return status and text that the proxy's caller gets."""
        self.upstream.script(script)
        return await self.program.post(CHAT, {**HELLO, "stream": stream})


def _well_behaved(request: RecordedRequest) -> ScriptedResponse:
    return stream_answer() if b'"stream":true' in request.body.replace(b" ", b"") else json_answer(ORDINARY)


def events(*steps: Step) -> ScriptedResponse:
    """Return a stream of these steps."""
    return ScriptedResponse(headers=EVENTS, steps=[chunk_event("", role="assistant"), chunk_event("text "), *steps])


@attack(
    "usage of 9e17 tokens, negative, and more cached than prompt, streamed and whole", "nothing spins; costs are finite and not negative"
)
async def absurd_usage(victim: ProxyVictim, size: int) -> str:
    for count in (900_000_000_000_000_000, -5, 10**30):
        usage: dict[str, Any] = {
            "prompt_tokens": count,
            "completion_tokens": count,
            "total_tokens": count,
            "prompt_tokens_details": {"cached_tokens": 99},
        }
        async with asyncio.timeout(20):
            await victim.answer(json_answer({**ORDINARY, "usage": usage}), stream=False)
            await victim.answer(events(chunk_event(finish_reason="stop"), chunk_event(usage=usage), DONE))
            await victim.program.seconds()
    async with victim.program.http.get("/streamco/totals") as response:
        totals = await response.json()
    costs = [value for value in _numbers(totals, "cost") if value is not None]
    if any(not 0 <= cost < 1 for cost in costs):
        raise Harm(f"costs {costs}")
    return f"/health answers; costs {', '.join(f'{cost:.6f}' for cost in costs)}"


def _numbers(value: Any, word: str) -> list[Any]:
    if isinstance(value, dict):
        own = [each for name, each in value.items() if word in name and isinstance(each, int | float)]
        return own + [number for each in value.values() for number in _numbers(each, word)]
    return [number for each in value for number in _numbers(each, word)] if isinstance(value, list) else []


@attack("an answer of another kind, cut, reset, stalled, endless comments or lines", "an error in time, or the text so far and an error")
async def broken_answers(victim: ProxyVictim, size: int) -> str:
    scripts: dict[str, ScriptedResponse] = {
        "html": ScriptedResponse(headers={"Content-Type": "text/html"}, steps=[b"<html>" + b"x" * 100_000]),
        "cut": events(Cut()),
        "reset": events(Reset()),
        "stalled": events(Stall()),
        "no end": events(),
        "comments": ScriptedResponse(headers=EVENTS, steps=[b": x\n\n" * 100, Pause(1.0)] * 8),
        "line": ScriptedResponse(headers=EVENTS, steps=[b"data: " + b"x" * (3 << 20)]),
        "lines": ScriptedResponse(headers=EVENTS, steps=[b"data: x\n" * 400_000]),
        "garbage": ScriptedResponse(headers=EVENTS, steps=[bytes(range(256)) * 200]),
        "nested": events(sse_event("[" * 200_000)),
        "empty": ScriptedResponse(headers=EVENTS, steps=[]),
        "error": ScriptedResponse(status=200, headers=EVENTS, steps=[sse_event({"error": {"message": "\x1b]0;evil\x07", "code": 500}})]),
    }
    seen = set()
    for name, script in scripts.items():
        try:
            async with asyncio.timeout(30):
                status, text = await victim.answer(script)
        except TimeoutError:
            raise Harm(f"{name}: no end") from None
        if status == 200 and "data: [DONE]" in text:
            raise Harm(f"{name}: passed for a whole answer")
        seen.add(str(status))
    return f"{len(scripts)} kinds: {', '.join(sorted(seen))}, no [DONE]"


@attack("a gzip bomb of a gigabyte", "an error; memory stays")
async def gzip_bomb(victim: ProxyVictim, size: int) -> str:
    before = victim.program.memory()
    bomb = gzip.compress(bytes((256 << 20) * (1 + size)))
    answer = ScriptedResponse(headers={**JSON, "Content-Encoding": "gzip"}, steps=[bomb], framing="length")
    status, _ = await victim.answer(answer, stream=False)
    grown = victim.program.memory() - before
    if status < 400 or grown > 200:
        raise Harm(f"{status}, {grown} MB more in memory")
    return f"{status}, {grown} MB more in memory"


@attack("redirects to file:, to another host, and in a circle", "an error; the key goes nowhere")
async def redirects(victim: ProxyVictim, size: int) -> str:
    async with ScriptedServer(json_answer(ORDINARY)) as other:
        seen = set()
        for target in ("file:///etc/passwd", f"http://127.0.0.1:{other.port}/v1", "gopher://x", "//", "", "http://[", "\x00"):
            for code in (301, 307):
                status, text = await victim.answer(
                    ScriptedResponse(status=code, headers={"Location": target}, framing="length"), stream=False
                )
                if status == 200 or "internal" in text or "ValueError" in text:
                    raise Harm(f"{target!r}: {status} {text[:100]}")
                seen.add(str(status))
        if other.requests:
            raise Harm("the request went to another host")
    return f"{', '.join(sorted(seen))}; no request elsewhere"


@attack("16 MB of empty objects, and a table of 300,000 commas in a message", "413 before it is decoded, and the table is passed on")
async def large_bodies(victim: ProxyVictim, size: int) -> str:
    program, before = victim.program, victim.program.memory()
    posting = asyncio.create_task(program.post(CHAT, b'{"messages":[' + b"{}," * (2_000_000 * (1 + size)) + b"{}]}"))
    health = [await program.seconds() for _ in range(10)]
    status, _ = await posting
    if status != 413 or program.memory() - before > 300:
        raise Harm(f"{status}, {program.memory() - before} MB more in memory")
    victim.upstream.script(_well_behaved)
    status, text = await program.post(CHAT, {**HELLO, "messages": [{"role": "user", "content": "1,2\n" * 300_000}]})
    if status != 200:
        raise Harm(f"the table: {status} {text[:100]}")
    return f"413, {program.memory() - before} MB more in memory, /health in {max(health):.3f} s at most"


@attack("a caller's headers, key and X-Forwarded-For", "none goes upstream")
async def forwarded_headers(victim: ProxyVictim, size: int) -> str:
    victim.upstream.script(_well_behaved)
    victim.upstream.requests.clear()
    mine = {"Authorization": "Bearer sk-caller", "X-Secret": "s", "Cookie": "a=b", "OpenAI-Organization": "x"}
    await victim.program.post(CHAT, HELLO, mine)
    sent = json.dumps([request.headers for request in victim.upstream.requests])
    if any(word in sent for word in ("sk-caller", "x-secret", "cookie", "openai-organization")):
        raise Harm(sent)
    return "none"


@attack("control characters and CR LF in what the server sends as model, ids and errors", "no header is forged, the log has none")
async def forged_headers(victim: ProxyVictim, size: int) -> str:
    evil = "m\r\nX-Evil: 1\r\n\r\n\x1b]52;c;ZXZpbA==\x07"
    victim.upstream.script(json_answer({**ORDINARY, "id": evil, "model": evil, "system_fingerprint": evil}))
    async with victim.program.http.post(CHAT, json=HELLO) as response:
        await response.read()
        if "X-Evil" in response.headers:
            raise Harm("a header was forged")
    await victim.answer(json_answer({"error": {"message": evil, "code": evil}}, status=500), stream=False)
    await victim.program.post(CHAT, {**HELLO, "model": evil})
    if "\x1b" in victim.program.log() or "\x07" in victim.program.log():
        raise Harm("control characters are in the log")
    return "none"


@attack("requests for a name that isn't this machine's (DNS rebinding)", "403 without a key")
async def rebinding(victim: ProxyVictim, size: int) -> str:
    seen: set[int] = set()
    hosts: Sequence[str] = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", "[::1].evil", "10.0.0.1")
    for host in hosts:
        status, _ = await victim.program.post(CHAT, HELLO, {"Host": host})
        seen.add(status)
    if seen != {403}:
        raise Harm(f"{sorted(seen)}")
    return "403"


@attack("callers that leave, and more of them than there are places", "429 beyond the limit; upstream streams are cancelled")
async def crowd(victim: ProxyVictim, size: int) -> str:
    victim.upstream.script(events(Stall()))
    calls = [asyncio.create_task(victim.program.post(CHAT, {**HELLO, "stream": True})) for _ in range(16 + 8)]
    await asyncio.sleep(1.0)
    refused = sum(call.done() and not call.cancelled() and call.result()[0] == 429 for call in calls)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    for _ in range(200):
        if not victim.upstream.connections_open:
            break
        await asyncio.sleep(0.05)
    if not refused:
        raise Harm("all were taken")
    return f"{refused} of {len(calls)} got 429, {victim.upstream.connections_open} upstream streams left"
