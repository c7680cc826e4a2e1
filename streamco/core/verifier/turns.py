"""The devices that wait for a place in the cache, and the order in which they get one.

A device with fewer places comes before a device with more. If two devices have equally many, the one that asked first comes first. If only
the time counted, a device could have all places and, by asking for another one without pause, stay ahead of every device that has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

__all__ = ["Room", "Turns"]

_MISSED_RETRY = 1.0  # how many seconds late a waiting device may ask again before it loses its turn


class Room(Struct, frozen=True):
    """An amount of space in the cache.

    Args:
        places: number of sequences.
        tokens: number of tokens.
    """

    places: int = 0
    tokens: int = 0


class _Turn(Struct, frozen=True):
    until: float  # when it is lost, seconds
    tokens: int  # how many the device has asked for


class Turns:
    """The waiting devices. A device keeps its turn as long as it asks again in time."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}  # by device; the one that asked first comes first

    def wait(self, device: str, tokens: int, retry_after: float, *, now: float) -> None:
        """Let a device wait for a place with ``tokens`` tokens. It keeps its turn if it asks again in ``retry_after`` seconds."""
        self._turns[device] = _Turn(now + retry_after + _MISSED_RETRY, tokens)

    def end(self, device: str) -> None:
        """End a device's wait, because it has a place or is gone."""
        self._turns.pop(device, None)

    def __len__(self) -> int:
        return len(self._turns)

    def before(self, device: str, held: Counter[str], *, now: float) -> Room:
        """Return the room that must be left for the devices whose turn comes before this one's.

        Args:
            device: the device that asks for a place.
            held: number of places of each device.
            now: the current time in seconds.
        """
        waiting = self._waiting(now)
        mine = (held[device], waiting.index(device) if device in waiting else len(waiting))
        return self._room(each for number, each in enumerate(waiting) if each != device and (held[each], number) < mine)

    def deprived(self, device: str, held: Counter[str], *, now: float) -> Room:
        """Return the room that a device must leave for waiting devices that, even with one more place, would have fewer than it has."""
        return self._room(each for each in self._waiting(now) if held[each] + 1 < held[device])

    def without_place(self, held: Counter[str], *, now: float) -> list[tuple[str, int]]:
        """Return the waiting devices that have no place, in order, with the number of tokens that each needs."""
        return [(each, self._turns[each].tokens) for each in self._waiting(now) if not held[each]]

    def _waiting(self, now: float) -> list[str]:
        self._turns = {device: turn for device, turn in self._turns.items() if turn.until > now}
        return list(self._turns)

    def _room(self, devices: Iterable[str]) -> Room:
        tokens = [self._turns[device].tokens for device in devices]
        return Room(len(tokens), sum(tokens))
