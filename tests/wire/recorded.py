"""Recorded response bodies, and the slow, straightforward reading that the parsers are compared with."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.support.data import data_path

OPENAI_APIS = ("chat", "completions")


@dataclass(frozen=True)
class Recording:
    """One recorded body and its line of the index."""

    about: dict[str, Any]
    body: bytes

    def __str__(self) -> str:
        return str(self.about["file"])

    @property
    def api(self) -> str:
        return str(self.about["api"])

    @property
    def provider(self) -> str:
        return str(self.about["provider"])


@lru_cache(maxsize=1)
def _load() -> tuple[Recording, ...]:
    found = []
    for line in data_path("sse", "index.jsonl").read_text().splitlines():
        about = json.loads(line)
        body = data_path("sse", about["file"]).read_bytes()
        found.append(Recording(about, gzip.decompress(body) if about["file"].endswith(".gz") else body))
    return tuple(found)


def recordings(*, apis: tuple[str, ...] | None = None, excluding: tuple[str, ...] = (), provider: str = "") -> list[Recording]:
    """The recordings of some APIs and of providers whose name holds ``provider``; skips the calling test where there is no data."""
    return [r for r in _load() if (apis is None or r.api in apis) and r.api not in excluding and provider in r.provider]


def cuts(body: bytes, size: int) -> list[bytes]:
    """The body in pieces of ``size`` bytes."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def random_cuts(body: bytes, rng: random.Random, longest: int) -> Iterator[bytes]:
    """The body in pieces of 1 to ``longest`` bytes, some of them empty."""
    at = 0
    while at < len(body):
        size = rng.randint(0, longest)
        yield body[at : at + size]
        at += size


@dataclass
class SlowEvent:
    data: bytes
    event: str
    id: str
    retry: int | None


@dataclass
class SlowStream:
    """What a whole body says, read as the standard is written (WHATWG HTML 9.2.6), one line after the other."""

    events: list[SlowEvent] = field(default_factory=list)
    comments: int = 0
    is_refused: bool = False


def read_slowly(body: bytes) -> SlowStream:
    """The oracle of the SSE layer. Like the parser it takes a last event without blank line, and an ``error:`` line, for an event."""
    found = SlowStream()
    data: list[bytes] = []
    kind, last_id, retry = "", "", None
    for line in [*re.split(rb"\r\n|\r|\n", body.removeprefix(b"\xef\xbb\xbf")), b""]:
        if line == b"":
            if data:
                found.events.append(SlowEvent(b"\n".join(data), kind or "message", last_id, retry))
            data, kind, retry = [], "", None
            continue
        if line.startswith(b":"):
            found.comments += 1
            continue
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and re.fullmatch(rb"[0-9]+", value):
            retry = int(value)
        elif name == b"error":
            kind = "error"
            data.append(b'{"error":' + value + b"}")
        elif line[:1] in (b"{", b"[", b"<"):
            found.is_refused = True
            return found
    return found


@dataclass
class SlowAnswer:
    """What the chunks of a recorded answer say about its first choice, from plain ``json``."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: tuple[int, int, int] | None = None
    calls: dict[Any, list[str]] = field(default_factory=dict)  # name and arguments by index
    choices: set[int] = field(default_factory=set)
    chunks: int = 0
    is_done: bool = False
    has_error: bool = False


def answer_slowly(body: bytes) -> SlowAnswer:
    """The oracle of the chunk layer."""
    answer = SlowAnswer()
    for event in read_slowly(body).events:
        if event.data.strip() == b"[DONE]":
            answer.is_done = True
            break
        value = json.loads(event.data)
        if value.get("error"):
            answer.has_error = True
            break
        if "choices" in value:
            answer.chunks += 1
        usage = value.get("usage") or (value.get("x_groq") or {}).get("usage")
        if usage:
            answer.usage = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
        for choice in value.get("choices") or []:
            _read_choice(answer, choice)
    return answer


def _read_choice(answer: SlowAnswer, choice: dict[str, Any]) -> None:
    index = choice.get("index", 0)
    answer.choices.add(index)
    if index != 0:
        return
    delta = choice.get("delta") or {"content": choice.get("text")}
    content = delta.get("content")
    if isinstance(content, list):
        answer.text += "".join(part["text"] for part in content if part["type"] == "text")
        answer.reasoning += "".join(inner["text"] for part in content if part["type"] == "thinking" for inner in part["thinking"])
    else:
        answer.text += content or ""
    answer.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
    answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        known = answer.calls.setdefault(call["index"], ["", ""])
        known[0] = known[0] or function.get("name") or ""
        known[1] += function.get("arguments") or ""
