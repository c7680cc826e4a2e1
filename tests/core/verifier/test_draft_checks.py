"""Why a draft is refused whatever the load."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamco.core.verifier.draft_checks import MAX_DRAFT, why_invalid
from streamco.core.verifier.events import DraftReceived
from streamco.core.verifier.sessions import HeldSession

GOOD = DraftReceived(session="s", round=3, base=10, given=(1,), draft=(2, 3))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"round": 2}, "stale round"),
        ({"base": -1}, "gap"),
        ({"base": 11}, "gap"),
        ({"base": 0, "given": ()}, "gap"),
        ({"draft": (0,) * MAX_DRAFT}, None),
        ({"draft": (0,) * (MAX_DRAFT + 1)}, "too long"),
        ({"given": (0,) * 88}, "too long"),
    ],
)
def test_a_draft_follows_the_text_and_fits_into_context_and_chunk(changes: dict[str, object], reason: str | None) -> None:
    session = HeldSession("s", "device", tuple(range(10)), now=0.0)
    session.round = 2
    assert why_invalid(session, replace(GOOD, **changes), context_tokens=100) == reason


def test_a_session_has_one_draft_at_a_time() -> None:
    session = HeldSession("s", "device", tuple(range(10)), now=0.0)
    session.pending = GOOD
    assert why_invalid(session, replace(GOOD, round=4), context_tokens=100) == "busy"
