"""Servers on the loopback: one sends mutants as their bytes are, another continues the answers that the first one breaks off."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import pairwise

from streamco.testing.responses import Cut, RecordedRequest, Reset, Responder, ScriptedResponse, Stall, Step, stream_answer
from tests.mutants.decoding import right_reading
from tests.mutants.mutant import Mutant
from tests.mutants.oracle import split_events

__all__ = ["TAIL", "continuing", "question_of", "sending"]

TAIL = " … et le reste 🌅 \n\nfin"
"""What the continuing server writes after the beginning of any answer."""

_QUESTION = re.compile(rb"mutant (\d+)")
_RESET_BYTES = 32 << 10  # a reset drops what is still to be sent of a larger body
_MISSING = 1000  # bytes that a Content-Length promises beyond those that are sent


def question_of(mutant: Mutant) -> str:
    """Return the user's message by which the servers know which mutant is asked for."""
    return f"mutant {mutant.seed}"


def sending(mutants: Mapping[int, Mutant]) -> Responder:
    """Return what answers each request with the mutant of its seed."""
    return lambda request: _response(mutants[_seed_of(request)])


def continuing(mutants: Mapping[int, Mutant]) -> Responder:
    """Return what answers each request as a model that always writes the text of the mutant and ``TAIL``, from where its beginning ends."""

    def respond(request: RecordedRequest) -> ScriptedResponse:
        text = right_reading(mutants[_seed_of(request)]).text + TAIL
        last = request.json()["messages"][-1]
        begun = last["content"] if last["role"] == "assistant" else ""
        rest = text.removeprefix(begun) if text.startswith(begun) else f"<expected the beginning of {text!r}, got {begun!r}>"
        return stream_answer([rest[place : place + 5] for place in range(0, len(rest), 5)])

    return respond


def _seed_of(request: RecordedRequest) -> int:
    found = _QUESTION.search(request.body)
    assert found is not None, "the request asks for a mutant"
    return int(found[1])


def _response(mutant: Mutant) -> ScriptedResponse:
    """Return the response that sends a mutant in several pieces and ends as it does."""
    rng = random.Random(f"{mutant.seed} over TCP")
    headers = {} if mutant.content_type is None else {"Content-Type": mutant.content_type}
    steps: list[Step] = [*_pieces(mutant.body, rng)]
    if mutant.ends == "clean":
        return ScriptedResponse(status=mutant.status, headers=headers, steps=steps, framing=rng.choice(["chunked", "length"]))
    ends: list[Step] = [Stall()] if mutant.ends == "stall" else [Cut(), Cut(), Reset()]
    if len(mutant.body) > _RESET_BYTES and mutant.ends == "cut":
        ends = [Cut()]
    steps.append(rng.choice(ends))
    borders = ["chunked", "length", "none"]
    if split_events(mutant.body)[1] is not None:
        borders.remove("none")  # where only the end of the connection ends a body, it isn't clear whether its last lines are an event
    border = rng.choice(borders)
    if border == "chunked":
        return ScriptedResponse(status=mutant.status, headers=headers, steps=steps)
    if border == "length":
        headers["Content-Length"] = str(len(mutant.body) + _MISSING)
    return ScriptedResponse(status=mutant.status, headers=headers, steps=steps, framing="close")


def _pieces(body: bytes, rng: random.Random) -> list[bytes]:
    """Cut a body into one to eight pieces at random places, or after its empty lines, as most servers send theirs."""
    if rng.randrange(3) == 0:
        return [piece for piece in re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)", body) if piece]
    cuts = sorted({0, len(body), *(rng.randint(0, len(body)) for _ in range(rng.randrange(8)))})
    return [body[start:end] for start, end in pairwise(cuts)]
