"""Answers are taken apart alike however their bytes are cut, and places are found to the byte."""

from __future__ import annotations

import random

import pytest

from streamco.testing.http_framing import BodyPositionFinder, ObjectPositionFinder, Part, ResponseReader

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nc;note=x\r\n there\r\n you\r\n0\r\nTrailer: x\r\n\r\n"
SIZED = b"HTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\nabc"
NOTHING = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nrest\r\n\r\nof it"


def joined(parts: list[Part]) -> list[tuple[str, bytes]]:
    """Neighbouring pieces of a body as one."""
    found: list[tuple[str, bytes]] = []
    for kind, piece in parts:
        if kind == "body" and found and found[-1][0] == "body":
            found[-1] = ("body", found[-1][1] + piece)
        else:
            found.append((kind, piece))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_answers_of_every_framing_come_out_whole_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    data, reader, parts = CHUNKED + SIZED + NOTHING + ENDLESS, ResponseReader(), []
    while data:
        size = rng.randrange(1, 4 if seed % 2 else 200)
        parts += reader.feed(data[:size])
        data = data[size:]
    kinds = [kind for kind, _ in joined(parts)]
    bodies = [piece for kind, piece in joined(parts) if kind == "body"]
    assert kinds == ["head", "body", "end", "head", "body", "end", "head", "head", "end", "head", "end", "head", "body"], f"seed {seed}"
    assert bodies == [b"hello there\r\n you", b"abc", b"rest\r\n\r\nof it"]


def test_a_reader_says_whether_the_body_is_chunked() -> None:
    reader = ResponseReader()
    reader.feed(CHUNKED[:-20])
    assert reader.is_chunked
    reader.feed(CHUNKED[-20:])
    reader.feed(SIZED)
    assert not reader.is_chunked


@pytest.mark.parametrize(
    ("events", "offset", "in_character", "before"),
    [
        (0, 0, False, ""),
        (0, 3, False, "dat"),
        (1, 0, False, "data: a\n\n"),
        (2, 0, False, "data: a\n\ndata: é\n\n"),
        (2, 6, False, "data: a\n\ndata: é\n\ndata: "),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_place_is_found_to_the_byte_whatever_the_pieces(events: int, offset: int, in_character: bool, before: str, size: int) -> None:
    assert (
        passed("data: a\n\ndata: é\n\ndata: b 日\n\n", BodyPositionFinder(events, offset, in_character=in_character), size)
        == before.encode()
    )


@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_middle_of_a_character_is_found_after_its_first_byte(size: int) -> None:
    text = "data: a\n\ndata: é\n\ndata: b 日\n\n"
    assert passed(text, BodyPositionFinder(0, 0, in_character=True), size) == b"data: a\n\ndata: \xc3"
    assert passed(text, BodyPositionFinder(2, 0, in_character=True), size) == text.encode()[: text.encode().index("日".encode()) + 1]


def test_a_position_beyond_the_end_is_not_found() -> None:
    assert passed("data: a\n\n", BodyPositionFinder(2, 0, in_character=False), 3) is None
    assert passed("data: a\n\n", BodyPositionFinder(0, 100, in_character=False), 3) is None
    assert passed("data: a\n\n", BodyPositionFinder(0, 0, in_character=True), 3) is None


def passed(text: str, place: BodyPositionFinder, size: int) -> bytes | None:
    """What comes before the place, the text fed in pieces of this size."""
    body = text.encode()
    for start in range(0, len(body), size):
        at = place.find(body[start : start + size])
        if at is not None:
            return body[: start + at]
    return None


OBJECTS = b"\x81\xa1a\x01" + b"\x92\xa3one\xc4\x01\x05" + b"\xc0"  # a map of 4 bytes, an array of 8, nil


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("objects", "offset", "position"),
    [(0, 0, 0), (0, 3, 3), (1, 0, 4), (1, 2, 6), (2, 0, 12), (3, 0, 13), (3, 1, None), (4, 0, None)],
)
def test_a_place_among_objects_is_found_to_the_byte_whatever_the_pieces(size: int, objects: int, offset: int, position: int | None) -> None:
    finder = ObjectPositionFinder(objects, offset)
    found = None
    for start in range(0, len(OBJECTS), size):
        place = finder.find(OBJECTS[start : start + size])
        if place is not None:
            found = start + place
            break
    assert found == position


def test_a_reader_says_what_the_body_is() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nContent-Length: 0\r\n\r\n")
    assert reader.media_type == "text/event-stream"
    reader.feed(SIZED)
    assert reader.media_type == ""
