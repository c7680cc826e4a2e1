"""Server-sent events: every line ending, every field, every cut, and what is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import EndpointProtocolError
from streamco.wire.sse import SSEEvent, SSEParser
from tests.wire.recorded import Recording, cuts, random_cuts, read_slowly, recordings


def parse(pieces: Iterable[bytes], **options: int) -> list[SSEEvent]:
    parser = SSEParser(**options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


def parse_data(pieces: Iterable[bytes], **options: int) -> list[bytes]:
    parser = SSEParser(**options)
    payloads = [payload for piece in pieces for payload in parser.feed_data(piece)]
    return payloads + [event.data for event in parser.close()]


def every_way(body: bytes) -> list[SSEEvent]:
    """The events of a body fed whole; it must say the same byte by byte, in twos and threes, and through ``feed_data``."""
    events = parse([body])
    payloads = [event.data for event in events]
    for size in (1, 2, 3, len(body)):
        assert parse(cuts(body, size)) == events
        assert parse_data(cuts(body, size)) == payloads
    return events


# Fields


def test_one_data_line_is_one_event() -> None:
    assert every_way(b"data: hello\n\n") == [SSEEvent(b"hello")]


def test_events_come_out_in_order_as_soon_as_their_blank_line_is_there() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: 1\n\ndata: 2\n") == [SSEEvent(b"1")]
    assert parser.feed(b"\nda") == [SSEEvent(b"2")]
    assert parser.feed(b"ta: 3\n\n") == [SSEEvent(b"3")]
    assert parser.events == 3


def test_a_space_after_the_colon_is_optional_and_only_one_is_taken() -> None:
    assert every_way(b"data:a\n\ndata: b\n\ndata:  c\n\n") == [SSEEvent(b"a"), SSEEvent(b"b"), SSEEvent(b" c")]


def test_several_data_lines_are_joined_by_line_feeds() -> None:
    assert every_way(b"data: a\ndata:\ndata: b\n\n") == [SSEEvent(b"a\n\nb")]


def test_event_id_and_retry_go_with_the_event() -> None:
    body = b"event: delta\nid: 7\nretry: 1500\ndata: a\n\ndata: b\n\n"
    assert every_way(body) == [SSEEvent(b"a", "delta", "7", 1500), SSEEvent(b"b", "message", "7")]


def test_an_id_lasts_until_the_next_and_an_empty_one_clears_it() -> None:
    assert [event.id for event in every_way(b"id: 1\n\ndata: a\n\nid\ndata: b\n\n")] == ["1", ""]


def test_an_id_with_a_nul_and_a_retry_that_is_no_number_are_ignored() -> None:
    assert every_way(b"id: 1\0\nretry: 1s\nretry:\ndata: a\n\n") == [SSEEvent(b"a")]


def test_a_retry_of_thousands_of_digits_is_ignored() -> None:
    assert [event.retry for event in every_way(b"retry: " + b"9" * 5_000 + b"\ndata: x\n\n")] == [None]


def test_an_event_without_data_is_not_dispatched_and_its_type_is_forgotten() -> None:
    assert every_way(b"event: ping\n\ndata: a\n\n") == [SSEEvent(b"a")]


def test_a_data_line_without_value_is_an_event_with_empty_data() -> None:
    assert every_way(b"data\n\ndata:\n\n") == [SSEEvent(b""), SSEEvent(b"")]


def test_unknown_fields_are_ignored() -> None:
    assert every_way(b"datax: no\nfoo\ndata: a\nDATA: no\n\n") == [SSEEvent(b"a")]


def test_an_error_line_becomes_an_error_event() -> None:
    body = b'data: a\n\nerror: {"message":"out of memory"}\n\n'
    assert every_way(body) == [SSEEvent(b"a"), SSEEvent(b'{"error":{"message":"out of memory"}}', "error")]


# Line endings and cuts


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_ending_means_the_same(end: bytes) -> None:
    body = b"event: x\ndata: a\ndata: b\n\n: c\n\ndata: d\n\n".replace(b"\n", end)
    assert every_way(body) == [SSEEvent(b"a\nb", "x"), SSEEvent(b"d")]


def test_line_endings_may_be_mixed() -> None:
    assert every_way(b"data: a\r\n\ndata: b\n\r\ndata: c\r\rdata: d\r\n\r\n") == [SSEEvent(bytes([c])) for c in b"abcd"]


def test_a_carriage_return_ends_the_line_before_its_line_feed_arrives() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == [SSEEvent(b"a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [SSEEvent(b"b")]


def test_a_byte_order_mark_is_skipped_once_and_only_at_the_start() -> None:
    assert every_way(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [SSEEvent(b"a")]


def test_a_body_of_nothing_but_a_piece_of_a_byte_order_mark_has_no_events() -> None:
    assert every_way(b"\xef\xbb") == []


def test_the_last_event_may_lack_its_blank_line_and_even_its_line_end() -> None:
    for tail in (b"data: b", b"data: b\n", b"data: b\r", b"data: b\r\n"):
        assert every_way(b"data: a\n\n" + tail) == [SSEEvent(b"a"), SSEEvent(b"b")]


def test_unicode_line_separators_are_data() -> None:
    text = 'data: {"a":"\u2028\u2029\u0085\v\f\x1c"}'
    assert every_way(text.encode() + b"\n\n") == [SSEEvent(text[6:].encode())]


def test_bytes_that_are_no_utf8_pass_through() -> None:
    assert every_way(b"event: \xff\ndata: \xff\xfe\n\n") == [SSEEvent(b"\xff\xfe", "\ufffd")]


def test_plain_events_after_a_comment_in_one_read_are_all_found() -> None:
    parser = SSEParser()
    assert parser.feed_data(b"data: a\n\n: wait\n\ndata: b\n\ndata: c\n\nda") == [b"a", b"b", b"c"]
    assert parser.feed_data(b"ta: d\n\n") == [b"d"]
    assert (parser.events, parser.comments) == (4, 1)


def test_feed_and_feed_data_may_be_mixed() -> None:
    parser = SSEParser()
    assert parser.feed_data(b"id: 3\ndata: a\n\nda") == [b"a"]
    assert parser.feed(b"ta: b\n\n") == [SSEEvent(b"b", id="3")]


# Comments and blank lines


def test_comments_are_counted_and_are_no_events() -> None:
    parser = SSEParser()
    assert parser.feed(b": keep-alive\n\n: OPENROUTER PROCESSING\n\n:\n") == []
    assert (parser.events, parser.comments) == (0, 3)


def test_a_comment_counts_before_its_blank_line() -> None:
    parser = SSEParser()
    parser.feed(b": hi\n")
    assert parser.comments == 1


def test_a_comment_inside_an_event_does_not_end_it() -> None:
    assert every_way(b"data: a\n: hi\ndata: b\n\n") == [SSEEvent(b"a\nb")]


@pytest.mark.parametrize("piece", [b": keep-alive\n", b"\n", b"\r\n", b": x\n\n"])
def test_keep_alives_for_hours_never_reach_the_limit(piece: bytes) -> None:
    parser = SSEParser(limit_bytes=64)
    for _ in range(10_000):
        assert parser.feed(piece) == []
    assert parser.feed(b"data: a\n\n") == [SSEEvent(b"a")]


# Limits and refusals


def test_a_comment_is_never_too_long_however_it_is_cut() -> None:
    body = b": " + b"x" * 1000 + b"\n: y\ndata: a\n\n"
    for size in (1, 7, 100, len(body)):
        parser = SSEParser(limit_bytes=64)
        assert [event.data for piece in cuts(body, size) for event in parser.feed(piece)] == [b"a"]
        assert parser.comments == 2


def test_an_event_as_large_as_the_limit_passes_and_one_byte_more_is_refused_however_it_is_cut() -> None:
    fits = b"data: " + b"x" * 94
    for size in (1, 7, 1000):
        assert parse(cuts(fits + b"\n\n", size), limit_bytes=100) == [SSEEvent(fits[6:])]
        assert parse_data(cuts(b"data: 1\n\n" + fits + b"\n\n", size), limit_bytes=100) == [b"1", fits[6:]]
        with pytest.raises(EndpointProtocolError, match="at most 100 bytes"):
            parse(cuts(fits + b"x\n\n", size), limit_bytes=100)


def test_an_event_of_many_lines_is_measured_as_a_whole() -> None:
    body = b"data: 123456\n" * 8 + b"\n"  # 8 * 13 - 1 bytes
    assert len(parse([body], limit_bytes=103)) == 1
    for size in (1, 1000):
        with pytest.raises(EndpointProtocolError):
            parse(cuts(body, size), limit_bytes=102)


def test_an_event_that_never_ends_is_refused_while_it_grows() -> None:
    parser = SSEParser(limit_bytes=1000)
    for _ in range(10):
        assert parser.feed(b"data: " + b"x" * 94) == []
    with pytest.raises(EndpointProtocolError, match="expected an event of at most 1000 bytes"):
        parser.feed(b"data: " + b"x" * 94)


def test_events_before_a_failure_come_first_and_the_failure_with_the_next_call() -> None:
    parser = SSEParser()
    assert parser.feed(b'data: a\n\n{"json": true}\n\ndata: b\n\n') == [SSEEvent(b"a")]
    for call in (parser.feed, parser.feed_data):
        with pytest.raises(EndpointProtocolError, match="bare JSON"):
            call(b"data: c\n\n")
    with pytest.raises(EndpointProtocolError):
        parser.close()


def test_plain_payloads_before_a_failure_come_first_too() -> None:
    parser = SSEParser()
    parser.feed_data(b"data: 0\n\n")
    assert parser.feed_data(b"data: a\n\n<html>\n\n") == [b"a"]
    with pytest.raises(EndpointProtocolError, match="HTML"):
        parser.feed_data(b"")


def test_newline_delimited_json_is_refused_at_its_first_byte() -> None:
    with pytest.raises(EndpointProtocolError, match=r"expected server-sent events .*, got a line of bare JSON, as in NDJSON"):
        SSEParser().feed(b'{"model":"llama3"')


def test_an_html_page_is_refused() -> None:
    with pytest.raises(EndpointProtocolError, match="got HTML: '<!DOCTYPE html>'"):
        SSEParser().feed(b"<!DOCTYPE html>")


def test_a_megabyte_byte_by_byte_is_joined_once() -> None:
    """A parser that joins on every read would copy half a terabyte here, and run into the tests' time limit."""
    parser = SSEParser(limit_bytes=1 << 21)
    parser.feed(b"data: ")
    for _ in range(1 << 20):
        parser.feed(b"x")
    [event] = parser.feed(b"\n\n")
    assert len(event.data) == 1 << 20


# Any stream, any cut

_PIECES = [b"data", b"event", b"id", b"retry", b"error", b"x", b":", b": ", b" ", b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"17", b"\0"]
_PIECES += [b"data: ", b"data: a\n\n", b"data:b\n\n", b": hi\n", b"{", b"[", b"<", b"\xef\xbb\xbf", "\u2028é".encode(), b"\xff", b'{"a":1}']


@st.composite
def cut_streams(draw: st.DrawFn) -> list[bytes]:
    body = b"".join(draw(st.lists(st.sampled_from(_PIECES), max_size=40)))
    borders = sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))
    return [body[a:b] for a, b in zip([0, *borders], [*borders, len(body)], strict=True)]


@given(cut_streams(), st.booleans())
def test_any_bytes_at_any_cuts_say_what_the_standard_says(pieces: list[bytes], only_data: bool) -> None:
    expected = read_slowly(b"".join(pieces))
    parser = SSEParser()
    got: list[bytes] = []
    try:
        for piece in pieces:
            got += parser.feed_data(piece) if only_data else [event.data for event in parser.feed(piece)]
        got += [event.data for event in parser.close()]
        assert not expected.is_refused
        assert parser.comments == expected.comments
    except EndpointProtocolError:
        assert expected.is_refused
    assert got == [event.data for event in expected.events]


@given(cut_streams())
def test_type_id_and_retry_do_not_depend_on_the_cuts(pieces: list[bytes]) -> None:
    expected = read_slowly(b"".join(pieces))
    if not expected.is_refused:
        assert [(e.data, e.event, e.id, e.retry) for e in parse(pieces)] == [(e.data, e.event, e.id, e.retry) for e in expected.events]


# Recordings


def events_and_comments(recording: Recording) -> tuple[int, int]:
    lines = re.split(rb"\r\n|\n", recording.body)
    return sum(line.startswith(b"data:") for line in lines), sum(line.startswith(b":") for line in lines)


def test_every_recorded_event_stream_has_the_events_that_its_lines_say() -> None:
    for recording in recordings(excluding=("ollama-ndjson",)):
        parser = SSEParser()
        events = parser.feed(recording.body) + parser.close()
        slow = read_slowly(recording.body)
        assert [(e.data, e.event, e.id) for e in events] == [(e.data, e.event, e.id) for e in slow.events], recording
        data_lines = sum(event.data.count(b"\n") + 1 for event in events if not event.data.startswith(b'{"error":{"detail"'))
        assert data_lines == recording.about["data_lines"], recording
        assert parser.comments == recording.about["comment_lines"], recording
        assert sum(e.event != "message" for e in events) >= recording.about["event_lines"], recording


def test_every_recorded_event_stream_is_the_same_at_random_cuts() -> None:
    rng = random.Random(20_240_601)
    for recording in recordings(excluding=("ollama-ndjson",)):
        expected = [event.data for event in read_slowly(recording.body).events]
        for longest in (60, 3000):
            assert parse_data(random_cuts(recording.body, rng, longest)) == expected, recording


def test_small_recorded_event_streams_are_the_same_byte_by_byte() -> None:
    for recording in recordings(excluding=("ollama-ndjson",)):
        if len(recording.body) <= 6000:
            expected = [event.data for event in read_slowly(recording.body).events]
            assert parse_data(cuts(recording.body, 1)) == expected, recording


def test_every_recorded_ndjson_body_is_refused() -> None:
    found = recordings(apis=("ollama-ndjson",))
    assert found
    for recording in found:
        with pytest.raises(EndpointProtocolError, match="NDJSON"):
            parse([recording.body])


def test_plain_events_after_others_have_the_last_id() -> None:
    parser = SSEParser(limit_bytes=20)
    assert parser.feed(b"id: 7\ndata: a\n\n") == [SSEEvent(b"a", id="7")]
    assert parser.feed(b"data: b\n\ndata:c\r\n\r\nevent: x\ndata: d\n\n") == [
        SSEEvent(b"b", id="7"),
        SSEEvent(b"c", id="7"),
        SSEEvent(b"d", "x", "7"),
    ]
    assert parser.feed(b"data: e\n\ndata: " + b"f" * 21 + b"\n\n") == [SSEEvent(b"e", id="7")]
    assert parser.events == 5
    with pytest.raises(EndpointProtocolError, match="at most 20 bytes"):
        parser.feed(b"")
