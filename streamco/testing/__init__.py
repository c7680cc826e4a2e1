"""Public fakes for testing applications that embed streamco."""

from __future__ import annotations

from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.testing.engine import FakeEngine
from streamco.testing.fault_proxy import FaultProxy
from streamco.testing.faults import BodyFault, FaultPlan, Faults
from streamco.testing.link_proxy import LinkProxy
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
from streamco.testing.server_process import running_server
from streamco.testing.verifier import Crash, Refuse, ScriptedVerifier, Send
from streamco.testing.virtual_clock import run_in_virtual_time

__all__ = [
    "DONE",
    "ScriptedResponse",
    "Cut",
    "FakeDistribution",
    "FakeEngine",
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
    "ScriptedServer",
    "ScriptedVerifier",
    "Send",
    "Stall",
    "BodyFault",
    "chunk_event",
    "json_answer",
    "run_in_virtual_time",
    "running_server",
    "sse_event",
    "stream_answer",
]
