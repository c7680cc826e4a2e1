"""A server that answers with the states of recorded texts."""

from __future__ import annotations

import numpy as np

from bench.timed.split_server import RecordedText, Replay
from streamco.engines.split.layers import StateRun

RNG = np.random.default_rng(0)


def text(rows: int) -> RecordedText:
    return RecordedText(RNG.normal(size=(rows, 4)).astype(np.float32), RNG.normal(size=(rows, 4)).astype(np.float32))


def test_rows_get_the_states_of_the_text_that_they_belong_to() -> None:
    texts = [text(12), text(9), text(12)]
    for each in texts:
        run = StateRun(0, 4, each.shallow[4:7] * np.float32(1.001))  # other batches round differently
        assert np.array_equal(Replay(texts)(run), each.deep[4:7])


def test_a_wrong_draft_and_the_end_of_the_text_change_nothing_before_them() -> None:
    one, other = text(8), text(8)
    rows = np.concatenate([one.shallow[6:7], other.shallow[:4]])  # the last token, then drafts
    found = Replay([other, one])(StateRun(3, 6, rows))
    assert np.array_equal(found[:2], one.deep[6:])
    assert not found[2:].any()
