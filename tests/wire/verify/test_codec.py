"""Frames to bytes and back: round trips, the layout as msgpack's own package reads it, sizes, and an error for every kind of damage."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.row_costs import RowCost
from streamco.wire.verify.checks import check_draft
from streamco.wire.verify.codec import VerifyCodec, frame_number, hello_versions
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError, VerifyProtocolError
from streamco.wire.verify.frames import (
    ClientFrame,
    Close,
    Draft,
    Extend,
    Follow,
    Hello,
    Open,
    Opened,
    Refusal,
    Resume,
    Resumed,
    ServerFrame,
    VerdictFrame,
    VerifyLimits,
    Welcome,
)
from streamco.wire.verify.topk import TopK
from tests.support.verify_frames import make_draft, make_open, make_verdict
from tests.wire.verify.peers import KEY, LIMITS, SIZE, a_row, codec, msgpack
from tests.wire.verify.test_topk import some_rows

CODEC = codec()
ids_ = st.lists(st.integers(0, SIZE - 1), max_size=30).map(tuple)
number_ = st.integers(0, (1 << 32) - 1)
share_ = st.floats(0, 1)
name_ = st.text(max_size=256).filter(lambda text: text.encode(errors="replace").decode() == text)
digest_ = st.binary(min_size=16, max_size=16)
rule_ = st.builds(Rule, st.sampled_from(RuleKind), st.floats(0.01, 100), number_, share_, share_, share_, st.none() | number_)
rows_ = st.lists(some_rows().filter(lambda row: len(row.ids) <= 16), max_size=8).map(tuple)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    rows = draw(rows_)
    given_ids = draw(ids_)
    pending = tuple(draw(st.sampled_from(row.ids)) for row in rows) if rows else draw(ids_.filter(lambda ids: len(ids) <= 8))
    head = (draw(number_), draw(number_), draw(number_), given_ids + pending, len(given_ids), rows)
    parents = tuple(draw(st.integers(0, number)) for number in range(len(pending))) if draw(st.booleans()) else ()
    try:
        check_draft(make_draft(*head, parents), LIMITS)
    except VerifyProtocolError:  # two equal siblings, or too many paths
        return make_draft(*head)
    return make_draft(*head, parents)


@st.composite
def follows(draw: st.DrawFn) -> Follow:
    draft = draw(drafts())
    after = draw(st.integers(0, (1 << 32) - 2))
    head = (draft.session, draw(st.integers(after + 1, (1 << 32) - 1)), after, draw(st.integers(0, 8)), draw(st.integers(0, SIZE - 1)))
    return Follow(*head, draft.pending, draft.rows, draft.parents)


up_: st.SearchStrategy[ClientFrame] = st.one_of(
    st.builds(Hello, st.integers(1, 9), st.integers(1, 9), name_, st.integers(1, SIZE), st.none() | st.text("abc.-_ ", max_size=99), name_),
    st.builds(Open, number_, rule_, st.integers(0, 255), number_, ids_),
    st.builds(Extend, number_, number_, ids_),
    drafts(),
    follows(),
    st.builds(Resume, number_, digest_, number_, digest_),
    st.builds(Close, number_),
)
limits_ = st.builds(VerifyLimits, frame_bytes=st.integers(1, 1 << 30), top_k=st.integers(1, 255), paths=st.integers(1, 31))
verdicts_ = st.builds(
    VerdictFrame, number_, number_, st.integers(0, 8), st.none() | st.integers(0, SIZE - 1), number_, number_, number_, rows_
)
costs_ = st.lists(st.builds(RowCost, st.integers(1, 99), st.integers(1, 1 << 31)), max_size=64).map(tuple)
down_: st.SearchStrategy[ServerFrame] = st.one_of(
    st.builds(Welcome, st.integers(1, 9), name_, st.integers(0, 255), limits_, number_, st.booleans(), costs_),
    st.builds(Opened, number_, digest_, number_),
    verdicts_,
    st.builds(Resumed, number_, number_, digest_),
    st.builds(Refusal, name_, name_, st.none() | number_, st.none() | number_, st.none() | number_),
)

UP: list[ClientFrame] = [
    Hello(1, 1, "49152:00", SIZE),
    Open(1, Rule(RuleKind.SAMPLE, 0.8, 40, 0.95, 0.05, 0.0, 7), 8, 900, (1, 2, 3)),
    Extend(1, 3, (4, 5)),
    make_draft(1, 2, 5, (6, 7, 8), 1, (a_row(7, 9), a_row(8, 1)), (0, 0)),
    Resume(2, KEY, 5, KEY),
    Close(1),
    Follow(1, 4, 3, 2, 500, (6, 7), (a_row(6, 9), a_row(7)), (0, 1)),
]
DOWN: list[ServerFrame] = [
    Welcome(1, "m", 7, VerifyLimits(), 60, True),
    Opened(1, KEY, 0),
    VerdictFrame(1, 2, 1, 5, 3, 400, 9000, (a_row(5),) * 3),
    Resumed(2, 5, KEY),
    Refusal("overloaded", "later", 1, 2, 500),
    Welcome(1, "m", 7, VerifyLimits(), 60, True, (RowCost(1, 38_000), RowCost(4, 81_000))),
]


def decode(message: bytes, frame: ClientFrame | ServerFrame) -> ClientFrame | ServerFrame:
    return CODEC.decode_down(message) if isinstance(frame, ServerFrame) else CODEC.decode_up(message)


@given(up_)
def test_any_frame_of_a_client_comes_back(frame: ClientFrame) -> None:
    assert CODEC.decode_up(CODEC.encode(frame)) == frame


@given(down_)
def test_any_frame_of_a_server_comes_back(frame: ServerFrame) -> None:
    assert CODEC.decode_down(CODEC.encode(frame)) == frame


@given(st.integers(1, 1 << 32), st.data())
def test_the_number_of_ids_follows_from_the_bytes_at_every_width(size: int, data: st.DataObject) -> None:
    codec = VerifyCodec(size)
    frame = Extend(0, 0, tuple(data.draw(st.lists(st.integers(0, size - 1), max_size=40))))
    assert codec.decode_up(codec.encode(frame)) == frame


# The layout


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (UP[0], [1, 1, 1, "49152:00", SIZE, None, ""]),
        (UP[1], [2, 1, [1, 0.8, 40, 0.95, 0.05, 0.0, 7], 8, 900, bytes.fromhex("010002000300")]),
        (UP[2], [3, 1, 3, bytes.fromhex("04000500")]),
        (make_draft(1, 2, 5, (6, 7, 8), 1), [4, 1, 2, 5, 1, bytes.fromhex("060007000800")]),
        (make_draft(1, 2, 5, (6, 7, 8), 1, (), (0, 0)), [4, 1, 2, 5, 1, bytes.fromhex("060007000800"), b"", b"\0\0"]),
        (UP[4], [5, 2, KEY, 5, KEY]),
        (UP[5], [6, 1]),
        (Follow(1, 4, 3, 2, 500, (6, 7)), [7, 1, 4, 3, 2, 500, bytes.fromhex("06000700")]),
        (Follow(1, 4, 3, 2, 500, (6, 7), (), (0, 1)), [7, 1, 4, 3, 2, 500, bytes.fromhex("06000700"), b"", b"\0\1"]),
        (DOWN[0], [16, 1, "m", 7, [1 << 20, 1 << 17, 31, 64, 64, 1], 60, True, []]),
        (DOWN[5], [16, 1, "m", 7, [1 << 20, 1 << 17, 31, 64, 64, 1], 60, True, [[1, 38_000], [4, 81_000]]]),
        (DOWN[1], [17, 1, KEY, 0]),
        (VerdictFrame(1, 2, 1, 5, 3, 400, 9000), [18, 1, 2, 1, 5, 3, 400, 9000]),
        (DOWN[3], [19, 2, 5, KEY]),
        (DOWN[4], [20, "overloaded", "later", 1, 2, 500]),
    ],
)
def test_msgpack_itself_reads_what_the_specification_says(frame: ClientFrame | ServerFrame, expected: list[Any]) -> None:
    assert msgpack.unpackb(CODEC.encode(frame)) == expected
    assert decode(msgpack.packb(expected), frame) == frame


def test_what_a_later_version_adds_at_the_end_is_left_alone() -> None:
    for frame in (*UP, *DOWN):
        longer = [*msgpack.unpackb(CODEC.encode(frame)), {"new": [1, 2]}, None]
        assert decode(msgpack.packb(longer), frame) == frame


def test_what_follows_a_resumed_hello_is_read_in_any_version() -> None:
    assert hello_versions(msgpack.packb([1, 3, 9, {"anything": 1}])) == (3, 9)
    assert frame_number(msgpack.packb([77, "x"])) == 77


# Sizes


def test_a_greedy_round_of_four_tokens_is_under_a_hundred_bytes_up() -> None:
    websocket = 2 + 4  # a client's header of a small frame, with its mask
    usual = CODEC.encode(make_draft(1, 200, 1200, (49151, 1, 2, 3)))
    tls, tcp, ip = 22, 32, 20  # a record of TLS 1.3, a segment with timestamps, IPv4
    assert len(usual) + websocket + tls + tcp + ip < 100
    most = (1 << 32) - 1
    longest = VerifyCodec(1 << 32).encode(make_draft(most, most, most, (most,) * 4))
    assert len(usual) + websocket == 25
    assert len(longest) + websocket == 42


def test_a_verdict_without_rows_is_as_small() -> None:
    assert len(CODEC.encode(VerdictFrame(1, 2000, 3, 49151, 12, 350, 90_000))) <= 30


def test_four_sampled_tokens_save_more_than_995_of_1000_bytes_of_their_distributions() -> None:
    rows = tuple(a_row(token, *range(100, 119)) for token in range(4))
    wide = codec(VerifyLimits())
    sampled = len(wide.encode(make_draft(1, 2, 300, (0, 1, 2, 3), 0, rows)))
    greedy = len(wide.encode(make_draft(1, 2, 300, (0, 1, 2, 3))))
    assert sampled - greedy <= 0.005 * 4 * 4 * SIZE
    assert sampled < 400


# Limits


def test_a_frame_beyond_its_bytes_is_neither_written_nor_read() -> None:
    small = codec(VerifyLimits(frame_bytes=1 << 15))
    wide = codec(VerifyLimits())
    ids = (1,) * (1 << 14)
    with pytest.raises(FrameSizeError, match="at most 32768 bytes, got 32775"):
        small.encode(Extend(0, 0, ids))
    with pytest.raises(FrameSizeError, match="at most 32768 bytes"):
        small.decode_up(wide.encode(Extend(0, 0, ids)))
    with pytest.raises(FrameSizeError, match="at most 32768 bytes"):
        small.decode_down(bytes(1 << 16))


def test_limits_that_not_every_hello_would_fit_into_are_refused() -> None:
    with pytest.raises(ConfigError, match="frame_bytes: expected at least 32768"):
        VerifyCodec(10, VerifyLimits(frame_bytes=100))


def test_more_ids_than_a_context_holds_are_refused_before_they_are_unpacked() -> None:
    wide = codec(VerifyLimits())
    with pytest.raises(FrameSizeError, match="at most 1000, got 1001"):
        CODEC.encode(Extend(0, 0, (1,) * 1001))
    with pytest.raises(FrameSizeError, match="at most 1000, got 1001"):
        CODEC.decode_up(wide.encode(Extend(0, 0, (1,) * 1001)))


def test_a_draft_beyond_its_limits_names_its_round() -> None:
    wide = codec(VerifyLimits())
    with pytest.raises(FrameSizeError, match="at most 8 ids to verify, got 9") as caught:
        CODEC.decode_up(wide.encode(make_draft(3, 4, 0, (1,) * 9)))
    assert (caught.value.session, caught.value.round_number, caught.value.scope) == (3, 4, "round")
    with pytest.raises(FrameSizeError, match="at most 16 ids, got 17"):
        CODEC.decode_up(wide.encode(make_draft(3, 4, 0, (1,), 0, (a_row(1, *range(2, 18)),))))


def test_the_smaller_limit_of_both_sides_counts() -> None:
    ours, theirs = VerifyLimits(draft_tokens=8, top_k=20), VerifyLimits(draft_tokens=12, top_k=5, frame_bytes=1)
    both = VerifyCodec(SIZE, ours).within(theirs)
    assert (both.limits.draft_tokens, both.limits.top_k, both.limits.frame_bytes) == (8, 5, 1 << 15)
    assert both.vocabulary_size == SIZE


# Damage


@pytest.mark.parametrize("frame", [*UP, *DOWN], ids=lambda frame: type(frame).__name__)
def test_every_truncation_is_malformed(frame: ClientFrame | ServerFrame) -> None:
    whole = CODEC.encode(frame)
    for length in range(len(whole)):
        with pytest.raises(MalformedFrameError):
            decode(whole[:length], frame)
    with pytest.raises(MalformedFrameError, match="trailing"):
        decode(whole + b"\0", frame)


@pytest.mark.parametrize("frame", [*UP, *DOWN], ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("other", [-1, 1 << 32, 1.5, "x", b"x", None, [], {}, msgpack.ExtType(1, b"x"), "x" * 5000, b"x" * 17])
def test_a_field_of_another_type_or_range_is_malformed_or_still_that_field(frame: ClientFrame | ServerFrame, other: Any) -> None:
    fields = msgpack.unpackb(CODEC.encode(frame))
    for place in range(len(fields)):
        damaged = [*fields]
        damaged[place] = other
        try:
            read = decode(msgpack.packb(damaged), frame)
        except (MalformedFrameError, FrameSizeError):
            continue
        assert type(read) is type(frame)
        assert other is None or other in (1.5, "x", b"x", [])  # where any text, bytes or number would do, or nothing


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (b"\x80", "expected `array`, got `object`"),
        (b"\x90", "at least length 1"),
        (b"\x92\x10\x00", "invalid value 16"),
        (b"\x91\xcc\xff", "invalid value 255"),
        (b"\xdd\xff\xff\xff\xff\x06", "truncated"),
        (b"\xdf\xff\xff\xff\xff", "array"),
        (b"\x94\x03\x00\x00\xc6\xff\xff\xff\xff", "truncated"),
        (b"\x93\x06\x00" + b"\x91" * 100_000, "nested too deeply"),
        (b"\x97\x01\x01\x01\xa2\xff\xff\x01\xc0\xa0", "UTF-8"),
        (msgpack.packb([3, 0, 0, b"abc"]), "packed ids: expected 2 bytes"),
        (msgpack.packb([3, 0, 0, b"\xff\xff"]), "expected 0 to 49151, got 65535"),
        (msgpack.packb([4, 0, 0, 0, 2, b"\1\0", b""]), "at most 1 given ids"),
        (msgpack.packb([4, 0, 0, 0, 0, b"\1\0", b"\1\0\0\1\0\2\0"]), "expected the drafted id 1"),
        (msgpack.packb([4, 0, 0, 0, 1, b"\1\0", b"\1\0\0\1\0\2\0"]), "no row or one for each of 0 ids"),
        (msgpack.packb([2, 0, [0, math.nan], 0, 0, b""]), "expected `float` >= 0"),
        (msgpack.packb([2, 0, [1, math.inf], 0, 0, b""]), "<= 100"),
        (msgpack.packb([2, 0, [1], 0, 0, b""]), "temperature above 0"),
        (msgpack.packb([2, 0, [3], 0, 0, b""]), "invalid enum value 3"),
    ],
)
def test_each_kind_of_damage_is_reported(message: bytes, expected: str) -> None:
    with pytest.raises(MalformedFrameError, match=expected):
        CODEC.decode_up(message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (msgpack.packb([6, 0]), "invalid value 6"),
        (msgpack.packb([18, 0, 0, 0, SIZE, 0, 0, 0, b""]), "a token below 49152"),
        (msgpack.packb([18, 0, 0, 9, 1, 0, 0, 0, b""]), "at most 8 accepted tokens, got 9"),
        (msgpack.packb([17, 0, b"short", 0]), "length >= 16"),
    ],
)
def test_each_kind_of_damage_of_a_server_is_reported(message: bytes, expected: str) -> None:
    with pytest.raises(MalformedFrameError, match=expected):
        CODEC.decode_down(message)


def test_a_head_that_cannot_be_read_is_malformed() -> None:
    for read in (frame_number, hello_versions):
        for message in (b"", b"\x80", b"\x91\xc0", b"\x93\x01\x01", b"\x94\x01\x01\x01" + b"\x91" * 100_000):
            with pytest.raises(MalformedFrameError):
                read(message)


@pytest.mark.parametrize(
    "frame",
    [
        make_open(0, Rule(RuleKind.SAMPLE, math.nan)),
        make_open(0, Rule(RuleKind.SAMPLE)),
        Extend(0, 0, (SIZE,)),
        Extend(0, 0, (-1,)),
        make_draft(0, 0, 0, (1,), 2),
        make_draft(0, 0, 0, (1,), 0, (a_row(2),)),
        make_draft(0, 0, 0, (1, 2), 0, (), (0,)),
        make_draft(0, 0, 0, (1, 2), 0, (), (1, 0)),
        make_draft(0, 0, 0, (1, 1), 0, (), (0, 0)),
        make_verdict(0, 0, 0, SIZE),
        Follow(0, 1, 1, 0, 5, (1,)),
        Follow(0, 1, 0, 0, SIZE, (1,)),
        Follow(0, 1, 0, 9, 5, (1,)),
        Follow(0, 1, 0, 0, 5, (1,), (a_row(2),)),
    ],
)
def test_what_no_peer_could_read_is_not_written(frame: ClientFrame | ServerFrame) -> None:
    with pytest.raises(MalformedFrameError):
        CODEC.encode(frame)


def test_a_distribution_of_a_wider_vocabulary_is_not_written() -> None:
    with pytest.raises(MalformedFrameError):
        CODEC.encode(make_draft(0, 0, 0, (1,), 0, (TopK((1, 70000), (2, 1)),)))


def test_a_token_never_shows() -> None:
    hello = Hello(1, 1, "v", 5, "secret")
    assert "secret" not in repr(hello)
    assert "secret" in str(msgspec.msgpack.decode(CODEC.encode(hello)))


def test_a_welcome_without_a_price_list_is_as_before_and_an_old_client_ignores_one() -> None:
    old = msgspec.msgpack.decode(CODEC.encode(Welcome(1, "m", 7, VerifyLimits(), 60, True)))
    assert CODEC.decode_down(msgspec.msgpack.encode(old[:7])) == Welcome(1, "m", 7, VerifyLimits(), 60, True)
    new = msgspec.msgpack.decode(CODEC.encode(Welcome(1, "m", 7, VerifyLimits(), 60, True, (RowCost(1, 5),))))
    assert new[7] == [[1, 5]]
