"""Energy by the processor's counters: which of them count, how a time is divided, and what is not known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.rapl import EnergyMeter, PackageCounter, WorkEnergy, find_packages

RANGE_UJ = 262_143_328_850


def domain(root: Path, name: str, what: str, uj: int = 0, range_uj: int = RANGE_UJ) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{what}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (folder / "energy_uj").write_text(f"{uj}\n")
    return folder / "energy_uj"


def meter_of(root: Path) -> EnergyMeter:
    packages = find_packages(root)
    assert packages
    return EnergyMeter(packages)


def test_packages_count_and_their_parts_do_not(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl").mkdir()
    domain(tmp_path, "intel-rapl:0", "package-0", 5)
    domain(tmp_path, "intel-rapl:0:0", "core", 3)
    domain(tmp_path, "intel-rapl:0:1", "dram", 1)
    domain(tmp_path, "intel-rapl:1", "package-1", 7)
    domain(tmp_path, "intel-rapl:2", "psys", 20)
    domain(tmp_path, "intel-rapl-mmio:0", "package-0", 5)
    assert [each.path.parent.name for each in find_packages(tmp_path)] == ["intel-rapl:0", "intel-rapl:1"]
    assert [each.read() for each in find_packages(tmp_path)] == [5, 7]


def test_without_a_tree_nothing_is_measured(tmp_path: Path) -> None:
    assert find_packages(tmp_path / "none") == ()
    assert find_packages(tmp_path) == ()
    work = WorkEnergy(None)
    work.resume(now=0.0)
    work.pause(now=1.0)
    assert work.joules is None


@pytest.mark.parametrize("name", ["name", "max_energy_range_uj", "energy_uj"])
def test_nothing_is_measured_if_one_package_of_two_cannot_be_read(tmp_path: Path, name: str) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0")
    file = domain(tmp_path, "intel-rapl:1", "package-1").with_name(name)
    file.unlink()
    file.mkdir()  # as unreadable for root as for others
    assert find_packages(tmp_path) == ()


def test_a_counter_without_a_number_cannot_be_read(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0").write_text("")
    assert find_packages(tmp_path) == ()


def test_the_energy_of_all_packages_is_added_up_over_a_wrap_around(tmp_path: Path) -> None:
    first = domain(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 4_000_000)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 10)
    meter = meter_of(tmp_path)
    begun = meter.begin(now=10.0)
    first.write_text("6000000")
    second.write_text("5000010")
    assert meter.end(begun, now=11.0) == pytest.approx(4 + 6 + 5)


def test_answers_at_a_time_divide_what_is_used(tmp_path: Path) -> None:
    counter = domain(tmp_path, "intel-rapl:0", "package-0")
    meter = meter_of(tmp_path)
    one = meter.begin(now=0.0)
    counter.write_text("10000000")
    two = meter.begin(now=1.0)
    counter.write_text("16000000")
    assert meter.end(one, now=2.0) == pytest.approx(10 + 3)
    counter.write_text("20000000")
    assert meter.end(two, now=3.0) == pytest.approx(3 + 4)
    counter.write_text("90000000")  # nobody's
    begun = meter.begin(now=4.0)
    assert meter.end(begun, now=4.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20_000_000)), max_size=40))
def test_the_parts_add_up_to_what_was_used_while_there_was_work(steps: list[tuple[int, int]]) -> None:
    class Counter:
        range_uj, value = RANGE_UJ, 0
        used = PackageCounter.used

        def read(self) -> int:
            return self.value

    counter = Counter()
    meter = EnergyMeter([counter])  # type: ignore[list-item]
    works = [WorkEnergy(meter) for _ in range(4)]
    busy: set[int] = set()
    total = 0
    for now, (index, used) in enumerate([*steps, *((each, 0) for each in range(4))]):
        counter.value += used
        total += used if busy else 0
        if index in busy or now >= len(steps):
            busy.discard(index)
            works[index].pause(now=float(now))
        else:
            busy.add(index)
            works[index].resume(now=float(now))
    assert sum(work.joules or 0.0 for work in works) == pytest.approx(total / 1e6)


def test_a_counter_that_vanishes_ends_all_measuring(tmp_path: Path) -> None:
    counter = domain(tmp_path, "intel-rapl:0", "package-0")
    meter = meter_of(tmp_path)
    begun, other = meter.begin(now=0.0), meter.begin(now=0.0)
    counter.unlink()
    assert meter.end(begun, now=1.0) is None
    counter.write_text("5")
    assert meter.end(other, now=2.0) is None
    assert meter.end(meter.begin(now=3.0), now=4.0) is None, "it isn't trusted any more"


def test_a_step_that_no_processor_takes_is_not_known(tmp_path: Path) -> None:
    counter = domain(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    meter = meter_of(tmp_path)
    begun = meter.begin(now=0.0)
    counter.write_text("0")  # set back, as after a suspend: by its range it would be 262 kJ
    assert meter.end(begun, now=1.0) is None
    begun = meter.begin(now=2.0)
    counter.write_text("3000000")
    assert meter.end(begun, now=3.0) == pytest.approx(3.0), "the next answer is measured again"


def test_a_time_in_which_a_counter_may_have_run_round_twice_is_not_known(tmp_path: Path) -> None:
    counter = domain(tmp_path, "intel-rapl:0", "package-0", range_uj=65_532_610_987)
    meter = meter_of(tmp_path)
    begun = meter.begin(now=0.0)
    counter.write_text("5000000000")
    assert meter.end(begun, now=600.0) is None


def test_work_that_pauses_has_the_energy_of_its_own_times(tmp_path: Path) -> None:
    counter = domain(tmp_path, "intel-rapl:0", "package-0")
    work = WorkEnergy(meter_of(tmp_path))
    work.pause(now=0.0)
    assert work.joules is None, "it has not begun"
    for now, uj in ((1.0, 0), (2.0, 4_000_000), (3.0, 50_000_000), (4.0, 51_000_000)):
        counter.write_text(str(uj))
        (work.resume if now in {1.0, 3.0} else work.pause)(now=now)
    work.pause(now=5.0)
    assert work.joules == pytest.approx(5.0)


def test_work_with_one_unknown_part_is_not_known(tmp_path: Path) -> None:
    counter = domain(tmp_path, "intel-rapl:0", "package-0", 5)
    work = WorkEnergy(meter_of(tmp_path))
    work.resume(now=0.0)
    counter.write_text("0")
    work.pause(now=1.0)
    work.resume(now=2.0)
    work.pause(now=3.0)
    assert work.joules is None
