"""Drafts by prompt lookup: if the last tokens have occurred before in the prompt or the answer, the tokens after them become the draft.

This is also known as prompt lookup decoding and as n-gram drafts (transformers' ``prompt_lookup_num_tokens``, vLLM's ``ngram``). A token
costs no step of a draft model. The more tokens match, the likelier the next token is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from streamco.events import common_prefix_length

__all__ = ["LONGEST_MATCH", "SHORTEST_MATCH", "Match", "PromptLookup", "match_confidence"]

SHORTEST_MATCH = 2
LONGEST_MATCH = 16
_OCCURRENCES = 64  # newest occurrences of the last two tokens that are compared
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.2, 0.8


class Match(NamedTuple):
    """The token after a match, and the match's length: how many tokens before it equal the last tokens, 2 to 16."""

    token: int
    length: int


class PromptLookup:
    """The tokens of one prompt and its answer, indexed by pairs of adjacent tokens."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}  # positions of each pair's second token, ascending

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """Replace the stored tokens by ``tokens``. Only the tokens after the common prefix are exchanged."""
        shared = common_prefix_length(self._tokens, tokens)
        while len(self._tokens) > shared:
            pair = tuple(self._tokens[-2:])
            self._tokens.pop()
            if self._tokens:
                self._ends[pair].pop()  # the last entry is the newest place of this pair
        self.extend(tokens[shared:])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the stored ones."""
        for token in tokens:
            if self._tokens:
                self._ends.setdefault((self._tokens[-1], token), []).append(len(self._tokens))
            self._tokens.append(token)

    def next_token(self, draft: Sequence[int] = ()) -> Match | None:
        """Find the longest earlier match of the last tokens, and return the token after it. Returns None if there is no match.

        If several matches are equally long, the newest is used.

        Args:
            draft: further tokens after the stored ones. A match may lie within it.
        """
        tokens = [*self._tokens, *draft]
        best = None
        for end in self._earlier_ends(tokens):
            length = _common_end(tokens, end)
            if best is None or length > best.length:
                best = Match(tokens[end + 1], length)
            if length == LONGEST_MATCH:
                break
        return best

    def continuation(self, most: int) -> tuple[Sequence[int], int]:
        """Find the longest earlier match of the last tokens, and return the tokens after it and the match's length.

        If several matches are equally long, the newest is used. Without a match, the result is ([], 0).

        Args:
            most: number of tokens to return. If fewer tokens follow the match, they are repeated, as in a text that repeats itself.
        """
        best, longest = 0, 0
        for end in self._earlier_ends(self._tokens):
            length = _common_end(self._tokens, end)
            if length > longest:
                best, longest = end + 1, length
            if length == LONGEST_MATCH:
                break
        if not longest:
            return [], 0
        found = self._tokens[best : best + most]
        for place in range(most - len(found)):
            found.append(found[place])
        return found, longest

    def _earlier_ends(self, tokens: Sequence[int]) -> Iterator[int]:
        """Yield the positions at which the last two tokens occurred before, newest first."""
        last, pair = len(tokens) - 1, tuple(tokens[-2:])
        for end in range(last - 1, max(0, len(self._tokens) - 1), -1):  # in the draft
            if (tokens[end - 1], tokens[end]) == pair:
                yield end
        added = self._ends.get(pair, [])[-_OCCURRENCES:]
        yield from (end for end in reversed(added) if end < last)


def match_confidence(length: int) -> float:
    """Return the assumed probability that the token after a match of this length is right, 0..1, before anything has been learned."""
    return _LEAST_CONFIDENCE + (_MOST_CONFIDENCE - _LEAST_CONFIDENCE) * min(length, LONGEST_MATCH) / LONGEST_MATCH


def _common_end(tokens: Sequence[int], end: int) -> int:
    """Return how many tokens that end at ``end`` equal the last tokens, at most ``LONGEST_MATCH``. Two are known to be equal."""
    last, length = len(tokens) - 1, SHORTEST_MATCH
    while length < LONGEST_MATCH and length <= end and tokens[end - length] == tokens[last - length]:
        length += 1
    return length
