"""Which server a request goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.serving.routing import ROUTING, RoutingPolicy, routing_policy


def counted(policy: RoutingPolicy, loads: Sequence[int], *, requests: int = 4000) -> Counter[int]:
    rng = Random(1)
    return Counter(policy.choose(loads, rng) for _ in range(requests))


def filled(policy: RoutingPolicy, *, servers: int, requests: int, seed: int = 1) -> list[int]:
    """Loads after so many requests that nobody ends."""
    loads, rng = [0] * servers, Random(seed)
    for _ in range(requests):
        loads[policy.choose(loads, rng)] += 1
    return loads


@pytest.mark.parametrize("name", ROUTING)
@given(loads=st.lists(st.integers(0, 50), min_size=1, max_size=25), seed=st.integers(0, 2**32))
def test_the_choice_is_a_server_and_the_same_dice_make_the_same(name: str, loads: list[int], seed: int) -> None:
    policy, again = routing_policy(name), routing_policy(name)
    assert policy.name == name
    first, second = Random(seed), Random(seed)
    chosen = [policy.choose(loads, first) for _ in range(30)]
    assert chosen == [again.choose(loads, second) for _ in range(30)]
    assert set(chosen) <= set(range(len(loads)))


def test_dice_choose_every_server_equally_often_whatever_it_has_to_do() -> None:
    shares = counted(routing_policy("random"), [90, 0, 3, 3])
    assert sorted(shares) == [0, 1, 2, 3]
    assert all(abs(count - 1000) < 110 for count in shares.values())  # 4 standard deviations


def test_going_round_every_server_has_its_turn_and_a_server_more_is_taken_in() -> None:
    policy, rng = routing_policy("round-robin"), Random(1)
    assert [policy.choose([9, 0, 0], rng) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [policy.choose([9, 0, 0, 0], rng) for _ in range(4)] == [1, 2, 3, 0]


@given(loads=st.lists(st.integers(0, 5), min_size=1, max_size=25), seed=st.integers(0, 2**32))
def test_the_shortest_queue_is_one_of_the_shortest(loads: list[int], seed: int) -> None:
    assert loads[routing_policy("join-shortest-queue").choose(loads, Random(seed))] == min(loads)


def test_among_equally_short_queues_the_dice_decide() -> None:
    shares = counted(routing_policy("join-shortest-queue"), [2, 1, 3, 1, 1, 1])
    assert sorted(shares) == [1, 3, 4, 5]
    assert all(abs(count - 1000) < 110 for count in shares.values())


@given(loads=st.lists(st.integers(0, 5), min_size=2, max_size=25), seed=st.integers(0, 2**32))
def test_of_two_different_servers_never_the_most_loaded_of_all_is_taken(loads: list[int], seed: int) -> None:
    chosen = routing_policy("power-of-two-choices").choose(loads, Random(seed))
    assert any(loads[chosen] <= load for position, load in enumerate(loads) if position != chosen)


def test_two_choices_spread_requests_nearly_as_well_as_looking_at_all_servers() -> None:
    spread = {name: max(filled(routing_policy(name), servers=100, requests=1000)) for name in ROUTING}
    assert spread["join-shortest-queue"] == spread["round-robin"] == 10
    assert spread["power-of-two-choices"] <= 13
    assert spread["random"] >= 16


def test_in_order_takes_the_first_whatever_it_has_to_do() -> None:
    assert counted(routing_policy("in-order"), [9, 0, 0], requests=5) == {0: 5}


def test_an_unknown_name_is_told_the_known_ones_and_jsq_is_short() -> None:
    expected = r"routing: expected random, round-robin, join-shortest-queue, .* or jsq, got 'randon'; did you mean random\?"
    with pytest.raises(ConfigError, match=expected):
        routing_policy("randon")
    assert routing_policy("jsq").name == "join-shortest-queue"
