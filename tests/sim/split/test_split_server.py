"""The split server: batches by the live policy, pipeline stages, rows in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from streamco.policies.chunking import MEMORY
from streamco.policies.serving.batching import Batch, BatchContext, Kind, Mixed, Waiting
from streamco.profiles.row_costs import RowCosts
from streamco.sim.driver import call_at
from streamco.sim.split.split_server import SentRows, SimulatedSplitServer
from tests.sim.split.worlds import batch_seconds


class Lab:
    """A server, and when its messages were computed."""

    def __init__(self, *, room: int = 1 << 20, stages: int = 1, is_merged: bool = True) -> None:
        self.env = simpy.Environment()
        self.batches: list[tuple[int, float]] = []
        self.server = SimulatedSplitServer(
            self.env,
            batch_seconds,
            RowCosts({1: 0.0201, 2048: 0.2248}),
            Mixed(room=room),
            stages=stages,
            is_merged=is_merged,
            on_batch=lambda rows, seconds: self.batches.append((rows, seconds)),
        )
        self.ended: list[tuple[str, float]] = []

    def send(self, at: float, session: str, rows: int, *, kind: Kind = "verify", position: int = 0) -> None:
        message = SentRows(
            session=session,
            device=session,
            kind=kind,
            position=position,
            rows=rows,
            emit=lambda: self.ended.append((session, round(self.env.now, 6))),
        )
        call_at(self.env, at, lambda: self.server.submit(message))

    def run(self) -> list[tuple[str, float]]:
        self.env.run()
        return self.ended


def test_rows_that_come_while_a_batch_runs_are_the_next_batch_together() -> None:
    lab = Lab()
    lab.send(0.0, "a", 100, kind="prefill")
    lab.send(0.001, "b", 3)
    lab.send(0.002, "c", 5)
    assert lab.run() == [("a", 0.03), ("b", 0.0508), ("c", 0.0508)]
    assert [rows for rows, _ in lab.batches] == [100, 8]


def test_a_room_lets_a_long_prompt_in_by_and_by_and_verifications_do_not_wait_for_it() -> None:
    lab = Lab(room=64)
    lab.send(0.0, "a", 120, kind="prefill")
    lab.send(0.001, "b", 4)
    lab.run()
    assert [rows for rows, _ in lab.batches] == [64, 60]
    assert sorted(lab.ended) == [("a", 0.0524), ("b", 0.0524)]


def test_a_stage_takes_its_part_of_the_time_and_the_next_batch_follows_at_once() -> None:
    lab = Lab(stages=4)
    lab.send(0.0, "a", 200, kind="prefill")  # 40 ms: 10 in each stage
    lab.send(0.001, "b", 100, kind="prefill")  # 30 ms: it waits in front of each stage for the batch before
    assert lab.run() == [("a", 0.04), ("b", 0.0475)]
    assert lab.server.busy == pytest.approx(0.0175)


def test_the_next_chunk_of_a_prompt_may_enter_before_the_last_stage_has_computed_the_one_before() -> None:
    lab = Lab(stages=2)
    lab.send(0.0, "a", 100, kind="prefill")
    lab.send(0.0, "a", 100, kind="prefill", position=100)
    lab.send(0.016, "a", 100, kind="prefill", position=200)
    assert lab.run() == [("a", 0.03), ("a", 0.045), ("a", 0.06)]


@pytest.mark.parametrize(("is_merged", "batches"), [(True, [100, 150]), (False, [100, 100, 50])])
def test_chunks_that_wait_are_read_together_or_one_after_the_other(is_merged: bool, batches: list[int]) -> None:
    lab = Lab(is_merged=is_merged)
    for position, rows in ((0, 100), (100, 100), (200, 50)):
        lab.send(0.00001 * position, "a", rows, kind="prefill", position=position)
    lab.run()
    assert [rows for rows, _ in lab.batches] == batches


class Watched:
    """The live policy, and what it was asked."""

    batch_tokens = 1 << 20

    def __init__(self) -> None:
        self.asked: list[tuple[Waiting, ...]] = []
        self._policy = Mixed(room=self.batch_tokens)

    def choose(self, waiting: Sequence[Waiting], state: BatchContext) -> Batch | None:
        self.asked.append(tuple(waiting))
        return self._policy.choose(waiting, state)


def test_the_live_policy_sees_what_waits_and_rows_after_a_rejected_one_are_dropped() -> None:
    lab, policy = Lab(), Watched()
    lab.server._policy = policy
    lab.send(0.0, "a", 100, kind="prefill")
    lab.send(1.0, "a", 5, position=100)
    lab.send(2.0, "a", 3, position=102)  # three of the five rows were rejected
    lab.run()
    seen = [(work.kind, work.tokens, work.verify_rows, work.context) for (work,) in filter(None, policy.asked)]
    assert seen == [("prefill", 100, 0, 0), ("verify", 5, 5, 100), ("verify", 3, 3, 102)]


def test_the_monitored_load_is_the_papers_moving_average() -> None:
    lab = Lab()
    lab.send(0.0, "a", 100, kind="prefill")
    lab.send(1.0, "b", 10)
    lab.run()
    assert lab.server.load.rows == pytest.approx(MEMORY * (1 - MEMORY) * 100 + (1 - MEMORY) * 10)


@given(
    messages=st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 4), st.integers(1, 300)), min_size=1, max_size=30),
    room=st.integers(64, 400),
    stages=st.integers(1, 4),
)
def test_each_row_is_computed_once_and_the_messages_of_a_session_end_in_order(
    messages: list[tuple[float, int, int]], room: int, stages: int
) -> None:
    lab = Lab(room=room, stages=stages)
    for at, session, rows in sorted(messages):
        lab.send(at, f"s{session}", rows, kind="prefill")
    ended = lab.run()
    assert sum(rows for rows, _ in lab.batches) == lab.server.rows == sum(rows for _, _, rows in messages)
    assert max(rows for rows, _ in lab.batches) <= room
    assert len(ended) == len(messages)
    assert [moment for _, moment in ended] == sorted(moment for _, moment in ended)


def test_a_session_with_waiting_rows_is_not_closed() -> None:
    lab = Lab()
    lab.send(0.0, "a", 10)
    lab.send(0.001, "b", 10)
    lab.env.run(until=0.002)
    with pytest.raises(AssertionError, match="b: expected a session without waiting rows"):
        lab.server.close("b")
    lab.run()
    lab.server.close("b")
    lab.server.close("b")  # nothing is left of it
