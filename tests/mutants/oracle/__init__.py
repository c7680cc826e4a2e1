"""The oracle: what is the right reading of an answer's bytes?

It was written from the documentation of the three APIs and from what servers were seen to send, without a look at the decoders that it
checks, and it imports nothing of them. It takes no care of speed. These are its rules:

BYTES
 B1  A 2xx status is an answer, whatever its content type. Any other one is a failure.
 B2  The body decides what it is. After a byte order mark, blanks and empty lines, "{" begins a JSON body, "<" an HTML page (malformed),
     anything else events. An empty body is cut.
 B3  Lines end with LF, CRLF or CR, and with nothing else; a CR ends its line at once, before anybody knows whether an LF follows. One
     space after the colon is no part of a value. Data lines are joined by LF. Comments and unknown fields say nothing. An empty line
     ends an event; one without data, or with empty data, is none.
 B4  A clean end of the body also ends the last event, if its data can be read. If it can't be read, or is empty, the body is torn, which
     is the same as a cut. A cut or a stall drops an event whose empty line hasn't come, and an answer that isn't whole leaves out its
     texts.
 B5  A JSON body is the whole answer, or the server's error. A part of one is cut.

EVENTS
 E1  [DONE], also in quotation marks or with blanks around it, ends a chat answer. In the Messages API it is the end if a finish reason has
     come, and says nothing if none has. In the Responses API it says nothing. What follows an end isn't read, errors included.
 E2  Typed events are known by ``type``, or by the ``event:`` line if they have no type. Unknown ones say nothing, wherever they stand; nor
     do pings, with whatever data. The first event may be any one.
 E3  In the chat API the ``event:`` line says nothing, except "error". An object without choices, usage and error says nothing.
 E4  Data that is no JSON object says nothing if its event has a name that the API doesn't know. Otherwise the answer is malformed.
 E5  An error is: the name or the type "error"; a field ``error`` that isn't null or empty, at the top or in a choice; ``object: "error"``;
     an object without choices but with a text as ``message`` and a ``code``, or with ``detail`` and no type; response.failed and
     response.cancelled. Texts that the same chunk has beside it count before it. ``error: null`` is no error.

WHOLE OR NOT
 W1  A reason is a text that isn't blank and isn't "null". Everything else is none: "", " ", "null", null, false, 0.
 W2  Content is: text, reasoning, a refusal, a call's name, id or arguments; also a field of a delta that isn't empty (null, "", [], {})
     and isn't ``role``; in the typed APIs also hosted tools, signatures, citations. Half a character is content.
 W3  Content in a later event than a reason takes the reason back. Content in the same event doesn't. A null reason, usage, pings and
     empty deltas take nothing back.
 W4  A mark ([DONE], message_stop, response.completed, response.incomplete) makes the answer whole.
 W5  A clean end of the body without a mark makes it whole if a reason ever came, also one that was taken back. If none did, it is cut.
 W6  A cut, a stall or a torn body before a mark leaves it whole only if a reason stands, none was ever taken back, and content came.
     Otherwise it is cut.
 W7  A reason that means failure (``FAILING``, in upper or lower case) is a failure at once, also where content would follow.
 W8  An answer without any content is an error if no reason came either, or if its choices had other keys that could hold the text: a text
     that isn't empty, an object with something under ``text``, ``content`` or ``parts`` at any depth, a list of these. The reasons
     content_filter and length explain why it is empty, so with them other keys say nothing. With a reason alone it is whole and empty,
     at a mark or a clean end (not at a cut).
 W9  The finish reason is the last one that came, also if it was taken back. If none came, it is None.

TEXTS
 T1  Pieces are joined in the order of their arrival.
 T2  A high surrogate at the end of a piece waits for the next piece of the same text. A half that stays alone is U+FFFD; at the end of a
     broken answer it is left out.
 T3  Reasoning is what comes under ``reasoning_content``, ``reasoning``, ``reasoning_text`` or ``thinking`` (the first that isn't empty,
     once), and the thinking parts of a content that is a list. Its parts are joined with nothing between them.
 T4  ``message`` is read as ``delta`` where the choice has no ``delta``, or a null one; without both, ``text`` is its content. A delta, even
     an empty one, goes first.
 T5  With n = 1 all choices are one, whatever their index is.
 T6  Done events and the final response add what the deltas didn't give: text, refusal, reasoning, arguments, input, names. What differs
     from the deltas in another way adds nothing.
 T7  A part in a whole item of the Responses API is the streamed part with its place as its index, or else the first streamed part that no
     other is: servers count hidden parts in the index and leave them out of the item.
 T8  A text or thinking block of the Messages API may begin with text in its start; deltas follow it.

CALLS of the chat API
 C1  The index "0" is 0. An index that is neither a number nor such a text is none.
 C2  A new index begins a call, unless one that has no index yet has the entry's id, or is the latest and the entry has neither id nor
     name. Then the call goes on, and the index is its own from then on.
 C3  On a known index, an id of one of its calls goes on with that call; a new id together with a name begins a call; a name without an id
     begins one if the latest call there has a name and its arguments are a whole JSON value; after the input of a custom tool, if it is
     another name. Everything else goes on with the latest call of that index.
 C4  Without an index C3 is used, as if all calls had the same index.
 C5  The first id that isn't empty is the call's. A new id without a name changes nothing. A call without an id may get any.
 C6  The first name is the call's, also if it comes after the arguments. Later names on the same call say nothing.
 C7  Arguments are joined as they are, also if they repeat. An object or a number becomes JSON. None at all are "{}".
 C8  ``custom`` with something in it makes a custom call (its ``input`` is joined); an empty one says nothing.
CALLS of the typed APIs
 C9  Responses: output_item.added begins an item, unless an item has its id. A delta or done event belongs to the item with its item_id, or
     else to the latest item of its kind with its output_index ("0" is 0), or else, if one of them has no output_index, to the latest
     item of its kind. output_item.done does the same among items that aren't done yet. An item of the final response is the one with
     the same id or call_id, or with the same type and place; others are new. The call's id is call_id. The finish reason is
     "tool_calls" if there are calls, or else "stop"; for response.incomplete it is "content_filter" if that is the reason, or else
     "length".
 C10 Messages: content_block_start begins a block; deltas belong to the latest block with their index, or else to the latest block. The
     input of the start counts only if no delta brought any. tool_use blocks are calls; server_tool_use and others are content and no
     calls. Reasons: end_turn, stop_sequence, pause_turn: "stop"; max_tokens, model_context_window_exceeded: "length"; tool_use:
     "tool_calls"; refusal: "content_filter"; others as they are.

USAGE
 U1  Counts are prompt_tokens and completion_tokens, or input_tokens and output_tokens, in each API. They stand in ``usage`` of a chunk, its
     choice or its x_groq, in that of the response or message, and in message_delta. The tokens of Anthropic's cache are added to
     input_tokens.
 U2  Each count is the last one above zero. Zero, null, {} and other names leave it NOT_KNOWN.
 U3  The output_tokens of message_start are a beginning and never the count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal

from tests.mutants.oracle.chat import ChatOracle
from tests.mutants.oracle.messages import MessagesOracle
from tests.mutants.oracle.reading import AnswerFailed, Ends, Json, Reading
from tests.mutants.oracle.responses import ResponsesOracle

Api = Literal["chat", "responses", "messages"]

_Oracle = ChatOracle | ResponsesOracle | MessagesOracle
_ORACLES: dict[Api, type[_Oracle]] = {"chat": ChatOracle, "responses": ResponsesOracle, "messages": MessagesOracle}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SseEvent:
    """An event as its lines say it."""

    name: str
    data: str


def read_answer(body: bytes, api: Api, *, status: int = 200, ends: Ends = "clean") -> Reading:
    """Return the right reading of a body; the arguments are those of ``_read``."""
    reading = _read(body, api, status, ends)
    if reading.whole or ends != "clean" or not 200 <= status < 300:
        return reading
    return replace(_read(body, api, status, "cut"), whole=False, failure=reading.failure, word=reading.word)


def _read(body: bytes, api: Api, status: int, ends: Ends) -> Reading:
    """Read a body, and its unfinished last event if it ends properly.

    Args:
        body: all bytes that came.
        api: the API that was asked.
        status: the response's HTTP status.
        ends: how the body ended: properly, by a reset (or too early for its length), or in silence that outlasts every limit.
    """
    oracle = _ORACLES[api]()
    answer = oracle.answer
    if not 200 <= status < 300:
        return answer.reading("failed", str(status))
    start = body.removeprefix(_BOM).lstrip(b" \t\r\n")[:1]
    try:
        if start == b"<":
            raise AnswerFailed("malformed")
        if start == b"{":
            oracle.read_body(_load_body(body))
            oracle.finish()
            answer.ending.record_mark()
            return answer.reading(answer.ending.failure(ends, is_torn=False))
        is_torn = _read_events(oracle, body, ends)
    except AnswerFailed as failed:
        return answer.reading(failed.kind, failed.word)
    failure = answer.ending.failure(ends, is_torn=is_torn)
    if failure is None:
        oracle.finish()
    return answer.reading(failure)


def _load_body(body: bytes) -> Json:
    try:
        loaded: Json = json.loads(body.removeprefix(_BOM))
    except ValueError:
        raise AnswerFailed("cut") from None
    return loaded


def _read_events(oracle: _Oracle, body: bytes, ends: Ends) -> bool:
    """Read events up to the end of the answer; return True if the body is torn."""
    events, rest = split_events(body)
    for event in events:
        oracle.read_event(event.name, event.data)
        if oracle.answer.ending.is_marked:
            return False
    if rest is None or ends != "clean":
        return False
    if not _is_readable(rest.data):
        return True
    oracle.read_event(rest.name, rest.data)
    return False


def split_events(body: bytes) -> tuple[list[SseEvent], SseEvent | None]:
    """Return the events that an empty line ended, and the last one if no empty line did."""
    lines = body.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events = []
    name, data = "", list[str]()
    for line in lines[:-1]:
        if not line:
            if any(data) or len(data) > 1:
                events.append(SseEvent(name, "\n".join(data)))
            name, data = "", []
        else:
            name = _read_line(line, name, data)
    if lines[-1]:
        name = _read_line(lines[-1], name, data)
    rest = SseEvent(name, "\n".join(data)) if data else None
    return events, rest


def _read_line(line: bytes, name: str, data: list[str]) -> str:
    key, _, value = line.decode(errors="replace").partition(":")
    value = value.removeprefix(" ")
    if key == "data":
        data.append(value)
    return value if key == "event" else name


def _is_readable(data: str) -> bool:
    if data.strip() == "[DONE]":
        return True
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
