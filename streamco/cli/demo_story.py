"""The scenes of ``streamco demo``: an earlier first word, a server that dies in mid-sentence, and costs that stay within a budget.

The first two prompts go to the same server twice: from a client without streamco, which is the ``openai`` package if it is installed, and
from streamco. In the second scene the server's process is killed. With two models, more scenes show the quality gate and drafts.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from streamco.cli.runtime import waiting
from streamco.cli.ui.answer import AnswerSettings
from streamco.cli.ui.columns import Column, show_columns
from streamco.cli.ui.view import View
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.core.report import Report
from streamco.core.report_text import format_grade, format_seconds, format_usd
from streamco.endpoints.base import TokenPrices
from streamco.testing.server_process import ServerProcess

__all__ = ["BUDGETED", "PROMPT", "Stage", "play_story"]

PROMPT = "Give me three tips for better sleep."
BUDGETED = (
    "What is photosynthesis? Two sentences.",
    "Why do people sleep?",
    "List three colours.",
    "Say hello in a friendly way.",
    "What is a bicycle?",
    "Why should I drink water?",
    PROMPT,
    (
        "Sum up in one sentence: Dear team, the move to the new building begins on Monday. Please pack your desk on Friday, put a label"
        " with your name on every box, and leave your computer where it is: the technicians carry it over during the weekend. Keys are"
        " handed out at the front desk from eight o'clock on."
    ),
)
GRADED = (
    "What is the capital of France? One word.",
    "Which year did the Peace of Westphalia end? Only the year.",
    "Is ice cold? One word.",
)
DRAFTED = "Write a Python function that returns the n-th Fibonacci number, and one that checks whether a number is prime."
MAX_TOKENS, SHORT = 110, 40
KILL_AFTER = 24  # tokens that the client without streamco has received
BUDGET, MIN_SCORE = 0.3, 0.6
SLOW = 11.0  # tokens/s, so that a reader sees where the device takes over
Answering = Callable[[str, int], AsyncGenerator[str]]


class Stage(Struct):
    """What the scenes need.

    Args:
        start_server: starts the server's process.
        connect: returns a streamco client for the server at this URL, with this mode and this budget.
        draft: returns the URL of a server that verifies drafts, and a client whose device drafts.
        is_pair: True if device and server have different models.
        model: name of the server's model.
        prices: prices of the server's tokens.
        settings: settings of the answers.
    """

    start_server: Callable[[], AbstractAsyncContextManager[ServerProcess]]
    connect: Callable[[str, Race, float], AbstractAsyncContextManager[Client]]
    draft: Callable[[], AbstractAsyncContextManager[tuple[str, Client]]]
    is_pair: bool
    model: str
    prices: TokenPrices
    settings: AnswerSettings


class _Other(Struct):
    """A client that isn't streamco."""

    name: str
    answer: Callable[[str, str], Answering]  # from a server's URL and a model


async def play_story(stage: Stage, view: View) -> int:
    """Show the scenes and a summary, and return the exit code.

    Raises:
        StreamcoError: an endpoint failed for a reason other than being killed.
    """
    story = _Story(stage, view)
    async with _started(stage.start_server(), "starting the server") as server:
        await story.show_first_word(server)
        await story.show_failure(server)
    async with _started(stage.start_server(), "starting the server again") as server:
        await story.show_budget(server)
        if stage.is_pair:
            await story.show_gate(server)
    if stage.is_pair:
        await story.show_drafts()
    story.sum_up()
    return 0


class _Story:
    """The scenes, and a line of the summary for each.

    Args:
        stage: what they need.
        view: shows them.
    """

    def __init__(self, stage: Stage, view: View) -> None:
        self._stage = stage
        self._view = view
        self._other = _other_client()
        self._stalls = 0
        self._lines: dict[str, str] = {}

    async def show_first_word(self, server: ServerProcess) -> None:
        """Show the first words from the server alone and from a race."""
        self._view.heading("1. The same prompt, to the server alone and to both: the first word comes sooner")
        async with self._stage.connect(server.url, Race(policy="both"), 1.0) as client:
            left, right = await self._side_by_side(PROMPT, self._alone(server.url), client)
        self._view.note("  Three answers were written at once on this machine, so each was slower than it would be alone.")
        if left.first is not None and right.first is not None:
            self._lines["first word"] = f"{right.first:.2f} s with streamco, {left.first:.2f} s from the server alone"

    async def show_failure(self, server: ServerProcess) -> None:
        """Show what happens to an answer whose server is killed."""
        self._view.heading("2. The server is killed in mid-sentence: the device goes on")
        async with self._stage.connect(server.url, Race(policy="server-first"), 1.0) as client:
            slow = client.with_options(pace=SLOW)
            left, right = await self._side_by_side(PROMPT, _killing(self._alone(server.url), server), slow, is_timed=False)
        kept, added = (sum(len(text) for kind, text in right.parts if kind == side) for side in ("server", "device"))
        if not left.failure or not kept or not added:
            self._view.note("  The server had already sent the whole answer when it was killed.")
            return
        style = "The two models may differ in style." if self._stage.is_pair else "Both sides run one model here; two may differ in style."
        lengths = f"Left, the answer ends after {len(left.text)} characters. Right, the device adds {added} to the server's {kept}."
        self._view.note(f"  {lengths}\n  {style}")
        self._lines["failures"] = "1 survived: the server died in mid-sentence, and the answer went on"
        self._lines["stutters"] = f"{self._stalls or 'no'} pause{'s' if self._stalls > 1 else ''} in the text"

    async def show_budget(self, server: ServerProcess) -> None:
        """Show short answers within a budget, one line each."""
        self._view.heading(f"3. A budget: the server reads at most {BUDGET:.0%} of all prompts' text, where the device takes longest")
        self._view.note(f"  {'prompt':<40}  {'asked':<19}  {'first word':>10}  cost, server alone")
        spent = alone = 0.0
        async with self._stage.connect(server.url, Race(), BUDGET) as client:
            for prompt in BUDGETED:
                report = await self._answered(client, prompt)
                cost = _server_alone(report, self._stage.prices)
                spent, alone = spent + (report.cost_usd or 0.0), alone + cost
                money = f"{format_usd(report.cost_usd)}, {format_usd(cost)}"
                self._view.note(f"  {_shortened(prompt):<40}  {_asked(report):<19}  {_first(report):>10}  {money}")
        saved = f", {1 - spent / alone:.0%} less" if alone else ""
        self._lines["money"] = f"{format_usd(spent)} for {len(BUDGETED)} answers, {format_usd(alone)} from the server alone{saved}"

    async def show_gate(self, server: ServerProcess) -> None:
        """Show which answers the device was sure of."""
        self._view.heading(f"4. A quality gate: below a score of {MIN_SCORE:g} the server answers")
        race = Race(policy="device-first", quality=QualityGate(min_score=MIN_SCORE))
        async with self._stage.connect(server.url, race, 1.0) as client:
            for prompt in GRADED:
                report = await self._answered(client, prompt)
                grade = (
                    "device not graded" if report.grade is None else f"the device was {format_grade(report.grade).removeprefix('device ')}"
                )
                self._view.note(f"  {_shortened(prompt):<40}  {report.winner:<6}  {grade}")

    async def show_drafts(self) -> None:
        """Show the server's own answer, alone and with drafts."""
        self._view.heading("5. The device drafts, the server verifies (at a 70B model's speed): the server's own text, sooner")
        async with AsyncExitStack() as stack:
            async with waiting("starting a server that verifies"):
                url, client = await stack.enter_async_context(self._stage.draft())
            left, right = await self._side_by_side(DRAFTED, self._alone(url), client)
        if left.ended and right.ended and not left.failure:
            self._lines["drafts"] = f"whole answer after {right.ended:.1f} s, {left.ended:.1f} s from the server alone"

    def sum_up(self) -> None:
        """Show the summary of the scenes."""
        self._view.heading("What you saw")
        width = max(map(len, self._lines))
        self._view.note("\n".join(f"  {name:<{width}}  {line}" for name, line in self._lines.items()))

    def _alone(self, url: str) -> Answering:
        return self._other.answer(url, self._stage.model)

    async def _side_by_side(self, prompt: str, alone: Answering, client: Client, *, is_timed: bool = True) -> tuple[Column, Column]:
        """Answer a prompt with both clients at the same time, and return what each has shown."""
        self._view.note(f"> {prompt}")
        left, right = columns = (Column(f"{self._other.name} alone", is_timed=is_timed), Column("streamco", is_timed=is_timed))
        async with show_columns(self._view, columns) as since:
            await asyncio.gather(_fill_alone(left, alone, prompt, since), self._fill(right, client, prompt, since))
        return columns

    async def _fill(self, column: Column, client: Client, prompt: str, since: Callable[[], float]) -> None:
        given = self._stage.settings
        pace = given.pace if client.pace is None else client.pace
        stream = client.stream(prompt, max_tokens=MAX_TOKENS, temperature=given.temperature, seed=given.seed, pace=pace)
        async with stream:
            async for token in stream:
                if token.kind == "content":
                    column.feed("server" if token.source == "server" else "device", token.text, since())
        column.ended = since()
        self._stalls += stream.report.quality.stalls

    async def _answered(self, client: Client, prompt: str) -> Report:
        """Read a short answer and return its report."""
        given = self._stage.settings
        stream = client.stream(prompt, max_tokens=SHORT, temperature=given.temperature, seed=given.seed)
        async with waiting(_shortened(prompt)), stream:
            async for _ in stream:
                pass
        return stream.report


@asynccontextmanager
async def _started(starting: AbstractAsyncContextManager[ServerProcess], text: str) -> AsyncIterator[ServerProcess]:
    async with AsyncExitStack() as stack:
        async with waiting(text):
            server = await stack.enter_async_context(starting)
        yield server


async def _fill_alone(column: Column, alone: Answering, prompt: str, since: Callable[[], float]) -> None:
    try:
        async with aclosing(alone(prompt, MAX_TOKENS)) as texts:
            async for text in texts:
                column.feed("server", text, since())
    except Exception as error:  # noqa: BLE001  # the other client's error is shown as it is
        column.failure = f"{type(error).__name__}: {error}"
    column.ended = since()


def _killing(answer: Answering, server: ServerProcess) -> Answering:
    """Return a function that answers like ``answer``, but kills the server once the answer has begun."""

    async def answer_and_kill(prompt: str, tokens: int) -> AsyncGenerator[str]:
        count = 0
        async with aclosing(answer(prompt, tokens)) as texts:
            async for text in texts:
                yield text
                count += 1
                if count == KILL_AFTER:
                    server.kill()

    return answer_and_kill


def _shortened(prompt: str) -> str:
    return f"{prompt[:37]}..." if len(prompt) > 40 else prompt


def _asked(report: Report) -> str:
    asked = [part.name for part in report.endpoints if part.opened is not None]
    return f"both, {report.winner} first" if len(asked) > 1 else f"{report.winner} alone"


def _first(report: Report) -> str:
    return "-" if report.ttft is None else format_seconds(report.ttft)


def _server_alone(report: Report, prices: TokenPrices) -> float:
    """Return what this answer would have cost from the server alone, in US dollars."""
    return report.dispatch.prompt_tokens * (prices.prompt or 0.0) + report.tokens * (prices.completion or 0.0)


def _other_client() -> _Other:
    if importlib.util.find_spec("openai") is not None:
        return _Other("the openai package", lambda url, model: partial(_by_openai, url, model))
    return _Other("a plain HTTP client", lambda url, model: partial(_by_aiohttp, url, model))


def _body(model: str, prompt: str, tokens: int) -> Mapping[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "stream": True}


async def _by_openai(url: str, model: str, prompt: str, tokens: int) -> AsyncGenerator[str]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        async for chunk in await client.chat.completions.create(**_body(model, prompt, tokens)):
            yield chunk.choices[0].delta.content or "" if chunk.choices else ""


async def _by_aiohttp(url: str, model: str, prompt: str, tokens: int) -> AsyncGenerator[str]:
    from aiohttp import ClientSession

    async with ClientSession() as session, session.post(f"{url}/chat/completions", json=_body(model, prompt, tokens)) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {") and (choices := json.loads(line[6:])["choices"]):
                yield choices[0]["delta"].get("content") or ""
