"""Bodies in MessagePack: what comes back, what is refused before it is built, and that no bytes make the decoder fail otherwise."""

from __future__ import annotations

import random
import tracemalloc
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.openai.msgpack_body import MsgpackSizeError, decode_msgpack, encode_msgpack

msgpack: Any = import_module("msgpack")  # it has no types

SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4))
BODIES = st.dictionaries(st.text(max_size=6), VALUES | st.binary(max_size=20), max_size=6)


@given(BODIES)
def test_any_body_comes_back(body: dict[str, Any]) -> None:
    encoded = encode_msgpack(body)
    assert encoded is not None
    assert decode_msgpack(encoded) == body


def is_refused_in_words(data: bytes) -> bool:
    try:
        decode_msgpack(data)
    except ValueError as error:
        return str(error).startswith("expected ")
    return False


@given(st.binary(max_size=100))
def test_any_bytes_are_a_map_or_a_value_error(data: bytes) -> None:
    assert is_refused_in_words(data) or all(isinstance(key, str) for key in decode_msgpack(data))


@given(BODIES, st.randoms(use_true_random=False))
def test_a_damaged_body_is_a_map_or_a_value_error(body: dict[str, Any], rng: random.Random) -> None:
    encoded = encode_msgpack(body)
    assert encoded is not None
    damaged = bytearray(encoded)
    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    for data in (bytes(damaged), encoded[: rng.randrange(len(encoded) + 1)], encoded + b"\0"):
        assert is_refused_in_words(data) or isinstance(decode_msgpack(data), dict)


def test_bytes_are_bytes_and_keys_of_integers_are_text_as_in_json() -> None:
    encoded = encode_msgpack({"ids": b"\0\xff", "logit_bias": {5: 1.5}})
    assert encoded is not None
    assert msgpack.unpackb(encoded) == {"ids": b"\0\xff", "logit_bias": {"5": 1.5}}


def test_the_beginning_of_an_answer_has_a_short_name() -> None:
    encoded = encode_msgpack({"continuation_tokens_packed": b"x"})
    assert encoded is not None
    assert msgpack.unpackb(encoded) == {"continuation": b"x"}
    with pytest.raises(ValueError, match="got its full and its short name"):
        decode_msgpack(msgpack.packb({"continuation": b"x", "continuation_tokens_packed": b"y"}))


@pytest.mark.parametrize(
    "body",
    [{"seed": 1 << 64}, {"text": "\ud800"}, {"stop": ["x"] * 4097}, {"messages": [{"content": b"x"}]}, {"messages": [["x"] * 4000] * 20}],
)
def test_what_the_decoder_would_refuse_is_not_encoded(body: dict[str, Any]) -> None:
    assert encode_msgpack(body) is None


def test_what_has_no_json_form_has_none_here() -> None:
    with pytest.raises(TypeError):
        encode_msgpack({"tool": object()})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected MessagePack, got .*incomplete"),
        (b"\x81\xa1a", "incomplete"),
        (b"\x80\x80", "extra data"),
        (b"\xc1", "expected MessagePack, got a byte that begins no object"),
        (b"\x93\1\2\3", "expected a map, got list"),
        (b"\xa1a", "expected a map, got str"),
        (b"\x81\1\2", "int is not allowed for map key"),
        (b"\x81\xc4\1a\2", "expected text as the keys of a map, got bytes"),
        (b"\x81\xa1a\xa1\xff", "utf-8"),
        (b"\x81\xa1a\x81\xa1b\xc4\1x", "bytes as a field of the request only, got some further inside"),
        (b"\x81\xa1a\x91\xc4\1x", "no bytes in an array"),
        (b"\x81\xa1a\xc7\3\5abc", "max_ext_len"),
        (b"\x81\xa1a\xd6\xff" + bytes(4), "max_ext_len"),
        (b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0", "expected fewer levels of nesting"),
    ],
)
def test_a_refusal_says_what_was_expected(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        decode_msgpack(data)
    assert not isinstance(caught.value, MsgpackSizeError)


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\xa1a\xdd\xff\xff\xff\xff",  # arrays and maps that announce more than there is
        b"\x81\xa1a\xdf\xff\xff\xff\xff",
        msgpack.packb({"a": [0] * 4097}),
        msgpack.packb({"a": [[0] * 4096] * 16}),
        msgpack.packb({"a": [[{}] * 1000] * 66}),
    ],
)
def test_too_many_elements_are_an_error_of_their_own(data: bytes) -> None:
    with pytest.raises(MsgpackSizeError, match=r"expected at most (4096|65536) elements"):
        decode_msgpack(data)


def test_a_bomb_takes_no_more_than_a_few_times_its_size() -> None:
    bombs = [b"\x81\xa1a" + b"\xdc\x0f\xff" * 500, msgpack.packb({"a": [[{}] * 4000] * 250}), b"\x81\xa1a" + b"\xde\x0f\xff\xa1b" * 300]
    for bomb in bombs:
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match="expected"):
                decode_msgpack(bomb)
            assert tracemalloc.get_traced_memory()[1] < 40 << 20
        finally:
            tracemalloc.stop()
