"""Frames of the verifier protocol with what a test leaves out filled in: on the wire nearly every field is required."""

from __future__ import annotations

from streamco.policies.acceptance import Rule
from streamco.wire.verify.frames import Draft, Open, VerdictFrame
from streamco.wire.verify.topk import TopK

__all__ = ["make_draft", "make_open", "make_verdict"]


_GREEDY = Rule()


def make_open(session: int, rule: Rule = _GREEDY, top_k: int = 0, reserve: int = 0, ids: tuple[int, ...] = ()) -> Open:
    return Open(session, rule, top_k, reserve, ids)


def make_draft(  # noqa: PLR0917  # in the order in which a reader asks for them
    session: int,
    round_number: int,
    base: int,
    ids: tuple[int, ...],
    given: int = 0,
    rows: tuple[TopK, ...] = (),
    parents: tuple[int, ...] = (),
) -> Draft:
    return Draft(session, round_number, base, given, ids, rows, parents)


def make_verdict(  # noqa: PLR0917  # as above
    session: int, round_number: int, accepted: int, token: int | None, queue_depth: int = 0, rows: tuple[TopK, ...] = ()
) -> VerdictFrame:
    return VerdictFrame(session, round_number, accepted, token, queue_depth, 0, 0, rows)
