"""Plain events scanned and copied, both twins: what is taken, where it stops, and that nothing is read past the end."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco._native import ssescan_py
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from tests.native.conftest import TWINS, load_twin
from tests.support.examples import examples

LIMIT = 1 << 20


@pytest.fixture(scope="module", params=TWINS)
def ssescan(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin("ssescan", request.param)


def test_plain_events_are_taken_and_the_bytes_they_took_are_counted(ssescan: ModuleType) -> None:
    body = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    assert ssescan.scan_events(body, LIMIT) == ([b'{"a":1}', b"[DONE]"], len(body))


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a \n\n", b" a "),
        (b"data:\n\n", b""),
        (b"data: \n\n", b""),
        (b"data: a\r\n\r\n", b"a"),
        (b"data:\r\n\r\n", b""),
        (b"data: \xff\0\xe2\x80\xa8\n\n", b"\xff\0\xe2\x80\xa8"),
    ],
)
def test_one_space_is_optional_and_both_line_ends_are_known(ssescan: ModuleType, body: bytes, payload: bytes) -> None:
    assert ssescan.scan_events(body, LIMIT) == ([payload], len(body))


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"d",
        b"data:",
        b"data: b",
        b"data: b\n",
        b"data: b\ndata: c\n\n",
        b"data: b\r\n",
        b"data: b\r\n\r",
        b"data: b\r\n\n",
        b"data: b\n\r\n",
        b"data: b\r\r",
        b"data: b\rc\n\n",
        b"data: b\rc\r\n\r\n",
        b"data: b\r\r\n\r\n",
        b"data\n\n",
        b"datax: b\n\n",
        b"Data: b\n\n",
        b" data: b\n\n",
        b"\n",
        b": comment\n\n",
        b"event: x\ndata: b\n\n",
        b"id: 1\n\n",
        b'{"json": 1}\n\n',
    ],
)
def test_it_stops_at_whatever_is_not_a_whole_plain_event(ssescan: ModuleType, rest: bytes) -> None:
    assert ssescan.scan_events(rest, LIMIT) == ([], 0)
    assert ssescan.scan_events(b"data: a\n\n" + rest, LIMIT) == ([b"a"], 9)
    assert ssescan.scan_events(b"data: a\r\n\r\n" + rest, LIMIT) == ([b"a"], 11)


def test_an_event_longer_than_the_limit_is_left_to_the_caller(ssescan: ModuleType) -> None:
    for end in (b"\n\n", b"\r\n\r\n"):
        assert ssescan.scan_events(b"data: 1234" + end, 10) == ([b"1234"], 10 + len(end))
        assert ssescan.scan_events(b"data: 1234" + end, 9) == ([], 0)


def test_only_bytes_are_scanned(ssescan: ModuleType) -> None:
    with pytest.raises(TypeError):
        ssescan.scan_events("data: a\n\n", LIMIT)


_PIECES = [b"data:", b"data: ", b" ", b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"a", b'{"b":"c"}', b":", b"data: x\n\n", b"\0", b"\xff"]


@given(st.lists(st.sampled_from(_PIECES), max_size=30), st.integers(0, 40))
@settings(max_examples=examples(100, thorough=300))
def test_the_twins_agree_on_anything(pieces: list[bytes], limit: int) -> None:
    body = b"".join(pieces)
    assert load_twin("ssescan", "native").scan_events(body, limit) == ssescan_py.scan_events(body, limit)


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans(), st.booleans()), max_size=8), st.binary(max_size=20))
def test_what_was_written_plainly_is_found_again(events: list[tuple[bytes, bool, bool]], rest: bytes) -> None:
    payloads = [payload.translate(None, b"\r\n").lstrip(b" ") for payload, _, _ in events]
    body = b"".join(
        b"data:" + b" " * has_space + payload + (b"\r\n\r\n" if is_crlf else b"\n\n")
        for payload, (_, has_space, is_crlf) in zip(payloads, events, strict=True)
    )
    assert ssescan_py.scan_events(body, LIMIT) == (payloads, len(body))
    found, used = ssescan_py.scan_events(body + b":" + rest, LIMIT)
    assert (found, used) == (payloads, len(body))


# Copies of events

HEAD, TAIL = b'{"choices":[{"delta":{"content":"', b'"}}],"model":"m"}'
read_text = msgspec.json.Decoder(str).decode


def copies(ssescan: ModuleType, payloads: list[bytes], start: int = 0, field: str = "content") -> Any:
    chunk = ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta("x"))], model="m")
    return ssescan.copy_events(payloads, start, HEAD, TAIL, chunk=chunk, field=field, read_text=read_text)


def test_events_that_differ_in_one_string_are_copied(ssescan: ModuleType) -> None:
    payloads = [HEAD + text + TAIL for text in (b"a", b"\xc3\xa9", b"\\n\\u0041", b"\\\\", b"a b")]
    chunks, pieces, longest = copies(ssescan, payloads)
    assert pieces == ["a", "é", "\nA", "\\", "a b"]
    assert longest == 3
    assert chunks == [msgspec.json.decode(each, type=ChatCompletionChunk) for each in payloads]
    assert copies(ssescan, payloads, 3)[1] == pieces[3:]
    assert copies(ssescan, payloads, 5) == copies(ssescan, [], -1) == ([], [], 0)


@pytest.mark.parametrize(
    "other", [b"", b"{}", HEAD, TAIL, HEAD + TAIL, HEAD + b"a" + TAIL[:-1], HEAD[1:] + b"a" + TAIL, HEAD[:-1] + TAIL, HEAD[:5] + TAIL]
)
def test_another_event_ends_the_copies(ssescan: ModuleType, other: bytes) -> None:
    assert copies(ssescan, [HEAD + b"a" + TAIL, other, HEAD + b"b" + TAIL])[1] == ["a"]


@pytest.mark.parametrize("text", [b'"', b"a\x00", b"\x1f", b"\n", b"\xff", b"\xed\xa0\x80", b"\\", b"\\x", b'a"b', b'\\"a","b":"'])
def test_bytes_that_are_no_json_string_end_the_copies(ssescan: ModuleType, text: bytes) -> None:
    assert copies(ssescan, [HEAD + b"a" + TAIL, HEAD + text + TAIL])[1] == ["a"]


def test_another_field_may_get_the_text(ssescan: ModuleType) -> None:
    [chunk], pieces, _ = copies(ssescan, [HEAD + b"a" + TAIL], field="reasoning")
    assert (chunk.choices[0].delta.reasoning, chunk.choices[0].delta.content, pieces) == ("a", "x", ["a"])


def test_values_of_other_types_raise(ssescan: ModuleType) -> None:
    with pytest.raises(TypeError):
        copies(ssescan, ["a" * 100])  # type: ignore[list-item]
    with pytest.raises(AttributeError):
        copies(ssescan, [HEAD + b"a" + TAIL], field="unknown")
    with pytest.raises((TypeError, IndexError)):
        ssescan.copy_events([HEAD + b"a" + TAIL], 0, HEAD, TAIL, chunk=ChatCompletionChunk(), field="content", read_text=read_text)


def test_an_error_that_is_no_value_error_is_passed_on(ssescan: ModuleType) -> None:
    def fail(text: bytes) -> str:
        raise LookupError(text)

    chunk = ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta("x"))])
    with pytest.raises(LookupError):
        ssescan.copy_events([HEAD + b"\\n" + TAIL], 0, HEAD, TAIL, chunk=chunk, field="content", read_text=fail)


def test_copies_leak_nothing(ssescan: ModuleType) -> None:
    payloads = [HEAD + b"some text" + TAIL, HEAD + b"\\n" + TAIL, HEAD + b"\xff" + TAIL]
    chunk = ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta("x"))], model="m")
    watched = [HEAD, TAIL, chunk, chunk.choices[0], chunk.choices[0].delta, chunk.model, *payloads]
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(50):
        ssescan.copy_events(payloads, 0, HEAD, TAIL, chunk=chunk, field="content", read_text=read_text)
    assert [sys.getrefcount(each) for each in watched] == before


_BYTES = st.lists(st.sampled_from([HEAD, TAIL, b"a", b"\\", b'"', b"\\n", b"\xc3", b"\xa9", b"\x00", b"\x7f"]), max_size=6).map(b"".join)


@given(st.lists(st.one_of(_BYTES, _BYTES.map(lambda text: HEAD + text + TAIL)), max_size=8), st.integers(-1, 4))
@settings(max_examples=examples(200, thorough=1000))
def test_the_twins_agree_on_copies_of_anything(payloads: list[bytes], start: int) -> None:
    assert copies(load_twin("ssescan", "native"), payloads, start) == copies(ssescan_py, payloads, start)
