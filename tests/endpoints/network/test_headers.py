"""Layers of headers put together, and the header with the key."""

from __future__ import annotations

from streamco.endpoints.network.headers import BASE_HEADERS, has_header, key_header, merge_headers


def test_a_later_header_replaces_an_earlier_one_in_whatever_case_it_is_written() -> None:
    merged = merge_headers(BASE_HEADERS, {"X-Team": "a", "user-agent": "mine"}, {"x-team": "b", "ACCEPT": "*/*"})
    assert {name.lower(): value for name, value in merged.items()} == {
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": "mine",
        "x-team": "b",
    }
    assert len(merged) == 5


def test_a_header_is_found_in_whatever_case_it_is_written() -> None:
    assert has_header({"authorization": "x"}, "Authorization")
    assert not has_header({"X-Authorization": "x"}, "Authorization")


def test_a_key_is_a_bearer_token_or_stands_alone_in_a_header_of_its_own() -> None:
    assert key_header("authorization", "k") == {"Authorization": "Bearer k"}
    assert key_header("api-key", "k") == {"api-key": "k"}
    assert key_header("authorization", None) == {}
