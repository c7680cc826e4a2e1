"""Checks the fields of the verifier protocol's frames, beyond their types. Both the sender and the receiver of a frame run the checks."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import isfinite

from streamco._native import pack
from streamco.errors import ConfigError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.policies.drafts.tree_acceptance import check_tree
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError
from streamco.wire.verify.frames import Draft, Follow, VerdictFrame, VerifyLimits

__all__ = ["check_answer", "check_draft", "check_follow", "check_rule", "check_verdict", "prefix_hash"]


def prefix_hash(ids: Sequence[int]) -> bytes:
    """Return a context's hash, the first 16 bytes of the SHA-256 of its ids, each written as 4 bytes, little-endian."""
    return sha256(pack(ids, 32)).digest()[:16]


def check_rule(rule: Rule) -> None:
    """Check that a rule's numbers are finite, and that a rule that samples has a temperature above 0.

    Raises:
        MalformedFrameError: a number is not finite, or the rule samples at temperature 0.
    """
    numbers = (rule.temperature, rule.top_p, rule.min_p, rule.threshold)
    if not all(map(isfinite, numbers)):
        raise MalformedFrameError(f"rule: expected finite numbers, got {numbers}")
    if rule.kind is RuleKind.SAMPLE and not rule.temperature:
        raise MalformedFrameError("rule: expected a temperature above 0 to sample, got 0")


def check_draft(draft: Draft, limits: VerifyLimits) -> None:
    """Check that a draft has a row for each id to verify, or no rows, that each row contains its id, and that the parents form a tree.

    Raises:
        FrameSizeError: there are more ids to verify, or more paths, than the limit allows.
        MalformedFrameError: ``given`` exceeds the number of ids, there are too few or too many rows, a row lacks the drafted id, or the
            parents don't form a tree.
    """
    pending = draft.pending
    if draft.given > len(draft.ids):
        raise MalformedFrameError(f"draft: expected at most {len(draft.ids)} given ids, all there are, got {draft.given}")
    if len(pending) > limits.draft_tokens:
        raise FrameSizeError(f"draft: expected at most {limits.draft_tokens} ids to verify, got {len(pending)}")
    _check_parents(draft, limits)
    if not draft.rows:
        return
    if len(draft.rows) != len(pending):
        raise MalformedFrameError(f"draft: expected no row or one for each of {len(pending)} ids to verify, got {len(draft.rows)}")
    for position, (token, row) in enumerate(zip(pending, draft.rows, strict=True)):
        if token not in row.ids:
            raise MalformedFrameError(f"draft, row {position}: expected the drafted id {token} among its ids, got {row.ids}")


def _check_parents(draft: Draft, limits: VerifyLimits) -> None:
    try:
        check_tree(draft.pending, draft.parents)
    except ConfigError as error:
        raise MalformedFrameError(f"draft, {error}") from None
    if draft.paths > limits.paths:
        raise FrameSizeError(f"draft: expected at most {limits.paths} paths to verify, got {draft.paths}")


def check_follow(follow: Follow, limits: VerifyLimits, vocabulary_size: int) -> None:
    """Check a draft that was sent ahead of a verdict, and that the verdict it expects is possible.

    Raises:
        FrameSizeError: there are more ids to verify than the limit allows.
        MalformedFrameError: the draft is malformed, the verdict is impossible, or the round's number is not above ``after``.
    """
    check_draft(follow.as_round(0), limits)
    if follow.after >= follow.round_number:
        raise MalformedFrameError(f"follow: expected a round above {follow.after}, which it follows, got {follow.round_number}")
    if not 0 <= follow.token < vocabulary_size:
        raise MalformedFrameError(f"follow: expected a token below {vocabulary_size}, got {follow.token}")
    if follow.accepted > limits.draft_tokens:
        raise MalformedFrameError(f"follow: expected at most {limits.draft_tokens} accepted tokens, got {follow.accepted}")


def check_verdict(verdict: VerdictFrame, limits: VerifyLimits, vocabulary_size: int) -> None:
    """Check that a verdict accepts no more ids than a draft may have, and that its token is in the vocabulary.

    Raises:
        MalformedFrameError: the number of accepted ids or the token is too large.
    """
    if verdict.token is not None and not 0 <= verdict.token < vocabulary_size:
        raise MalformedFrameError(f"verdict: expected a token below {vocabulary_size}, got {verdict.token}")
    if verdict.accepted > limits.draft_tokens:
        raise MalformedFrameError(f"verdict: expected at most {limits.draft_tokens} accepted tokens, got {verdict.accepted}")


def check_answer(verdict: VerdictFrame, draft: Draft, top_k: int) -> None:
    """Check that a verdict is a valid answer to this draft, and has the requested rows.

    Args:
        verdict: the server's answer.
        draft: the round that was sent.
        top_k: maximum number of ids in a row. 0 means that no rows were requested.

    Raises:
        MalformedFrameError: too many tokens are accepted, the correction is missing or repeats a draft token, or the rows are wrong.
    """
    pending, where = draft.pending, f"verdict of round {draft.round_number}"
    if verdict.accepted > len(pending):
        raise MalformedFrameError(
            f"{where}: expected at most {len(pending)} accepted tokens, got {verdict.accepted}", session=draft.session
        )
    corrected = _children(draft, verdict.accepted)
    if corrected and verdict.token in {None, *corrected}:
        named = " or ".join(map(str, corrected))
        message = f"{where}: expected a correction of {named} at position {verdict.accepted}, got {verdict.token}"
        raise MalformedFrameError(message, session=draft.session)
    if len(verdict.rows) != (len(pending) + 1 if top_k else 0) or any(len(row.ids) > top_k for row in verdict.rows):
        message = f"{where}: expected {len(pending) + 1 if top_k else 0} rows of at most {top_k} ids, got {len(verdict.rows)}"
        raise MalformedFrameError(message, session=draft.session)


def _children(draft: Draft, node: int) -> tuple[int, ...]:
    """Return the ids of the draft tokens that directly follow a node. A tree may have several, a chain has at most one."""
    pending = draft.pending
    if not draft.parents:
        return pending[node : node + 1]
    return tuple(token for token, parent in zip(pending, draft.parents, strict=True) if parent == node)
