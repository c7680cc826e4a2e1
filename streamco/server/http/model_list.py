"""The list of models in the client's format: Anthropic's if the request has the header ``anthropic-version``, or else OpenAI's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from aiohttp import web

from streamco.errors import MAX_NAME, shorten
from streamco.server.http.encoding import Json
from streamco.server.http.errors import invalid
from streamco.server.http.paths import is_messages_request

__all__ = ["model_answer", "model_list_answer"]

_MAX_LIMIT = 1000  # models on a page of Anthropic's list


def model_list_answer(request: web.Request, cards: Sequence[Json]) -> web.Response:
    """Return the answer to ``GET /v1/models``.

    Args:
        request: the request; ``limit``, ``after_id`` and ``before_id`` choose a page of Anthropic's list.
        cards: the models in OpenAI's format, with their context as ``max_model_len`` if it is known.

    Raises:
        RequestError: 400 ``limit`` isn't a number from 1 to 1000.
    """
    if not is_messages_request(request):
        return web.json_response({"object": "list", "data": cards})
    names = [card["id"] for card in cards]
    start, end = 0, len(cards)
    if (after := request.query.get("after_id")) in names:
        start = names.index(after) + 1
    if (before := request.query.get("before_id")) in names:
        end = names.index(before)
    limit = _read_limit(request.query.get("limit", str(_MAX_LIMIT)))
    kept = cards[max(start, end - limit) : end] if before is not None else cards[start : min(end, start + limit)]
    page: list[Json] = [_translate(card) for card in kept]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return web.json_response({"data": page, "has_more": len(page) < end - start, "first_id": first, "last_id": last})


def model_answer(request: web.Request, card: Json) -> web.Response:
    """Return the answer to ``GET /v1/models/NAME``."""
    return web.json_response(_translate(card) if is_messages_request(request) else card)


def _read_limit(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 5 and 1 <= int(given) <= _MAX_LIMIT):
        raise invalid("limit", f"expected 1 to {_MAX_LIMIT}, got {shorten(given, MAX_NAME)}")
    return int(given)


def _translate(card: Json) -> Json:
    """Return a model in Anthropic's format."""
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": datetime.fromtimestamp(card["created"], UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": card.get("max_model_len"),
    }
