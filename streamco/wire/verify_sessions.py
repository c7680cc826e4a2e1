"""What the protocol knows of the sessions of one connection, on the server's side: numbers, lengths, rounds; their text is the shell's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from streamco.wire.verify.frames import FOLLOWS, Draft, Extend, Follow, Open, Rule, RuleKind, Verdict, VerifyLimits
from streamco.wire.verify.errors import (
    ContextFullError,
    FrameSizeError,
    MalformedFrameError,
    RuleError,
    SessionLimitError,
    SessionNumberError,
    StaleRoundError,
    UnexpectedFrameError,
    UnknownSessionError,
    WrongBaseError,
)

__all__ = ["ServerSessions"]


@dataclass(slots=True)
class _Session:
    length: int | None  # tokens of its context; None: asked to be resumed, not yet known
    rule: Rule
    last_round: int = -1
    draft: Draft | None = None  # the round being verified
    follows: list[Follow] = field(default_factory=list)  # that bet on its verdict
    verdict: Verdict | None = None  # the last one, if nothing has come behind it


class ServerSessions:
    """The sessions of one connection. Every method that takes a client's frame raises the error that refuses it."""

    __slots__ = ("_by_number", "_last", "_limits", "_rules")

    def __init__(self, limits: VerifyLimits, rules: frozenset[RuleKind]) -> None:
        self._limits = limits
        self._rules = rules
        self._by_number: dict[int, _Session] = {}
        self._last = -1

    def __contains__(self, number: int | None) -> bool:
        return number in self._by_number

    def numbers(self) -> tuple[int, ...]:
        """Of those that live."""
        return tuple(self._by_number)

    def end(self, number: int | None) -> bool:
        """Forget a session; False where there is none."""
        return number is not None and self._by_number.pop(number, None) is not None

    def open(self, frame: Open) -> None:
        """A session begins."""
        number = frame.session
        self._check_number(number)
        if frame.rule.kind not in self._rules:
            raise RuleError(f"open: expected a rule of {sorted(self._rules)}, got {frame.rule.kind!r}", session=number)
        if frame.top_k > self._limits.top_k:
            raise FrameSizeError(f"open: expected rows of at most {self._limits.top_k} ids, got {frame.top_k}", session=number)
        self._check_length(max(len(frame.ids), frame.reserve), number, None)
        self._by_number[number] = _Session(len(frame.ids), frame.rule)

    def resume(self, number: int) -> None:
        """A session is asked for; nothing is allowed in it before ``resumed``."""
        self._check_number(number)
        self._by_number[number] = _Session(None, Rule())

    def resumed(self, number: int, base: int, rule: Rule) -> bool:
        """It goes on behind ``base`` tokens; False where it is gone."""
        session = self._by_number.get(number)
        if session is None:
            return False
        session.length, session.rule = base, rule
        return True

    def extend(self, frame: Extend) -> None:
        """The context grows, without an answer."""
        session = self._find_idle(frame.session, frame.base, None)
        end = frame.base + len(frame.ids)
        self._check_length(end, frame.session, None)
        session.length, session.verdict = end, None

    def begin_round(self, draft: Draft) -> None:
        """A round begins; the context is as before until its verdict."""
        number, turn = draft.session, draft.round_number
        session = self._find_idle(number, draft.base, turn)
        _check_turn(session, draft)
        self._check_length(draft.base + len(draft.ids), number, turn)
        _check_rows(session, draft, len(draft.pending))
        session.last_round, session.draft, session.verdict = turn, draft, None

    def follow(self, frame: Follow) -> Draft | None:
        """A draft comes ahead of the verdict it bets on, or as that is on its way; gives the round that it is already."""
        number, turn = frame.session, frame.round_number
        session, _ = self._find(number, turn)
        _check_turn(session, frame)
        _check_rows(session, frame, len(frame.ids))
        session.last_round = turn
        if session.draft is None:
            return self._begin_met(session, [frame])
        if frame.after != session.draft.round_number:
            return None  # behind a round that was refused
        if len(session.follows) >= FOLLOWS:
            message = f"session {number}: expected at most {FOLLOWS} drafts ahead of a verdict, got one more"
            raise FrameSizeError(message, session=number, round_number=turn)
        session.follows.append(frame if session.rule.kind is RuleKind.SAMPLE else replace(frame, rows=()))  # nobody else reads rows
        return None

    def _begin_met(self, session: _Session, follows: Sequence[Follow]) -> Draft | None:
        """The round of the draft that won its bet on the last verdict; None: none did."""
        verdict = session.verdict
        met = None if verdict is None else next((follow for follow in follows if follow.is_met(verdict)), None)
        if met is None or session.length is None:
            return None
        self._check_length(session.length + len(met.ids), met.session, met.round_number)
        session.draft, session.verdict = met.behind(session.length), None
        return session.draft

    def end_round(self, verdict: Verdict) -> bool:
        """The context is what the verdict says, and ``begin_met`` may follow; False where nobody waits for it any more."""
        session = self._by_number.get(verdict.session)
        draft = None if session is None else session.draft
        if session is None or draft is None or draft.round_number != verdict.round_number:
            return False
        assert verdict.accepted <= len(draft.pending), "no more is accepted than was drafted"
        assert verdict.token is not None or verdict.accepted == len(draft.pending), "what isn't accepted is corrected"
        assert len(verdict.rows) in {0, len(draft.pending) + 1}, "a row belongs to each place, or none does"
        session.draft, session.verdict = None, replace(verdict, rows=())  # it may be kept for long
        session.length = draft.base + draft.given + verdict.accepted + (verdict.token is not None)
        return True

    def begin_met(self, number: int) -> Draft | None:
        """Behind a verdict: the round of the draft that has won its bet on it; None: none has."""
        session = self._by_number[number]
        follows, session.follows = session.follows, []
        return self._begin_met(session, follows)

    def drop_round(self, number: int | None, round_number: int | None) -> None:
        """A round ends without a verdict; the context is as before it."""
        session = self._by_number.get(-1 if number is None else number)
        if session is not None and session.draft is not None and session.draft.round_number == round_number:
            session.draft = None
            session.follows.clear()

    def _check_number(self, number: int) -> None:
        if number <= self._last:
            raise SessionNumberError(f"session {number}: expected a number above {self._last}, the last one's")
        self._last = number
        if len(self._by_number) >= self._limits.sessions:
            raise SessionLimitError(f"session {number}: expected at most {self._limits.sessions} at once, got one more", session=number)

    def _find(self, number: int, turn: int | None) -> tuple[_Session, int]:
        """A session that is open, and how long its context is."""
        session = self._by_number.get(number)
        if session is None:
            raise UnknownSessionError(f"session {number}: expected one that is open, got none", session=number)
        if session.length is None:
            message = f"session {number}: expected nothing before it is resumed, got a frame"
            raise UnexpectedFrameError(message, session=number, round_number=turn)
        return session, session.length

    def _find_idle(self, number: int, base: int, turn: int | None) -> _Session:
        """A session that may be added to at ``base``."""
        session, length = self._find(number, turn)
        if session.draft is not None:
            message = f"session {number}: expected nothing before the verdict of round {session.draft.round_number}, got a frame"
            raise StaleRoundError(message, session=number, round_number=turn)
        if base > length:
            message = f"session {number}: expected a base of at most {length}, got {base}"
            raise WrongBaseError(message, session=number, round_number=turn)
        return session

    def _check_length(self, length: int, number: int, turn: int | None) -> None:
        limit = self._limits.context_tokens
        if length > limit:
            message = f"session {number}: expected at most {limit} tokens, got {length}"
            raise ContextFullError(message, session=number, round_number=turn)


def _check_turn(session: _Session, frame: Draft | Follow) -> None:
    """Of a round."""
    if frame.round_number <= session.last_round:
        message = f"session {frame.session}: expected a round above {session.last_round}, got {frame.round_number}"
        raise StaleRoundError(message, session=frame.session, round_number=frame.round_number)


def _check_rows(session: _Session, frame: Draft | Follow, judged: int) -> None:
    """Where tokens are drawn, it is told what from."""
    if session.rule.kind is RuleKind.SAMPLE and len(frame.rows) != judged:
        what = type(frame).__name__.lower()
        message = f"{what}: expected what each of {judged} ids was drawn from, got {len(frame.rows)} rows"
        raise MalformedFrameError(message, session=frame.session, round_number=frame.round_number)
