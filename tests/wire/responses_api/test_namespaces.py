"""Names of functions in namespaces: there and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamco.wire.responses_api.namespaces import NamespacedNames
from tests.support.named_events import any_json

NAMES = st.text("abc_-. é", min_size=1, max_size=80) | st.sampled_from(["a", "a__b", "b__c", "c"])
PAIRS = st.lists(st.tuples(NAMES, NAMES), max_size=5)
LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")


def named(pairs: Sequence[tuple[str, str]], plain: Sequence[str] = ()) -> NamespacedNames:
    """The names of a request with these tools."""
    spaces = [{"type": "namespace", "name": space, "tools": [{"type": "function", "name": name}]} for space, name in pairs]
    return NamespacedNames([*spaces, *({"type": "function", "name": name} for name in plain)])


@given(PAIRS, st.lists(NAMES, max_size=2), PAIRS)
@example([("a", "b__c"), ("a__b", "c")], ["a__b__c"], [("x y", "z")])
def test_names_are_legal_and_lead_back(offered: list[tuple[str, str]], plain: list[str], earlier: list[tuple[str, str]]) -> None:
    names = named(offered, plain)
    every = {pair: names.chat_name(*pair) for pair in [*offered, *earlier]}
    assert len({*every.values(), *plain}) == len(every) + len(set(plain))
    for (namespace, name), shown in every.items():
        assert LEGAL.fullmatch(shown)
        assert names.fields(shown) == {"name": name, "namespace": namespace}
        assert names.chat_name(namespace, name) == shown
    assert [names.fields(name) for name in plain] == [{"name": name} for name in plain]


@given(PAIRS, st.lists(NAMES, max_size=2), st.randoms(use_true_random=False))
def test_the_order_of_the_tools_changes_no_name(pairs: list[tuple[str, str]], plain: list[str], rng: Any) -> None:
    """A server that keeps a prompt's beginning must find it again."""
    first = named(pairs, plain)
    second = named(rng.sample(pairs, len(pairs)), plain)
    assert [first.chat_name(*pair) for pair in pairs] == [second.chat_name(*pair) for pair in pairs]


def test_a_legal_name_that_one_function_has_is_the_joined_one() -> None:
    names = named([("mcp__disk", "read"), ("files", "read"), ("files", "read")], ["read"])
    assert [names.chat_name(space, "read") for space in ("mcp__disk", "files")] == ["mcp__disk__read", "files__read"]


def test_functions_with_one_joined_name_stay_apart_and_a_plain_one_keeps_it() -> None:
    pairs = [("a", "b__c"), ("a__b", "c")]
    names = named(pairs, ["a__b__c"])
    shown = [names.chat_name(*pair) for pair in pairs]
    assert [name[:-8] for name in shown] == ["a__b__c_"] * 2
    assert len({*shown, "a__b__c"}) == 3
    assert names.fields("a__b__c") == {"name": "a__b__c"}
    assert [named(pairs).chat_name(*pair) for pair in pairs] == shown


@pytest.mark.parametrize("pair", [("mcp server.x", "b c"), ("café", "é"), ("s" * 70, "read"), ("s", "\n")])
def test_an_illegal_name_becomes_a_legal_one(pair: tuple[str, str]) -> None:
    names = named([pair])
    shown = names.chat_name(*pair)
    assert LEGAL.fullmatch(shown)
    assert names.fields(shown) == {"name": pair[1], "namespace": pair[0]}


def test_a_name_with_a_checksum_that_another_function_has_gets_another_one() -> None:
    made = named([("a b", "c")]).chat_name("a b", "c")
    names = named([("a b", "c")], [made])
    assert names.chat_name("a b", "c") != made
    assert LEGAL.fullmatch(names.chat_name("a b", "c"))


def test_an_earlier_call_of_what_is_not_offered_is_not_one_of_what_is() -> None:
    names = named([("a", "b__c")])
    assert names.chat_name("a", "b__c") == "a__b__c"
    earlier = names.chat_name("a__b", "c")
    assert earlier != "a__b__c"
    assert names.fields(earlier) == {"name": "c", "namespace": "a__b"}


@pytest.mark.parametrize("namespace", [None, ""])
def test_a_name_in_no_namespace_stays(namespace: str | None) -> None:
    assert NamespacedNames().chat_name(namespace, "f") == "f"
    assert NamespacedNames().fields("f") == {"name": "f"}


@given(any_json(st.sampled_from(["type", "namespace", "function", "name", "tools"])))
def test_malformed_tools_have_no_names(tools: Any) -> None:
    assert NamespacedNames(tools).fields("files__read") == {"name": "files__read"}
