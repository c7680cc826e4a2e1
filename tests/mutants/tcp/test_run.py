"""A sample of mutants over TCP, and faults of hand-over, proxy and client that they must find."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from typing import Any

import pytest

from streamco.client.modes.race import report
from streamco.core.race.transcript import Transcript
from streamco.endpoints.continuation import BoundaryWhitespace
from streamco.wire.completeness import Completeness
from streamco.wire.messages_api.events import MessageEvents
from tests.mutants.__main__ import mutant_of
from tests.mutants.decoding import right_reading
from tests.mutants.mutant import Mutant
from tests.mutants.oracle.reading import Reading
from tests.mutants.tcp.run import find_differences_over_tcp

pytestmark = pytest.mark.peer

SAMPLE = 400
TRIED = 8


async def test_a_sample_of_mutants_reads_over_tcp_as_the_oracle_reads_it() -> None:
    assert await find_differences_over_tcp([mutant_of(seed) for seed in range(SAMPLE)]) == []


Shows = Callable[[Mutant, Reading], bool]

FAULTS: dict[str, tuple[list[Any], str, Any, Shows]] = {
    "half a refusal is handed over": ([Transcript], "is_text_alone", True, lambda _, right: bool(right.refusal) and not right.whole),
    "a hand-over repeats blanks": (
        [BoundaryWhitespace],
        "strip",
        lambda _self, event: event,
        lambda _, right: right.text.endswith(" ") and not (right.whole or right.calls),
    ),
    "every end is an end": ([Completeness], "record_close", lambda _self, *, is_proper: "whole", lambda _, right: right.failure == "cut"),
    "zeros are counts": (
        [report],
        "has_counted",
        lambda usage, _tokens: usage is not None,
        lambda _, right: right.whole and bool(right.text) and (right.prompt_tokens is None) != (right.completion_tokens is None),
    ),
    "a message that fails is whole": (
        [MessageEvents],
        "failing",
        lambda self, _failure: self.ending("stop") + self.done(),
        lambda mutant, right: mutant.seed % 6 == 2 and bool(right.text) and not right.whole,
    ),
}


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_planted_behind_the_decoders_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holders, name, value, shows = FAULTS[fault]
    shown = (mutant for mutant in map(mutant_of, count()) if mutant.ends != "stall" and shows(mutant, right_reading(mutant)))
    chosen = list(islice(shown, TRIED))
    for holder in holders:
        monkeypatch.setattr(holder, name, value)
    assert await find_differences_over_tcp(chosen) != []
