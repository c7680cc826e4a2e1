"""The scanner of plain events, both twins: what it takes, where it stops, and that it never reads past the end."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco._native import ssescan_py
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
