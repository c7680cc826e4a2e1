"""The form of events with names."""

from __future__ import annotations

from streamco.wire.answer_encoder import KEEPALIVE, AnswerEncoder, CallIds, NewEncoder, encode, named_event
from streamco.wire.messages_api.events import MessageEvents
from streamco.wire.responses_api.events import ResponseEvents
from tests.support.named_events import read_named


def test_an_event_has_its_name_and_its_data_on_a_line_each() -> None:
    data = named_event("ping", {"type": "ping", "text": "a\nb"})
    assert data == b'event: ping\ndata: {"type":"ping","text":"a\\nb"}\n\n'
    assert read_named(KEEPALIVE, data, KEEPALIVE) == [("ping", {"type": "ping", "text": "a\nb"})]
    assert encode({"a": 1}) == b'{"a":1}'


def test_both_apis_have_the_interface() -> None:
    new: NewEncoder = MessageEvents
    encoders: list[AnswerEncoder] = [new(name="1", model="m", created=0), ResponseEvents(name="1", model="m", created=0, echo={})]
    assert [encoder.keepalive for encoder in encoders] == [KEEPALIVE, KEEPALIVE]


def test_calls_have_ids_of_their_own_which_stay() -> None:
    ids = CallIds("call_x")
    assert [ids.of(0, "a"), ids.of(1, "a"), ids.of(2, ""), ids.of(0, "other")] == ["a", "call_x_1", "call_x_2", "a"]
