"""Which tokens lie in the KV cache, and which sequence a new prompt should take over.

A slot is a sequence id of the context with the tokens decoded into it. When a generation ends its slot keeps them: the next turn of a chat
begins with the same tokens, and only the rest has to be computed. Prefixes of slots at work are shared too (in a unified cache a shared
prefix takes no cells of its own). Whoever reads a prompt that somebody else is reading too catches up with him before each of its turns, so
that between them they read it once.

Idle slots cost time even when nobody asks for them: attention runs over all cells in use. So together they keep at most one context's worth
of tokens, least recently used first out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streamco.partial import common_prefix_length

__all__ = ["Memory", "Slot", "SlotTable"]


class Memory(Protocol):
    """The part of a context that slots need."""

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        """Forget positions; False where that can't be done."""
        ...

    def copy(self, source: int, target: int, stop: int) -> None:
        """Share the positions before ``stop``."""
        ...


class Slot:
    """A sequence id and the tokens in its cells."""

    __slots__ = ("ids", "is_busy", "last_used", "owner", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.ids: list[int] = []
        self.is_busy = False
        self.owner: object = None
        self.last_used = 0


class SlotTable:
    """All slots of a context.

    Args:
        memory: the context.
        count: how many there are.
        stride: their sequence ids are so far apart.
        idle_tokens: how many tokens idle slots may keep together.
        can_share: a prefix of a sequence's memory is that prefix's memory (see ``LlamaModel.can_share_prefixes``).
        can_fork: so it is, but ``copy`` is dear: what slots at work have is had by ``fork`` and ``catch_up`` alone. None: as ``can_share``.
        copy_worth: so many tokens and more take longer to compute than a copy.
    """

    def __init__(
        self,
        memory: Memory,
        count: int,
        *,
        max_idle_tokens: int,
        can_share: bool = True,
        can_fork: bool | None = None,
        min_copy: int = 1,
        stride: int = 1,
    ) -> None:
        self._memory = memory
        self._slots = [Slot(number * stride) for number in range(count)]
        self._idle_tokens = max_idle_tokens
        self._can_share = can_share
        self._can_fork = can_share if can_fork is None else can_fork
        self._min_copy = min_copy
        self._clock = 0

    def acquire(self, prompt: Sequence[int], owner: object = None) -> Slot:
        """Return an idle slot, made busy, holding as much of the beginning of the prompt as can be had without its last token.

        ``owner``: only what was read for the same one is had.
        """
        prompt = list(prompt)
        idle = [slot for slot in self._slots if not slot.is_busy]
        if not idle:
            raise AssertionError("acquire was called without an idle slot")
        shared, donor = self._longest_shared(prompt, owner)
        slot = self._choose(idle, donor, shared)
        slot.is_busy, slot.owner = True, owner
        if donor is None or slot is donor:
            self.truncate(slot, shared)
        else:
            self.truncate(slot, 0)
            if shared >= self._min_copy:
                self._copy(donor, slot, shared)
        self._trim()
        return slot

    def fork(self, source: Slot, ids: Sequence[int]) -> Slot:
        """Return an idle slot, made busy, with as much of the beginning of these ids as the source's memory can give."""
        idle = [slot for slot in self._slots if not slot.is_busy]
        if not idle:
            raise AssertionError("fork was called without an idle slot")
        slot = min(idle, key=lambda slot: (bool(slot.ids), slot.last_used))
        slot.is_busy, slot.owner = True, source.owner
        self.truncate(slot, 0)
        shared = common_prefix_length(source.ids, ids) if self._can_fork else 0
        if shared:
            self._copy(source, slot, shared)
        return slot

    def _copy(self, source: Slot, target: Slot, length: int) -> None:
        self._memory.copy(source.sequence, target.sequence, length)
        target.ids = source.ids[:length]

    def catch_up(self, slot: Slot, prompt: Sequence[int], limit: int) -> int:
        """Give a slot at work what others of its owner have by now of its prompt's first ``limit`` tokens; how many more it has then."""
        has = len(slot.ids)
        best, donor = has + self._min_copy - 1, None
        if not self._can_fork or best >= limit:
            return 0
        for other in self._slots:
            if len(other.ids) > best and other.owner == slot.owner and other.ids[best] == prompt[best]:
                shared = min(common_prefix_length(other.ids, prompt), limit)
                if shared > best:
                    best, donor = shared, other
            if best == limit:
                break
        if donor is None:
            return 0
        self.truncate(slot, 0)
        self._copy(donor, slot, best)
        return best - has

    def _longest_shared(self, prompt: list[int], owner: object) -> tuple[int, Slot | None]:
        """Return the longest beginning of the prompt that can be had, and the slot that has it (an idle one, if there is a choice)."""
        best, donor = 0, None
        for slot in self._slots:
            if slot.owner != owner or (slot.is_busy and not self._can_share):
                continue
            # The last token's logits are wanted: it is always decoded.
            shared = min(common_prefix_length(slot.ids, prompt), len(prompt) - 1)
            if shared > best or (shared == best and donor is not None and donor.is_busy and not slot.is_busy):
                best, donor = shared, slot
        return best, donor

    def _choose(self, idle: list[Slot], donor: Slot | None, shared: int) -> Slot:
        # A donor that would lose more than half of what it keeps stays as it is and lends its prefix, if there is another slot.
        others = [slot for slot in idle if slot is not donor]
        if donor is not None and not donor.is_busy and (not others or not self._can_fork or 2 * shared >= len(donor.ids)):
            return donor
        return min(others, key=lambda slot: (bool(slot.ids), slot.last_used))

    def release(self, slot: Slot) -> None:
        """The slot's generation ended; its tokens stay for the next."""
        self._clock += 1
        slot.last_used = self._clock
        slot.is_busy = False
        self._trim()

    def truncate(self, slot: Slot, length: int) -> None:
        """Keep the first ``length`` tokens; where the model's memory can't be cut, none are kept and ``ids`` says so."""
        if not self._memory.remove(slot.sequence, length):
            self._memory.remove(slot.sequence, 0)
            length = 0
        del slot.ids[length:]

    def forget_idle(self) -> bool:
        """Empty every idle slot; False when there was nothing to gain."""
        idle = [slot for slot in self._slots if not slot.is_busy and slot.ids]
        for slot in idle:
            self.truncate(slot, 0)
        return bool(idle)

    def _trim(self) -> None:
        idle = sorted((slot for slot in self._slots if not slot.is_busy and slot.ids), key=lambda slot: slot.last_used)
        kept = sum(len(slot.ids) for slot in idle)
        for slot in idle[:-1]:
            if kept <= self._idle_tokens:
                break
            kept -= len(slot.ids)
            self.truncate(slot, 0)
