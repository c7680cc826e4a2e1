"""What a pool knows about one of its verifiers."""

from __future__ import annotations

from streamco.endpoints.verifiers.pool_member import PoolMember
from streamco.endpoints.verifiers.streamco import VerifierEndpoint


def test_a_member_is_free_when_nothing_is_wrong_with_it() -> None:
    member = PoolMember(VerifierEndpoint("ws://127.0.0.1:1"))
    assert not member.is_free(now=0.0)
    member.problem = ""
    assert member.is_free(now=0.0)
