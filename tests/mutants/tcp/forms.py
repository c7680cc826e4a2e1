"""Reading answers in the forms of the three APIs, streamed or whole, as a program reads them that knows nothing of odd servers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.mutants.oracle.reading import Call
from tests.mutants.tcp.observed import Observed

__all__ = ["add_chunk", "add_message_event", "add_response_event", "read_completion", "read_message", "read_response"]

Json = dict[str, Any]

_REASONING = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
_REASONS = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}


# Chat completions


def add_chunk(seen: Observed, chunk: Json) -> None:
    """Add a chunk of a streamed completion; pieces of calls are joined by their index alone."""
    _count(seen, chunk.get("usage"), "prompt_tokens", "completion_tokens")
    for choice in chunk["choices"]:
        assert choice["index"] == 0, "the only choice is the first one"
        delta = choice["delta"]
        _add_texts(seen, delta, choice)
        for entry in delta.get("tool_calls") or ():
            place = entry["index"]
            if place == len(seen.calls):
                seen.calls.append(Call("", "", None, is_custom="custom" in entry))
            before, inner = seen.calls[place], entry.get("custom") or entry.get("function") or {}
            piece = (inner.get("input") if before.is_custom else inner.get("arguments")) or ""
            seen.calls[place] = replace(
                before,
                name=before.name + (inner.get("name") or ""),
                arguments=before.arguments + piece,
                id=before.id or entry.get("id") or None,
            )


def read_completion(seen: Observed, answer: Json) -> None:
    """Read a whole completion."""
    _count(seen, answer.get("usage"), "prompt_tokens", "completion_tokens")
    (choice,) = answer["choices"]
    message = choice["message"]
    _add_texts(seen, message, choice)
    for call in message.get("tool_calls") or ():
        if "custom" in call:
            seen.calls.append(Call(call["custom"]["name"], call["custom"]["input"], call["id"], is_custom=True))
        else:
            seen.calls.append(Call(call["function"]["name"], call["function"]["arguments"], call["id"]))


def _add_texts(seen: Observed, message: Json, choice: Json) -> None:
    seen.text += message.get("content") or ""
    seen.refusal += message.get("refusal") or ""
    seen.reasoning += next((text for name in _REASONING if isinstance(text := message.get(name), str) and text), "")
    seen.reason = choice.get("finish_reason") or seen.reason
    seen.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or ()]


def _count(seen: Observed, usage: Json | None, prompt: str, completion: str) -> None:
    if usage is not None:
        seen.usage = usage[prompt], usage[completion]
        seen.is_estimated = bool(usage.get("is_estimated"))


# The Responses API


def add_response_event(seen: Observed, event: Json) -> None:
    """Add an event of a streamed response. At the end its deltas have said what the response says that comes with its last event."""
    match event["type"]:
        case "response.output_text.delta":
            seen.text += event["delta"]
        case "response.refusal.delta":
            seen.refusal += event["delta"]
        case "response.reasoning_text.delta":
            seen.reasoning += event["delta"]
        case "response.output_item.added" if event["item"]["type"].endswith("call"):
            item = event["item"]
            seen.calls.append(Call(item["name"], "", item["call_id"], is_custom=item["type"] == "custom_tool_call"))
        case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
            # Items are sent one after the other, except calls whose pieces come in turn.
            place = [item["output_index"] for item in seen.items if item["item"]["type"].endswith("call")].index(event["output_index"])
            seen.calls[place] = replace(seen.calls[place], arguments=seen.calls[place].arguments + event["delta"])
        case "response.completed" | "response.incomplete":
            whole = Observed()
            read_response(whole, event["response"])
            said = (seen.text, seen.reasoning, seen.refusal, seen.calls)
            assert (whole.text, whole.reasoning, whole.refusal, whole.calls) == said, "the deltas are the response"
            seen.reason, seen.usage, seen.is_estimated = whole.reason, whole.usage, whole.is_estimated
    if event["type"] == "response.output_item.added":
        seen.items.append(event)


def read_response(seen: Observed, answer: Json) -> None:
    """Read a whole response."""
    for item in answer["output"]:
        match item["type"]:
            case "message":
                for part in item["content"]:
                    seen.text += part.get("text") or ""
                    seen.refusal += part.get("refusal") or ""
            case "reasoning":
                seen.reasoning += "".join(part["text"] for part in item["content"])
            case "function_call":
                seen.calls.append(Call(item["name"], item["arguments"], item["call_id"]))
            case "custom_tool_call":
                seen.calls.append(Call(item["name"], item["input"], item["call_id"], is_custom=True))
    reasons = {"max_output_tokens": "length", "content_filter": "content_filter"}
    details = answer.get("incomplete_details") or {}
    assert (answer["status"] == "incomplete") == bool(details), "an incomplete response says why"
    seen.reason = reasons[details["reason"]] if details else "tool_calls" if seen.calls else "stop"
    _count(seen, answer.get("usage"), "input_tokens", "output_tokens")


# The Messages API


def add_message_event(seen: Observed, event: Json) -> None:
    """Add an event of a streamed message."""
    match event["type"]:
        case "content_block_start":
            assert event["index"] == len(seen.items), "blocks begin in their order"
            seen.items.append(event["content_block"])
            _add_block(seen, event["content_block"], "")
        case "content_block_delta":
            assert event["index"] == len(seen.items) - 1, "each block stops before the next one starts"
            delta = event["delta"]
            seen.text += delta.get("text") or ""
            seen.reasoning += delta.get("thinking") or ""
            if "partial_json" in delta:
                seen.calls[-1] = replace(seen.calls[-1], arguments=seen.calls[-1].arguments + delta["partial_json"])
        case "message_delta":
            _end_message(seen, event["delta"]["stop_reason"], event["usage"])


def read_message(seen: Observed, answer: Json) -> None:
    """Read a whole message."""
    for block in answer["content"]:
        _add_block(seen, block, json.dumps(block.get("input"), ensure_ascii=False))
    _end_message(seen, answer["stop_reason"], answer["usage"])


def _add_block(seen: Observed, block: Json, arguments: str) -> None:
    seen.text += block.get("text") or ""
    seen.reasoning += block.get("thinking") or ""
    if block["type"] == "tool_use":
        seen.calls.append(Call(block["name"], arguments, block["id"], is_exact=not arguments))


def _end_message(seen: Observed, reason: str, usage: Json) -> None:
    seen.reason = _REASONS[reason]
    cached = usage.get("cache_read_input_tokens") or 0
    _count(seen, {**usage, "input_tokens": usage["input_tokens"] + cached}, "input_tokens", "output_tokens")
