"""A restarted answer: what the reader has is dropped, what is new is shown, and an answer that diverges is not shown at all."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamco.core.race.restart import Diverged, RestartFilter
from streamco.core.race.transcript import Transcript
from streamco.events import Partial, TokensReceived
from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    FunctionDelta,
    ToolCallDelta,
)

VOCABULARY = "300:0123456789abcdef"

pieces = st.sampled_from(["ha ", "ha", "h", "a", " ", "\n", "é", "e\u0301", "\u0301", "😀", "👩\u200d🚀", "🇩🇪", "漢字", "ﷺ"])
texts = st.lists(pieces, max_size=12).map("".join)


def text(content: str | None = None, ids: list[int] | None = None, **rest: object) -> ChatCompletionChunk:
    finish = rest.pop("finish_reason", None)
    delta = ChoiceDelta(content=content, **rest)  # type: ignore[arg-type]
    return ChatCompletionChunk(choices=[ChunkChoice(delta=delta, token_ids=ids, finish_reason=finish)])  # type: ignore[arg-type]


def event(*chunks: ChatCompletionChunk) -> TokensReceived:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return TokensReceived("s", list(chunks), sum(len(choice.token_ids or (0,)) for choice in choices if choice.delta.content))


def shown(restart_filter: RestartFilter, *chunks: ChatCompletionChunk) -> tuple[str, list[list[int] | None]]:
    """Text and ids of what comes through, one chunk an event."""
    passed = [restart_filter.feed(event(chunk)) for chunk in chunks]
    assert not any(isinstance(new, Diverged) for new in passed)
    choices = [choice for new in passed if isinstance(new, TokensReceived) for chunk in new.chunks for choice in chunk.choices]
    return "".join(choice.delta.content or "" for choice in choices), [choice.token_ids for choice in choices]


def cuts(answer: str, data: st.DataObject) -> list[str]:
    places = sorted({0, len(answer), *data.draw(st.lists(st.integers(0, len(answer)), max_size=6))})
    return [answer[start:stop] for start, stop in pairwise(places)]


# By text


@given(texts, texts, st.data())
def test_however_it_is_cut_the_reader_sees_the_whole_answer_once(begun: str, new: str, data: st.DataObject) -> None:
    for parts in (cuts(begun + new, data), list(begun + new)):
        restart_filter = RestartFilter(Partial(text=begun))
        assert shown(restart_filter, *map(text, parts))[0] == new
        assert not restart_filter.is_open
        assert restart_filter.end() is None


@given(texts, texts, st.data())
def test_one_event_or_many_give_the_same(begun: str, new: str, data: st.DataObject) -> None:
    passed = RestartFilter(Partial(text=begun)).feed(event(*map(text, cuts(begun + new, data))))
    assert not isinstance(passed, Diverged)
    chunks = passed.chunks if passed is not None else []
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == new


@given(texts, texts, texts, st.data())
def test_an_answer_departs_at_the_same_place_however_it_is_cut(both: str, begun: str, made: str, data: st.DataObject) -> None:
    begun, made = both + begun, both + made
    assume(not made.startswith(begun))
    same = next((at for at, (one, other) in enumerate(zip(begun, made, strict=False)) if one != other), min(len(begun), len(made)))
    for parts in (cuts(made, data), list(made)):
        restart_filter = RestartFilter(Partial(text=begun))
        found = [new for part in parts if (new := restart_filter.feed(event(text(part)))) is not None]
        assert all(isinstance(new, Diverged) for new in found)
        diverged = restart_filter.end()
        assert diverged is not None
        assert found in ([], [diverged] * len(found))
        assert (diverged.position, diverged.expected) == (same, begun[same : same + 20])
        assert diverged.got[:1] == made[same : same + 1]


@pytest.mark.parametrize(
    ("begun", "parts", "new"),
    [
        ("ha ha ", ["ha ", "ha ", "ha ", "ha"], "ha ha"),
        ("ha ha ", ["ha ha ha ha"], "ha ha"),
        ("ha", ["ha", "ha"], "ha"),
        ("aaa", ["aa", "aa"], "a"),
        ("ab ab", ["ab ", "ab ab ab"], " ab ab"),
        ("x\n\n", ["x\n", "\n\n"], "\n"),
    ],
)
def test_real_repetition_is_never_taken_for_what_the_reader_has(begun: str, parts: list[str], new: str) -> None:
    assert shown(RestartFilter(Partial(text=begun)), *map(text, parts))[0] == new


def test_a_mark_behind_its_letter_is_new_and_another_spelling_departs() -> None:
    assert shown(RestartFilter(Partial(text="caf e")), text("caf"), text(" e\u0301!"))[0] == "\u0301!"
    assert RestartFilter(Partial(text="é")).feed(event(text("e\u0301"))) == Diverged(0, "é", "e\u0301")
    assert shown(RestartFilter(Partial(text="👩")), text("👩\u200d🚀"))[0] == "\u200d🚀"


def test_a_departure_says_where_and_what() -> None:
    restart_filter = RestartFilter(Partial(text="The answer is forty-two, as everybody knows."))
    assert restart_filter.feed(event(text("The answer "))) is None
    diverged = restart_filter.feed(event(text("is "), text("forty"), text("-three, not less than that.")))
    assert diverged == Diverged(21, "wo, as everybody kno", "hree, not less than ")
    assert str(diverged) == "restarted answer: expected 'wo, as everybody kno' at character 21, got 'hree, not less than '"
    assert restart_filter.feed(event(text("wo, as"))) is diverged
    assert restart_filter.is_open


def test_an_answer_that_ends_too_soon_departs() -> None:
    restart_filter = RestartFilter(Partial(text="one two"))
    assert restart_filter.feed(event(text("one"))) is None
    diverged = restart_filter.end()
    assert diverged == Diverged(3, " two", "")
    assert str(diverged).endswith("at character 3, got its end")
    assert RestartFilter(Partial(text="one two")).feed(event(text("one", finish_reason="stop"))) == diverged


def test_nothing_shown_means_nothing_to_take_out() -> None:
    restart_filter = RestartFilter(Partial(text=""))
    first = event(text("", role="assistant"), text("a"))
    assert not restart_filter.is_open
    assert restart_filter.feed(first) is first
    assert restart_filter.end() is None


# What is no text


def test_roles_and_reasoning_before_the_overlaps_end_are_left_out() -> None:
    restart_filter = RestartFilter(Partial(text="one"))
    assert restart_filter.feed(event(text("", role="assistant"), text(reasoning_content="hm"), text(reasoning="hm"))) is None
    passed = restart_filter.feed(event(text("on"), text("e two", role="assistant", reasoning="hm"), text(reasoning="hm again")))
    assert isinstance(passed, TokensReceived)
    assert [chunk.choices[0].delta for chunk in passed.chunks] == [ChoiceDelta(content=" two"), ChoiceDelta(reasoning="hm again")]


@pytest.mark.parametrize(
    ("chunk", "got"),
    [
        (text(tool_calls=[ToolCallDelta(index=0, function=FunctionDelta(name="f"))]), "a tool call"),
        (text(function_call=FunctionDelta(name="f")), "a tool call"),
        (text(refusal="I can't"), "I can't"),
    ],
)
def test_a_call_or_a_refusal_in_place_of_the_text_departs(chunk: ChatCompletionChunk, got: str) -> None:
    assert RestartFilter(Partial(text="one")).feed(event(chunk)) == Diverged(0, "one", got)
    restart_filter = RestartFilter(Partial(text="one"))
    assert restart_filter.feed(event(text("one"))) is None
    later = event(chunk)
    assert restart_filter.feed(later) is later


def test_the_finish_of_an_answer_that_has_nothing_new_comes_through() -> None:
    restart_filter = RestartFilter(Partial(text="one"))
    usage = ChatCompletionChunk(usage=CompletionUsage(completion_tokens=1))
    passed = restart_filter.feed(event(text("one", [7], finish_reason="stop"), usage))
    assert isinstance(passed, TokensReceived)
    assert passed.chunks == [text(None, None, finish_reason="stop"), usage]
    assert passed.tokens == 0


def test_usage_in_the_overlaps_last_chunk_comes_through_and_its_logprobs_do_not() -> None:
    last = text("one")
    last.usage, last.choices[0].logprobs = CompletionUsage(completion_tokens=1), ChoiceLogprobs(content=[])
    passed = RestartFilter(Partial(text="one")).feed(event(last))
    assert isinstance(passed, TokensReceived)
    assert [(chunk.usage, chunk.choices[0].logprobs) for chunk in passed.chunks] == [(last.usage, None)]


def test_usage_before_the_overlaps_end_is_left_out() -> None:
    assert RestartFilter(Partial(text="one")).feed(event(ChatCompletionChunk(usage=CompletionUsage(completion_tokens=1)))) is None


# Tokens


def test_ids_stay_with_whole_chunks_and_leave_a_chunk_that_is_split() -> None:
    assert shown(RestartFilter(Partial(text="one")), text("one", [1]), text(" two", [2])) == (" two", [[2]])
    assert shown(RestartFilter(Partial(text="one")), text("one t", [1]), text("wo", [2])) == (" two", [None, [2]])


def test_tokens_are_counted_by_ids_or_by_their_share_of_the_text() -> None:
    by_ids = RestartFilter(Partial(text="ab", ids=(1, 2), vocabulary=VOCABULARY), VOCABULARY).feed(event(text("abcde", [1, 2, 3, 4, 5])))
    by_text = RestartFilter(Partial(text="ab")).feed(TokensReceived("s", [text("ab"), text("cdef"), text("gh")], 8))
    straddling = RestartFilter(Partial(text="ab")).feed(event(text("a"), text("bc"), text("d")))
    assert [passed.tokens for passed in (by_ids, by_text, straddling) if isinstance(passed, TokensReceived)] == [3, 6, 2]


def test_ids_of_one_vocabulary_split_a_chunk_between_tokens() -> None:
    begun = Partial(text="one two", ids=(1, 2), vocabulary=VOCABULARY)
    assert shown(RestartFilter(begun, VOCABULARY), text("one two three", [1, 2, 3])) == (" three", [[3]])
    assert shown(RestartFilter(begun, "other"), text("one two three", [1, 2, 3])) == (" three", [None])
    assert shown(RestartFilter(begun), text("one two three", [1, 2, 3])) == (" three", [None])


def test_a_token_without_a_whole_character_is_taken_out_too() -> None:
    begun = Partial(text="a", ids=(1, 2), vocabulary=VOCABULARY)  # 2 is the first half of an emoji
    assert shown(RestartFilter(begun, VOCABULARY), text("a", [1]), text("", [2]), text("😀", [3]), text("b", [4])) == ("😀b", [[3], [4]])
    assert shown(RestartFilter(begun, VOCABULARY), text("a😀", [1, 2, 3]), text("b", [4])) == ("😀b", [[3], [4]])
    restart_filter = RestartFilter(begun, VOCABULARY)
    assert restart_filter.feed(event(text("a", [1]))) is None
    assert restart_filter.is_open
    assert restart_filter.end() is None  # the reader has all there is


def test_other_ids_below_the_same_text_are_no_departure() -> None:
    begun = Partial(text="haha", ids=(1, 1), vocabulary=VOCABULARY)
    assert shown(RestartFilter(begun, VOCABULARY), text("haha", [5]), text("!", [6]), text("?", [7])) == ("!?", [None, [7]])
    assert shown(RestartFilter(begun, VOCABULARY), text("ha", [1]), text("ha!", [6]), text("?", [7])) == ("!?", [None, [7]])
    assert shown(RestartFilter(begun, VOCABULARY), text("haha"), text("!", [6]), text("?", [7])) == ("!?", [None, [7]])


def test_where_half_a_character_is_not_made_again_new_text_goes_on_without_ids() -> None:
    begun = Partial(text="a", ids=(1, 2), vocabulary=VOCABULARY)
    assert shown(RestartFilter(begun, VOCABULARY), text("a", [1]), text("b", [4]), text("c", [5])) == ("bc", [None, [5]])
    assert shown(RestartFilter(begun, VOCABULARY), text("ab", [1, 4]), text("c", [5])) == ("bc", [None, [5]])
    assert shown(RestartFilter(begun, VOCABULARY), text("ab", [1]), text("c", [2])) == ("bc", [None, [2]])


def test_new_ids_whose_text_is_still_held_back_are_not_lost_in_silence() -> None:
    begun = Partial(text="ab", ids=(1, 2), vocabulary=VOCABULARY)
    assert shown(RestartFilter(begun, VOCABULARY), text("a", [1, 2, 3]), text("bc", [4]), text("d", [5])) == ("cd", [None, [5]])


@given(st.binary(max_size=12), st.binary(max_size=12), st.data())
def test_by_bytes_as_tokens_text_and_ids_are_whole_behind_any_cut(begun: bytes, new: bytes, data: st.DataObject) -> None:
    """One byte is one token; characters come out when they are whole, as an engine does it."""
    answer = ("ä😀" + begun.hex() + "é漢" + new.hex() + "🚀").encode()
    stop = data.draw(st.integers(0, len(answer)))
    places = sorted({0, len(answer), *data.draw(st.lists(st.integers(0, len(answer)), max_size=6))})
    chunks = [text(whole(answer, start, end), list(answer[start:end])) for start, end in pairwise(places)]
    restart_filter = RestartFilter(Partial(text=whole(answer, 0, stop), ids=tuple(answer[:stop]), vocabulary=VOCABULARY), VOCABULARY)
    transcript = Transcript()
    transcript.add([text(whole(answer, 0, stop), list(answer[:stop]))], stop, VOCABULARY)
    tokens = stop
    for chunk in chunks:
        passed = restart_filter.feed(TokensReceived("s", [chunk], len(chunk.choices[0].token_ids or ())))
        assert not isinstance(passed, Diverged)
        if passed is not None:
            transcript.add(passed.chunks, passed.tokens, VOCABULARY)
            tokens += passed.tokens
    everything = transcript.partial()
    assert everything.text.encode() == answer
    assert (bytes(everything.ids or ()), tokens) == (answer, len(answer))


def whole(answer: bytes, start: int, stop: int) -> str:
    """The characters that become whole between two bytes."""
    return answer[:stop].decode(errors="ignore")[len(answer[:start].decode(errors="ignore")) :]


def test_chunks_that_were_fed_are_left_as_they_were() -> None:
    fed = event(text("on", [1]), text("e two", [2, 3], role="assistant"), text(" three", [4]))
    before = copy.deepcopy(fed)
    passed = RestartFilter(Partial(text="one")).feed(fed)
    assert fed == before
    assert isinstance(passed, TokensReceived)
    assert passed.chunks[-1] is fed.chunks[-1]
