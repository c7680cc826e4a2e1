"""Ratings of answers by a proxy's callers. Each caller rates its own answers, and the quality gate learns from the ratings."""

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
RATINGS_HEADER = "x-streamco-rating"
"""The header of an answer that may be rated. Its value is the path for the rating, which nobody else can guess."""

_REMEMBERED = 1000  # answers


class _Rating(Struct, forbid_unknown_fields=True):
    good: bool


class Ratings:
    """The answers that may be rated: the last 1,000, by key.

    Args:
        client: the proxy's client. Its answers can be rated if its races have a quality gate.
    """

    def __init__(self, client: Client) -> None:
        self.are_taken = client.race.quality is not None
        self._answers: OrderedDict[str, tuple[str, Client]] = OrderedDict()

    def remember(self, key: str, caller: str, client: Client) -> None:
        """Record whose answer this is, and which client made it."""
        self._answers[key] = caller, client
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)

    def rate(self, key: str, body: bytes, caller: str) -> web.Response:
        """Answer ``POST /streamco/ratings/KEY`` with ``{"learned": true}``, or false if the device didn't write all of that answer.

        Args:
            key: the answer's key.
            body: ``{"good": true}`` or ``{"good": false}``.
            caller: name of the caller who rates, or "" if the proxy doesn't distinguish callers.

        Raises:
            RequestError: 400 the body is malformed; 404 this caller has no such answer to rate.
        """
        try:
            rating = msgspec.json.decode(body, type=_Rating)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise invalid(None, f'expected {{"good": true}} or {{"good": false}}, got: {error}') from error
        owner, client = self._answers.get(key, ("", None))
        refusal = RequestError(404, "rating: expected one of your last answers, not rated yet, got a different one", code="not_ratable")
        if client is None or owner != caller:
            raise refusal
        try:
            learned = client.rate(key, rating.good)
        except UsageError as error:
            raise refusal from error
        return web.json_response({"learned": learned})
