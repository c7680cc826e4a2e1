from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.mutants.oracle import read_answer, split_events
from tests.mutants.readings import WRITTEN, Written
from tests.mutants.recorded import load_recorded
from tests.mutants.stream import Stream, render
from tests.mutants.streams import SMALL
from tests.support.data import data_path

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written.name)
def test_the_oracle_reads_what_was_read_by_hand(written: Written) -> None:
    assert read_answer(written.body, written.api, status=written.status, ends=written.ends) == written.reading


@pytest.mark.parametrize("stream", SMALL, ids=lambda stream: f"{stream.api}: {stream.name}")
def test_a_stream_and_its_whole_body_say_the_same(stream: Stream) -> None:
    reading = read_answer(render(stream), stream.api)
    assert reading.whole
    assert reading.text or reading.refusal or reading.calls
    if stream.whole is None:
        return
    body = Stream(stream.api, "", [], body=render_json(stream))
    whole = read_answer(render(body), stream.api)
    assert (whole.text, whole.reasoning, whole.refusal, whole.reason) == (reading.text, reading.reasoning, reading.refusal, reading.reason)
    assert [(call.name, call.arguments, call.id) for call in whole.calls] == [
        (call.name, call.arguments, call.id) for call in reading.calls
    ]


def render_json(stream: Stream) -> bytes:
    return json.dumps(stream.whole).encode()


def test_recorded_streams_are_whole_except_two_with_errors() -> None:
    streams = load_recorded(data_path("sse"))
    readings = [(stream.name, read_answer(render(stream), stream.api)) for stream in streams]
    assert len(readings) > 150
    failed = [name for name, reading in readings if not reading.whole]
    assert failed == ["api-groq-com__chat__gpt-oss-120b__952e74de", "gpustack__chat__qwen3__0cc39fcd"]
    assert all(reading.text or reading.calls or reading.refusal for _, reading in readings if reading.whole)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_three_ways_and_no_other(newline: bytes) -> None:
    body = newline.join([b"event: a", "data: x\u2028y\x85".encode(), b"data:z", b": no", b"", b"event: b", b"", b"data: rest"])
    ended, rest = split_events(body)
    assert [(event.name, event.data) for event in ended] == [("a", "x\u2028y\x85\nz")]
    assert rest is not None
    assert (rest.name, rest.data) == ("", "rest")


def test_the_oracle_and_the_operators_import_nothing_of_the_package_that_is_checked() -> None:
    own = [FOLDER / f"{name}.py" for name in ("mutant", "readings", "recorded", "stream", "streams", "chat_streams", "typed_streams")]
    paths = [*(FOLDER / "oracle").glob("*.py"), *(FOLDER / "operators").glob("*.py"), *(path for path in own if path.exists())]
    assert len(paths) > 10
    assert not [
        path for path in paths if re.search(r"^\s*(from|import) (?!tests\.mutants)(streamco|tests)", path.read_text(), re.MULTILINE)
    ]
