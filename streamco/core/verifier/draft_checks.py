"""Checks of a draft that depend only on its session. A draft that fails one of them is refused whatever the load."""

from __future__ import annotations

from streamco.core.verifier.events import DraftReceived, Reason
from streamco.core.verifier.sessions import HeldSession
from streamco.policies.serving.batching import CHUNK

__all__ = ["MAX_DRAFT", "why_invalid"]

MAX_DRAFT = CHUNK - 1  # tokens; with the row before it, a draft is verified in one chunk


def why_invalid(session: HeldSession, event: DraftReceived, *, context_tokens: int) -> Reason | None:
    """Return why a draft is refused, or None if it is valid.

    Args:
        session: the session, before the draft changes it.
        event: the draft.
        context_tokens: maximum number of tokens in one session, including the draft.
    """
    if session.pending is not None:
        return "busy"
    if event.round <= session.round:
        return "stale round"
    if not 0 <= event.base <= len(session.text) or event.base + len(event.given) < 1:
        return "gap"
    if len(event.draft) > (0 if event.is_prompt else MAX_DRAFT) or event.length >= context_tokens:
        return "too long"
    return None
