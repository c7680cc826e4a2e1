from __future__ import annotations

import signal
import sys
import time
import types
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pytest

from streamco.errors import ConfigError, StreamcoError
from streamco.sim.experiment.result_store import ResultStore, name_of
from streamco.sim.experiment.runner import LOOK_EVERY, run_sweep
from streamco.sim.experiment.scenario import Scenario
from tests.sim.toy_kind import LOCATION


def toys(count: int = 6, **changes: Any) -> list[Scenario]:
    return [
        Scenario(**{"kind": "toy", "kind_location": LOCATION, "seed": seed, "world": {"devices": 2}, **changes}) for seed in range(count)
    ]


def store_in(folder: Path) -> ResultStore:
    return ResultStore(folder / "done.jsonl", code="c")


class Progress(list[tuple[int, int]]):
    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_scenario_is_in_the_ledger_and_progress_is_told(tmp_path: Path, jobs: int) -> None:
    store, progress = store_in(tmp_path), Progress()
    run_sweep(toys(), store, jobs=jobs, progress=progress)
    assert all(name_of(scenario) in store for scenario in toys())
    assert progress == [(done, 6) for done in range(7)]


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    found = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        store = store_in(folder)
        run_sweep(toys(4, requests=True), store, jobs=jobs, progress=Progress())
        found.append([store.read_json(name_of(scenario)) for scenario in toys(4, requests=True)])
    assert found[0] == found[1]


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    run_sweep(toys(3), store_in(tmp_path), jobs=1, progress=Progress())
    progress = Progress()
    run_sweep([*toys(5), *toys(5)], store_in(tmp_path), jobs=1, progress=progress)  # and the same is run once
    assert progress == [(3, 5), (4, 5), (5, 5)]
    assert len((tmp_path / "done.jsonl").read_bytes().splitlines()) == 5


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_names_its_point_and_what_was_finished_before_stays(tmp_path: Path, jobs: int) -> None:
    scenarios = [*toys(2), *toys(1, policy={"fails": True}, point={"policy.fails": True})]
    with pytest.raises(ConfigError, match=r"at policy\.fails True, seed 0: toy: expected luck, got none with seed 0"):
        run_sweep(scenarios, store_in(tmp_path), jobs=jobs, progress=Progress())
    if jobs == 1:
        assert [name_of(scenario) in store_in(tmp_path) for scenario in scenarios] == [True, True, False]


def test_a_defect_says_which_scenario_it_is_of(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="undeclared") as caught:
        run_sweep(toys(1, kind_location="tests.sim.toy_kind:BROKEN"), store_in(tmp_path), jobs=1, progress=Progress())
    assert caught.value.__notes__ == ["in the scenario at seed 0"]


def test_a_process_that_is_ended_is_told(tmp_path: Path) -> None:
    with pytest.raises(StreamcoError, match="a process was ended by the system"):
        run_sweep(toys(4, kind_location="tests.sim.toy_kind:DYING"), store_in(tmp_path), jobs=2, progress=Progress())


def test_ctrl_c_is_heard_by_who_asked_for_the_sweep_and_not_by_its_processes(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    run_sweep(toys(4, kind_location="tests.sim.toy_kind:INTERRUPTED"), store, jobs=2, progress=Progress())
    assert all(name_of(scenario) in store for scenario in toys(4, kind_location="tests.sim.toy_kind:INTERRUPTED"))


class FakeClient:
    """As much of Dask's client as is used."""

    threads: Mapping[str, int] = MappingProxyType({"tcp://worker": 2})

    def __init__(self, address: str) -> None:
        if address != "tcp://scheduler:8786":
            raise OSError("timed out")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nthreads(self) -> Mapping[str, int]:
        return self.threads

    def get_executor(self, *, pure: bool) -> Executor:
        assert not pure
        return ThreadPoolExecutor(2)


@pytest.fixture
def fake_dask(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    module = types.ModuleType("distributed")
    module.Client = FakeClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "distributed", module)
    return FakeClient


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarms here")
def test_ctrl_c_is_heard_though_waiting_was_about_to_end(
    tmp_path: Path, fake_dask: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Never(Executor):
        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            signal.setitimer(signal.ITIMER_REAL, LOOK_EVERY / 2, 20.0)
            return Future()

    def alarm(*_: object) -> None:
        alarms.append(True)
        if len(alarms) > 1:
            raise AssertionError("expected Ctrl-C to be heard, got a wait without an end")
        signal.raise_signal(signal.SIGINT)
        time.sleep(LOOK_EVERY)  # the time is up behind this

    alarms: list[bool] = []
    monkeypatch.setattr(fake_dask, "get_executor", lambda *_, **__: Never())
    usual = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(toys(4), store_in(tmp_path), jobs=2, dask="tcp://scheduler:8786", progress=Progress())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    assert len(alarms) == 1


def test_a_cluster_does_the_same(tmp_path: Path, fake_dask: type[FakeClient]) -> None:
    store = store_in(tmp_path)
    run_sweep(toys(5), store, jobs=1, dask="tcp://scheduler:8786", progress=Progress())
    assert all(name_of(scenario) in store for scenario in toys(5))


def test_a_cluster_that_is_not_there_or_has_nobody_is_told(
    tmp_path: Path, fake_dask: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--dask: expected the address of a scheduler that answers, got 'tcp://nowhere:1': timed out"):
        run_sweep(toys(1), store_in(tmp_path), jobs=1, dask="tcp://nowhere:1", progress=Progress())
    monkeypatch.setattr(FakeClient, "threads", {})
    with pytest.raises(ConfigError, match="expected a cluster with workers, got none"):
        run_sweep(toys(1), store_in(tmp_path), jobs=1, dask="tcp://scheduler:8786", progress=Progress())


class Pressing(ThreadPoolExecutor):
    """Ctrl-C is pressed behind the last of four submissions, when all are finished."""

    def submit(self, *args: Any, **options: Any) -> Future[Any]:
        future = super().submit(*args, **options)
        future.result()
        self.count = getattr(self, "count", 0) + 1
        if self.count == 4:
            signal.raise_signal(signal.SIGINT)
        return future


def test_what_is_finished_as_ctrl_c_comes_is_kept(tmp_path: Path, fake_dask: type[FakeClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_dask, "get_executor", lambda *_, **__: Pressing(2))
    store = store_in(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(toys(6), store, jobs=2, dask="tcp://scheduler:8786", progress=Progress())
    assert sum(name_of(scenario) in store for scenario in toys(6)) == 4
    assert signal.getsignal(signal.SIGINT) is before


def test_who_was_started_to_ignore_ctrl_c_goes_on(tmp_path: Path, fake_dask: type[FakeClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_dask, "get_executor", lambda *_, **__: Pressing(2))
    store = store_in(tmp_path)
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_sweep(toys(6), store, jobs=2, dask="tcp://scheduler:8786", progress=Progress())
    finally:
        signal.signal(signal.SIGINT, usual)
    assert all(name_of(scenario) in store for scenario in toys(6))


def test_a_process_that_is_gone_is_told_though_the_pool_waits(
    tmp_path: Path, fake_dask: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Executor):
        _processes = {7: types.SimpleNamespace(pid=7, exitcode=-9)}  # noqa: RUF012

        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            return Future()

    monkeypatch.setattr(fake_dask, "get_executor", lambda *_, **__: Gone())
    with pytest.raises(StreamcoError, match="a process was ended by the system"):
        run_sweep(toys(4), store_in(tmp_path), jobs=2, dask="tcp://scheduler:8786", progress=Progress())


def test_without_dask_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match="--dask: needs the package distributed: pip install distributed"):
        run_sweep(toys(1), store_in(tmp_path), jobs=1, dask="tcp://scheduler:8786", progress=Progress())


@pytest.fixture
def scheduler() -> Iterator[str]:
    distributed: Any = pytest.importorskip("distributed", reason="needs Dask: pip install distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp") as cluster:
        yield cluster.scheduler_address


@pytest.mark.filterwarnings("default")
def test_dask_itself_runs_a_sweep(tmp_path: Path, scheduler: str) -> None:
    store = store_in(tmp_path)
    run_sweep(toys(5), store, jobs=1, dask=scheduler, progress=Progress())
    assert all(name_of(scenario) in store for scenario in toys(5))
