"""What does one streamed event cost, from the bytes of a network read to a chunk object?

Three shapes of reads: 64 KiB (a fast server, a proxy that buffers), 1460 bytes cut anywhere (TCP segments), one event a read (the usual
case). ``split`` is the event layer alone, ``chunks`` all of it. ``decode alone`` is msgspec's typed decode of payloads that are split
already: the floor. The other contenders do what their clients do with the same bytes.
More cases have the fields that a server adds to each event: such as streamco declares (OpenRouter, SGLang, LiteLLM, vLLM's completions),
and others that it doesn't, which take a slower decoder (text-generation-inference, Perplexity).
The last cases are events that are no plain text of a chat: pieces of a call's arguments, a blank finish reason or a usage in each event,
and the texts of the Responses and Messages APIs.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from unittest.mock import patch

from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from
from streamco._native import HAS_NATIVE, ssescan_py
from streamco.wire import sse
from streamco.wire.answer_parser import AnswerParser
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai.fast_decode import Api, decode_chat_chunk
from streamco.wire.openai.stream import ChatStreamParser
from streamco.wire.responses_api.response_stream import ResponseStreamParser

BENCH = "wire"
SEED = 20_240_601
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "runs", "away", "from", "it"]

Contender = Callable[[], object]
Parser = ChatStreamParser | AnswerParser

RESULTS = [{"title": "A title", "url": f"https://example.org/{each}", "date": "2026-01-01", "snippet": "words " * 40} for each in range(10)]
SERVERS: dict[str, dict[str, dict[str, object]]] = {
    "OpenRouter": {"top": {"provider": "Azure"}, "choice": {"native_finish_reason": None}},
    "SGLang": {"choice": {"matched_stop": None}, "delta": {"role": None, "reasoning_content": None, "tool_calls": None}},
    "LiteLLM": {"top": {"stream_options": {"include_usage": True}}},
    "text-generation-inference": {"choice": {"text": " the", "seed": None}, "delta": {"token_id": 279, "role": "assistant"}},
    "Perplexity": {"top": {"citations": [each["url"] for each in RESULTS], "search_results": RESULTS}},
}
"""What a server adds to each event, by level."""


def make_events(count: int, rng: random.Random) -> list[bytes]:
    """Events as OpenAI writes them, about 250 bytes each, one word an event."""
    head = {"id": "chatcmpl-9rT3kQb0", "object": "chat.completion.chunk", "created": 1718000000, "model": "gpt-4o-mini-2024-07-18"}
    events = []
    for _ in range(count):
        choice = {"index": 0, "delta": {"content": " " + rng.choice(WORDS)}, "logprobs": None, "finish_reason": None}
        value = {**head, "system_fingerprint": "fp_44709d6fcb", "choices": [choice]}
        events.append(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")
    return events


def as_server(events: Sequence[bytes], fields: dict[str, dict[str, object]]) -> list[bytes]:
    """The events with the fields of a server."""
    found = []
    for event in events:
        value = json.loads(event[6:])
        [choice] = value["choices"]
        choice |= fields.get("choice", {})
        choice["delta"] |= fields.get("delta", {})
        found.append(b"data: " + json.dumps(value | fields.get("top", {}), separators=(",", ":")).encode() + b"\n\n")
    return found


def as_completions(events: Sequence[bytes]) -> list[bytes]:
    """The events as vLLM writes legacy completions."""
    found = []
    for event in events:
        value = json.loads(event[6:])
        text = value["choices"][0].pop("delta")["content"]
        nulls = dict.fromkeys(("stop_reason", "prompt_token_ids", "token_ids", "prompt_logprobs"))
        value["choices"][0] |= {"text": text, **nulls}
        found.append(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")
    return found


def other_events(events: Sequence[bytes]) -> dict[str, tuple[Callable[[], Parser], list[bytes]]]:
    """Streams of other events with the same words, each with what makes its parser. Each event is one chunk."""

    def write(value: object) -> bytes:
        return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

    words = [json.loads(event[6:])["choices"][0]["delta"]["content"] for event in events]
    calls: list[dict[str, object]] = [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": word}}]}} for word in words]
    calls[0] = {"delta": {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]}}
    usages: list[dict[str, object]] = [
        {"usage": {"prompt_tokens": 9, "completion_tokens": each, "total_tokens": 9 + each}} for each in range(1, len(words) + 1)
    ]
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    responses = [{"type": "response.output_text.delta", **place, "delta": word} for word in words]
    messages = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in words]
    created = {"type": "response.created", "response": {"id": "resp_1", "model": "m"}}
    begun = {"type": "message_start", "message": {"id": "msg_1", "model": "m"}}
    return {
        "arguments of a call": (ChatStreamParser, [as_server([e], {"choice": call})[0] for e, call in zip(events, calls, strict=True)]),
        "a blank finish reason": (ChatStreamParser, as_server(events, {"choice": {"finish_reason": ""}})),
        "usage": (ChatStreamParser, [as_server([e], {"top": usage})[0] for e, usage in zip(events, usages, strict=True)]),
        "Responses API": (ResponseStreamParser, [write(created), *map(write, responses[1:])]),
        "Messages API": (MessageStreamParser, [write(begun), *map(write, messages[1:])]),
    }


def make_reads(events: Sequence[bytes]) -> dict[str, list[bytes]]:
    """The same stream in three shapes of reads."""
    body = b"".join(events)
    shapes = {f"{size} bytes a read": [body[at : at + size] for at in range(0, len(body), size)] for size in (65536, 1460)}
    return {**shapes, "one event a read": list(events)}


def with_twin(function: Contender) -> Contender:
    """The same with the Python twin of the scanner in place."""

    def run() -> object:
        with patch.object(sse, "scan_events", ssescan_py.scan_events):
            return function()

    return run


def splitters(reads: list[bytes]) -> dict[str, Contender]:
    """Bytes to events' data."""

    def streamco() -> int:
        parser = sse.SSEParser()
        return sum(len(parser.feed_data(data)) for data in reads)

    def httpx_sse() -> int:
        return sum(1 for _ in read_with_httpx_sse(reads))

    def openai_python() -> int:
        from openai._streaming import SSEDecoder

        return sum(1 for _ in SSEDecoder().iter_bytes(iter(reads)))

    found: dict[str, Contender] = {"streamco": streamco, "httpx-sse": httpx_sse, "openai-python": openai_python}
    if HAS_NATIVE:
        found["streamco, python twin"] = with_twin(streamco)
    return found


def count_chunks(make: Callable[[], Parser], reads: Sequence[bytes]) -> int:
    """Return the number of chunks in an answer."""
    parser = make()
    return sum(len(parser.feed(data)) for data in reads)


def read_with_httpx_sse(reads: list[bytes]) -> list[str]:
    """What ``EventSource.iter_sse`` does with decoded text."""
    from httpx_sse._decoders import SSEDecoder, SSELineDecoder

    lines, decoder = SSELineDecoder(), SSEDecoder()
    return [event.data for data in reads for line in lines.decode(data.decode()) if (event := decoder.decode(line)) is not None]


def readers(reads: list[bytes], payloads: list[bytes], api: Api = "chat") -> dict[str, Contender]:
    """Bytes to chunk objects."""

    def streamco() -> int:
        parser = ChatStreamParser(api=api)
        return sum(len(parser.feed(data)) for data in reads)

    def decode_alone() -> int:
        return len([decode_chat_chunk(payload) for payload in payloads])

    def httpx_sse() -> int:
        return len([decode_chat_chunk(data.encode()) for data in read_with_httpx_sse(reads)])

    def openai_python() -> int:
        from openai._models import construct_type
        from openai._streaming import SSEDecoder
        from openai.types.chat import ChatCompletionChunk

        events = SSEDecoder().iter_bytes(iter(reads))
        return len([construct_type(type_=ChatCompletionChunk, value=json.loads(event.data)) for event in events])

    found: dict[str, Contender] = {
        "streamco": streamco,
        "decode alone": decode_alone,
        "httpx-sse + msgspec": httpx_sse,
        "openai-python": openai_python,
    }
    if HAS_NATIVE:
        found["streamco, python twin"] = with_twin(streamco)
    return found


def measure(name: str, contenders: dict[str, Contender], events: int, rounds: int) -> list[Row]:
    """Microseconds an event; every contender must find every event."""
    for contender, function in contenders.items():
        found = function()
        if found != events:
            raise AssertionError(f"{name}: {contender} found {found} of {events} events")
    timed = {contender: per_call(function, 1, scale=1e6 / events) for contender, function in contenders.items()}
    return rows_from(BENCH, name, "cost", "us an event", interleave(timed, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    count, rounds = (500, 9) if options.quick else (2000, 25)
    events = make_events(count, random.Random(SEED))
    payloads = [event[6:-2] for event in events]
    rows: list[Row] = []
    for shape, reads in make_reads(events).items():
        rows += measure(f"split, {shape}", splitters(reads), count, rounds)
        rows += measure(f"chunks, {shape}", readers(reads, payloads), count, rounds)
    for server, fields in SERVERS.items():
        known = {name: each for name, each in readers(as_server(events, fields), []).items() if name in {"streamco", "openai-python"}}
        rows += measure(f"chunks, one event a read, as {server} writes them", known, count, rounds)
    completions = {"streamco": readers(as_completions(events), [], "completions")["streamco"]}
    rows += measure("chunks, one event a read, as vLLM writes completions", completions, count, rounds)
    for name, (make, reads) in other_events(events).items():
        rows += measure(f"chunks, one event a read, {name}", {"streamco": partial(count_chunks, make, reads)}, count, rounds)
    emit(rows, options.json)


if __name__ == "__main__":
    main()
