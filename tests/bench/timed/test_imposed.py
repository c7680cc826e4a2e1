"""The recorded pair as two engines: who says what, and which figures are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from bench.counted.trees import Recorded
from bench.timed import imposed
from bench.timed.imposed import SETTINGS, STREAM, UNREAD, Contender, Replay, rows_of
from bench.timed.speculate import Tally
from streamco.engines.base import GenerationRequest
from streamco.testing import FakeEngine

SHARES = (0.6, 0.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0)


def answer(ranks: str) -> Recorded:
    return Recorded("code", tuple(map(int, ranks)), (SHARES,) * len(ranks))


@pytest.fixture
def replay() -> Replay:
    found = Replay([answer("00"), answer("018")])
    found.read_prompts(engine(found))
    return found


def engine(replay: Replay) -> FakeEngine:
    return FakeEngine(vocabulary=replay.vocabulary)


def words(replay: Replay, predicted: Mapping[int, float]) -> dict[str, float]:
    return {replay.vocabulary.decode([token]) if token != imposed.VOCABULARY - 1 else "end": share for token, share in predicted.items()}


def test_the_target_says_the_words_of_the_prompts_answer_and_ends(replay: Replay) -> None:
    talker = engine(replay)
    ids = talker.tokenize(talker.apply_template([{"role": "user", "content": replay.prompt(1)}]))
    assert replay.pieces(GenerationRequest(prompt_ids=ids)) == [" t0", " t1", " t2"]
    said = []
    for word in (" t0", " t1", " t2"):
        said.append(words(replay, replay.target(ids)))
        ids.append(replay.vocabulary.id_of(word))
    assert said == [{" t0": 1.0}, {" t1": 1.0}, {" t2": 1.0}]
    assert words(replay, replay.target(ids)) == words(replay, replay.draft(ids)) == {"end": 1.0}


def test_the_draft_model_has_the_targets_word_at_its_recorded_rank(replay: Replay) -> None:
    talker = engine(replay)
    ids = talker.tokenize(talker.apply_template([{"role": "user", "content": replay.prompt(1)}]))
    said = []
    for _ in range(3):
        said.append(words(replay, replay.draft(ids)))
        ids.append(replay.vocabulary.id_of(" o0"))  # whatever stands before
    assert said == [
        {" t0": 0.6, " o1": 0.3, " o2": 0.1},
        {" o0": 0.6, " t1": 0.3, " o2": 0.1},
        {" o0": 0.6, " o1": 0.3, " o2": 0.1},  # rank 8: none of its choices
    ]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("name", SETTINGS)
def test_every_contender_writes_whole_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imposed, "TOKENS", 6)
    tally = asyncio.run(imposed.answer_all(Contender(SETTINGS[name], (0.001, 100.0), [answer("00100000")] * 3 + [answer("0020")])))
    assert tally.tokens == [6, 4]
    assert bool(tally.figures) == (name != STREAM)


def test_a_prompt_that_nobody_has_read_is_begun_by_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imposed, "TOKENS", 6)
    contender = Contender(UNREAD["streamco"], (0.001, 100.0), [answer("00100000")] * 3, unread=100)
    tally = asyncio.run(imposed.answer_all(contender))
    assert tally.figures[0].remote == 5  # the verifier gives one token, and the device reads for longer than the stream takes


def test_contenders_with_late_rounds_have_no_rate() -> None:
    stream, good, late = (Tally([1.0], [10], [0.1], verdicts=verdicts, late=late) for verdicts, late in ((0, 0), (100, 1), (100, 3)))
    rows = rows_of("code", {STREAM: stream, "fine": good, "late": late})
    assert {row.contender for row in rows if row.metric == "rate over the stream's"} == {"fine"}
    assert [row.median for row in rows if (row.contender, row.metric) == ("late", "rounds that took longer than imposed")] == [0.03]
