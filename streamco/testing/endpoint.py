"""An endpoint that plays a script, for tests of applications and of the core machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamco.core.confidence import ends_sentence
from streamco.endpoints.base import Capabilities, Kind, Request, TokenPrices
from streamco.errors import EndpointError, UsageError
from streamco.events import Partial, StreamEnded, TokenConfidence, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, PromptTokensDetails

__all__ = ["ScriptItem", "ScriptedEndpoint", "ScriptedStream", "text_chunk"]

ScriptItem = str | ChatCompletionChunk | EndpointError | None
"""One item of a script: the text of one token, a whole chunk, an error to raise, or None to stay silent until cancelled."""


def text_chunk(text: str, *, finish_reason: str | None = None, ids: list[int] | None = None) -> ChatCompletionChunk:
    """Return a chunk with this text as its content."""
    delta = ChoiceDelta(content=text) if text else ChoiceDelta()
    return ChatCompletionChunk(
        id="chatcmpl-scripted", model="scripted", choices=[ChunkChoice(delta=delta, finish_reason=finish_reason, token_ids=ids)]
    )


class ScriptedStream:
    """One run of a script. Times are measured from when it was opened, so a slow reader gets overdue items at once."""

    def __init__(self, endpoint: ScriptedEndpoint, request: Request) -> None:
        self.request = request
        self.is_cancelled = False
        self.is_released = False
        self._endpoint = endpoint
        self._position = request.partial.tokens if request.partial is not None else 0
        self._text = ""
        self._has_sent = False
        self._cached = endpoint.count_kept(request)
        loop = asyncio.get_running_loop()
        skipped = 0.0
        written = endpoint.script[: self._position]
        if written and not request.prefill_only:
            skipped = written[-1][0] - endpoint.prefill_s * (endpoint.count_prompt(request) - self._cached)
        self._began = loop.time() - skipped
        self._stop = loop.create_future()

    async def receive(self) -> TokensReceived | StreamEnded:
        """Wait until the next scripted item is due, and return it."""
        if self.request.prefill_only:
            return await self._prepare()
        script = self._endpoint.script
        if self._position >= len(script):
            await self._sleep_until(self._began + self._endpoint.ends_after if self._endpoint.ends_after is not None else None)
            self._release()
            return StreamEnded(self._endpoint.name, "stop", self._endpoint.usage)
        at, item = script[self._position]
        await self._sleep_until(None if item is None else self._began + at)
        self._position += 1
        if isinstance(item, EndpointError):
            self._release()
            raise _copy(item, self._text)
        if item is None:
            raise AssertionError("silence ends by a cancel only")
        chunk = text_chunk(item) if isinstance(item, str) else item
        content = "".join(choice.delta.content or choice.delta.reasoning_content or "" for choice in chunk.choices)
        self._text += content
        known = self._endpoint.probability
        confidences = () if known is None or not content else (TokenConfidence(known, ends_sentence(content)),)
        return TokensReceived(self._endpoint.name, [chunk], 1 if content else 0, confidences)

    async def _prepare(self) -> TokensReceived | StreamEnded:
        endpoint = self._endpoint
        pre_copy, tokens = endpoint.capabilities.pre_copy, endpoint.count_prompt(self.request)
        if pre_copy == "none":
            self._release()
            raise UsageError(f"{endpoint.name}: expected an endpoint whose pre_copy is not none for a request with prefill_only, got one")
        await self._sleep_until(self._began + endpoint.prepare_takes + endpoint.prefill_s * (tokens - self._cached))
        if endpoint.prepare_error is not None:
            self._release()
            raise _copy(endpoint.prepare_error, "")
        if pre_copy == "warm" and not self._has_sent:
            self._has_sent = True
            return TokensReceived(endpoint.name, [text_chunk("warm", finish_reason="length")], 1)
        self._release()
        endpoint.prepared.append(self.request.partial)
        endpoint.keep(self.request)
        made = 1 if pre_copy == "warm" else 0
        usage = CompletionUsage(tokens, made, tokens + made, PromptTokensDetails(cached_tokens=self._cached))
        return StreamEnded(endpoint.name, "length" if made else None, usage)

    async def cancel(self) -> None:
        """Stop the stream; a waiting ``receive`` raises an ``EndpointError``."""
        self.is_cancelled = True
        if not self._stop.done():
            self._stop.set_result(None)
        if self._endpoint.cancel_takes:
            await asyncio.sleep(self._endpoint.cancel_takes)
        self._release()

    def _release(self) -> None:
        if not self.is_released:
            self.is_released = True
            self._endpoint.active -= 1

    async def _sleep_until(self, time: float | None) -> None:
        delay = None if time is None else time - asyncio.get_running_loop().time()
        if self.is_cancelled or delay is None or delay > 0:
            await asyncio.wait([self._stop], timeout=delay)
        if self.is_cancelled:
            raise EndpointError("the stream was cancelled", endpoint=self._endpoint.name, partial=self._text)


def _copy(error: EndpointError, partial: str) -> EndpointError:
    """Copy an error, because each stream of a script fails with its own error object, as real streams do."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__, partial=partial)
    return copy


class ScriptedEndpoint:
    """An endpoint that answers every request with the same script.

    A request that continues an answer of n tokens gets the script from item n on. A request with ``prefill_only`` gets only the end, with
    the usage; if ``capabilities.pre_copy`` is "warm", one token comes before it.

    Args:
        name: the endpoint's name in reports.
        script: pairs of (seconds after opening, item), in order; after the last item the stream ends properly.
        kind: the side that it plays, device or server.
        cancel_takes: seconds that a cancel takes.
        ends_after: seconds from opening to the end. With None, right after the last item, or never if the script is empty.
        tokens: prompt length that ``count_tokens`` reports, or None if it isn't known.
        usage: token counts that are sent with the end, if any.
        prices: prices of its tokens, or None if they are free.
        capabilities: its capabilities, or None for the defaults.
        start_error: error that ``start`` raises, or None to succeed.
        prepare_takes: seconds that a request with ``prefill_only`` takes.
        prefill_s: additional seconds for each token of the prompt and the answer's beginning that no request with ``prefill_only`` has
            read before. A request that continues an answer takes them too.
        prepare_error: error that a request with ``prefill_only`` raises at its end, or None to succeed.
        probability: the probability that its model gives each of its tokens, 0..1, or None if it doesn't report probabilities.

    Attributes:
        streams: all streams that were opened.
        active: number of streams that still hold their connection or sequence.
        prepared: for each request with ``prefill_only`` that has finished, in order, the beginning that it read, or None if it read the
            prompt alone.
    """

    def __init__(
        self,
        name: str,
        script: Sequence[tuple[float, ScriptItem]] = (),
        *,
        kind: Kind = "server",
        cancel_takes: float = 0.0,
        ends_after: float | None = None,
        tokens: int | None = None,
        usage: CompletionUsage | None = None,
        prices: TokenPrices | None = None,
        capabilities: Capabilities | None = None,
        start_error: EndpointError | None = None,
        prepare_takes: float = 0.0,
        prefill_s: float = 0.0,
        prepare_error: EndpointError | None = None,
        probability: float | None = None,
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.script = list(script)
        self.cancel_takes = cancel_takes
        self.ends_after = ends_after if ends_after is not None or not self.script else 0.0
        self.usage = usage
        self.prices = prices or TokenPrices()
        self.capabilities = capabilities or Capabilities()
        self.prepare_takes = prepare_takes
        self.prefill_s = prefill_s
        self.prepare_error = prepare_error
        self.probability = probability
        self.streams: list[ScriptedStream] = []
        self.prepared: list[Partial | None] = []
        self.active = 0
        self.is_closed = False
        self._tokens = tokens
        self._kept = 0
        self._start_error = start_error

    async def start(self) -> None:
        """Return at once, or raise the scripted error."""
        if self._start_error is not None:
            raise self._start_error

    def open(self, request: Request) -> ScriptedStream:
        """Start the script for a request."""
        stream = ScriptedStream(self, request)
        self.streams.append(stream)
        self.active += 1
        return stream

    def count_tokens(self, request: Request) -> int | None:
        """Return the scripted prompt length."""
        return self._tokens

    def count_prompt(self, request: Request) -> int:
        """Return the number of tokens of the prompt (``tokens``) and the answer's beginning."""
        return (self._tokens or 0) + (request.partial.tokens if request.partial is not None else 0)

    def count_kept(self, request: Request) -> int:
        """Return how many of the tokens that ``count_prompt`` counts were read by requests with ``prefill_only``."""
        return min(self._kept, self.count_prompt(request))

    def keep(self, request: Request) -> None:
        """Record that the prompt and the answer's beginning of this request were read."""
        self._kept = max(self._kept, self.count_prompt(request))

    async def aclose(self) -> None:
        """Mark the endpoint as closed; there is nothing to release."""
        self.is_closed = True
