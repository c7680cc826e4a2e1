"""Recorded streams of real servers in the form that operators change."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.mutants.oracle import split_events
from tests.mutants.stream import Api, Event, Framing, Json, Stream

APIS: tuple[Api, ...] = ("chat", "responses", "messages")


def load_recorded(folder: Path, *, most_bytes: int | None = None) -> list[Stream]:
    """Return the recorded streams of the three APIs that hold one answer, in the order of the index.

    Args:
        folder: the folder of recordings, with its index.jsonl.
        most_bytes: leave out the larger ones; None leaves out none.
    """
    entries = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    chosen = [entry for entry in entries if entry["api"] in APIS and (most_bytes is None or entry["bytes"] <= most_bytes)]
    streams = [load_stream(folder / entry["file"], entry["api"]) for entry in chosen]
    return [stream for stream in streams if not _has_several_answers(stream)]


def load_stream(path: Path, api: Api) -> Stream:
    """Return one recording as a stream. Comments are left out."""
    body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    ended, rest = split_events(body)
    events = [Event(_load(event.data), event.name or None) for event in [*ended, *([rest] if rest else [])]]
    return Stream(api, path.name.partition(".")[0], events, framing=Framing(newline="\r\n" if b"\r\n" in body else "\n"))


def _load(data: str) -> Json | str:
    try:
        loaded = json.loads(data)
    except ValueError:
        return data
    return loaded if isinstance(loaded, dict) else data


def _has_several_answers(stream: Stream) -> bool:
    indexes = {choice.get("index") for event in stream.events for choice in event.object.get("choices") or []}
    return len(indexes) > 1
