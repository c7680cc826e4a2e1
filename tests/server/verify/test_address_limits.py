"""Connections and faults by source: an address, a right key, and whether it is a web page."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamco.server.verify.address_limits import AddressLimits, Source

A, B, C = (Source(address) for address in "abc")


def some_peers(*, has_keys: bool = False, **changes: int) -> AddressLimits:
    return AddressLimits(**({"connections": 3, "peer_connections": 2, "faults_per_minute": 4} | changes), has_keys=has_keys)


def join_all(peers: AddressLimits, source: Source) -> int:
    """Join until it is refused; how many could."""
    count = 0
    while peers.refusal(source, now=0.0) is None:
        peers.join(source)
        count += 1
    return count


def test_an_address_has_so_many_connections_and_all_together_so_many() -> None:
    peers = some_peers()
    for peer in (A, A, B):
        assert peers.refusal(peer, now=0.0) is None
        peers.join(peer)
    assert peers.connections == 3
    assert peers.refusal(C, now=0.0) == ("connections: the limit is 3", 1.0)
    peers.leave(B)
    assert peers.refusal(A, now=0.0) == ("connections: the limit is 2 from one address", 1.0)
    assert peers.refusal(C, now=0.0) is None
    peers.leave(A)
    assert peers.refusal(A, now=0.0) is None


def test_web_pages_have_half_of_what_their_address_has() -> None:
    peers, page = some_peers(connections=100, peer_connections=8, faults_per_minute=8), Source("a", is_page=True)
    assert join_all(peers, page) == 4
    assert peers.refusal(page, now=0.0) == ("connections: the limit is 4 from web pages at one address", 1.0)
    assert join_all(peers, A) == 4, "what is left of the address"
    assert join_all(peers, page) == 0


def test_a_page_of_an_address_that_has_but_one_of_all_may_have_it() -> None:
    peers, page = some_peers(peer_connections=1, faults_per_minute=1), Source("a", is_page=True)
    assert peers.refusal(page, now=0.0) is None


def test_faults_of_pages_lock_out_only_pages() -> None:
    peers, page = some_peers(), Source("a", is_page=True)
    peers.record_faults(page, 1, now=0.0)
    assert peers.refusal(page, now=0.0) is None
    peers.record_faults(page, 1000, now=1.0)
    assert peers.refusal(page, now=2.0) == ("faults: expected fewer than 2 a minute, got 4", 59.0)
    assert peers.refusal(A, now=2.0) is None
    assert peers.refusal(page, now=61.0) is None


def test_a_right_key_counts_by_itself() -> None:
    peers = some_peers(has_keys=True, connections=100)
    peers.record_faults(A, 9, now=0.0)
    assert peers.refusal(A, now=0.0) is not None
    for key in ("", "alice"):
        assert join_all(peers, Source("a", key, is_page=key == "alice")) == 2
    assert peers.refusal(Source("a", "bob"), now=0.0) is None


def test_a_quarter_of_all_connections_is_kept_for_those_with_a_key() -> None:
    peers = some_peers(has_keys=True, connections=8, peer_connections=100)
    assert join_all(peers, A) == 6
    assert peers.refusal(B, now=0.0) == ("connections: the limit is 6 without a key in the header", 1.0)
    assert join_all(peers, Source("b", "")) == 2
    assert join_all(some_peers(connections=8, peer_connections=100), A) == 8, "nobody has a key where there is none"


def test_who_makes_many_faults_waits_until_they_are_a_minute_old() -> None:
    peers = some_peers()
    peers.record_faults(A, 3, now=10.0)
    assert peers.refusal(A, now=10.0) is None
    peers.record_faults(A, 1, now=30.0)
    assert peers.refusal(A, now=40.0) == ("faults: expected fewer than 4 a minute, got 4", 30.0)
    assert peers.refusal(B, now=40.0) is None
    assert peers.refusal(A, now=70.0) is None
    peers.record_faults(A, 3, now=71.0)  # only the latest four count
    assert peers.refusal(A, now=71.0) == ("faults: expected fewer than 4 a minute, got 4", 19.0)


def test_more_faults_than_count_are_counted_as_so_many() -> None:
    peers = some_peers()
    peers.record_faults(A, 10**9, now=0.0)
    assert peers.refusal(A, now=1.0) == ("faults: expected fewer than 4 a minute, got 4", 59.0)


def test_faults_of_the_oldest_addresses_are_forgotten_when_there_are_too_many() -> None:
    peers = some_peers()
    for number in range(5000):
        peers.record_faults(Source(str(number)), 4, now=0.0)
    assert peers.refusal(Source("0"), now=1.0) is None
    assert peers.refusal(Source("4999"), now=1.0) is not None


SOURCES = st.builds(Source, address=st.sampled_from("ab"), key=st.none() | st.sampled_from(["", "x"]), is_page=st.booleans())


@given(st.lists(st.tuples(SOURCES, st.booleans()), max_size=120), st.integers(1, 12), st.integers(1, 6))
def test_whatever_comes_and_goes_no_source_has_more_than_its_part(steps: list[tuple[Source, bool]], connections: int, each: int) -> None:
    peers = some_peers(has_keys=True, connections=connections, peer_connections=each)
    present: list[Source] = []
    for source, leaves in steps:
        if leaves and present:
            peers.leave(present.pop(0))
        if peers.refusal(source, now=0.0) is None:
            peers.join(source)
            present.append(source)
        keyless = [each for each in present if each.key is None]
        assert len(present) == peers.connections <= connections
        assert len(keyless) <= connections - connections // 4
        assert all(count <= each for count in Counter(source.address for source in keyless).values())
        assert all(
            count <= each for count in Counter((source.address, source.key) for source in present if source.key is not None).values()
        )
        assert all(sum(source == Source(address, is_page=True) for source in present) <= max(1, each // 2) for address in "ab")
