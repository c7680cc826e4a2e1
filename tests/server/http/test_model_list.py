"""Lists of models: OpenAI's form, and Anthropic's for its clients."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from streamco.server.http.errors import RequestError
from streamco.server.http.model_list import model_answer, model_list_answer

CARDS = [{"id": name, "object": "model", "created": 0, "owned_by": "x", "max_model_len": 10} for name in "abcd"]
ANTHROPIC = {"anthropic-version": "2023-06-01"}


def listed(query: str = "", headers: dict[str, str] = ANTHROPIC, cards: list[dict[str, Any]] = CARDS) -> Any:
    body = model_list_answer(make_mocked_request("GET", f"/v1/models{query}", headers=headers), cards).body
    assert isinstance(body, bytes)
    return json.loads(body)


def test_without_the_header_the_form_is_openais() -> None:
    assert listed(headers={}) == {"object": "list", "data": CARDS}
    answer = model_answer(make_mocked_request("GET", "/v1/models/a"), CARDS[0]).body
    assert isinstance(answer, bytes)
    assert json.loads(answer) == CARDS[0]


def test_with_it_anthropics() -> None:
    found = listed()
    assert found["data"][0] == {
        "type": "model",
        "id": "a",
        "display_name": "a",
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 10,
    }
    assert (found["has_more"], found["first_id"], found["last_id"]) == (False, "a", "d")
    answer = model_answer(make_mocked_request("GET", "/v1/models/b", headers=ANTHROPIC), CARDS[1]).body
    assert isinstance(answer, bytes)
    assert json.loads(answer) == found["data"][1]


def test_a_context_that_is_not_known_is_null() -> None:
    assert listed(cards=[{"id": "a", "created": 1}])["data"][0]["max_input_tokens"] is None
    assert listed(cards=[]) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    ("query", "names", "has_more"),
    [
        ("?limit=2", "ab", True),
        ("?limit=4", "abcd", False),
        ("?after_id=b", "cd", False),
        ("?after_id=a&limit=2", "bc", True),
        ("?after_id=d", "", False),
        ("?before_id=c", "ab", False),
        ("?before_id=d&limit=2", "bc", True),
        ("?after_id=unknown", "abcd", False),
    ],
)
def test_pages_are_as_its_clients_ask_for_them(query: str, names: str, has_more: bool) -> None:
    found = listed(query)
    assert ("".join(each["id"] for each in found["data"]), found["has_more"]) == (names, has_more)


@pytest.mark.parametrize("limit", ["0", "1001", "x", "-1", "", "1e2", "²"])
def test_a_limit_that_is_none_is_refused(limit: str) -> None:
    with pytest.raises(RequestError, match=r"^limit: expected 1 to 1000, got"):
        listed(f"?limit={limit}")
