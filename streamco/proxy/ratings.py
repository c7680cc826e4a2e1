"""Ratings of answers by the callers of a proxy: each rates its own answers, and the quality gate learns from them."""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from aiohttp import web
from msgspec import Struct

from streamco.client.client import Client
from streamco.errors import UsageError
from streamco.server.http.errors import RequestError, invalid

__all__ = ["RATINGS_HEADER", "RATINGS_PATH", "Ratings"]

RATINGS_PATH = "/streamco/ratings"
RATINGS_HEADER = "x-streamco-ratings"
"""The header of a response that may be rated; its value is the path."""

_REMEMBERED = 1000  # answers


class _Rating(Struct, forbid_unknown_fields=True):
    id: str
    good: bool


class Ratings:
    """The answers that may be rated: the last 1,000, by the id of their request.

    Args:
        client: the proxy's. Its answers can be rated if its races have a quality gate.
    """

    def __init__(self, client: Client) -> None:
        self.are_taken = client.race.quality is not None
        self._answers: OrderedDict[str, tuple[str, Client]] = OrderedDict()

    def remember(self, request_id: str, caller: str, client: Client) -> None:
        """Record whose answer this is, and which client has made it."""
        self._answers[request_id] = caller, client
        self._answers.move_to_end(request_id)
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)

    def rate(self, body: bytes, caller: str) -> web.Response:
        """Answer ``POST /streamco/ratings`` with ``{"learned": true}``, or false if the device didn't write all of that answer.

        Args:
            body: ``{"id": REQUEST_ID, "good": true}``.
            caller: who rates; "": the proxy tells none apart.

        Raises:
            RequestError: 400 another body, 404 no answer of this caller with this id that could be rated.
        """
        try:
            rating = msgspec.json.decode(body, type=_Rating)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise invalid(None, f'expected {{"id": "...", "good": true or false}}, got: {error}') from error
        owner, client = self._answers.get(rating.id, ("", None))
        try:
            if client is None or owner != caller:
                raise UsageError("rate: expected the x-request-id of one of your last answers, got another id")
            learned = client.rate(rating.id, rating.good)
        except UsageError as error:
            raise RequestError(404, str(error), param="id", code="not_ratable") from error
        return web.json_response({"learned": learned})
