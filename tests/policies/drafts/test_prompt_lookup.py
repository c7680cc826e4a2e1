"""What followed the last tokens earlier is found, the longest match first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from streamco.policies.drafts.prompt_lookup import LONGEST_MATCH, SHORTEST_MATCH, Match, PromptLookup, match_confidence


def lookup(tokens: Sequence[int]) -> PromptLookup:
    found = PromptLookup()
    found.extend(tokens)
    return found


def by_hand(tokens: list[int], draft: list[int]) -> Match | None:
    """The same, by comparing all places."""
    whole, best = [*tokens, *draft], None
    for end in range(len(whole) - 1):
        length = 0
        while length < LONGEST_MATCH and length <= end and whole[end - length] == whole[len(whole) - 1 - length]:
            length += 1
        if length >= SHORTEST_MATCH and (best is None or length >= best.length):
            best = Match(whole[end + 1], length)
    return best


def test_what_followed_the_last_two_tokens_is_proposed() -> None:
    assert lookup([5, 6, 7, 8, 5, 6]).next_token() == Match(7, 2)
    assert lookup([5, 6, 7, 8, 9, 6]).next_token() is None, "one token says little"


def test_a_longer_match_beats_a_newer_one_and_a_newer_one_beats_its_equal() -> None:
    assert lookup([1, 5, 6, 7, 2, 5, 6, 8, 1, 5, 6]).next_token() == Match(7, 3)
    assert lookup([5, 6, 7, 5, 6, 8, 5, 6]).next_token() == Match(8, 2)


def test_a_draft_continues_the_match_and_may_repeat_itself() -> None:
    found = lookup([1, 2, 3, 4, 5, 1, 2])
    draft: list[int] = []
    while (match := found.next_token(draft)) is not None and len(draft) < 8:
        assert match.length == len(draft) + 2
        draft.append(match.token)
    assert draft == [3, 4, 5, 1, 2, 3, 4, 5]


def test_without_tokens_there_is_no_match() -> None:
    assert [lookup(tokens).next_token() for tokens in ([], [1], [1, 1])] == [None] * 3
    assert lookup([1]).next_token([1]) is None


def test_a_match_is_no_longer_than_the_limit() -> None:
    assert lookup([7] * 300).next_token() == Match(7, LONGEST_MATCH)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=6), st.integers(0, 40))
def test_it_finds_what_comparing_all_places_finds(tokens: list[int], draft: list[int], cut: int) -> None:
    found = lookup(tokens[:cut])
    found.extend(tokens[cut:])
    assert len(found) == len(tokens)
    assert found.next_token(draft) == by_hand(tokens, draft)


def test_a_continuation_is_what_stood_there_and_may_go_on_into_itself() -> None:
    assert lookup([1, 2, 3, 4, 5, 1, 2]).continuation(3) == ([3, 4, 5], 2)
    assert lookup([1, 2, 3, 4, 5, 1, 2]).continuation(12) == ([3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4], 2)
    assert lookup([7, 7, 7]).continuation(4) == ([7, 7, 7, 7], 2)
    assert lookup([1, 2, 3]).continuation(3) == ([], 0)
    assert lookup([]).continuation(3) == ([], 0)


@given(st.lists(st.integers(0, 2), max_size=40))
def test_a_continuation_begins_with_the_next_token(tokens: list[int]) -> None:
    found = lookup(tokens)
    following, length = found.continuation(4)
    assert found.next_token() == (Match(following[0], length) if length else None)


def test_a_text_that_changes_is_looked_up_as_it_is_then() -> None:
    rng = Random(11)
    followed = PromptLookup()
    text: list[int] = []
    for _ in range(200):
        text = text[: rng.randrange(len(text) + 1)] + rng.choices(range(4), k=rng.randrange(6))
        followed.follow(text)
        fresh = PromptLookup()
        fresh.extend(text)
        assert len(followed) == len(text)
        assert followed.continuation(5) == fresh.continuation(5)


def test_confidence_rises_with_the_match_and_is_never_certain() -> None:
    confidences = [match_confidence(length) for length in range(SHORTEST_MATCH, LONGEST_MATCH + 5)]
    assert confidences == sorted(confidences)
    assert 0.0 < confidences[0] < confidences[-1] < 1.0
