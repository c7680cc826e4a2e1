"""Asking for mutants through the proxy with the packages of OpenAI and Anthropic, and readings as their APIs show them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anthropic
import openai

from streamco.client.client import Client
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions
from tests.mutants.mutant import Mutant
from tests.mutants.oracle.reading import Call, Reading
from tests.mutants.stream import Api
from tests.mutants.tcp.forms import add_chunk, add_message_event, add_response_event, read_completion, read_message, read_response
from tests.mutants.tcp.observed import Observed
from tests.mutants.tcp.servers import question_of

__all__ = ["Callers", "calling", "read_answer_of", "translated"]

Json = dict[str, Any]


@dataclass(slots=True)
class Callers:
    """The two packages, pointed at one proxy."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic


@asynccontextmanager
async def calling(client: Client) -> AsyncIterator[Callers]:
    """Serve a client by a proxy in this process, and yield callers of it."""
    async with (
        serving(client, ProxyOptions(port=0)) as url,
        openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as first,
        anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="unused", max_retries=0) as second,
    ):
        yield Callers(first, second)


async def read_answer_of(callers: Callers, api: Api, mutant: Mutant, *, is_streamed: bool) -> Observed:
    """Return what a caller of one of the proxy's APIs sees."""
    seen = Observed()
    ask, add, read = _FORMS[api]
    try:
        answer = await ask(callers, question_of(mutant), is_streamed)
        if not is_streamed:
            read(seen, answer.to_dict(mode="json", warnings=False))
            return seen
        async for each in answer:
            add(seen, each.to_dict(mode="json", warnings=False))
    except (openai.OpenAIError, anthropic.AnthropicError) as error:
        seen.error = error
        if api != "chat":
            seen.calls.clear()  # half of them may have come, and their pieces depend on what is held
    return seen


async def _ask_chat(callers: Callers, question: str, is_streamed: bool) -> Any:
    options: Json = {"stream_options": {"include_usage": True}} if is_streamed else {}
    return await callers.openai.chat.completions.create(
        model="streamco", messages=[{"role": "user", "content": question}], stream=is_streamed, **options
    )


async def _ask_responses(callers: Callers, question: str, is_streamed: bool) -> Any:
    return await callers.openai.responses.create(model="streamco", input=question, stream=is_streamed)


async def _ask_messages(callers: Callers, question: str, is_streamed: bool) -> Any:
    return await callers.anthropic.messages.create(
        model="streamco", max_tokens=100, messages=[{"role": "user", "content": question}], stream=is_streamed
    )


_Form = tuple[Callable[[Callers, str, bool], Awaitable[Any]], Callable[[Observed, Json], None], Callable[[Observed, Json], None]]

_FORMS: dict[Api, _Form] = {
    "chat": (_ask_chat, add_chunk, read_completion),
    "responses": (_ask_responses, add_response_event, read_response),
    "messages": (_ask_messages, add_message_event, read_message),
}


def translated(expected: Reading, api: Api, *, is_streamed: bool, is_named_late: bool) -> Reading:
    """Return a reading as it is in another API, by the rules that docs/proxy.md gives for it.

    ``is_named_late``: ids come after the arguments. A stream of a typed API has made its own ids by then.

    A whole answer that fails is an error and nothing else. A message has no form for inputs that are no objects.
    """
    if not expected.whole:
        if not is_streamed:
            return Reading(whole=False, failure=expected.failure, word=expected.word)
        expected = expected if api == "chat" else replace(expected, calls=())
    if api == "chat":
        return expected
    expected = replace(expected, logprobs=())
    if is_named_late and is_streamed:
        expected = replace(expected, calls=tuple(replace(call, id=None) for call in expected.calls))
    if api == "messages":
        return _as_message(expected, is_streamed=is_streamed)
    reason = expected.reason if expected.reason in ("length", "content_filter") else "tool_calls" if expected.calls else "stop"
    return replace(expected, reason=reason)


def _as_message(expected: Reading, *, is_streamed: bool) -> Reading:
    """Return a reading with its refusal as text, with inputs that are objects, and with a stop reason of the Messages API."""
    calls = tuple(replace(call, is_custom=False, is_exact=call.is_exact and is_streamed) for call in expected.calls)
    if not is_streamed and not all(_is_object(call) for call in calls):
        if expected.reason != "length":
            return Reading(whole=False, failure="malformed")
        calls = tuple(call if _is_object(call) else replace(call, arguments="{}") for call in calls)
    reason = expected.reason if expected.reason in ("length", "tool_calls", "content_filter") else "stop"
    if reason == "stop" and expected.calls and expected.reason in ("stop", None):
        reason = "tool_calls"
    elif reason == "stop" and expected.refusal and expected.reason in ("stop", None):
        reason = "content_filter"
    return replace(expected, text=expected.text + expected.refusal, refusal="", reason=reason, calls=calls)


def _is_object(call: Call) -> bool:
    try:
        return isinstance(json.loads(call.arguments), dict)
    except ValueError:
        return False
