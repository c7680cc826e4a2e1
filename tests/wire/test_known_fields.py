"""Which fields of a request ask for another answer."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.wire.known_fields import FIELDS_WITHOUT_EFFECT, NEUTRAL_VALUES, is_asked


@pytest.mark.parametrize("name", sorted(NEUTRAL_VALUES))
def test_a_known_field_asks_for_something_unless_its_value_is_neutral(name: str) -> None:
    assert is_asked(name, {"another": "value"})
    for value in (None, *NEUTRAL_VALUES[name]):
        assert not is_asked(name, value)


@pytest.mark.parametrize("name", sorted(FIELDS_WITHOUT_EFFECT))
def test_a_field_without_effect_asks_for_nothing(name: str) -> None:
    assert not is_asked(name, {"any": "value"})


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("repetition_penalty", 1.0, False),
        ("repetition_penalty", 1.1, True),
        ("min_tokens", 0, False),
        ("min_tokens", 1, True),
        ("n_predict", -1, False),
        ("n_predict", 0, True),
        ("grammar", "", False),
        ("json_schema", {}, True),
        ("enable_thinking", False, True),
        ("mirostat_tau", 5.0, False),
        ("not known", 0, True),
        ("not known", None, False),
    ],
)
def test_values_are_compared_as_numbers_and_texts(name: str, value: Any, found: bool) -> None:
    assert is_asked(name, value) is found


def test_no_field_is_both() -> None:
    assert not FIELDS_WITHOUT_EFFECT & NEUTRAL_VALUES.keys()
