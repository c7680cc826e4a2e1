"""What the recipes' tests share: a proxy that records what a program asks it for, and the program in a process of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.core.race.learner import PolicyName
from streamco.endpoints.base import Endpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.proxy.app import make_app
from streamco.proxy.config import ProxyOptions
from streamco.server.http.listening import make_runner
from streamco.testing import DONE, RecordedRequest, ScriptedResponse, ScriptedServer, chunk_event, stream_answer
from streamco.testing.responses import Responder

__all__ = [
    "PIXEL",
    "RUN_LIMIT",
    "USAGE",
    "Asked",
    "Finished",
    "RecordedProxy",
    "calling",
    "image_urls",
    "recorded_proxy",
    "run",
    "started",
    "text",
    "tool_names",
]

USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
PIXEL = base64.b64decode(  # a picture of one point
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
RUN_LIMIT = 100.0  # seconds: these programs take ten to begin where two cores are busy
_CALLS = count(1)  # programs take two calls with one id for the same call, also in different answers
NOWHERE = "http://127.0.0.1:9"  # nothing listens there: what a program sends to other machines ends here


class Asked(Struct):
    """A request that a program sent to the proxy.

    Args:
        method: of HTTP.
        path: with the query.
        headers: by names in lower case.
        body: decoded; {}: none.
        status: of the answer.
        refusal: the answer's text, if the status is an error.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int = 0
    refusal: str = ""


class RecordedProxy(Struct):
    """A proxy on a free port.

    Args:
        address: http://HOST:PORT.
        asked: what it was asked for so far.
        remote: the model that answers.
        changed: set when an answer begins.
    """

    address: str
    asked: list[Asked]
    remote: ScriptedServer
    changed: asyncio.Event

    async def wait_for(self, count: int) -> None:
        """Wait until the answers to this number of requests have begun.

        Raises:
            TimeoutError: they were not, for a long time.
        """
        async with asyncio.timeout(RUN_LIMIT):
            while len([each for each in self.answers if each.status]) < count:
                self.changed.clear()
                await self.changed.wait()

    @property
    def answers(self) -> list[Asked]:
        """The requests for answers: not those for lists of models and the like."""
        return [each for each in self.asked if each.path.split("?")[0] in {"/v1/chat/completions", "/v1/responses", "/v1/messages"}]

    @property
    def refused(self) -> list[str]:
        """The requests for answers that were refused, with the reasons."""
        return [f"{each.status} {each.refusal}" for each in self.answers if each.status >= 400]

    def filled(self, block: str) -> str:
        """Return a block of the page with this proxy's address in the place of the page's."""
        return block.replace("http://127.0.0.1:8080", self.address).replace("http://localhost:8080", self.address)


@asynccontextmanager
async def recorded_proxy(
    *answers: ScriptedResponse | Responder, device: Endpoint | None = None, policy: PolicyName = "auto", **options: Any
) -> AsyncIterator[RecordedProxy]:
    """A proxy over a scripted server.

    Args:
        answers: the server's, see ``ScriptedServer``.
        device: the other side.
        policy: the client's.
        options: the proxy's.
    """
    asked: list[Asked] = []
    changed = asyncio.Event()
    chosen = ProxyOptions(**options)
    async with ScriptedServer(*answers) as remote:
        server = OpenAIEndpoint("large", base_url=remote.url, name="server")
        async with Client(device, server, mode=Race(policy=policy), max_retries=0, seed=1) as client:
            app = make_app(client, chosen)
            app.middlewares.insert(0, _recording(asked))
            app.on_response_prepare.append(_noting(changed))
            runner = make_runner(app, chosen)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                yield RecordedProxy(f"http://127.0.0.1:{runner.addresses[0][1]}", asked, remote, changed)
            finally:
                await runner.cleanup()


ENTRY: web.RequestKey[Asked] = web.RequestKey("entry", Asked)


def _recording(asked: list[Asked]) -> Any:
    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        data = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        request[ENTRY] = Asked(request.method, request.path_qs, headers, json.loads(data) if data else {})
        asked.append(request[ENTRY])
        return await handler(request)

    return record


def _noting(changed: asyncio.Event) -> Any:
    async def note(request: web.Request, response: web.StreamResponse) -> None:
        entry = request[ENTRY]
        entry.status = response.status  # when it begins: programs may leave when they have read what they want
        if response.status >= 400 and isinstance(response, web.Response):
            entry.refusal = response.text or ""
        changed.set()

    return note


def text(*pieces: str) -> ScriptedResponse:
    """An answer of the model in these pieces."""
    return stream_answer(pieces, usage=USAGE)


def calling(name: str, arguments: Mapping[str, Any], *, before: str = "") -> ScriptedResponse:
    """An answer of the model that calls a tool, in the pieces that servers send.

    Args:
        name: the tool's.
        arguments: the call's.
        before: text before it.
    """
    whole = json.dumps(arguments)
    middle = len(whole) // 2
    first = {"index": 0, "id": f"call_{next(_CALLS)}", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in (whole[:middle], whole[middle:])]
    steps = [chunk_event(before, role="assistant")]
    steps += [chunk_event(tool_calls=[piece]) for piece in (first, *pieces)]
    steps += [chunk_event(finish_reason="tool_calls"), chunk_event(usage=USAGE), DONE]
    return ScriptedResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"}, steps=steps)


def tool_names(request: RecordedRequest) -> list[str]:
    """Names of the tools that the model was offered."""
    return [tool["function"]["name"] for tool in request.json().get("tools", [])]


def image_urls(request: RecordedRequest) -> list[str]:
    """The images that the model was given."""
    contents = [message["content"] for message in request.json()["messages"] if isinstance(message["content"], list)]
    return [part["image_url"]["url"] for content in contents for part in content if part["type"] == "image_url"]


class Finished(Struct):
    """A program that has ended.

    Args:
        status: its exit status.
        out: what it wrote to its output.
        err: what it wrote to its error output.
    """

    status: int
    out: str
    err: str


def environment(home: Path, **further: str) -> dict[str, str]:
    """The variables of a program: nothing of this process' but the path, and no way to other machines."""
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1", "CI": "1"}
    closed = {"HTTPS_PROXY": NOWHERE, "https_proxy": NOWHERE, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return {**own, **closed, **further}


async def run(*words: str, home: Path, folder: Path, **environ: str) -> Finished:
    """Run a program to its end.

    Args:
        words: the program and its arguments.
        home: its home folder.
        folder: the folder that it works in.
        environ: further variables.
    """
    async with started(*words, home=home, folder=folder, **environ) as process:
        out, err = await asyncio.wait_for(process.communicate(), RUN_LIMIT)
        return Finished(await process.wait(), out.decode(errors="replace"), err.decode(errors="replace"))


@asynccontextmanager
async def started(*words: str, home: Path, folder: Path, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that runs; at the end it is killed with all processes that it began. The arguments are those of ``run``."""
    pipe = asyncio.subprocess.PIPE
    options: Any = {"cwd": folder, "env": environment(home, **environ), "start_new_session": True}
    process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
