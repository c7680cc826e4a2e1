"""Attacks on ``streamco proxy --callers --page``: by callers with keys of their own, without any, and by pages in a browser."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from streamco.proxy.callers.store import add_caller
from streamco.proxy.page.routes import PAGE_PATHS
from streamco.testing import ScriptedServer, json_answer, stream_answer
from streamco.testing.responses import RecordedRequest, ScriptedResponse, Stall, chunk_event
from tests.attack.attack import Harm, Register
from tests.attack.odd_requests import COUNT, FULL, MESSAGES, RESPONSES, changed
from tests.attack.processes import CHAT, HELLO, TEXT, Program

__all__ = ["CallersVictim", "attack"]

attack = Register("callers")

PROMPT_PRICE, ANSWER_PRICE = 1e-6, 2e-6  # US dollars a token, as in ``on_proxy.proxy_config``
USAGE, TOTALS, METRICS = "/streamco/usage", "/streamco/totals", "/metrics"
PAGE = tuple(sorted(PAGE_PATHS))
PAID = {
    CHAT: HELLO,
    TEXT: {"prompt": "Hi", "max_tokens": 2},
    RESPONSES: {"input": "Hi", "max_output_tokens": 2},
    MESSAGES: HELLO,
}
OFFERED = {"tools", "functions", "response_format"}  # fields whose text is part of a prompt
MOST = 25e-6  # US dollars of a small request
ENDLESS = 1_000_000  # tokens of an answer that nothing limits


class CallersVictim:
    """A proxy with callers, and the server that it asks, which bills as much as a request allows.

    Attributes:
        program: the proxy's process.
        folder: has the file of the callers.
        billed: US dollars of the server's bills so far.
    """

    def __init__(self, program: Program, upstream: ScriptedServer, folder: Path) -> None:
        self.program = program
        self.upstream = upstream
        self.folder = folder
        self.billed = 0.0
        self._keys: list[str] = []
        upstream.script(self.bill)

    @property
    def file(self) -> Path:
        """The file of the callers."""
        return self.folder / "callers.sqlite"

    async def check(self) -> str:
        """Return "" if an ordinary request is answered and the log has neither a traceback nor a key, else what happened instead."""
        self.upstream.script(self.bill)
        log = self.program.log()
        if "Traceback" in log:
            return f"a traceback in the log: {log[log.index('Traceback') :][-300:]}"
        if any(key in log for key in (*self._keys, self.program.key, "sk-upstream")):
            return "a key in the log"
        return await self.program.check()

    def caller(self, name: str, budget: float | None = 1.0, **limits: Any) -> dict[str, str]:
        """Add a caller; return the header with its key."""
        self._keys.append(add_caller(self.file, name, budget=budget, **limits))
        return {"Authorization": f"Bearer {self._keys[-1]}"}

    async def usage(self, headers: dict[str, str]) -> dict[str, Any]:
        """Return a caller's figures when nothing of it is under way."""
        for _ in range(200):
            async with self.program.http.get(USAGE, headers=headers) as response:
                if response.status != 200:
                    raise Harm(f"{USAGE}: {response.status} {await response.text()}")
                figures: dict[str, Any] = await response.json()
            if not figures["reserved_usd"]:
                return figures
            await asyncio.sleep(0.05)
        raise Harm(f"reserved for ever: {figures}")

    def bill(self, request: RecordedRequest) -> ScriptedResponse:
        """Answer with the dearest usage that the request allows."""
        if not request.body:
            return json_answer({"object": "list", "data": []})
        body = json.loads(request.body)
        answer = int(body.get("max_completion_tokens", body.get("max_tokens", ENDLESS))) * int(body.get("n") or 1)
        prompt = _length([body["messages"], {name: body[name] for name in body.keys() & OFFERED}]) + 8 * len(body["messages"])
        self.billed += prompt * PROMPT_PRICE + answer * ANSWER_PRICE
        usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
        if body.get("stream"):
            return stream_answer(usage=usage)
        choice = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
        return json_answer({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage})

    async def keep_within(self, headers: dict[str, str], budget: float, *, dropped: int = 0) -> str:
        """Return what a caller has spent since ``billed`` was 0. For a dropped stream the server bills more than it has done.

        Raises:
            Harm: the server has billed more than the budget, or the figures are others than the bills.
        """
        figures = await self.usage(headers)
        if self.billed - dropped * MOST > budget * 1.000001 or figures["spent_usd"] > budget:
            raise Harm(f"{self.billed:.6f} $ billed and {figures['spent_usd']:.6f} $ spent of {budget:.6f} $")
        return f"{figures['spent_usd']:.6f} of {budget:.6f} $"


def _length(value: Any) -> int:
    """Return the characters of all texts in a JSON value, those of images excepted."""
    match value:
        case {"type": "image_url"}:
            return 0
        case dict():
            return sum(map(_length, [*value.keys(), *value.values()]))
        case list():
            return sum(map(_length, value))
        case str():
            return len(value)
    return 1


async def raw(program: Program, head: str, seconds: float = 3.0) -> str:
    """Send bytes as they are; return the first line of the answer, or "closed"."""
    parts = urlsplit(program.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = b""
    with suppress(ConnectionError, TimeoutError):
        writer.write(head.encode("latin-1"))
        async with asyncio.timeout(seconds):
            answer = await reader.readline()
    writer.transport.abort()
    return answer.decode("latin-1").strip() or "closed"


@attack("no key, others, those of other forms and headers, on each path and by each method", "401; only /health and the page are open")
async def wrong_keys(victim: CallersVictim, size: int) -> str:
    right = victim.program.key
    wrong: Sequence[dict[str, str]] = (
        {},
        {"Authorization": right},
        {"Authorization": f"Basic {right}"},
        {"Authorization": f"Bearer {right[:-1]}"},
        {"Authorization": f"Bearer {right}A"},
        {"Authorization": f"Bearer {right.upper()}"},
        {"Authorization": f"Bearer sk-streamco-{'A' * 43}"},
        {"Authorization": f"Bearer {right} {right}"},
        {"Authorization": "Bearer ' OR 1=1 --"},
        {"Authorization": "Bearer " + "x" * 7000},
        {"Cookie": f"Authorization=Bearer {right}"},
        {"Api-Key": right},
    )
    paths = ["/v1/models", "/v1/models/m", METRICS, TOTALS, USAGE, *PAID, COUNT, "/nothing", f"{USAGE}?key={right}"]
    for path in paths:
        for headers in wrong:
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE"):
                async with victim.program.http.request(method, path, headers=headers, json=PAID.get(path)) as response:
                    if response.status != 401:
                        raise Harm(f"{method} {path} with {str(headers)[:60]}: {response.status}")
    async with victim.program.http.get("/v1/models", headers={"x-api-key": right}) as response:
        if response.status != 401:
            raise Harm(f"x-api-key opened another API: {response.status}")
    return "401"


TRICKS = (
    *("//v1/models", "/v1//models", "/./v1/models", "/page.js/../v1/models", "/health/../metrics", "/%2e%2e/metrics", "/%6detrics"),
    *("/health%2f..%2fmetrics", "/metrics/", "/metrics?/health", "/metrics;/health", "/metrics%00", "/metrics#/health", "/METRICS"),
    *("http://127.0.0.1/metrics", "http://evil.example/streamco/totals", "//evil.example/health/../metrics", "/\\metrics", "*", "metrics"),
    *(
        "/page.css/../../../../etc/passwd",
        "/page/../app.py",
        "/%2e%2e/app.py",
        "/..%2fapp.py",
        "/index.html",
        "/routes.py",
        "/v1/models/../../metrics",
    ),
    *(
        "http://",
        "http://[",
        "http://a:99999999/metrics",
        "//",
        "/%",
        "/%zz",
        "/" + "a/" * 2000,
        "?",
        "/?x",
        "/\xff",
        "/v1/models/%2e%2e%2f..%2fx",
    ),
)


@attack("paths that lead elsewhere: dots, slashes, escapes, whole URLs, with no key and with a caller's", "nothing of an operator, no file")
async def path_tricks(victim: CallersVictim, size: int) -> str:
    key = victim.caller("paths")["Authorization"]
    seen = set()
    for target in TRICKS:
        for method in ("GET", "POST", "HEAD", "OPTIONS", "CONNECT"):
            for header in ("", f"Authorization: {key}\r\n"):
                line = await raw(victim.program, f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Content-Length: 0\r\n\r\n")
                status = line.split(" ")[1] if line.startswith("HTTP/") else line
                is_open = target in {"/?x", "?"} or (header and target in {"//v1/models", "/./v1/models", "/page.js/../v1/models"})
                if status.startswith("5") or (status == "200" and not is_open and "models" not in target):
                    raise Harm(f"{method} {target[:60]} {'with' if header else 'without'} a key: {line}")
                if status == "200" and not header and target not in {"/?x", "?"}:
                    raise Harm(f"{method} {target[:60]} without a key: {line}")
                seen.add(status)
    return ", ".join(sorted(seen))


@attack("figures of others, asked for by a query, a header, a body, and without an operator's key", "its own alone, and 403")
async def figures_of_others(victim: CallersVictim, size: int) -> str:
    mine, others = victim.caller("curious", budget=0.5), victim.caller("rich", budget=77.125)
    await victim.program.post(CHAT, HELLO, others)
    for path in (f"{USAGE}?caller=rich", f"{USAGE}?name=rich&operator=1", f"{USAGE}/rich", f"{USAGE}?caller=%27%20OR%201=1"):
        named = {"X-Caller": "rich", "X-Streamco-Caller": "rich", "X-Forwarded-User": "rich"}
        async with victim.program.http.get(path, headers={**mine, **named}) as response:
            text = await response.text()
        if "rich" in text.replace(path, "") or "77.125" in text:
            raise Harm(f"{path}: {text[:100]}")
    for path in (METRICS, TOTALS, f"{METRICS}?operator=1", f"{TOTALS}?", "/%6detrics", "/streamco%2Ftotals"):
        async with victim.program.http.get(path, headers=mine) as response:
            if response.status not in {403, 404}:
                raise Harm(f"{path}: {response.status}")
    return "its own figures; 403"


@attack("two keys in one request: the header of another API, two headers of one name", "the first right one pays, and no other")
async def two_keys(victim: CallersVictim, size: int) -> str:
    first, second = victim.caller("first"), victim.caller("second")
    key = second["Authorization"].removeprefix("Bearer ")
    await victim.program.post(MESSAGES, HELLO, {**first, "x-api-key": key})
    await victim.program.post(CHAT, HELLO, {**first, "x-api-key": key})
    body = json.dumps(HELLO)
    headers = "".join(f"Authorization: {each['Authorization']}\r\n" for each in (first, second))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    await raw(victim.program, head + body)
    counts = [(await victim.usage(each))["requests"] for each in (first, second)]
    if counts[1]:
        raise Harm(f"{counts[1]} requests were the second one's")
    return f"{counts[0]} requests of the first"


@attack("requests at once on all APIs, streamed and whole, some of which are dropped", "the server bills no more than the budget")
async def budget_at_once(victim: CallersVictim, size: int) -> str:
    budget = 0.002
    headers = victim.caller("crowd", budget=budget)
    victim.billed, dropped, statuses = 0.0, 0, []
    for _ in range(2 * (1 + size)):
        bodies = [(path, {**body, "stream": is_streamed}) for path, body in PAID.items() for is_streamed in (False, True)] * 4
        calls = [asyncio.create_task(victim.program.post(path, body, headers)) for path, body in bodies]
        await asyncio.sleep(0.02)
        dropped += sum(call.cancel() for call in calls[::5])
        statuses += [each[0] for each in await asyncio.gather(*calls, return_exceptions=True) if isinstance(each, tuple)]
    while (await victim.program.post(CHAT, HELLO, headers))[0] == 200:
        pass
    if set(statuses) - {200, 429}:
        raise Harm(f"{sorted(set(statuses))}")
    return await victim.keep_within(headers, budget, dropped=dropped)


@attack("fields that raise a cost: choices, limits by each name, tiers, searches, other types, each on each API", "the same")
async def dear_fields(victim: CallersVictim, size: int) -> str:
    budget, tried = 0.05, 0
    headers = victim.caller("spender", budget=budget)
    victim.billed = 0.0
    values: Sequence[Any] = (0, -1, -(10**9), 1.5, 3, 1e9, 10**15, 10**300, 10**4000, "9", [9], {"a": 1}, True, None)
    names = (
        *("n", "max_tokens", "max_completion_tokens", "max_output_tokens", "best_of", "min_tokens", "max_new_tokens", "n_predict"),
        *("num_predict", "thinking", "reasoning", "service_tier", "web_search_options", "plugins", "models", "fallbacks", "options"),
        *("prediction", "audio", "modalities", "stream_options", "extra_body", "model", "transforms", "provider", "store"),
    )
    extras = (
        {"max_tokens": 1, "max_completion_tokens": 10**6},
        {"max_tokens": 10**6, "max_completion_tokens": 1},
        {"n": 64, "max_tokens": 10},
    )
    for path, body in PAID.items():
        bodies = [{**body, **extra} for extra in extras]
        bodies += [{**body, name: value} for name in names for value in values[:: 1 if size else 3]]
        for changed_body in bodies:
            status, text = await victim.program.post(path, changed_body, headers)
            if status not in {200, 400, 404, 413, 429}:
                raise Harm(f"{path} {str(changed_body)[:120]}: {status} {text[:80]}")
            tried += 1
    twice = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"max_tokens":1000000,"n":1,"n":100}'
    await victim.program.post(CHAT, twice, headers)
    return f"{tried} requests: {await victim.keep_within(headers, budget)}"


@attack("each field of each API changed to each odd value, by a caller with a budget", "no 500; the server bills no more than the budget")
async def odd_fields(victim: CallersVictim, size: int) -> str:
    budget, tried = 0.5, 0
    headers = victim.caller("odd", budget=budget)
    victim.billed = 0.0
    for path, body in FULL.items():
        for what, each in list(changed(body))[:: 7 if size else 97]:
            status, text = await victim.program.post(path, each, headers)
            if status >= 500:
                raise Harm(f"{path} {what}: {status} {text[:80]}")
            tried += 1
    return f"{tried} requests: {await victim.keep_within(headers, budget)}"


@attack("streams that are dropped at once, again and again", "each is charged, and nothing stays reserved")
async def dropped_streams(victim: CallersVictim, size: int) -> str:
    headers = victim.caller("leaver", budget=1.0)
    count = 10 * (1 + size)
    victim.upstream.script(ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[chunk_event("text "), Stall()]))
    for path, body in [*PAID.items()] * count:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(0.5),
                victim.program.http.post(path, json={**body, "stream": True}, headers=headers) as response,
            ):
                await response.content.readany()
    figures = await victim.usage(headers)
    if figures["spent_usd"] <= 0:
        raise Harm(f"{figures}")
    return f"{figures['requests']} dropped: {figures['spent_usd']:.6f} $"


@attack("usage of 10**30 tokens, negative, of other types and none, from the server", "costs are finite and never fall")
async def odd_bills(victim: CallersVictim, size: int) -> str:
    headers, spent = victim.caller("billed", budget=5.0), 0.0
    choice = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
    counts: Sequence[Any] = (10**30, -5, -(10**30), 1e308, "5", None, [], {}, True, 0)
    for count in counts:
        usage = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count, "cost": count}
        for shown in (usage, {**usage, "prompt_tokens_details": {"cached_tokens": count}}, count):
            victim.upstream.script(json_answer({"id": "x", "object": "chat.completion", "choices": [choice], "usage": shown}))
            await victim.program.post(CHAT, HELLO, headers)
            figures = await victim.usage(headers)
            if not math.isfinite(figures["spent_usd"]) or figures["spent_usd"] < spent:
                raise Harm(f"{count}: {spent} $, then {figures['spent_usd']} $")
            spent = figures["spent_usd"]
    return f"{spent:.6f} $"


@attack("a flood by one caller beyond its rate, and of wrong keys", "429 for it alone; its body isn't read, and no place is taken")
async def flood(victim: CallersVictim, size: int) -> str:
    headers = victim.caller("loud", budget=None, rate=10)
    wrong = {"Authorization": f"Bearer sk-streamco-{'B' * 43}"}
    calls = [victim.program.post(path, body, headers) for path, body in PAID.items() for _ in range(15 * (1 + size))]
    calls += [victim.program.post(CHAT, HELLO, wrong) for _ in range(50 * (1 + size))]
    answers, waited = await asyncio.gather(asyncio.gather(*calls), victim.program.seconds("/v1/models"))
    statuses = [status for status, _ in answers]
    if statuses.count(200) > 12 or set(statuses) - {200, 401, 429}:
        raise Harm(f"{statuses.count(200)} answered, {sorted(set(statuses))}")
    return f"{statuses.count(200)} answered, {statuses.count(429)} got 429; another caller waited {waited:.2f} s"


@attack("the callers' file locked by another program, then moved away", "503 meanwhile, and afterwards as before")
async def locked_file(victim: CallersVictim, size: int) -> str:
    headers = victim.caller("patient")
    lock = sqlite3.connect(victim.file, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    calls = [asyncio.create_task(victim.program.post(path, body, headers)) for path, body in [*PAID.items()] * 3]
    async with victim.program.http.get("/health") as response:
        health = response.status
    statuses = {status for status, _ in await asyncio.gather(*calls)}
    lock.execute("ROLLBACK")
    lock.close()
    moved = victim.file.rename(victim.folder / "moved.sqlite")
    gone, _ = await victim.program.post(CHAT, HELLO, headers)
    moved.rename(victim.file)
    if statuses != {503} or gone != 503 or health not in {200, 503}:
        raise Harm(f"locked: {sorted(statuses)}, moved: {gone}, /health: {health}")
    return "503"


@attack("pages of other origins: null, prefixes of the host, other ports, several, with a right key", "403; the page has its policy")
async def foreign_pages(victim: CallersVictim, size: int) -> str:
    host = urlsplit(victim.program.url).netloc
    origins = (
        *("null", "", "https://evil.example", f"http://{host}.evil.example", f"http://evil.example/{host}", f"http://evil@{host}"),
        *(
            f"http://{host}/",
            f"http://{host[:-1]}",
            f"file://{host}",
            f"http://{host} http://evil.example",
            f"http://{host},http://evil.example",
        ),
        *(
            f"HTTP://{host}",
            "http://localhost:1",
            "http://[::1]",
            "chrome-extension://a",
            "x" * 5000,
            f"http://{host}\t",
            f"//{host}",
            host,
        ),
    )
    for origin in origins:
        for site in ("cross-site", "same-site", "none", "same-origin, cross-site"):
            sent = {"Origin": origin, "Sec-Fetch-Site": site}
            status, text = await victim.program.post(CHAT, HELLO, sent)
            if status != 403 and origin.strip() != f"http://{host}":
                raise Harm(f"{origin[:60]!r}: {status} {text[:80]}")
        async with victim.program.http.get("/v1/models", headers={"Origin": origin[:100], **victim.program.headers}) as response:
            if "Access-Control-Allow-Origin" in response.headers:
                raise Harm(f"{origin[:60]!r} may read")
    for path in PAGE:
        async with victim.program.http.get(path, headers={"Range": "bytes=0-0,5-", "Accept-Encoding": "x"}) as response:
            policy = response.headers.get("Content-Security-Policy", "")
            if "default-src 'self'" not in policy or response.headers.get("X-Content-Type-Options") != "nosniff":
                raise Harm(f"{path}: {response.status} without its policy")
    return f"403 for {len(origins)} origins"


@attack("odd Accept headers, names of models, tasks and ids without end", "/metrics answers, and doesn't grow")
async def metrics_growth(victim: CallersVictim, size: int) -> str:
    operator = victim.caller("watcher", budget=0.0, is_operator=True)
    accepts = (
        *("application/openmetrics-text; version=x", "application/openmetrics-text;version=1.0.0;q=nan", "text/plain;escaping=allow-utf-8"),
        *(
            "*/*;" * 1500,
            "application/openmetrics-text; version=99.99.99; escaping=x",
            ";;;,,,",
            "text/plain; version=" + "9" * 5000,
            "\xff",
        ),
        *("application/openmetrics-text; version=1.-1.0", "application/openmetrics-text;version=", "text/plain;version=1e5;escaping=dots"),
    )
    for accept in accepts:
        async with victim.program.http.get(METRICS, headers={**operator, "Accept": accept}) as response:
            if response.status != 200:
                raise Harm(f"Accept {accept[:60]!r}: {response.status}")
    sizes = []
    for number in range(40 * (1 + size)):
        odd = f"x{number}"
        named = {"X-Request-Id": odd, "X-Streamco-Task": odd, "User-Agent": odd, "X-Forwarded-For": odd}
        await victim.program.post(CHAT, {**HELLO, "model": odd}, named)
        await victim.program.post(f"/{odd}", HELLO, named)
        async with victim.program.http.get(METRICS, headers=operator) as response:
            sizes.append(len((await response.text()).splitlines()))
    if sizes[-1] > sizes[4] + 5:
        raise Harm(f"{sizes[4]} lines, then {sizes[-1]}")
    return f"{sizes[-1]} lines"


@attack("readers that never read, on each API, while the server sends megabytes", "others are answered; memory stays")
async def slow_readers(victim: CallersVictim, size: int) -> str:
    headers, before = victim.caller("slow", budget=None), victim.program.memory()
    victim.upstream.script(stream_answer(["word " * 2000] * 1000))
    parts = urlsplit(victim.program.url)
    writers = []
    for path, body in [*PAID.items()] * 3:
        data = json.dumps({**body, "stream": True, **({"max_tokens": 10**6} if "max_tokens" in body else {"max_output_tokens": 10**6})})
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1024)
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Authorization: {headers['Authorization']}"]
        writer.write("\r\n".join([*lines, f"Content-Length: {len(data)}", "", data]).encode())
        writers.append((reader, writer))
    await asyncio.sleep(2.0)
    grown = victim.program.memory() - before
    victim.upstream.script(victim.bill)
    problem = await victim.program.check()
    for _, writer in writers:
        writer.transport.abort()
    if problem or grown > 300:
        raise Harm(f"{problem}, {grown} MB more in memory")
    return f"{len(writers)} of them, {grown} MB more in memory"


@attack("keys, prompts and control characters in what is logged", "the log has none")
async def written_to_the_log(victim: CallersVictim, size: int) -> str:
    marked, guessed = "MARKED-PROMPT", f"sk-streamco-{'C' * 43}"
    for path, body in {**PAID, COUNT: HELLO}.items():
        text = json.dumps(body).replace("Hi", marked)
        for headers in ({}, {"Authorization": f"Bearer {guessed}"}, {"x-api-key": guessed}):
            await victim.program.post(f"{path}?{marked}", text.encode(), headers)
            await victim.program.post(path, text[:-1].encode(), headers)
            await victim.program.post(path, text.replace('"user"', f'"{marked}\\u001b"').encode(), headers)
    with suppress(aiohttp.ClientError):
        await victim.program.post("/v1/%1b%5d0;evil%07", HELLO, {"X-Request-Id": "a b\tc"})
    log = victim.program.log()
    for word in (marked, guessed, "\x1b", "\x07"):
        if word in log:
            raise Harm(f"{word!r} is in the log")
    return "none"
