"""Operators on what carries the events: lines, the status, the content type, and bodies that hold no events."""

from __future__ import annotations

import copy
import json
import random

from tests.mutants.operators.registry import ALL, BODY, operator
from tests.mutants.stream import Json, Stream


@operator(*ALL, touches="newlines")
def newlines(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.newline = rng.choice([each for each in ("\n", "\r\n", "\r") if each != stream.framing.newline])
    return stream


@operator(*ALL, touches="start of the body")
def byte_order_mark(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.bom = True
    return stream


@operator(*ALL, touches="start of the body")
def lines_before_the_events(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.preamble = rng.choice(["\n", "\r\n\r\n", ": queued\n\n", "retry: 3000\n\n", "id: 1\n", "\n\n\n\n"])
    return stream


@operator(*ALL, touches="spaces")
def no_space_after_colons(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.space = False
    return stream


@operator(*ALL, touches="spaces")
def json_over_several_lines(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.pretty = True
    return stream


@operator(*ALL, touches="escapes")
def escapes(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.ascii = True
    return stream


@operator(*ALL, touches="last line")
def last_empty_line_missing(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.last_blank = False
    return stream


@operator("chat", touches="last line")
def blanks_after_done(stream: Stream, rng: random.Random) -> Stream | None:
    stream.framing.done_suffix = rng.choice([" ", "  ", "\t"])
    return stream


@operator(*ALL, touches="status")
def status_of_2xx(stream: Stream, rng: random.Random) -> Stream | None:
    stream.status = rng.choice([201, 201, 202, 203])
    return stream


@operator(*ALL, touches="content type")
def content_type(stream: Stream, rng: random.Random) -> Stream | None:
    types = ["text/html", "text/html; charset=utf-8", "text/plain", "application/json", "application/octet-stream", None]
    stream.content_type = rng.choice(types)
    return stream


@operator(*ALL, touches="body", stage=BODY)
def json_in_place_of_events(stream: Stream, rng: random.Random) -> Stream | None:
    if stream.whole is None:
        return None
    whole = copy.deepcopy(stream.whole)
    if rng.random() < 0.2 and isinstance(whole.get("usage"), dict):
        whole["usage"] = rng.choice([None, {}, dict.fromkeys(whole["usage"], 0)])
    _send(stream, whole, rng)
    return stream


@operator(*ALL, touches="body", stage=BODY)
def json_error_in_place_of_events(stream: Stream, rng: random.Random) -> Stream | None:
    error = {"message": "The engine overheated", "type": "server_error", "code": 503}
    bodies: list[Json] = [{"error": error}, {"detail": error["message"]}, {"object": "error", **error}, {"error": error["message"]}]
    if stream.api == "messages":
        bodies.append({"type": "error", "error": {"type": "overloaded_error", "message": error["message"]}})
    _send(stream, rng.choice(bodies), rng)
    return stream


def _send(stream: Stream, body: Json, rng: random.Random) -> None:
    start = rng.choice(["", "", "\n", "\n\n\n", " "])
    stream.body = (
        start + json.dumps(body, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2])) + rng.choice(["", "\n"])
    ).encode()
    stream.content_type = rng.choice(["application/json", "application/json", stream.content_type])


@operator(*ALL, touches="body", stage=BODY)
def page_in_place_of_events(stream: Stream, rng: random.Random) -> Stream | None:
    stream.body = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>data: no event</body></html>\n"
    stream.content_type = "text/html"
    return stream
