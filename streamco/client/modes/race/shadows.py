"""Shadow answers: a server answers a prompt that the device has already answered, so that the quality gate learns from comparing both.

Nobody reads a shadow answer. It is requested only if ``QualityGate(shadow=...)`` says so, within the budget, and never for a request with
tools, pictures or a required format. Only its cost, and whether the two answers agree, are kept.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable

from msgspec import Struct

from streamco.client.answer_log import AnswerLog, describe_error
from streamco.client.modes.base import CostOf
from streamco.core.report_parts import ShadowReport
from streamco.endpoints.base import Endpoint, EndpointStream, Request
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.errors import EndpointError
from streamco.events import StreamEnded, TokensReceived
from streamco.openai_types import CompletionUsage
from streamco.policies.quality import MAX_TOKENS, Judge, ShadowPair

__all__ = ["Shadow", "Shadows", "agree"]

_MOST_CHARACTERS = 1 << 16  # limit for a shadow answer
_JUDGES = 60.0  # seconds; a judge's time limit
_MARKS = re.compile(r"[\s.,;:!?\"'`()\[\]{}*_\u2018-\u201f\u00ab\u00bb\u2026\u3001\u3002]+")  # spaces and punctuation, no + or -
_IN_NUMBER = re.compile(r"(?<=\d)[.,:](?=\d)")


def agree(first: str, second: str) -> bool:
    """Return True if two short answers are equal apart from case, spaces and punctuation; in numbers and formulas all signs count."""
    one, other = (_MARKS.sub(" ", _IN_NUMBER.sub("\u2024", _folded(text))).strip() for text in (first, second))
    return one == other if one or other else first.split() == second.split()


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


class Shadow(Struct, kw_only=True):
    """One shadow answer.

    Args:
        server: the server.
        request: the request that the device has answered.
        text: the device's answer.
        tokens: tokens of the device's answer.
        prompt_tokens: the prompt's length.
        judge: compares both answers; None compares short ones word for word, and longer ones not at all.
        cost: returns the cost of tokens.
        made: tokens of the server's answer so far.
        usage: the server's own count, or None if it sent none.
        good: True if the device's answer was as good, False if it wasn't, None if that isn't known.
        why_not: why that isn't known, as a clause; "" if it is known, or if the comparison isn't over.
        error: the server's error, or None.
        has_begun: True if anything came from the server.
        has_ended: True if nothing more will come.
    """

    server: Endpoint
    request: Request
    text: str
    tokens: int
    prompt_tokens: int
    judge: Judge | None
    cost: CostOf
    made: int = 0
    usage: CompletionUsage | None = None
    good: bool | None = None
    why_not: str = ""
    error: EndpointError | None = None
    has_begun: bool = False
    has_ended: bool = False

    @property
    def can_be_judged(self) -> bool:
        """True if the device's answer can be compared with another one."""
        return bool(self.text) and (self.judge is not None or self.tokens <= MAX_TOKENS)

    def report(self) -> ShadowReport:
        """Return the figures so far."""
        prompt, made, cached = self.prompt_tokens * self.has_begun, self.made, 0
        if self.usage is not None:
            details = self.usage.prompt_tokens_details
            prompt, made = self.usage.prompt_tokens, self.usage.completion_tokens
            cached = (details.cached_tokens or 0) if details else 0
        return ShadowReport(
            endpoint=self.server.name,
            good=self.good,
            why_not=self.why_not,
            prompt_tokens=prompt,
            completion_tokens=made,
            is_estimated=self.usage is None,
            cost_usd=self.cost(self.server, prompt, made, cached).server,
            is_final=self.has_ended,
        )

    async def run(self) -> None:
        """Ask the server, read its answer to the end and compare it. Errors from the server or the judge are recorded, not raised."""
        try:
            other = await self._read(self.server.open(self.request))
            if other is not None:
                self.good = await self._compare(other)
        except EndpointError as error:
            self.error, self.why_not = error, f"the server failed ({describe_error(error)})"
        except asyncio.CancelledError:
            self.why_not = self.why_not or "the client was closed"
            raise
        except Exception as error:  # noqa: BLE001  it may be any error, and its text may quote anything
            self.why_not = f"the server failed ({type(error).__name__})"
        finally:
            self.has_ended = True

    async def _read(self, stream: EndpointStream) -> str | None:
        """Return the server's whole answer, or None if it can't be compared."""
        text: list[str] = []
        tokens = length = 0
        reason: str | None = None
        try:
            while isinstance(event := await stream.receive(), TokensReceived):
                self.has_begun = True
                self.made += event.tokens
                choices = [choice for chunk in event.chunks for choice in chunk.choices[:1]]
                if any(each.delta.tool_calls or each.delta.function_call or each.delta.refusal or each.delta.audio for each in choices):
                    self.why_not = "the server's answer isn't text"
                    return None
                content = "".join(each.delta.content or "" for each in choices)
                reason = next((each.finish_reason for each in choices if each.finish_reason), reason)
                text.append(content)
                tokens += event.tokens if content else 0
                length += len(content)
                if length > _MOST_CHARACTERS:
                    self.why_not = f"the server's answer has more than {_MOST_CHARACTERS} characters"
                    return None
                if self.judge is None and tokens > MAX_TOKENS:
                    self.why_not = f"the server's answer has more than {MAX_TOKENS} tokens"
                    return None
            if isinstance(event, StreamEnded):
                self.usage, reason, self.has_begun = event.usage, reason or event.finish_reason, True
        finally:
            with suppress(Exception):  # keep what was read; the reader needn't know if an endpoint can't even stop
                await stream.cancel()
        if not "".join(text).strip():
            self.why_not = "the server's answer has no text"
            return None
        if self.judge is None and reason not in {"stop", None}:
            self.why_not = "the server's answer was cut off"
            return None
        return "".join(text)

    async def _compare(self, other: str) -> bool | None:
        if self.judge is None:
            return agree(self.text, other)
        pair = ShadowPair(messages=self.request.messages or (), prompt=self.request.prompt, device=self.text, server=other)
        try:
            async with asyncio.timeout(_JUDGES):
                found = self.judge(pair)
                said: object = await found if isawaitable(found) else found
        except TimeoutError:
            self.why_not = f"its judge took longer than {_JUDGES:.0f} s"
            return None
        except Exception as error:  # noqa: BLE001  the caller's, and its text may quote anything
            self.why_not = f"its judge raised {type(error).__name__}"
            return None
        if said is None:
            self.why_not = "its judge didn't say"
            return None
        if not isinstance(said, bool):
            self.why_not = f"its judge returned {type(said).__module__}.{type(said).__name__}, not True, False or None"
            return None
        return said


class _Running(LoopState):
    """The shadow answers in progress on one event loop."""

    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[None], Shadow] = {}

    async def aclose(self) -> None:
        """See ``LoopState``."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Shadows:
    """The shadow answers of one client, one at a time, shared by clients from ``with_options``."""

    def __init__(self) -> None:
        self._running = LoopBound(_Running, owner="client")
        self._is_closed = False

    def has_room(self, server: Endpoint) -> bool:
        """Return True if a server may be asked now. It may not while it writes another answer, because some servers would abort that."""
        return not self._is_closed and not getattr(server, "is_answering", False) and not self._running.get().tasks

    def make_way(self, server: str) -> None:
        """End the shadow answer of a server that is needed for a real answer, because it may serve only one at a time."""
        if not self._is_closed and (running := self._running.current) is not None:
            for task, shadow in list(running.tasks.items()):
                if shadow.server.name == server and not task.done():
                    shadow.why_not = "another answer needs the server"
                    task.cancel()

    def begin(self, shadow: Shadow, log: AnswerLog, ended: Callable[[Shadow], None]) -> None:
        """Ask for a shadow answer in the background; ``ended`` is called when it is over."""

        async def run() -> None:
            try:
                await shadow.run()
            finally:
                ended(shadow)
                said = {True: "as good", False: "not as good", None: shadow.why_not}[shadow.good]
                log.debug(f"shadow answer of {shadow.server.name}: {said}")

        tasks = self._running.get().tasks
        task = asyncio.create_task(run(), name=f"streamco shadow answer of {shadow.server.name}")
        tasks[task] = shadow
        task.add_done_callback(lambda done: tasks.pop(done, None))

    async def aclose(self) -> None:
        """End all shadow answers; idempotent."""
        self._is_closed = True
        await self._running.aclose()
