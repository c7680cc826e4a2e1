"""Connections and faults by address."""

from __future__ import annotations

from streamco.server.verify.address_limits import AddressLimits


def some_peers(**changes: int) -> AddressLimits:
    return AddressLimits(**({"connections": 3, "peer_connections": 2, "faults_per_minute": 4} | changes))


def test_an_address_has_so_many_connections_and_all_together_so_many() -> None:
    peers = some_peers()
    for peer in ("a", "a", "b"):
        assert peers.refusal(peer, now=0.0) is None
        peers.join(peer)
    assert peers.connections == 3
    assert peers.refusal("c", now=0.0) == ("connections: expected at most 3, got one more", 1.0)
    peers.leave("b")
    assert peers.refusal("a", now=0.0) == ("connections: expected at most 2 from one address, got one more", 1.0)
    assert peers.refusal("c", now=0.0) is None
    peers.leave("a")
    assert peers.refusal("a", now=0.0) is None


def test_who_makes_many_faults_waits_until_they_are_a_minute_old() -> None:
    peers = some_peers()
    peers.record_faults("a", 3, now=10.0)
    assert peers.refusal("a", now=10.0) is None
    peers.record_faults("a", 1, now=30.0)
    assert peers.refusal("a", now=40.0) == ("faults: expected fewer than 4 a minute, got 4", 30.0)
    assert peers.refusal("b", now=40.0) is None
    assert peers.refusal("a", now=70.0) is None
    peers.record_faults("a", 3, now=71.0)  # only the latest four count
    assert peers.refusal("a", now=71.0) == ("faults: expected fewer than 4 a minute, got 4", 19.0)


def test_more_faults_than_count_are_counted_as_so_many() -> None:
    peers = some_peers()
    peers.record_faults("a", 10**9, now=0.0)
    assert peers.refusal("a", now=1.0) == ("faults: expected fewer than 4 a minute, got 4", 59.0)


def test_faults_of_the_oldest_addresses_are_forgotten_when_there_are_too_many() -> None:
    peers = some_peers()
    for number in range(5000):
        peers.record_faults(str(number), 4, now=0.0)
    assert peers.refusal("0", now=1.0) is None
    assert peers.refusal("4999", now=1.0) is not None
