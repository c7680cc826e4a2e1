"""When chunks are begun, sent, computed and back, on small examples."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.profiles.chunk_times import ChunkTimes


def times(**changes: Any) -> ChunkTimes:
    known: dict[str, Any] = {"input_seconds": lambda rows: 1.0 + rows, "upload_seconds": 2.0, "download_seconds": 0.0, "stages": 1}
    return ChunkTimes(**{**known, "batch_seconds": lambda rows: 10.0 + rows, "room": 100, "is_merged": True, **changes})


def test_the_device_computes_a_chunk_while_it_sends_the_one_before() -> None:
    assert times().chunks(10, 4) == [(4, 0.0, 13.0), (4, 8.0, 21.0), (2, 18.0, 25.0)]
    assert times(upload_seconds=0.5).chunks(10, 4) == [(4, 0.0, 7.0), (4, 5.0, 12.0), (2, 10.0, 14.0)]


def test_rows_that_are_computed_take_the_device_no_time() -> None:
    assert times().chunks(10, 4, 6) == [(4, 0.0, 8.0), (4, 5.0, 16.0), (2, 13.0, 20.0)]
    assert times().chunks(10, 4, 10) == [(4, 0.0, 8.0), (4, 8.0, 16.0), (2, 16.0, 20.0)]


def test_a_chunk_begins_early_enough_for_the_next_one() -> None:
    chunks = times(upload_seconds=1.0, input_seconds=lambda rows: 3.0 * rows).chunks(12, 4, 8)
    assert chunks == [(4, 0.0, 4.0), (4, 0.0, 8.0), (4, 0.0, 16.0)], "12 seconds of the third, which arrives 4 later"


def test_a_server_computes_together_what_has_come() -> None:
    chunks = times().chunks(10, 4)
    assert times().batches(chunks) == [(4, 27.0), (6, 43.0)]
    assert times(is_merged=False).batches(chunks) == [(4, 27.0), (4, 41.0), (2, 53.0)]
    assert times(room=3).batches(chunks) == [(3, 26.0), (3, 39.0), (3, 52.0), (1, 63.0)]
    assert times(stages=2).batches(chunks) == [(4, 27.0), (4, 35.0), (2, 41.0)]


def test_states_come_back_one_batch_after_the_other() -> None:
    chunks = times().chunks(10, 4)
    assert times(download_seconds=5.0).batches(chunks) == [(4, 47.0), (6, 77.0)]


@pytest.mark.parametrize(("late", "most"), [(0.0, 10), (5.0, 10), (200.0, 20)])
def test_chunks_are_unanswered_until_their_batch_is_back(late: float, most: int) -> None:
    alone = times(is_merged=False)
    chunks = alone.chunks(40, 2)
    batches = alone.batches(chunks)
    counted = [index + 1 - sum(batch.returns + late <= chunk.begins for batch in batches) for index, chunk in enumerate(chunks)]
    assert alone.most_unanswered(chunks, late) == max(counted)
    assert max(counted) >= most
