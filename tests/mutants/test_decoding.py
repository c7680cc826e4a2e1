"""The parsers of ``wire`` against the oracle: a sample of mutants, and faults that the mutants must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamco.openai_types import ChatCompletionChunk
from streamco.wire import completeness, event_stream_parser
from streamco.wire.completeness import Completeness
from streamco.wire.messages_api import message_stream
from streamco.wire.messages_api.message_stream import MessageStreamParser
from streamco.wire.openai import lenient_decode, stream
from streamco.wire.openai.lenient_decode import CumulativeText
from streamco.wire.openai.tool_calls import ToolCalls
from streamco.wire.responses_api.given_texts import GivenTexts
from streamco.wire.responses_api.output_items import OutputItems
from streamco.wire.sse import SSEParser
from streamco.wire.text_halves import TextHalves, whole_values
from tests.mutants.__main__ import mutant_of
from tests.mutants.decoding import find_differences
from tests.mutants.mutant import make_mutant

SAMPLE = 1500
PART = 100


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("start", range(0, SAMPLE, PART))
def test_a_sample_of_mutants_reads_as_the_oracle_reads_it(start: int) -> None:
    found = {str(mutant): differing for mutant in map(mutant_of, range(start, start + PART)) if (differing := find_differences(mutant))}
    assert found == {}


Plant = Callable[[pytest.MonkeyPatch], None]


def plant(holder: Any, name: str, value: Any) -> Plant:
    return lambda patch: patch.setattr(holder, name, value)


def any_text_is_a_reason(patch: pytest.MonkeyPatch) -> None:
    for module in (completeness, lenient_decode, stream, message_stream):
        patch.setattr(module, "read_reason", lambda value: value if isinstance(value, str) else None, raising=False)


def zeros_are_counts(patch: pytest.MonkeyPatch) -> None:
    for module in (stream, event_stream_parser):
        patch.setattr(module, "newer_usage", lambda _known, new: new)


def a_held_connection_is_an_end(self: Completeness) -> bool:
    return self.has_output and self._all_finished()


def output_takes_nothing_back(self: Completeness, choice: int = 0) -> None:
    self.has_output = True
    self._seen.add(choice)


def all_is_repeated(_self: CumulativeText, chunk: ChatCompletionChunk) -> None:
    for choice in chunk.choices:
        choice.delta.content = None


FAULTS: dict[str, Plant] = {
    "a blank reason is a reason": any_text_is_a_reason,
    "no reason is a failure": plant(completeness, "is_failure", lambda _reason: False),
    "output takes no reason back": plant(Completeness, "record_output", output_takes_nothing_back),
    "a reason counts also after one was taken back": plant(Completeness, "is_whole", property(a_held_connection_is_an_end)),
    "what comes only when it is done is lost": plant(GivenTexts, "take_rest", lambda *_: ""),
    "each item of the finished response is new": plant(
        OutputItems, "finish", lambda self, kind, item, place, is_final: self._add(kind, set(), place)
    ),
    "the last call takes every piece": plant(ToolCalls, "_find", lambda self, *_: self.calls[-1] if self.calls else None),
    "halves of characters are not joined": plant(TextHalves, "join", lambda _self, _text, piece: whole_values(piece)),
    "zeros replace counts": zeros_are_counts,
    "the input of a block's start is lost": plant(MessageStreamParser, "_stop_block", lambda _self, _index: None),
    "increments in messages are lost": plant(CumulativeText, "keep_new", all_is_repeated),
    "a lone CR ends no line": plant(SSEParser, "_fold", lambda _self, data: data.replace(b"\r\n", b"\n")),
    "every end is an end": plant(Completeness, "record_close", lambda _self, *, is_proper: "whole"),
}


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    for seed in range(4000):
        try:
            if find_differences(make_mutant(seed), ways=("whole",)):
                return
        except Exception:  # noqa: BLE001  a fault may also make a parser raise
            return
    raise AssertionError("expected the fault to be found by 4000 mutants")
