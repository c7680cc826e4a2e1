"""Slots of the KV cache: the tokens in each, and the choice of a slot for a new prompt.

A slot is a sequence id of the context with the tokens decoded into it. When a generation ends, its slot keeps its tokens, because the next
turn of a chat begins with the same ones, and then only the rest must be computed. Prefixes of busy slots are shared too (in a unified cache
a shared prefix takes no extra cells). If two sequences read the same prompt at the same time, each catches up with the other before each of
its turns, so that together they read it once.

Idle slots cost time even while they are not needed, because attention runs over all cells in use. So together they keep at most one
context's worth of tokens, and the least recently used ones are emptied first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol

from streamco.events import common_prefix_length

__all__ = ["Memory", "Slot", "SlotTable"]


class Memory(Protocol):
    """The part of a context that slots need."""

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        """Forget positions ``start`` to ``stop`` (exclusive; -1: no limit). Returns False if the model's memory can't do that."""
        ...

    def copy(self, source: int, target: int, stop: int) -> None:
        """Let ``target`` share the source's positions before ``stop``."""
        ...


class Slot:
    """A sequence id of the context, and the tokens in its cells. ``beside`` is the slot whose side path it holds, if any."""

    __slots__ = ("beside", "ids", "is_busy", "last_used", "owner", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.ids: list[int] = []
        self.is_busy = False
        self.owner: object = None
        self.last_used = 0
        self.beside: Slot | None = None

    @property
    def has_own_cells(self) -> bool:
        """True if the slot holds any cells that it doesn't share with the slot in ``beside``."""
        return bool(self.ids) and (self.beside is None or self.ids != self.beside.ids[: len(self.ids)])


class SlotTable:
    """All slots of a context.

    Args:
        memory: the context.
        count: number of slots.
        max_idle_tokens: number of tokens that idle slots may keep together.
        can_share: sequences can share the memory of a prefix (see ``LlamaModel.can_share_prefixes``), and copying it is cheap.
        can_fork: like ``can_share``, but copying may be expensive, so only ``fork`` and ``catch_up`` copy from busy slots. None for the
            value of ``can_share``.
        min_copy: minimum number of tokens to copy, because copying fewer takes longer than computing them.
        stride: distance between the sequence ids of two slots.
        side_sequences: sequence ids for the side paths of tree drafts; copying must be cheap.
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
        side_sequences: Sequence[int] = (),
    ) -> None:
        self._memory = memory
        self._sides = [Slot(number) for number in side_sequences]
        self._slots = [Slot(number * stride) for number in range(count)]
        self._idle_tokens = max_idle_tokens
        self._can_share = can_share
        self._can_fork = can_share if can_fork is None else can_fork
        self._min_copy = min_copy
        self._clock = 0

    def acquire(self, prompt: Sequence[int], owner: object = None) -> Slot:
        """Make an idle slot busy and return it.

        It holds as much of the beginning of the prompt as is already in memory, but never the prompt's last token.

        Args:
            prompt: token ids.
            owner: the slot's owner; only what was read for the same owner is used.
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
        """Make an idle slot busy and return it, with as much of the beginning of these ids as the source has."""
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
        """Copy to a busy slot the prompt tokens, up to ``limit``, that its owner's other slots have read; return how many it gained."""
        has = len(slot.ids)
        best, donor = has + self._min_copy - 1, None
        if not self._can_fork or best >= limit:
            return 0
        for other in chain(self._slots, self._sides):
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

    def take_sides(self, slot: Slot, count: int, busy: Collection[Slot]) -> list[Slot] | None:
        """Return ``count`` slots for side paths, which share the tokens of ``slot``, or None if the current batch leaves too few.

        After the batch they keep their paths until they are dropped or taken again, so that ``catch_up`` finds the accepted path. If too
        few slots are unused, they are taken from the owner who has the most side paths, and from that owner's slot that has the most. So
        one owner's trees don't evict everybody else's.

        Args:
            slot: holds the tokens before the draft.
            count: number of side paths.
            busy: slots for side paths that the current batch already uses.
        """
        free = [side for side in self._sides if side not in busy]
        if len(free) < count:
            return None
        taken = [side for side in free if side.beside is None][:count]
        if len(taken) < count:
            taken += self._most_held([side for side in free if side.beside is not None], count - len(taken))
        for side in taken:
            self.truncate(side, 0)
            self._clock += 1
            side.owner, side.beside, side.last_used = slot.owner, slot, self._clock
            if slot.ids:
                self._copy(slot, side, len(slot.ids))
        return taken

    def _most_held(self, free: list[Slot], count: int) -> list[Slot]:
        """Return ``count`` of these side paths. Each is taken from the owner, then the slot, that has the most; the oldest go first."""
        owners = Counter(side.owner for side in self._sides if side.beside is not None)
        slots: Counter[Slot | None] = Counter(side.beside for side in self._sides if side.beside is not None)
        taken: list[Slot] = []
        for _ in range(count):
            side = max(free, key=lambda side: (owners[side.owner], slots[side.beside], -side.last_used))
            free.remove(side)
            taken.append(side)
            owners[side.owner] -= 1
            slots[side.beside] -= 1
        return taken

    def drop_sides(self, slot: Slot) -> None:
        """Forget the side paths of a slot."""
        for side in self._sides:
            if side.beside is slot:
                self.truncate(side, 0)
                side.beside = None

    def _longest_shared(self, prompt: list[int], owner: object) -> tuple[int, Slot | None]:
        """Return the length of the prompt's longest prefix in memory, and the slot that holds it (an idle one, if possible)."""
        best, donor = 0, None
        for slot in self._slots:
            if slot.owner != owner or (slot.is_busy and not self._can_share):
                continue
            # The last token is always decoded because its logits are needed.
            shared = min(common_prefix_length(slot.ids, prompt), len(prompt) - 1)
            if shared > best or (shared == best and donor is not None and donor.is_busy and not slot.is_busy):
                best, donor = shared, slot
        return best, donor

    def _choose(self, idle: list[Slot], donor: Slot | None, shared: int) -> Slot:
        # If the donor would lose more than half of its tokens, it keeps them and another slot gets a copy of its prefix.
        others = [slot for slot in idle if slot is not donor]
        if donor is not None and not donor.is_busy and (not others or not self._can_fork or 2 * shared >= len(donor.ids)):
            return donor
        return min(others, key=lambda slot: (bool(slot.ids), slot.last_used))

    def release(self, slot: Slot) -> None:
        """Make a slot idle; its tokens stay for the next prompt."""
        self._clock += 1
        slot.last_used = self._clock
        slot.is_busy = False
        self.drop_sides(slot)
        self._trim()

    def truncate(self, slot: Slot, length: int) -> None:
        """Keep the first ``length`` tokens. If the model's memory can't be cut, none are kept, and ``ids`` is empty."""
        if not self._memory.remove(slot.sequence, length):
            self._memory.remove(slot.sequence, 0)
            length = 0
        del slot.ids[length:]

    def forget_idle(self) -> bool:
        """Empty all side paths and, if that frees no cells, the least recently used idle slot. Returns False if nothing was freed.

        What a chat has read is worth more than a side path, which is only a few rows.
        """
        sides = [side for side in self._sides if side.ids]
        has_freed = any(side.has_own_cells for side in sides)
        for side in sides:
            self.truncate(side, 0)
            side.beside = None
        idle = [slot for slot in self._slots if not slot.is_busy and slot.ids]
        if idle and not has_freed:
            self.truncate(min(idle, key=lambda slot: slot.last_used), 0)
            has_freed = True
        return has_freed

    def _trim(self) -> None:
        idle = sorted((slot for slot in self._slots if not slot.is_busy and slot.ids), key=lambda slot: slot.last_used)
        kept = sum(len(slot.ids) for slot in idle)
        for slot in idle[:-1]:
            if kept <= self._idle_tokens:
                break
            kept -= len(slot.ids)
            self.truncate(slot, 0)
