from __future__ import annotations

import copy
import random
from collections import Counter

import pytest

from tests.mutants.chat_streams import CHAT
from tests.mutants.mutant import make_mutant, operators_for
from tests.mutants.operators import OPERATORS, Operator
from tests.mutants.oracle import read_answer
from tests.mutants.oracle.reading import Reading
from tests.mutants.recorded import load_recorded
from tests.mutants.stream import Stream, render
from tests.mutants.streams import SMALL
from tests.mutants.typed_streams import MESSAGES, RESPONSES
from tests.support.data import data_path

NAMES = [each.name for each in OPERATORS]

SMALL_OPERATORS = [each for each in OPERATORS if not each.is_large]

TELLING = frozenset(
    {"arguments as objects", "arguments of items as objects", "arguments repeated at the end", "calls in one delta", "done in a typed api"}
    | {"end mark missing", "error within the stream", "final response empty", "first event missing", "half of a character lost"}
    | {"ids of called items missing", "ids of calls empty", "ids of calls missing", "ids of tools missing", "index of calls always zero"}
    | {"index of calls missing", "input in the start", "json error in place of events", "json in place of events", "nothing delivered"}
    | {"page in place of events", "reason blank", "reason blank in each chunk", "reason failing", "reason failing early"}
    | {"reason in each chunk", "reason missing", "reason unknown", "response incomplete", "unknown key for delta", "usage of nothing"}
    | {"usage of zero", "usage renamed"}
)
"""Operators that may change what an answer says; all others only change how it is said."""


def _apply(each: Operator, stream: Stream, seed: int) -> Stream | None:
    return each.change(stream.copy(), random.Random(f"{each.name} {stream.api} {stream.name} {seed}"))


def _read(stream: Stream) -> Reading:
    return read_answer(render(stream), stream.api, status=stream.status)


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    assert set(NAMES) >= TELLING


@pytest.mark.parametrize("each", OPERATORS, ids=NAMES)
def test_each_operator_applies_to_a_stream_of_each_of_its_apis(each: Operator) -> None:
    for api in each.apis:
        streams = [stream for stream in SMALL if stream.api == api]
        assert any(_apply(each, stream, 0) for stream in streams), api


@pytest.mark.parametrize("each", SMALL_OPERATORS, ids=[each.name for each in SMALL_OPERATORS])
def test_an_operator_that_does_not_apply_changes_nothing(each: Operator) -> None:
    for stream in SMALL:
        if stream.api in each.apis:
            changed = stream.copy()
            before = copy.deepcopy(changed)
            if each.change(changed, random.Random(1)) is None:
                assert changed == before


@pytest.mark.parametrize("each", SMALL_OPERATORS, ids=[each.name for each in SMALL_OPERATORS])
def test_how_an_answer_is_said_does_not_change_what_it_says(each: Operator) -> None:
    if each.name in TELLING:
        return
    for stream in SMALL:
        for seed in range(4):
            if stream.api in each.apis and (changed := _apply(each, stream, seed)):
                assert _read(changed) == _read(stream)


def test_pairs_that_only_change_how_an_answer_is_said_do_not_change_what_it_says() -> None:
    rng = random.Random(5)
    for stream in SMALL:
        plain = [each for each in operators_for(stream.api) if each.name not in TELLING]
        for _ in range(30):
            first = rng.choice(plain)
            second = rng.choice([each for each in plain if each.goes_with(first)])
            changed = stream.copy()
            for each in sorted((first, second), key=lambda each: each.stage):
                each.change(changed, rng)
            assert _read(changed) == _read(stream), (stream.name, first.name, second.name)


def test_a_mutant_is_made_again_by_its_seed() -> None:
    for seed in range(300):
        assert make_mutant(seed) == make_mutant(seed)


@pytest.mark.long
def test_mutants_are_varied_and_the_oracle_reads_each() -> None:
    used: Counter[str] = Counter()
    found: Counter[tuple[str, bool]] = Counter()
    sizes = []
    for seed in range(4000):
        mutant = make_mutant(seed)
        reading = read_answer(mutant.body, mutant.api, status=mutant.status, ends=mutant.ends)
        assert reading.whole == (reading.failure is None), mutant
        used.update(mutant.operators)
        found[mutant.ends, reading.whole] += 1
        sizes.append(len(mutant.body))
    assert {each.name for each in SMALL_OPERATORS} <= set(used)
    assert min(found.values()) > 60
    assert sorted(sizes)[len(sizes) * 9 // 10] < 4096


def test_cut_answers_say_the_beginning_of_what_whole_ones_say() -> None:
    for stream in (CHAT[2], RESPONSES[4], MESSAGES[3]):
        body = render(stream)
        whole = read_answer(body, stream.api)
        was_whole = False
        for at in range(len(body) + 1):
            reading = read_answer(body[:at], stream.api, ends="cut")
            assert whole.text.startswith(reading.text)
            assert whole.reasoning.startswith(reading.reasoning)
            assert reading.whole or not was_whole
            was_whole = reading.whole
        assert was_whole


def test_operators_apply_to_recorded_streams() -> None:
    streams = load_recorded(data_path("sse"), most_bytes=8000)
    used: Counter[str] = Counter()
    for seed in range(600):
        mutant = make_mutant(seed, streams)
        read_answer(mutant.body, mutant.api, status=mutant.status, ends=mutant.ends)
        used.update(mutant.operators)
    assert len(used) > 60
