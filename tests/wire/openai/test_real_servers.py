"""What real servers and proxies do to a stream, one test a habit; the public thread that reported it stands beside it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from streamco.config import Limits
from streamco.errors import EndpointProtocolError, EndpointStatusError
from streamco.wire.openai.assembler import assemble
from streamco.wire.openai.stream import ChatStreamParser
from tests.support.calls import function_of
from tests.wire.openai.events import DONE, USAGE, chunk, event, read, text_of, usage_chunk
from tests.wire.recorded import Recording, answer_slowly, cuts, recordings

LIMITS = Limits(event_bytes=4096)


def one(recordings_found: list[Recording]) -> Recording:
    assert recordings_found
    return recordings_found[0]


# Keep-alives and queues


def test_keep_alive_comments_are_life_but_neither_chunks_nor_tokens() -> None:
    """DeepSeek's rate-limit page; langchaingo#942, CopilotChat.nvim#944; openai-go#227 for OpenRouter's."""
    parser = ChatStreamParser()
    for count, comment in enumerate([b": keep-alive\n\n", b": OPENROUTER PROCESSING\n\n", b":\n", b":hi\r\n\r\n"], start=1):
        assert parser.feed(comment) == []
        assert (parser.comments, parser.tokens, parser.events) == (count, 0, 0)
    assert text_of(parser.feed(chunk("Hi"))) == "Hi"


def test_recorded_keep_alives_of_openrouter_are_counted() -> None:
    for recording in recordings(apis=("chat",), provider="openrouter"):
        parser, _ = read(*cuts(recording.body, 100))
        assert parser.comments == recording.about["comment_lines"]


def test_empty_lines_before_a_whole_json_answer_are_skipped() -> None:
    """DeepSeek sends them for minutes while the request waits in its queue."""
    body = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": USAGE}
    parser, chunks = read(b"\n", b"\n\n", b"\r\n", b"\n" + json.dumps(body).encode()[:20], json.dumps(body).encode()[20:])
    assert chunks == []
    assert text_of(parser.close()) == "Hi"
    assert (parser.is_complete, parser.finish_reason, parser.error) == (True, "stop", None)


def test_empty_lines_before_a_stream_are_skipped_however_many() -> None:
    parser, chunks = read(*[b"\n"] * 10_000, chunk("Hi"), limits=LIMITS)
    assert (text_of(chunks), parser.error) == ("Hi", None)


# Ends


def test_a_clean_end_without_done_or_finish_reason_is_a_truncation_also_in_a_tool_call() -> None:
    """command-code#785, cadis#2547, litellm#32159."""
    calls = [{"index": 0, "id": "1", "function": {"name": "f", "arguments": '{"city": "Par'}}]
    parser, _ = read(chunk("Let me look. ") + chunk(tool_calls=calls))
    with pytest.raises(EndpointProtocolError, match="truncated") as caught:
        parser.close()
    assert caught.value.partial == "Let me look. "


def test_servers_that_never_say_done_are_complete_with_their_finish_reason() -> None:
    """Perplexity: api-discussion#209."""
    found = recordings(apis=("chat",), provider="perplexity")
    for recording in found:
        parser, _ = read(recording.body)
        assert not parser.is_done
        assert parser.is_complete
        assert parser.close() == []


def test_recordings_that_broke_off_say_so_at_every_cut_before_the_finish_reason() -> None:
    recording = one(recordings(apis=("chat",), provider="api.deepseek.com"))
    end = re.search(rb'"finish_reason":\s*"', recording.body)
    assert end is not None
    begin_of_last = recording.body.rindex(b"data:", 0, end.start())
    for cut in range(0, begin_of_last, max(1, begin_of_last // 50)):
        parser, chunks = read(recording.body[:cut])
        with pytest.raises(EndpointProtocolError, match="truncated") as caught:
            parser.close()
        assert caught.value.partial == text_of(chunks)


# Errors inside a stream of status 200


@pytest.mark.parametrize(
    ("failing", "status"),
    [
        (event({"error": {"message": "slow down", "code": 429}}), 429),
        (event({"error": {"message": "slow down", "code": "429"}, "choices": []}), 429),
        (event({"error": {"message": "x", "type": "invalid_request_error", "code": "rate_limit_exceeded"}}), 429),
        (event({"choices": [{"delta": {"content": ""}, "finish_reason": "error", "error": {"code": 502, "message": "x"}}]}), 502),
        (event({"choices": [{"delta": {"content": ""}, "finish_reason": "error"}], "error": {"code": 503, "message": "x"}}), 503),
        (event({"choices": [{"delta": {}, "finish_reason": "error"}]}), 500),
        (event({"error": "the model crashed"}), 500),
        (event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), 529),
        (b'event: error\ndata: {"error":{"message":"x","status_code":400}}\n\n', 400),
        (b'error: {"code":500,"message":"x","type":"server_error"}\n\n', 500),
        (event({"choices": [], "x_groq": {"error": "over capacity"}}), 500),
    ],
)
@pytest.mark.parametrize("ends_with_done", [True, False])
def test_an_error_in_the_stream_is_classified_like_a_status_and_keeps_the_text(failing: bytes, status: int, ends_with_done: bool) -> None:
    """OmniRoute#8210, local-operator#223, jp#978, octo-agent#910; genkit#6079 for the text."""
    parser, chunks = read(chunk("Hel") + chunk("lo") + failing + (DONE if ends_with_done else b""))
    assert text_of(chunks) == "Hello"
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, parser.error.partial) == (status, "Hello")
    assert not parser.is_done


def test_recorded_errors_in_streams_are_raised_with_the_servers_words() -> None:
    groq = one([r for r in recordings(provider="groq") if r.about["error_in_stream"]])
    gpustack = one(recordings(provider="gpustack"))
    for recording, status, words in ((groq, 400, "model did not call a tool"), (gpustack, 500, "failed to decode")):
        parser, _ = read(recording.body)
        with pytest.raises(EndpointStatusError, match=words) as caught:
            parser.close()
        assert caught.value.status == status
        assert caught.value.partial == answer_slowly(recording.body).text


# Choices that are not there


def test_chunks_without_choices_neither_break_the_stream_nor_lose_their_usage() -> None:
    """Azure's prompt_filter_results first, usage last: mentat#429, meilisearch#6477, litellm#25638, langchain-litellm#56."""
    first = event({"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": [{"prompt_index": 0}]})
    missing = event({"id": "1", "usage": None})
    null = event({"id": "1", "choices": None, "usage": USAGE})
    parser, chunks = read(first + chunk("Hi") + chunk(finish="stop") + missing + usage_chunk() + null + DONE)
    assert (text_of(chunks), parser.finish_reason, parser.error) == ("Hi", "stop", None)
    assert parser.usage is not None
    assert parser.usage.total_tokens == 12


def test_a_choice_without_delta_or_with_a_null_one_is_no_content() -> None:
    """aiavatarkit#124."""
    body = event({"id": "1", "choices": [{"index": 0}]}) + event(
        {"id": "1", "choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}
    )
    parser, chunks = read(body)
    assert [choice.delta.content for c in chunks for choice in c.choices] == [None, None]
    assert (parser.finish_reason, parser.tokens, parser.error) == ("stop", 0, None)


def test_azures_recorded_first_events_are_read_over() -> None:
    for recording in recordings(apis=("chat",), provider="azure"):
        parser, chunks = read(recording.body)
        assert not chunks[0].choices or b"prompt_filter_results" not in recording.body
        assert parser.close() == []


# Text


def test_utf8_cut_between_reads_is_whole_again() -> None:
    """praxis#739, graniet/llm#90."""
    text = "héllo 世界 👩‍👩‍👧"
    body = b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode() + b"\n\n"
    for at in range(len(body)):
        _, chunks = read(body[:at], body[at:])
        assert text_of(chunks) == text


def test_invalid_utf8_is_replaced_and_the_stream_goes_on() -> None:
    broken = b'data: {"choices":[{"index":0,"delta":{"content":"a\xff\xe4\xb8b"}}]}\n\n'
    parser, chunks = read(broken + chunk("c") + chunk(finish="stop"))
    assert text_of(chunks) == "a\ufffd\ufffdbc"
    assert parser.error is None


def test_lone_surrogates_are_replaced_and_pairs_kept() -> None:
    parser, chunks = read(b'data: {"choices":[{"delta":{"content":"\\ud83d\\ude00 \\ud83d|\\ude00"}}]}\n\n')
    text = text_of(chunks)
    assert text == "😀 \ufffd|\ufffd"
    assert text.encode()
    assert parser.error is None


def test_unicode_line_separators_do_not_end_a_line() -> None:
    """dify#39008, codex-lb#1010, httpx-sse#34, langgraph#2560."""
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei"
    body = b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode() + b"\n\n"
    for size in (1, 2, len(body)):
        parser, chunks = read(*cuts(body, size))
        assert (text_of(chunks), parser.error) == (text, None)


# Line ends and framing


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("prefix", [b"data: ", b"data:"])
@pytest.mark.parametrize("done", [b"[DONE]", b"[DONE] ", b" [DONE]"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_framing_in_the_wild_says_the_same_at_every_cut(end: bytes, prefix: bytes, done: bytes, mark: bytes) -> None:
    """xuan#194, praxis#739, mistral-vibe#793."""
    body = chunk("Hel") + chunk("lo") + chunk(finish="stop") + b"data: " + done + b"\n\n"
    body = mark + body.replace(b"data: ", prefix).replace(b"\n", end)
    for size in (1, 2, 3, len(body)):
        parser, chunks = read(*cuts(body, size))
        parser.close()
        assert (text_of(chunks), parser.is_done) == ("Hello", True)


def test_the_last_event_counts_without_its_blank_line() -> None:
    for tail in (b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n"):
        parser, _ = read(chunk("Hi") + tail)
        assert parser.close() == []
        assert parser.is_done


def test_recorded_crlf_streams_are_read() -> None:
    found = [r for r in recordings(apis=("chat",)) if r.about["crlf_lines"]]
    assert found
    for recording in found:
        for size in (1, 1000):
            _, chunks = read(*cuts(recording.body, size))
            assert text_of(chunks) == answer_slowly(recording.body).text


def test_events_merged_into_one_read_and_split_over_many_are_the_same() -> None:
    """litellm#26181, #21698, #22346."""
    body = b"".join(chunk(f"word{i} ") for i in range(300)) + chunk(finish="stop") + DONE
    _, whole = read(body)
    assert len(whole) == 301
    for size in (1, 17, 1460):
        _, chunks = read(*cuts(body, size))
        assert chunks == whole


def test_a_huge_event_in_small_reads_is_taken_up_to_the_limit_and_refused_beyond() -> None:
    large = chunk("x" * 3500)
    _, chunks = read(*cuts(large, 10), limits=LIMITS)
    assert len(text_of(chunks)) == 3500
    parser, chunks = read(*cuts(chunk("x" * 5000), 10), limits=LIMITS)
    assert chunks == []
    assert isinstance(parser.error, EndpointProtocolError)
    assert "at most 4096 bytes" in str(parser.error)


def test_ndjson_is_refused_with_a_clear_error_as_soon_as_its_second_line_begins() -> None:
    """Ollama's own API instead of its OpenAI-compatible one."""
    lines = b'{"model":"llama3","message":{"content":"Hi"},"done":false}\n' * 2
    parser, _ = read(*cuts(lines, 1), endpoint="ollama")
    assert isinstance(parser.error, EndpointProtocolError)
    assert "expected a chat.completion.chunk stream, got the NDJSON stream of Ollama's /api/chat" in str(parser.error)
    parser, _ = read(*cuts(b'{"text":"Hi"}\n' * 2, 1), endpoint="unknown")
    assert isinstance(parser.error, EndpointProtocolError)
    assert 'expected server-sent events ("data: ..." lines) or one JSON answer, got NDJSON' in str(parser.error)
    for recording in recordings(apis=("ollama-ndjson",)):
        parser, chunks = read(*cuts(recording.body, 500))
        assert (chunks, "NDJSON" in str(parser.error)) == ([], True), recording


# Deltas


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"reasoning": "hm", "reasoning_content": None, "content": None},
        {"reasoning_content": "hm", "content": ""},
        {"reasoning_text": "hm"},
        {"thinking": "hm", "content": ""},
        {"thinking": "hm", "reasoning_text": "hm"},
    ],
)
def test_thinking_is_read_under_any_name_and_counted_once(delta: dict[str, str | None]) -> None:
    """vLLM renamed it; llama_index#21220, fastllm#61, vllm#43933."""
    parser, chunks = read(event({"choices": [{"index": 0, "delta": delta}]}))
    assert parser.tokens == 1
    assert assemble(chunks).choices[0].message.reasoning_content == "hm"
    assert parser.partial_text() == ""


def test_thinking_and_content_in_one_delta_are_both_kept() -> None:
    _, chunks = read(chunk("answer", reasoning_content="hm") + chunk(None, finish="stop"))
    message = assemble(chunks).choices[0].message
    assert (message.content, message.reasoning_content) == ("answer", "hm")


def test_null_content_is_no_content() -> None:
    parser, [only] = read(event({"choices": [{"index": 0, "delta": {"content": None, "role": "assistant"}}]}))
    assert (only.choices[0].delta.content, parser.tokens) == (None, 0)


def tool_calls(*deltas: dict[str, Any]) -> list[tuple[str, str, str]]:
    parser, chunks = read(b"".join(chunk(tool_calls=[delta]) for delta in deltas) + chunk(finish="tool_calls"))
    assert parser.error is None
    calls = assemble(chunks).choices[0].message.tool_calls or []
    return [(call.id, function_of(call).name, function_of(call).arguments) for call in calls]


def test_tool_calls_with_only_an_index_after_the_first_delta() -> None:
    deltas: tuple[dict[str, Any], ...] = (
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
    )
    assert tool_calls(*deltas) == [("a", "f", "{}")]


def test_tool_calls_without_index() -> None:
    """openai-python#2806, AstrBot#6661."""
    first: list[dict[str, Any]] = [{"id": "a", "function": {"name": "f", "arguments": "{"}}, {"function": {"arguments": "}"}}]
    second: list[dict[str, Any]] = [{"id": "b", "function": {"name": "g", "arguments": "{"}}, {"id": "b", "function": {"arguments": "}"}}]
    assert tool_calls(*first, *second) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_tool_calls_without_index_and_id() -> None:
    """continue#13235."""
    deltas: list[dict[str, Any]] = [{"function": {"name": name, "arguments": text}} for name, text in (("f", "{}"), ("g", "[]"))]
    assert tool_calls(*deltas) == [("", "f", "{}"), ("", "g", "[]")]


def test_tool_calls_whose_first_index_is_one() -> None:
    """pipecat#4987."""
    assert tool_calls({"index": 1, "id": "a", "function": {"name": "f", "arguments": "{}"}}) == [("a", "f", "{}")]


def test_parallel_tool_calls_that_interleave_or_share_an_index() -> None:
    """codex#7517."""
    a, b = {"index": 0, "id": "a", "function": {"name": "f"}}, {"index": 1, "id": "b", "function": {"name": "g"}}
    more = [{"index": i, "function": {"arguments": text}} for i, text in ((1, "["), (0, "{"), (0, "}"), (1, "]"))]
    assert tool_calls(a, b, *more) == [("a", "f", "{}"), ("b", "g", "[]")]
    shared = [{"index": 0, "id": i, "function": {"name": n, "arguments": "{}"}} for i, n in (("a", "f"), ("b", "g"))]
    assert tool_calls(*shared) == [("a", "f", "{}"), ("b", "g", "{}")]


# Cumulative text


def growing_messages(recording: Recording) -> bytes:
    """Perplexity's recording, which has both, as servers send it that have no deltas."""
    without = [re.sub(r', "delta": \{.*?\}(?=\}\])', "", line) for line in recording.body.decode().splitlines()]
    assert '"delta"' not in "".join(without)
    return "\n".join(without).encode() + b"\n\n"


def test_text_that_grows_in_every_event_is_given_once() -> None:
    """Perplexity: api-discussion#209."""
    for recording in recordings(apis=("chat",), provider="perplexity"):
        expected = answer_slowly(recording.body).text
        parser, chunks = read(growing_messages(recording))
        assert text_of(chunks).strip() == expected.strip()
        assert parser.is_complete
        _, chunks = read(recording.body)  # both: the deltas are taken, the messages left
        assert text_of(chunks) == expected


# Usage


NO_COUNTS = [{}, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, {"prompt_tokens": None, "completion_tokens": None}]


@pytest.mark.parametrize("usage", NO_COUNTS)
def test_usage_without_counts_is_none_and_takes_no_count_back(usage: dict[str, Any]) -> None:
    """LocalAI#9927 (zeros from a server that doesn't count)."""
    parser, chunks = read(chunk("Hi", finish="stop"), event({"choices": [], "usage": usage}))
    assert parser.usage is None
    assert all(each.usage is None for each in chunks)
    parser, chunks = read(chunk("Hi", finish="stop"), usage_chunk(), event({"choices": [], "usage": usage}))
    assert parser.usage is not None
    assert (parser.usage.completion_tokens, chunks[-1].usage) == (7, None)


def test_groqs_usage_under_another_name_is_found() -> None:
    parser, chunks = read(chunk("Hi") + chunk(finish="stop", top={"x_groq": {"id": "r", "usage": {**USAGE, "queue_time": 0.07}}}))
    assert parser.usage is not None
    assert parser.usage.completion_tokens == 7
    assert chunks[-1].usage == parser.usage


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_a_usage_with_both_counts_comes_before_one_without(name: str) -> None:
    parser, _ = read(chunk("Hi") + chunk(finish="stop", top={"usage": {**USAGE, name: 0}, "x_groq": {"usage": USAGE}}))
    assert parser.usage is not None
    assert (parser.usage.prompt_tokens, parser.usage.completion_tokens) == (USAGE["prompt_tokens"], USAGE["completion_tokens"])


def test_usage_in_every_chunk_leaves_the_last() -> None:
    parser, _ = read(*[chunk("a", top={"usage": {**USAGE, "completion_tokens": i}}) for i in range(1, 4)])
    assert parser.usage is not None
    assert (parser.usage.completion_tokens, parser.partial_text()) == (3, "aaa")
