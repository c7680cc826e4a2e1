"""Servers that repeat the whole text in every event."""

from __future__ import annotations

from streamco.openai_types import ChatCompletionChunk

__all__ = ["CumulativeText"]


class CumulativeText:
    """Cuts from each content what was given before.

    Text that the server revised can't be taken back from a reader: as long as it does not continue what was given, nothing is given.
    """

    def __init__(self) -> None:
        self._given: dict[int, str] = {}  # by choice

    @property
    def has_begun(self) -> bool:
        """Whether anything was given of the first choice."""
        return 0 in self._given

    def begin(self, text: str) -> None:
        """Take what the first choice was given as proper deltas before its first repetition."""
        self._given[0] = text

    def keep_new(self, chunk: ChatCompletionChunk) -> None:
        """Change the chunk's contents, each the text so far, to what is new in them."""
        for choice in chunk.choices:
            content = choice.delta.content
            if not content:
                continue
            known = self._given.get(choice.index, "")
            if content.startswith(known):
                self._given[choice.index] = content
                choice.delta.content = content[len(known) :]
            else:
                choice.delta.content = None
