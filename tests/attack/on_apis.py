"""Attacks on the APIs that are answered by way of chat, and on the metrics: at ``streamco serve`` and at ``streamco proxy``."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from streamco.testing import json_answer, stream_answer
from streamco.testing.responses import RecordedRequest, ScriptedResponse
from tests.attack.attack import Harm, Register
from tests.attack.odd_requests import COUNT, FULL, MESSAGES, PLAIN, RESPONSES, changed
from tests.attack.processes import CHAT, HELLO, TEXT, Program

__all__ = ["ApiVictim", "answered", "attack"]

attack = Register("apis")

SMALL: dict[str, dict[str, Any]] = {
    CHAT: HELLO,
    TEXT: {"prompt": "Hi", "max_tokens": 2},
    RESPONSES: {"input": "Hi", "max_output_tokens": 2},
    MESSAGES: HELLO,
    COUNT: {"messages": HELLO["messages"]},
}
LONGEST = 10_000  # characters of an error
LEVELS = 1_000  # of JSON that the decoder takes


def answered(request: RecordedRequest) -> ScriptedResponse:
    """Return a short answer, streamed if the request asks for it."""
    if request.body and json.loads(request.body).get("stream"):
        return stream_answer()
    choice = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
    return json_answer({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


class ApiVictim:
    """A server or a proxy."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._checked = 0  # characters of the log

    async def check(self) -> str:
        """Return "" if an ordinary request is answered on each path, and the log has no traceback, else what happened instead."""
        log = self.program.log()[self._checked :]
        self._checked += len(log)
        if "Traceback" in log:
            return f"a traceback in the log: {log[log.index('Traceback') :][-300:]}"
        for path, body in SMALL.items():
            status, text = await self.program.post(path, body)
            if status != 200:
                return f"{path}: {status} {text[:100]}"
        return await self.program.check()

    async def refused(self, path: str, body: Any, headers: dict[str, str] | None = None) -> int:
        """Post a body that must be refused shortly."""
        status, text = await self.program.post(path, body, headers)
        if not 400 <= status < 500 or len(text) > LONGEST:
            raise Harm(f"{path}: {status} with {len(text)} characters: {text[:100]}")
        return status


@attack("each field of each API changed to each odd value, or left out", "400 or 200, never 500; errors are short")
async def odd_fields(victim: ApiVictim, size: int) -> str:
    statuses: dict[int, int] = {}
    for bodies in (FULL, PLAIN):
        for path, body in bodies.items():
            for what, each in list(changed(body))[:: 23 if size else 101]:
                status, text = await victim.program.post(path, each)
                if status >= 500 or (status != 200 and len(text) > LONGEST):
                    raise Harm(f"{path} {what}: {status} with {len(text)} characters: {text[:100]}")
                statuses[status] = statuses.get(status, 0) + 1
    return ", ".join(f"{status}: {statuses[status]}" for status in sorted(statuses))


def _deep(value: str) -> Iterator[tuple[str, str]]:
    """Yield bodies as JSON with a value in the places that take any."""
    schema = '{"type":"object","properties":{"x":{"enum":[' + value + "]}}}"
    hello = '"messages":[{"role":"user","content":"Hi"}],"max_tokens":2'
    call = '{"type":"tool_use","id":"t","name":"f","input":{"a":' + value + "}}"
    used = '{"role":"assistant","content":[' + call + ']},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}'
    for field in ("metadata", "chat_template_kwargs", "user", "x"):
        yield CHAT, f'{{{hello},"{field}":{value}}}'
    yield CHAT, f'{{{hello},"response_format":{{"type":"json_schema","json_schema":{{"name":"a","schema":{schema}}}}}}}'
    yield CHAT, f'{{"messages":[{{"role":"user","content":{value}}}],"max_tokens":2}}'
    yield TEXT, f'{{"prompt":{value},"max_tokens":2}}'
    for field in ("user", "service_tier", "tool_choice", "x"):
        yield RESPONSES, f'{{"input":"Hi","max_output_tokens":2,"{field}":{value}}}'
    yield RESPONSES, f'{{"input":"Hi","max_output_tokens":2,"stream":true,"user":{value}}}'
    yield RESPONSES, f'{{"input":"Hi","max_output_tokens":2,"tools":[{{"type":"function","name":"f","parameters":{schema}}}]}}'
    yield RESPONSES, f'{{"input":"Hi","max_output_tokens":2,"text":{{"format":{{"type":"json_schema","name":"a","schema":{schema}}}}}}}'
    for path in (MESSAGES, COUNT):
        yield path, f'{{{hello},"x":{value}}}'
        yield path, f'{{{hello},"tools":[{{"name":"f","input_schema":{schema}}}]}}'
        yield path, f'{{"messages":[{{"role":"user","content":"Hi"}},{used}],"max_tokens":2}}'


@attack("values nested to each depth up to the decoder's own limit, in each field that takes any", "400 or 200, never 500")
async def depths(victim: ApiVictim, size: int) -> str:
    seen, tried = set(), 0
    for depth in (*range(100, LEVELS, 100 if size else 400), *range(LEVELS - 60, LEVELS, 2 if size else 30)):
        for value in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
            for path, body in _deep(value):
                status, text = await victim.program.post(path, body.encode())
                if status >= 500 or '"internal error"' in text:
                    raise Harm(f"{path} {body[:80]} at {depth} levels: {status} {text[:100]}")
                tried += 1
                seen.add(status)
    return f"{tried} bodies: {', '.join(map(str, sorted(seen)))}"


@attack("names and kinds of 900 kB, and 200,000 items, on each API", "4xx with a short message")
async def long_names(victim: ApiVictim, size: int) -> str:
    long, seen = "x" * 900_000, set()
    many = [{"type": long[:100], "role": "user", "content": "Hi"}] * 9_000
    for path, body in (
        (RESPONSES, {"input": [{"type": long}]}),
        (RESPONSES, {"input": "Hi", "include": [long]}),
        (RESPONSES, {"input": "Hi", "text": {long: 1}}),
        (RESPONSES, {"input": "Hi", "text": {"format": {"type": long}}}),
        (RESPONSES, {"input": "Hi", "truncation": long}),
        (RESPONSES, {"input": "Hi", "tools": [{"type": long}]}),
        (RESPONSES, {"input": "Hi", "tool_choice": {"type": long}}),
        (RESPONSES, {"input": many}),
        (MESSAGES, {"max_tokens": 2, "messages": [{"role": long, "content": "Hi"}]}),
        (MESSAGES, {"max_tokens": 2, "messages": [{"role": "user", "content": [{"type": long}]}]}),
        (MESSAGES, {**HELLO, "speed": long}),
        (MESSAGES, {**HELLO, "tool_choice": {"type": long}}),
        (MESSAGES, {**HELLO, "tools": [{"name": "f", "input_schema": {}, long: 1}]}),
        (MESSAGES, {**HELLO, "context_management": {"edits": [{"type": long}]}}),
        (MESSAGES, {**HELLO, "thinking": {"type": long}}),
        (COUNT, {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": long}]}]}]}),
    ):
        seen.add(await victim.refused(path, body))
    for path in FULL:
        seen.add(await victim.refused(path, b"[" + b"{}," * 290_000 + b"{}]"))
    return ", ".join(map(str, sorted(seen)))


@attack("bodies: compressed bombs, of other types, cut, with a mark, in other encodings, on each path", "4xx; memory stays")
async def odd_bodies(victim: ApiVictim, size: int) -> str:
    before, seen = victim.program.memory(), set()
    bomb = gzip.compress(b'{"input":"' + bytes(64 << 20))
    for path, body in SMALL.items():
        text = json.dumps(body)
        seen.add(await victim.refused(path, bomb, {"Content-Encoding": "gzip"}))
        for coding in ("gzip", "deflate", "br", "zstd", "x"):
            status, _ = await victim.program.post(path, b"no such bytes", {"Content-Encoding": coding})
            if not 400 <= status < 500:
                raise Harm(f"{path} with {coding}: {status}")
        for kind in ("text/plain", "application/msgpack", "multipart/form-data; boundary=x", "application/json/x", ""):
            if path in {CHAT, TEXT} and kind == "application/msgpack":
                continue
            seen.add(await victim.refused(path, text.encode(), {"Content-Type": kind}))
        for data in (text[:-1].encode(), text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode(), b"", b"null", b"[]", b'"x"', b"\x00"):
            seen.add(await victim.refused(path, data))
    grown = victim.program.memory() - before
    if grown > 200:
        raise Harm(f"{grown} MB more in memory")
    return f"{', '.join(map(str, sorted(seen)))}; {grown} MB more in memory"


@attack("framing: lengths that lie, chunks that never end, Expect, two requests in one, on each path", "the next request is answered")
async def odd_framing(victim: ApiVictim, size: int) -> str:
    parts = urlsplit(victim.program.url)
    key = "".join(f"{name}: {value}\r\n" for name, value in victim.program.headers.items())
    seen, writers = set(), []
    for path, body in SMALL.items():
        text = json.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}Content-Type: application/json\r\n"
        for data in (
            f"{head}Content-Length: {len(text) + 50}\r\n\r\n{text}",
            f"{head}Content-Length: {len(text) - 5}\r\n\r\n{text}",
            f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            f"{head}Transfer-Encoding: chunked\r\n\r\n{len(text):x};{'e' * 9000}\r\n{text}\r\n0\r\n\r\n",
            f"{head}Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            f"{head}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
            f"{head}Expect: 100-continue\r\nContent-Length: {len(text)}\r\n\r\n",
            f"{head}Expect: x\r\nContent-Length: {len(text)}\r\n\r\n{text}",
            f"{head}Content-Length: -1\r\n\r\n{text}",
            f"{head}Content-Length: 99999999999999999999\r\n\r\n{text}",
            f"{head}Content-Length: {len(text)}\r\n\r\n{text}" * 40,
        ):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(data.encode("latin-1"))
            writers.append(writer)
            line = b""
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.3 + size):
                    line = await reader.readline()
            seen.add(line.split(b" ")[1].decode() if line.startswith(b"HTTP/") else "silence")
    waited = await victim.program.seconds()
    for writer in writers:
        writer.transport.abort()
    if any(status.startswith("5") for status in seen):
        raise Harm(", ".join(sorted(seen)))
    return f"{', '.join(sorted(seen))}; /health in {waited:.3f} s"


@attack("streams of each API that are opened and left, or never read", "others are answered")
async def left_streams(victim: ApiVictim, size: int) -> str:
    parts = urlsplit(victim.program.url)
    key = "".join(f"{name}: {value}\r\n" for name, value in victim.program.headers.items())
    writers = []
    for path, body in [*SMALL.items()] * (1 + size):
        text = json.dumps({**body, "stream": True, "max_output_tokens" if path == RESPONSES else "max_tokens": 300})
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await victim.program.post(path, text.encode())
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=64)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        writer.write((head + text).encode())
        writers.append(writer)
    problem = await victim.check()
    for writer in writers:
        writer.transport.abort()
    if problem:
        raise Harm(problem)
    return f"{2 * len(writers)} streams"


@attack("the metrics without a key and with odd Accept headers", "401, or the figures in a form that is known")
async def metrics(victim: ApiVictim, size: int) -> str:
    accepts = ("application/openmetrics-text; version=x", "text/plain;version=" + "9" * 5000, "*/*;" * 1500, ";;,,", "x;escaping=y", "\xff")
    for accept in accepts:
        async with victim.program.http.get("/metrics", headers={**victim.program.headers, "Accept": accept}) as response:
            if response.status != 200:
                raise Harm(f"Accept {accept[:60]!r}: {response.status}")
    async with victim.program.http.get("/metrics", headers={"Host": "evil.example"}) as response:
        if response.status not in {401, 403}:
            raise Harm(f"another host: {response.status}")
    return "200, and no figures for others"


@attack("keys in the header of the other API, and none, on each path", "401 in the form of the path's API")
async def keys(victim: ApiVictim, size: int) -> str:
    if not victim.program.key:
        return "no key is needed"
    for path, body in SMALL.items():
        is_messages = path.startswith(MESSAGES)
        for headers in (
            {"Authorization": ""},
            {"Authorization": "Bearer x", "x-api-key": "x"},
            {"Authorization": "", "x-api-key": victim.program.key},
        ):
            status, text = await victim.program.post(path, body, headers)
            is_right = is_messages and headers.get("x-api-key") == victim.program.key
            if status != (200 if is_right else 401) or (is_messages and not is_right and json.loads(text)["type"] != "error"):
                raise Harm(f"{path} with {list(headers)}: {status} {text[:80]}")
    return "401"


@attack("prompts of each API in what is logged", "the log has none")
async def written_to_the_log(victim: ApiVictim, size: int) -> str:
    marked = "MARKED-PROMPT"
    for path, body in SMALL.items():
        text = json.dumps(body).replace("Hi", marked)
        for data in (text, text[:-1], text.replace('"user"', f'"{marked}"'), text.replace('"Hi"', f'[{{"type":"{marked}"}}]')):
            await victim.program.post(f"{path}?{marked}", data.encode())
    if marked in victim.program.log():
        raise Harm("a prompt is in the log")
    return "none"
