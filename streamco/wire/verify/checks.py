"""What the fields of a verifier's frames must be beyond their types; both the writer and the reader of a frame look."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import isfinite

from streamco._native import pack
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError
from streamco.wire.verify.frames import Draft, Follow, VerdictFrame, VerifyLimits

__all__ = ["check_answer", "check_draft", "check_follow", "check_rule", "check_verdict", "prefix_hash"]


def prefix_hash(ids: Sequence[int]) -> bytes:
    """Equal where two sides hold the same tokens: the first 16 bytes of the SHA-256 of the ids, 4 bytes each, little-endian."""
    return sha256(pack(ids, 32)).digest()[:16]


def check_rule(rule: Rule) -> None:
    """Numbers are numbers, and sampling has a temperature.

    Raises:
        MalformedFrameError: it isn't so.
    """
    numbers = (rule.temperature, rule.top_p, rule.min_p, rule.threshold)
    if not all(map(isfinite, numbers)):
        raise MalformedFrameError(f"rule: expected finite numbers, got {numbers}")
    if rule.kind is RuleKind.SAMPLE and not rule.temperature:
        raise MalformedFrameError("rule: expected a temperature above 0 to sample, got 0")


def check_draft(draft: Draft, limits: VerifyLimits) -> None:
    """The rows belong to the ids to judge, and hold them.

    Raises:
        FrameSizeError: more ids to judge than the limit.
        MalformedFrameError: given ids that aren't there, a row too many or too few, or one without the drafted id.
    """
    pending = draft.pending
    if draft.given > len(draft.ids):
        raise MalformedFrameError(f"draft: expected at most {len(draft.ids)} given ids, all there are, got {draft.given}")
    if len(pending) > limits.draft_tokens:
        raise FrameSizeError(f"draft: expected at most {limits.draft_tokens} ids to judge, got {len(pending)}")
    if not draft.rows:
        return
    if len(draft.rows) != len(pending):
        raise MalformedFrameError(f"draft: expected no row or one for each of {len(pending)} ids to judge, got {len(draft.rows)}")
    for position, (token, row) in enumerate(zip(pending, draft.rows, strict=True)):
        if token not in row.ids:
            raise MalformedFrameError(f"draft, row {position}: expected the drafted id {token} among its ids, got {row.ids}")


def check_follow(follow: Follow, limits: VerifyLimits, vocabulary_size: int) -> None:
    """The draft is one, behind a verdict that can come to be.

    Raises:
        FrameSizeError: more ids to judge than the limit.
        MalformedFrameError: it isn't so, or its round isn't behind the other one.
    """
    check_draft(follow.as_round(0), limits)
    if follow.after >= follow.round_number:
        raise MalformedFrameError(f"follow: expected a round above {follow.after}, which it comes behind, got {follow.round_number}")
    if not 0 <= follow.token < vocabulary_size:
        raise MalformedFrameError(f"follow: expected a token below {vocabulary_size}, got {follow.token}")
    if follow.accepted > limits.draft_tokens:
        raise MalformedFrameError(f"follow: expected at most {limits.draft_tokens} accepted tokens, got {follow.accepted}")


def check_verdict(verdict: VerdictFrame, limits: VerifyLimits, vocabulary_size: int) -> None:
    """No more is accepted than can be drafted, and the token is one.

    Raises:
        MalformedFrameError: it isn't so.
    """
    if verdict.token is not None and not 0 <= verdict.token < vocabulary_size:
        raise MalformedFrameError(f"verdict: expected a token below {vocabulary_size}, got {verdict.token}")
    if verdict.accepted > limits.draft_tokens:
        raise MalformedFrameError(f"verdict: expected at most {limits.draft_tokens} accepted tokens, got {verdict.accepted}")


def check_answer(verdict: VerdictFrame, draft: Draft, top_k: int) -> None:
    """A verdict is one on this draft, with the rows that were asked for (of ``top_k`` ids at most, 0: none).

    Raises:
        MalformedFrameError: it isn't.
    """
    pending, where = draft.pending, f"verdict of round {draft.round_number}"
    if verdict.accepted > len(pending):
        raise MalformedFrameError(
            f"{where}: expected at most {len(pending)} accepted tokens, got {verdict.accepted}", session=draft.session
        )
    if verdict.accepted < len(pending) and verdict.token in {None, pending[verdict.accepted]}:
        message = f"{where}: expected a correction of {pending[verdict.accepted]} at position {verdict.accepted}, got {verdict.token}"
        raise MalformedFrameError(message, session=draft.session)
    if len(verdict.rows) != (len(pending) + 1 if top_k else 0) or any(len(row.ids) > top_k for row in verdict.rows):
        message = f"{where}: expected {len(pending) + 1 if top_k else 0} rows of at most {top_k} ids, got {len(verdict.rows)}"
        raise MalformedFrameError(message, session=draft.session)
