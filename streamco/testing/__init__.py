"""Public fakes for the tests of applications that embed streamco."""

from __future__ import annotations

from streamco.testing.answers import (
    DONE,
    Answer,
    Cut,
    Pause,
    RecordedRequest,
    Reset,
    Stall,
    chunk_event,
    json_answer,
    sse_event,
    stream_answer,
)
from streamco.testing.network import FaultProxy, Faults
from streamco.testing.server import ScriptedServer

__all__ = [
    "DONE",
    "Answer",
    "Cut",
    "FaultProxy",
    "Faults",
    "Pause",
    "RecordedRequest",
    "Reset",
    "ScriptedServer",
    "Stall",
    "chunk_event",
    "json_answer",
    "sse_event",
    "stream_answer",
]
