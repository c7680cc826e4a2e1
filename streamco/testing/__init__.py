"""Public fakes for tests of applications that embed streamco."""

from __future__ import annotations

from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing.endpoint import ScriptedEndpoint, text_chunk
from streamco.testing.engine import FakeEngine
from streamco.testing.fault_proxy import FaultProxy
from streamco.testing.faults import FAULT_KINDS, BodyFault, FaultPlan, Faults, draw_faults
from streamco.testing.layers import FakeLayers
from streamco.testing.link_proxy import LinkProxy
from streamco.testing.logprob_servers import ScriptedSGLang, ScriptedVLLM
from streamco.testing.responses import (
    DONE,
    Cut,
    Pause,
    RecordedRequest,
    Reset,
    ScriptedResponse,
    Stall,
    chunk_event,
    json_answer,
    sse_event,
    stream_answer,
)
from streamco.testing.server import ScriptedServer
from streamco.testing.verifier import Crash, Refuse, ScriptedVerifier, Send
from streamco.testing.virtual_clock import VirtualTimeLoop, run_in_virtual_time

__all__ = [
    "DONE",
    "FAULT_KINDS",
    "ScriptedResponse",
    "Cut",
    "FakeDistribution",
    "FakeEngine",
    "FakeLayers",
    "FaultPlan",
    "FaultProxy",
    "Faults",
    "Crash",
    "LinkProxy",
    "Pause",
    "RecordedRequest",
    "Refuse",
    "Reset",
    "ScriptedEndpoint",
    "ScriptedSGLang",
    "ScriptedServer",
    "ScriptedVLLM",
    "ScriptedVerifier",
    "Send",
    "Stall",
    "BodyFault",
    "VirtualTimeLoop",
    "chunk_event",
    "draw_faults",
    "json_answer",
    "run_in_virtual_time",
    "sse_event",
    "stream_answer",
    "text_chunk",
]
