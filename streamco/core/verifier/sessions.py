"""A verifier's sessions, and which of them have tokens in the engine's KV cache.

A session's ids are kept as long as it is remembered, because they take little memory. Its cache is large and may be given to another
session while the device is silent. The ids are then read again with the device's next draft. Space in the cache is reserved before a
request is admitted, so every admitted request can be finished.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from streamco.core.verifier.events import DraftReceived, RunBatch
from streamco.core.verifier.turns import Room
from streamco.events import common_prefix_length
from streamco.policies.drafts.tree_acceptance import longest_path, path_to
from streamco.policies.serving.batching import Waiting

__all__ = ["HeldSession", "RunningBatch", "SessionTable"]


class HeldSession:
    """The state of one session. The scheduler owns it.

    Attributes:
        text: committed ids.
        cached: how many tokens of the text, and then of the pending draft, the engine has read or is reading.
        prompt_end: position up to which text is read as a prefill. The text's last token is read with a draft, because it gives row 0.
        pending: the draft that waits for its verdict; None if there is none.
        following: drafts to handle after the pending one, in order.
        retracted: ids that the text had after the pending draft's base.
        is_running: whether it takes part in the running batch.
        keeps: how many tokens stay when that batch has run; inf for all.
        reserved_tokens: how many tokens of the cache are reserved for it; 0 if it has no place.
        touched: time of the last event from its device or of its last batch, in seconds.
        since: when its next work began to wait, in seconds.
        asked: when the pending draft arrived, in seconds.
        due: time after which the pending draft's verdict is late, in seconds.
        started: when the pending draft's first batch began, in seconds; None if it hasn't.
        compute: how many seconds the pending draft's batches have taken so far.
    """

    __slots__ = (
        "asked",
        "cached",
        "compute",
        "device",
        "due",
        "following",
        "is_closed",
        "is_running",
        "keeps",
        "name",
        "pending",
        "prompt_end",
        "reserved_tokens",
        "retracted",
        "round",
        "since",
        "started",
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
        self.following: deque[DraftReceived] = deque()
        self.retracted: list[int] = []
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
        """True if the session has no work."""
        return self.pending is None and not self.is_running and (not self.reserved_tokens or self.cached >= self.prompt_end)

    @property
    def is_evictable(self) -> bool:
        """True if the session may lose its cache, because it is at rest or is only waiting for its context to be read."""
        return self.pending is None and not self.is_running

    @property
    def need(self) -> int:
        """How many tokens of the cache the session's text needs."""
        return max(1, len(self.text))

    def work(self) -> Waiting | None:
        """Return the work to do next, with the running batch counted as done, or None if there is nothing to read."""
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
            kind="prefill" if self.pending.is_prompt else "verify",
            tokens=tokens,
            verify_rows=len(self.pending.draft) + 1,
            context=self.cached,
            since=self.since,
            due=self.due,
        )

    def verification(self, event: DraftReceived, *, now: float) -> Waiting:
        """Return the work for a draft that arrives now, while no other draft is waiting."""
        length = event.base + len(event.given)
        cached = min(self.cached, event.base, length - 1)
        return Waiting(
            session=self.name,
            device=self.device,
            kind="verify",
            tokens=length + len(event.draft) - cached,
            verify_rows=len(event.draft) + 1,
            context=cached,
            since=now,
            due=math.inf,
        )

    def to_verify(self) -> int:
        """Return how many tokens must be read to verify the pending draft, including the draft's own tokens."""
        return len(self.text) + (len(self.pending.draft) if self.pending is not None else 0) - self.cached

    def read(self, tokens: int) -> tuple[int, ...]:
        """Return the next ids, and count them as cached."""
        start, end = self.cached, self.cached + tokens
        ids = tuple(self.text[start:end])
        if end > len(self.text):
            assert self.pending is not None, "only a draft is read beyond the text"
            ids += self.pending.draft[max(0, start - len(self.text)) : end - len(self.text)]
        self.cached = end
        return ids

    def rewrite(self, base: int, ids: tuple[int, ...]) -> bool:
        """Cut the text to ``base`` tokens and append ``ids``. Return True if the cache must be truncated to ``cached`` tokens.

        A running batch is not undone. Instead, ``keeps`` limits how many tokens stay when it has run.
        """
        self.text[base:] = ids
        valid = max(0, min(base, len(self.text) - 1))
        self.prompt_end = min(self.prompt_end, valid)
        if self.is_running:
            self.keeps = min(self.keeps, valid)
            return False
        return self.keep(valid)

    def is_continued_by(self, event: DraftReceived) -> bool:
        """Return True if the pending draft and this one are both prompts, and this one begins where the other ends."""
        draft = self.pending
        both = draft is not None and draft.is_prompt and event.is_prompt
        return both and event.base == len(self.text) and event.round > self.round

    def join(self, event: DraftReceived) -> None:
        """Add a prompt to the pending one that it continues, so that both are read together."""
        assert self.pending is not None, "what is continued is pending"
        self.text += event.given
        self.pending = replace(self.pending, given=self.pending.given + event.given, round=event.round)
        self.round = event.round

    def accept(self, accepted: int) -> int:
        """Add the accepted tokens of the pending draft to the text, and return how many tokens of the text the sequence has.

        If the draft is a tree, the sequence has only its longest path.

        Args:
            accepted: number of accepted tokens; in a tree, the number of the last accepted node.
        """
        assert self.pending is not None, "what is accepted is pending"
        parents, length = self.pending.parents, len(self.text)
        path = path_to(parents, accepted)
        self.text += (self.pending.draft[node - 1] for node in path)
        return length + (common_prefix_length(path, longest_path(parents)) if parents else len(path))

    def restore(self) -> None:
        """Undo the pending draft. This is allowed only while none of it is cached."""
        if self.pending is not None:
            self.text[self.pending.base :] = self.retracted
            self.prompt_end = max(0, len(self.text) - 1)
            self.pending = None

    def keep(self, length: float) -> bool:
        """Count at most ``length`` tokens as cached. Return True if there were more."""
        was_more = self.cached > length
        if was_more:
            self.cached = int(length)
        return was_more


class RunningBatch(Struct, frozen=True):
    """The batch that the engine is decoding.

    Args:
        command: the batch.
        sessions: the session of each part.
        tokens: number of tokens in the batch.
        prefilled: how many of these tokens belong to prompts.
        context: number of cached tokens before them, summed over all sessions.
        ends: when it is expected to end, in seconds.
    """

    command: RunBatch
    sessions: tuple[HeldSession, ...]
    tokens: int
    prefilled: int
    context: int
    ends: float

    @property
    def is_dropped(self) -> bool:
        """True if all of its sessions were closed, so that the batch is being aborted."""
        return all(session.is_closed for session in self.sessions)


class SessionTable:
    """All sessions, least recently used first, and the cache they share.

    Args:
        tokens: size of the cache in tokens.
        places: how many sequences the cache can hold.
        idle_after: seconds of silence after which a session's cache may be given to any other session.
        forget_after: seconds of silence after which a session's ids may be forgotten.

    Attributes:
        reserved: number of reserved tokens.
        resident: number of sequences in use.
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

    def of(self, device: str) -> int:
        """Return how many sessions a device has."""
        return sum(each.device == device for each in self)

    def places_by_device(self) -> Counter[str]:
        """Return how many sequences each device's sessions have."""
        return Counter(each.device for each in self if each.reserved_tokens)

    def get(self, name: str) -> HeldSession | None:
        """Return the session with this name, or None if it is not known."""
        return self._sessions.get(name)

    def add(self, session: HeldSession) -> None:
        """Add a new session. This reserves no tokens for it."""
        self._sessions[session.name] = session

    def touch(self, session: HeldSession, *, now: float) -> None:
        """Record an event of a session, which makes it the most recently used one."""
        self._sessions[session.name] = self._sessions.pop(session.name)
        session.touched = now

    def reserve(
        self, session: HeldSession, tokens: int, *, now: float, kept: Room | None = None, surplus: HeldSession | None = None
    ) -> list[HeldSession] | None:
        """Reserve ``tokens`` in total for a session.

        Args:
            session: the session, which may have tokens already.
            tokens: number of tokens, including the ones that it already has.
            now: the current time in seconds.
            kept: room that must be left free; None if none must be.
            surplus: a session that the caller will remove, so that its tokens count as free; None if there is none.

        Returns:
            The sessions that lost their cache, or None if there aren't enough free tokens, in which case nothing was changed.
        """
        victims = self.victims(session, tokens, now=now, kept=kept, surplus=surplus)
        for victim in victims or ():
            self.evict(victim)
        if victims is not None:
            self.resident += not session.reserved_tokens
            self.reserved += tokens - session.reserved_tokens
            session.reserved_tokens = tokens
        return victims

    def victims(
        self,
        session: HeldSession,
        tokens: int,
        *,
        now: float,
        kept: Room | None = None,
        has_drafts: bool = False,
        surplus: HeldSession | None = None,
    ) -> list[HeldSession] | None:
        """Return the sessions that must lose their cache so that this one can have ``tokens`` in total, or None if there are too few.

        Sessions that have been silent for long come first. Then come sessions of devices that have more than this session's device would
        have: first sessions at rest, then sessions that are only waiting for their context to be read. If the latter were spared, a device
        could keep all others out by extending its sessions.

        Args:
            session, tokens, now, kept, surplus: as for ``reserve``.
            has_drafts: if True, sessions with a draft count too, after all others, and waiting drafts before running ones.
        """
        kept = kept or Room()
        free = self._tokens - self.reserved + session.reserved_tokens - kept.tokens
        free_places = 1 if session.reserved_tokens else self._places - self.resident - kept.places
        if surplus is not None and surplus.reserved_tokens:
            free += surplus.reserved_tokens
            free_places += 1
        victims: list[HeldSession] = []
        if free >= tokens and free_places >= 1:
            return victims
        held = [each for each in self if each is not session and each is not surplus and each.reserved_tokens and not each.is_closed]
        evictable = held if has_drafts else [each for each in held if each.is_evictable]
        idle = [each for each in evictable if each.is_at_rest and self._is_idle(each, now)]
        while free < tokens or free_places < 1:
            if len(victims) < len(idle):
                victim = idle[len(victims)]
            else:
                others = [each for each in evictable if each not in victims and each.device != session.device]
                found = self._victim(others, [*victims, surplus], session, 0 if free_places < 1 else tokens)
                if found is None:
                    return None
                victim = found
            victims.append(victim)
            free += victim.reserved_tokens
            free_places += 1
        return victims

    def _victim(self, others: list[HeldSession], gone: list[HeldSession | None], session: HeldSession, tokens: int) -> HeldSession | None:
        """Choose one of ``others`` to evict for ``session``, from the device that has the most, or return None if no device has more.

        Args:
            others: candidates, least recently used first.
            gone: sessions that are already evicted.
            session: the session that needs tokens.
            tokens: number of tokens needed; 0 if only a sequence is needed, so that devices are compared by their sequences.
        """
        held: Counter[str] = Counter()
        for each in self:
            if each.reserved_tokens and each is not session and each not in gone:
                held[each.device] += each.reserved_tokens if tokens else 1
        # Among equals, the one that has been silent longest.
        victim = max(others, key=lambda each: (held[each.device], each.is_at_rest, each.is_evictable, not each.is_running), default=None)
        if victim is None or held[victim.device] - (victim.reserved_tokens if tokens else 1) < held[session.device] + (tokens or 1):
            return None
        return victim

    def shrink(self, session: HeldSession) -> None:
        """Reduce a session's reservation to the tokens that its text needs now."""
        if session.reserved_tokens:
            self.reserved += session.need - session.reserved_tokens
            session.reserved_tokens = session.need

    def evict(self, session: HeldSession) -> None:
        """Release a session's cache. Its ids stay, so that they can be read again."""
        self.resident -= bool(session.reserved_tokens)
        self.reserved -= session.reserved_tokens
        session.reserved_tokens = session.cached = 0
        session.prompt_end = max(0, len(session.text) - 1)

    def remove(self, session: HeldSession) -> None:
        """Forget a session and release its cache."""
        self.evict(session)
        del self._sessions[session.name]

    def in_use(self, *, now: float) -> int:
        """Return how many sessions have work, or were active in the last ``idle_after`` seconds."""
        return self.in_use_by_device(now=now).total()

    def in_use_by_device(self, *, now: float, surplus: HeldSession | None = None) -> Counter[str]:
        """Return how many sessions of each device are in use, not counting the ``surplus`` session."""
        return Counter(each.device for each in self if each is not surplus and not (each.is_at_rest and self._is_idle(each, now)))

    def next_idle(self, *, now: float) -> float | None:
        """Return when the next resting session's cache may be given to another session, or None if none is still protected."""
        times = (session.touched + self._idle_after for session in self if session.reserved_tokens and session.is_at_rest)
        return next((time for time in times if time > now), None)

    def next_forgotten(self) -> float | None:
        """Return when the next session may be forgotten, or None if none is at rest."""
        return next((session.touched + self._forget_after for session in self if session.is_at_rest), None)

    def surplus(self, device: str, *, now: float) -> HeldSession | None:
        """Choose a session to forget so that this device can have another one, or return None if no device would still have more.

        Sessions that aren't in use come before sessions that are at rest between two rounds. Among equals, the device with the most
        sessions loses the one that has been silent longest.
        """
        counts = Counter(each.device for each in self)
        at_rest = [each for each in self if each.is_at_rest and counts[each.device] > counts[device] + 1]
        return max(at_rest, key=lambda each: (self._is_idle(each, now), counts[each.device]), default=None)

    def _is_idle(self, session: HeldSession, now: float) -> bool:
        return session.touched + self._idle_after <= now

    def overdue(self, *, now: float) -> list[HeldSession]:
        """Return the sessions that may be forgotten now."""
        return [session for session in self if session.is_at_rest and session.touched + self._forget_after <= now]
