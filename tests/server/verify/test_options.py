"""Settings of the verifier: what can't be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from streamco.core.verifier.options import LoadLimits
from streamco.errors import ConfigError
from streamco.server.verify.options import VerifyOptions


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"connections": 0}, "connections: expected at least 1, got 0"),
        ({"peer_sessions": 0}, "peer_sessions: expected at least 1, got 0"),
        ({"load": LoadLimits(forget_after=0.0)}, "load.forget_after: expected seconds > 0, got 0.0"),
        ({"room": 100}, "room: only valid with policy mixed, got policy alternating"),
        ({"policy": "mixed", "room": 40}, "room: expected at least 48 rows, got 40"),
        ({"policy": "fastest"}, "policy: expected alternating, strict, length-aware, mixed, got 'fastest'"),
        ({"frame_bytes": 1000}, "frame_bytes: expected at least 32768, got 1000"),
        ({"draft_tokens": 32}, "expected draft_tokens up to 31 and top_k up to 255, got 32 and 64"),
        ({"top_k": 256}, "expected draft_tokens up to 31 and top_k up to 255, got 31 and 256"),
        ({"resume_s": -1}, "resume_s: expected seconds >= 0, got -1"),
        ({"hello_timeout": 0.0}, "hello_timeout: expected seconds > 0, got 0.0"),
        ({"write_timeout": math.inf}, "write_timeout: expected seconds > 0, got inf"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"verify: .*{text.replace('(', '.')}"):
        VerifyOptions(**changes)
