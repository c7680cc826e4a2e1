"""Fields that a server sends beyond the declared ones reach the chunks and the whole answer."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import ChatCompletionChunk, further_fields
from streamco.wire.openai.assembler import assemble
from streamco.wire.openai.extended_decode import ExtendedDecoder
from streamco.wire.openai.further_fields import put_back, take_unknown, unknown_fields
from streamco.wire.openai.stream import ChatStreamParser
from tests.wire.openai.events import DONE, chunk, event, read, text_of, usage_chunk
from tests.wire.recorded import Recording, read_slowly, recordings


def without_nulls(value: Any) -> Any:
    """The value without fields that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_each_level_of_a_chunk_has_its_further_fields() -> None:
    call = {"index": 0, "id": "c", "extra_content": {"google": {"thought_signature": "s"}}, "function": {"name": "f", "strict": True}}
    pieces = chunk("Hi", top={"citations": ["https://x"]}, phase="final", tool_calls=[call]) + usage_chunk(queue_time=0.5)
    parser, [found, counted] = read(pieces)
    assert parser.error is None
    delta: Any = found.choices[0].delta
    assert (getattr(found, "citations"), delta.phase) == (["https://x"], "final")  # noqa: B009  the types don't have it
    assert delta.tool_calls[0].extra_content == {"google": {"thought_signature": "s"}}
    assert delta.tool_calls[0].function.strict is True
    assert further_fields(counted.usage or found) == {"queue_time": 0.5}
    assert text_of([found]) == "Hi"
    assert parser.partial_text() == "Hi"


def test_chunks_without_further_fields_are_of_the_plain_types() -> None:
    _, chunks = read(chunk("Hi", top={"citations": []}) + chunk("!", top={"provider": "x", "obfuscation": "y"}))
    assert [type(each) is ChatCompletionChunk for each in chunks] == [False, True]


@pytest.mark.parametrize("odd", [{"created": "7"}, {"created": 7.5}, {"usage": "none"}])
def test_further_fields_are_kept_where_other_fields_have_odd_types(odd: dict[str, Any]) -> None:
    _, [found] = read(chunk("Hi", top={**odd, "citations": [1]}, phase="c"))
    assert further_fields(found) == {"citations": [1]}
    assert further_fields(found.choices[0].delta) == {"phase": "c"}


def test_further_fields_are_kept_of_a_whole_answer() -> None:
    message = {"role": "assistant", "content": "Hi", "annotations": [{"type": "url_citation"}], "reasoning_details": [{"index": 0}]}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "native_finish_reason": "end", "seed": 5}
    body = {"choices": [choice], "citations": ["https://x"], "provider": "Azure", "usage": {"prompt_tokens": 1, "num_sources_used": 2}}
    parser, _ = read(json.dumps(body).encode())
    whole: Any = assemble(parser.close())
    found = whole.choices[0]
    assert (whole.citations, whole.provider, whole.usage.num_sources_used) == (["https://x"], "Azure", 2)
    assert (found.native_finish_reason, found.seed) == ("end", 5)
    assert (found.message.annotations, found.message.reasoning_details) == ([{"type": "url_citation"}], [{"index": 0}])


def test_an_error_beside_text_is_still_an_error() -> None:
    parser, chunks = read(chunk("Hi") + event({"choices": [], "error": {"message": "x", "code": 502}, "provider": "Azure"}))
    assert text_of(chunks) == "Hi"
    assert parser.error is not None
    assert "status 502" in str(parser.error)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
_NAMES = st.text(max_size=6).filter(lambda name: name not in {"choices", "delta", "usage", "error", "x_groq", "further"})


@given(st.dictionaries(_NAMES, _JSON, max_size=3), st.dictionaries(_NAMES, _JSON, max_size=3))
def test_what_is_known_and_what_is_not_make_the_whole(top: dict[str, Any], inner: dict[str, Any]) -> None:
    value = {**top, "choices": [{"delta": inner}]}
    unknown = unknown_fields(ChatCompletionChunk, value)
    assert unknown.items() <= value.items()
    known = deepcopy(value)
    taken = take_unknown(ChatCompletionChunk, known)
    try:
        built = msgspec.convert(known, ChatCompletionChunk)
    except msgspec.ValidationError:
        return  # a known name with a value of another type
    found = built if taken is None else put_back(built, taken)
    assert further_fields(found) == unknown
    assert without_nulls(found.to_dict()).items() >= without_nulls({**top}).items()


def events_of(recording: Recording) -> list[bytes]:
    return [each.data for each in read_slowly(recording.body).events if b'"choices"' in each.data]


def test_every_field_of_every_recorded_chunk_is_in_the_chunk() -> None:
    """Compared with the event's JSON; nulls are left out, because a struct doesn't know whether a null was sent."""
    compared = 0
    named: set[str] = set()
    for recording in recordings(apis=("chat",)):
        for data in events_of(recording):
            try:
                found = ExtendedDecoder().decode(data)
            except msgspec.ValidationError:
                continue  # of another type; see the lenient decoder's tests
            sent = json.loads(data)
            sent["choices"] = [{"delta": {}, "index": 0, **choice} for choice in sent["choices"]]  # fields that a chunk always has
            assert without_nulls(found.to_dict()) == without_nulls(sent), recording
            compared += 1
            named.update(found.model_extra, *(choice.model_extra for choice in found.choices))
    assert compared > 10_000
    assert named >= {"provider", "x_groq", "native_finish_reason", "content_filter_results", "p"}


def last(recording: Recording) -> Any:
    parser, chunks = read(recording.body)
    assert parser.error is None, recording
    return assemble(chunks)


def test_recorded_answers_of_each_provider_have_its_fields() -> None:
    found: dict[str, set[str]] = {}
    for recording in recordings(apis=("chat",)):
        _, chunks = read(recording.body)
        whole = assemble(chunks)
        names = found.setdefault(recording.provider, set())
        parts: list[Any] = [whole, *whole.choices, *(choice.message for choice in whole.choices)]
        for part in [*parts, *([whole.usage] if whole.usage else [])]:
            names.update(part.model_extra)
            for name, value in part.model_extra.items():
                assert getattr(part, name) == value
    wanted = {
        "openrouter": {"provider", "native_finish_reason", "reasoning_details", "cost", "cost_details"},
        "perplexity": {"citations", "search_results", "search_context_size"},
        "azure": {"content_filter_results", "prompt_filter_results"},
        "llama-server": {"timings"},
        "groq": {"x_groq", "queue_time", "executed_tools"},
        "x.ai": {"num_sources_used"},
        "vercel": {"reasoning_details", "generationId", "provider_metadata"},
    }
    for provider, names in wanted.items():
        known = set().union(*(found[name] for name in found if provider in name))
        assert names <= known, (provider, names - known)


def test_recorded_reasoning_details_come_together_as_the_provider_takes_them_back() -> None:
    """OpenRouter wants the sequence as the model made it: one text with its signature, and each encrypted block."""
    seen = set()
    for recording in recordings(apis=("chat",)):
        sent = [
            detail
            for data in events_of(recording)
            for choice in json.loads(data)["choices"] or []
            for detail in (choice.get("delta") or {}).get("reasoning_details") or []
        ]
        if not sent:
            continue
        message = last(recording).choices[0].message
        details = message.reasoning_details
        for name in ("text", "summary", "signature", "data"):
            joined = "".join(each.get(name) or "" for each in details)
            assert joined == "".join(each.get(name) or "" for each in sent), (recording, name)
        assert sum("data" in each for each in details) == sum("data" in each for each in sent)
        assert len(details) <= 1 + sum("data" in each for each in sent) + len({each.get("index") for each in sent}), recording
        assert message.to_dict()["reasoning_details"] == details
        seen |= {each["type"] for each in details}
    assert seen == {"reasoning.text", "reasoning.summary", "reasoning.encrypted"}


def test_a_stream_whose_every_event_has_unknown_fields_ends_properly() -> None:
    parser, chunks = read(*[chunk(word, top={"q": "ab"}) for word in ("a", "b", "c")], chunk(finish="stop", top={"q": "x"}), DONE)
    assert (text_of(chunks), parser.finish_reason, parser.is_done) == ("abc", "stop", True)
    assert assemble(chunks).model_extra == {"q": "x"}


def test_padding_belongs_to_one_event() -> None:
    _, chunks = read(*[chunk(word, top={"p": "ab", "obfuscation": "xyz"}) for word in ("a", "b")], chunk(finish="stop"), DONE)
    assert chunks[0].to_dict()["p"] == "ab"
    assert not {"p", "obfuscation"} & assemble(chunks).to_dict().keys()


def with_unknown(data: bytes, rng: random.Random) -> bytes:
    """The event with unknown fields at random levels."""
    value = json.loads(data)
    holders = [value, *(value["choices"] or []), *(choice.get("delta") or {} for choice in value["choices"] or [])]
    holders += [value["usage"]] if isinstance(value.get("usage"), dict) else []
    for holder in holders:
        if rng.random() < 0.3:
            holder[f"unknown_{rng.randint(0, 3)}"] = rng.choice([None, 1, "text", ["error"], {"content": "no text", "choices": []}])
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def test_unknown_fields_change_nothing_else_of_any_recorded_answer() -> None:
    rng = random.Random(3)
    for recording in recordings(apis=("chat", "completions")):
        api: Any = "completions" if recording.api == "completions" else "chat"
        events = [data for data in events_of(recording) if not json.loads(data).get("error")][:300]
        plain, odd = ChatStreamParser(api=api), ChatStreamParser(api=api)
        for data in events:
            before, after = plain.feed(b"data: " + data + b"\n\n"), odd.feed(with_unknown(data, rng))
            assert text_of(before) == text_of(after), recording
            assert (plain.tokens, plain.finish_reason, plain.error) == (odd.tokens, odd.finish_reason, odd.error), recording
        assert plain.partial_text() == odd.partial_text()
        assert (plain.usage is None) == (odd.usage is None), recording
        if plain.usage is not None and odd.usage is not None:
            assert plain.usage.total_tokens == odd.usage.total_tokens
