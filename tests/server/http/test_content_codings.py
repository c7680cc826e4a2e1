"""Packed bodies of requests: what comes out, and how much of it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from streamco.server.http.content_codings import coding_of, unpack
from streamco.server.http.errors import RequestError

EDGES = (0, 1, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 524_288, 1_000_000)


def raw(data: bytes) -> bytes:
    """Deflate without the head of a zlib stream, as some clients send it."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


Pack = Callable[[bytes], bytes]
PACKERS: dict[str, tuple[Pack, str]] = {"gzip": (gzip.compress, "gzip"), "zlib": (zlib.compress, "deflate"), "raw": (raw, "deflate")}


def of(*values: str) -> str:
    headers = CIMultiDict([("Content-Encoding", value) for value in values])
    return coding_of(Mock(headers=headers, content=Mock(total_compressed_bytes=None)))


@pytest.mark.parametrize("kind", PACKERS)
@settings(max_examples=60, deadline=None)
@given(size=st.sampled_from(EDGES) | st.integers(0, 600_000), piece=st.binary(min_size=1, max_size=40))
async def test_what_was_packed_comes_out_as_it_was(kind: str, size: int, piece: bytes) -> None:
    pack, coding = PACKERS[kind]
    data = (piece * (size // len(piece) + 1))[:size]
    assert await unpack(pack(data), coding, limit=size) == data


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("size", EDGES[1:])
async def test_a_byte_beyond_the_limit_is_413(kind: str, size: int) -> None:
    pack, coding = PACKERS[kind]
    with pytest.raises(RequestError, match=f"at most {size - 1} bytes") as caught:
        await unpack(pack(bytes(size)), coding, limit=size - 1)
    assert caught.value.status == 413


async def test_a_bomb_is_unpacked_no_further_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb, made = gzip.compress(bytes(64 << 20)), 0
    unpackers = zlib.decompressobj

    class Counting:
        def __init__(self, window: int) -> None:
            self.inner = unpackers(window)

        def decompress(self, data: bytes, size: int) -> bytes:
            nonlocal made
            piece = self.inner.decompress(data, size)
            made += len(piece)
            return piece

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    with pytest.raises(RequestError):
        await unpack(bomb, "gzip", limit=1 << 20)
    assert 1 << 20 < made < 2 << 20


@pytest.mark.parametrize("kind", PACKERS)
async def test_a_body_that_is_cut_damaged_or_followed_by_more_is_400(kind: str) -> None:
    pack, coding = PACKERS[kind]
    packed = pack(b"some words of a prompt, " * 9)
    for body in (b"", packed[:-1], packed[:3], packed + b"x", packed + packed, b"\xff" + packed):
        with pytest.raises(RequestError) as caught:
            await unpack(body, coding, limit=1 << 20)
        assert caught.value.status == 400


async def test_a_body_that_is_not_packed_stays_as_it_is() -> None:
    assert await unpack(b"{}", "", limit=0) == b"{}"


def test_gzip_and_deflate_have_several_names_and_the_rest_is_415() -> None:
    assert [of(), of(""), of("identity"), of(" Identity ")] == [""] * 4
    assert [of("gzip"), of("x-gzip"), of("GZIP"), of("deflate")] == ["gzip", "gzip", "gzip", "deflate"]
    for values in (["br"], ["zstd"], ["x"], ["gzip, gzip"], ["gzip", "deflate"], ["gzip;q=1"]):
        with pytest.raises(RequestError, match="content encoding: expected gzip, deflate or none, got") as caught:
            of(*values)
        assert caught.value.status == 415
