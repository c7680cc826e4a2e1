from __future__ import annotations

from random import Random

from streamco.endpoints.backoff import Backoff


def test_waits_grow_and_the_servers_wish_goes_first() -> None:
    backoff = Backoff(0.1, 1.0, Random(1))
    waits = [backoff.next_wait() for _ in range(30)]
    assert waits[0] == 0.0
    assert 0.3 < max(waits) <= 1.0
    assert backoff.next_wait(2.5) == 2.5
    assert backoff.next_wait(1e9) == 60.0
