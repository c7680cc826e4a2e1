"""How much two beginnings of an answer share."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from streamco.events import common_prefix_length

IDS = st.lists(st.integers(0, 2))


@given(IDS, IDS)
def test_the_common_prefix_ends_at_the_first_difference(first: list[int], second: list[int]) -> None:
    expected = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    assert common_prefix_length(first, second) == expected
    assert common_prefix_length(first, tuple(second)) == expected
    assert common_prefix_length("".join(map(str, first)), "".join(map(str, second))) == expected


@given(IDS, IDS, IDS)
def test_what_is_known_to_be_the_same_is_not_compared(same: list[int], first: list[int], second: list[int]) -> None:
    expected = common_prefix_length(same + first, same + second)
    assert common_prefix_length([9] * len(same) + first, [8] * len(same) + second, len(same)) == expected
