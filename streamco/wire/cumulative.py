"""Servers that repeat the whole text in every event."""

from __future__ import annotations

from streamco.chunks import ChatCompletionChunk

__all__ = ["CumulativeText"]


class CumulativeText:
    """Cuts from each content what was given before.

    Text that the server revised can't be taken back from a reader: as long as it does not continue what was given, nothing is given.
    """

    def __init__(self) -> None:
        self._given: dict[int, str] = {}  # by choice

    def keep_new(self, chunk: ChatCompletionChunk, *, given: str = "") -> None:
        """Change the chunk's contents to what is new in them.

        Args:
            chunk: its ``delta.content`` is the text so far.
            given: what the first choice had been given as proper deltas before the first call.
        """
        for choice in chunk.choices:
            content = choice.delta.content
            if not content:
                continue
            known = self._given.get(choice.index, "" if choice.index else given)
            if content.startswith(known):
                self._given[choice.index] = content
                choice.delta.content = content[len(known) :]
            else:
                choice.delta.content = None
