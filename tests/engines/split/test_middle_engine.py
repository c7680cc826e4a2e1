"""The middle layers on their thread: rows of several sequences in one batch, what a failed or a closed engine does, imposed times."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamco.emulation.step_emulation import StepEmulator
from streamco.emulation.step_times import RowStep
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, is_part, split_model
from streamco.engines.split.layers import MiddlePart, StateRun
from streamco.engines.split.middle_engine import MiddleEngine, RowsBatch
from streamco.errors import ConfigError, EngineError

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.long, pytest.mark.model]

COSTS = {1: 0.005, 64: 0.05}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def engine(files: PartFiles) -> Iterator[MiddleEngine]:
    engine = MiddleEngine(files.middle, cells=64, sequences=3, threads=1, row_costs=COSTS)
    yield engine
    engine.close()


def some(rows: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, 576)).astype(np.float32)


def compute(engine: MiddleEngine, *runs: StateRun) -> list[NDArray[np.float32]]:
    batch = done(engine, *runs)
    assert batch.states is not None, batch.error
    return batch.states


def done(engine: MiddleEngine, *runs: StateRun) -> RowsBatch:
    ended = threading.Event()
    batch = RowsBatch(runs, ended.set)
    engine.submit(batch)
    assert ended.wait(60)
    return batch


def test_sequences_of_one_batch_give_what_each_gives_alone(engine: MiddleEngine, files: PartFiles) -> None:
    first, second = some(5, 1), some(3, 2)
    together = compute(engine, StateRun(0, 0, first), StateRun(2, 0, second))
    more = compute(engine, StateRun(0, 5, some(1, 3)), StateRun(2, 2, some(1, 4)))
    with MiddlePart(files.middle, cells=64) as alone:
        expected = alone.run(np.concatenate([first, some(1, 3)]), 0)
        assert np.allclose(together[0], expected[:5], atol=0.05)
        assert np.allclose(more[0], expected[5:], atol=0.05)
        alone.truncate(0)
        expected = alone.run(np.concatenate([second[:2], some(1, 4)]), 0)
        assert np.allclose(more[1], expected[2:], atol=0.05)


def test_a_run_forgets_what_its_sequence_had_from_its_position_on(engine: MiddleEngine) -> None:
    expected = compute(engine, StateRun(1, 0, some(4, 5)))[0]
    compute(engine, StateRun(1, 4, some(3, 6)))
    assert np.array_equal(compute(engine, StateRun(1, 0, some(4, 5)))[0], expected)


def test_rows_that_do_not_fit_fail_alone_and_leave_nothing_in_the_batch(engine: MiddleEngine) -> None:
    expected = compute(engine, StateRun(1, 0, some(4, 5)))[0]
    failed = done(engine, StateRun(0, 0, some(2, 1)), StateRun(2, 254, some(5, 1)))  # llama.cpp makes 256 cells of 64
    assert isinstance(failed.error, EngineError)
    assert np.array_equal(compute(engine, StateRun(1, 0, some(4, 5)))[0], expected)
    assert isinstance(done(engine, StateRun(0, 0, np.zeros((1, 5), np.float32))).error, EngineError)


def test_row_costs_are_measured_unless_they_are_given_or_imposed(files: PartFiles) -> None:
    imposed = MiddleEngine(files.middle, cells=8, sequences=1, threads=1, pace=StepEmulator(RowStep(setup=0.01, per_row=0.001)))
    try:
        assert imposed.row_costs() == {rows: pytest.approx(0.01 + 0.001 * rows) for rows in (1, 2, 4, 8)}
        assert done(imposed, StateRun(0, 0, some(4, 1))).seconds >= 0.014
    finally:
        imposed.close()
    measured = MiddleEngine(files.middle, cells=8, sequences=1, threads=1)
    try:
        costs = measured.row_costs()
        assert list(costs) == [1, 2, 4, 8]
        assert min(costs.values()) > 0
        assert measured.row_costs() == costs
    finally:
        measured.close()


def test_a_closed_engine_takes_nothing_and_stops_what_runs(files: PartFiles) -> None:
    engine = MiddleEngine(files.middle, cells=512, sequences=1, threads=1, row_costs=COSTS)
    ended = threading.Event()
    batch = RowsBatch([StateRun(0, 0, some(512, 1))], ended.set)
    engine.submit(batch)
    engine.close()
    engine.close()
    assert ended.is_set()
    with pytest.raises(EngineError, match="closed"):
        engine.submit(batch)
    with pytest.raises(EngineError, match="closed"):
        engine.ping(ended.set)


def test_a_ping_is_answered_on_the_engines_thread(engine: MiddleEngine) -> None:
    names: list[str] = []
    answered = threading.Event()

    def answer() -> None:
        names.append(threading.current_thread().name)
        answered.set()

    engine.ping(answer)
    assert answered.wait(60)
    assert names == ["streamco-middle"]


def test_a_defect_in_a_callback_ends_the_thread_and_is_reported(files: PartFiles, caplog: pytest.LogCaptureFixture) -> None:
    engine = MiddleEngine(files.middle, cells=8, sequences=1, threads=1, row_costs=COSTS)

    def fail() -> None:
        raise ValueError("defect")

    engine.ping(fail)
    engine._thread.join(60)
    with pytest.raises(EngineError, match="defect"):
        engine.ping(fail)
    engine.close()
    assert "thread ended" in caplog.text


def test_other_parts_and_impossible_times_are_refused(files: PartFiles) -> None:
    with pytest.raises(ConfigError, match="middle part"):
        MiddleEngine(files.input)
    with pytest.raises(ConfigError, match="seconds"):
        RowStep(setup=-1.0, per_row=0.0)
    assert is_part(files.middle)
    assert is_part(files.input)
    assert not is_part(packaged_model())
    assert Path(files.middle).is_file()
