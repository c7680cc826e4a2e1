"""The sessions of a verifier, and who of them has tokens in the engine's cache.

A session's ids are kept for as long as it is remembered; they are small. Its cache is large and may be taken for others while the device
doesn't ask for anything: then the ids are read again when it does. Room is reserved before anything is admitted, so whatever was admitted
can be finished.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from streamco.core.verifier.events import DraftReceived
from streamco.policies.batching import Waiting

__all__ = ["HeldSession", "SessionTable"]


class HeldSession:
    """One session.

    Attributes:
        text: settled ids.
        cached: tokens of the text, and of a draft in the making, that the engine has read or is reading.
        prompt_end: position up to which reading is a prefill; a draft's row 0 needs the text's last token read with it.
        pending: the draft that waits for its verdict.
        taken_back: what the text had behind the pending draft's base.
        is_running: it takes part in the batch that runs.
        keeps: tokens that stay when that batch has run; inf: all.
        room: tokens of the cache that are reserved for it; 0: it has none.
        touched: seconds, when the device or its batch was heard of last.
        since: seconds, when what it waits for began to wait.
        asked: seconds, when the pending draft came.
        due: seconds, when its verdict should be out.
        started: seconds, when its first batch began; None: not yet.
        compute: seconds its batches took so far.
    """

    __slots__ = (
        "asked",
        "cached",
        "compute",
        "device",
        "due",
        "is_closed",
        "is_running",
        "keeps",
        "name",
        "pending",
        "prompt_end",
        "reserved_tokens",
        "round",
        "since",
        "started",
        "taken_back",
        "text",
        "touched",
    )

    def __init__(self, name: str, device: str, ids: tuple[int, ...], *, now: float) -> None:
        self.name = name
        self.device = device
        self.text = list(ids)
        self.cached = 0
        self.prompt_end = max(0, len(ids) - 1)
        self.pending: DraftReceived | None = None
        self.taken_back: list[int] = []
        self.round = -1
        self.asked = self.since = self.touched = now
        self.due = math.inf
        self.started: float | None = None
        self.compute = 0.0
        self.is_running = self.is_closed = False
        self.keeps = math.inf
        self.reserved_tokens = 0

    @property
    def is_at_rest(self) -> bool:
        """True if nothing is to be done for it."""
        return self.pending is None and not self.is_running and (not self.reserved_tokens or self.cached >= self.prompt_end)

    @property
    def need(self) -> int:
        """Tokens of the cache that its text takes."""
        return max(1, len(self.text))

    def work(self) -> Waiting | None:
        """Return what is to be read next, what runs counted as done."""
        missing = self.prompt_end - self.cached
        if self.reserved_tokens and missing > 0:
            return Waiting(
                session=self.name,
                device=self.device,
                kind="prefill",
                tokens=missing,
                verify_rows=0,
                context=self.cached,
                since=self.since,
                due=math.inf,
            )
        tokens = self.to_verify()
        if self.pending is None or tokens <= 0:
            return None
        return Waiting(
            session=self.name,
            device=self.device,
            kind="verify",
            tokens=tokens,
            verify_rows=len(self.pending.draft) + 1,
            context=self.cached,
            since=self.since,
            due=self.due,
        )

    def to_verify(self) -> int:
        """Tokens to be read for the pending draft, its own included."""
        return len(self.text) + (len(self.pending.draft) if self.pending is not None else 0) - self.cached

    def read(self, tokens: int) -> tuple[int, ...]:
        """Return the next ids, counted as cached."""
        start, end = self.cached, self.cached + tokens
        ids = tuple(self.text[start:end])
        if end > len(self.text):
            assert self.pending is not None, "only a draft is read beyond the text"
            ids += self.pending.draft[max(0, start - len(self.text)) : end - len(self.text)]
        self.cached = end
        return ids

    def rewrite(self, base: int, ids: tuple[int, ...]) -> bool:
        """Cut the text to ``base`` tokens and go on with ``ids``; whether the cache must be truncated to ``cached``.

        A batch that runs is not undone; ``keeps`` says what of it stays.
        """
        self.text[base:] = ids
        valid = max(0, min(base, len(self.text) - 1))
        self.prompt_end = min(self.prompt_end, valid)
        if self.is_running:
            self.keeps = min(self.keeps, valid)
            return False
        return self.keep(valid)

    def restore(self) -> None:
        """Forget the pending draft, as if it had never come; only while nothing of it is cached."""
        if self.pending is not None:
            self.text[self.pending.base :] = self.taken_back
            self.prompt_end = max(0, len(self.text) - 1)
            self.pending = None

    def keep(self, length: float) -> bool:
        """Count at most so many tokens as cached; whether it were more."""
        was_more = self.cached > length
        if was_more:
            self.cached = int(length)
        return was_more


class SessionTable:
    """All sessions, least recently used first, and the cache they share.

    Args:
        tokens: of the cache.
        places: sequences it has.
        idle_after: seconds of silence after which a session's cache may be taken for whoever asks.
        forget_after: seconds of silence after which its ids may be forgotten.

    Attributes:
        reserved: tokens of the cache.
        resident: sequences taken.
    """

    def __init__(self, *, tokens: int, places: int, idle_after: float, forget_after: float) -> None:
        self._tokens = tokens
        self._places = places
        self._idle_after = idle_after
        self._forget_after = forget_after
        self._sessions: dict[str, HeldSession] = {}
        self.reserved = 0
        self.resident = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[HeldSession]:
        return iter(self._sessions.values())

    def get(self, name: str) -> HeldSession | None:
        """Return the session of that name."""
        return self._sessions.get(name)

    def add(self, session: HeldSession) -> None:
        """Remember a new one; it has no room yet."""
        self._sessions[session.name] = session

    def touch(self, session: HeldSession, *, now: float) -> None:
        """Something was heard of it."""
        self._sessions[session.name] = self._sessions.pop(session.name)
        session.touched = now

    def reserve(self, session: HeldSession, tokens: int, *, now: float) -> list[HeldSession] | None:
        """Reserve ``tokens`` for it altogether.

        Who was silent for long loses the cache first; then the devices that hold more than this one would, as long as they still do.

        Returns:
            Who lost the cache for it; None: there is no room, and nothing was changed.
        """
        free = self._tokens - self.reserved + session.reserved_tokens
        free_places = self._places - self.resident + bool(session.reserved_tokens)
        victims: list[HeldSession] = []
        at_rest = [each for each in self if each is not session and each.reserved_tokens and each.is_at_rest]
        idle = [each for each in at_rest if each.touched + self._idle_after <= now]
        while free < tokens or free_places < 1:
            if len(victims) < len(idle):
                victim = idle[len(victims)]
            else:
                others = [each for each in at_rest if each not in victims and each.device != session.device]
                found = self._of_the_largest(others, victims, session, 0 if free_places < 1 else tokens)
                if found is None:
                    return None
                victim = found
            victims.append(victim)
            free += victim.reserved_tokens
            free_places += 1
        for victim in victims:
            self.evict(victim)
        self.resident += not session.reserved_tokens
        self.reserved += tokens - session.reserved_tokens
        session.reserved_tokens = tokens
        return victims

    def _of_the_largest(self, others: list[HeldSession], gone: list[HeldSession], session: HeldSession, tokens: int) -> HeldSession | None:
        """Who of ``others`` is to make room for ``session``; ``tokens`` are wanted, or, where these are 0, a place."""
        held: Counter[str] = Counter()
        for each in self:
            if each.reserved_tokens and each is not session and each not in gone:
                held[each.device] += each.reserved_tokens if tokens else 1
        victim = max(others, key=lambda each: held[each.device], default=None)  # of several the one that was silent longest
        if victim is None or held[victim.device] - (victim.reserved_tokens if tokens else 1) < held[session.device] + (tokens or 1):
            return None
        return victim

    def shrink(self, session: HeldSession) -> None:
        """Reserve only what its text needs now."""
        if session.reserved_tokens:
            self.reserved += session.need - session.reserved_tokens
            session.reserved_tokens = session.need

    def evict(self, session: HeldSession) -> None:
        """Take its cache; its ids stay, to be read again."""
        self.resident -= bool(session.reserved_tokens)
        self.reserved -= session.reserved_tokens
        session.reserved_tokens = session.cached = 0
        session.prompt_end = max(0, len(session.text) - 1)

    def remove(self, session: HeldSession) -> None:
        """Forget it."""
        self.evict(session)
        del self._sessions[session.name]

    def in_use(self, *, now: float) -> int:
        """Sessions that something is done for, or was not long ago."""
        return sum(not session.is_at_rest or session.touched + self._idle_after > now for session in self)

    def next_idle(self, *, now: float) -> float | None:
        """When one more session's cache may be taken; None: nobody is at rest."""
        times = (session.touched + self._idle_after for session in self if session.reserved_tokens and session.is_at_rest)
        return next((time for time in times if time > now), None)

    def next_forgotten(self) -> float | None:
        """When the next session may be forgotten; None: nobody is at rest."""
        return next((session.touched + self._forget_after for session in self if session.is_at_rest), None)

    def overdue(self, *, now: float) -> list[HeldSession]:
        """Who may be forgotten."""
        return [session for session in self if session.is_at_rest and session.touched + self._forget_after <= now]
