"""The callers' file: keys, rates, reservations by several processes, and what happens when it can't be used."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamco.errors import ConfigError
from streamco.proxy.callers.base import MAX_CALLERS, Caller, to_nanos
from streamco.proxy.callers.keys import hash_key, make_key
from streamco.proxy.callers.store import CallerStore, SettledCost
from streamco.proxy.callers.store import add_caller as add_dollars
from tests.proxy.callers.support import DAY, NOON, add_caller, locked, new_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "callers.sqlite"


@pytest.fixture
def store(path: Path) -> CallerStore:
    return new_store(path)


def found(store: CallerStore, key: str) -> Caller | None:
    key_hash = hash_key(key)
    assert key_hash is not None
    return store.find(key_hash)


# Callers


def test_a_caller_is_found_by_its_key_alone(store: CallerStore) -> None:
    key = add_caller(store, budget=0.5, rate=60, sides=("device",), is_operator=True)
    other = add_caller(store, "bob", budget=None)
    assert found(store, key) == Caller(name="alice", budget=to_nanos(0.5), rate=60, sides=("device",), is_operator=True)
    assert found(store, other) == Caller(name="bob")
    assert found(store, make_key()[0]) is None
    assert [caller.name for caller in store.listed()] == ["alice", "bob"]


def test_no_key_is_in_the_file(store: CallerStore, path: Path) -> None:
    key = add_caller(store)
    store.reserve("r", "alice", 5, NOON, may_fall_back=False)
    store.close()
    files = [each.read_bytes() for each in path.parent.iterdir()]
    assert files
    assert not any(part.encode() in data for data in files for part in (key, key.removeprefix("sk-streamco-")))


def test_a_new_key_takes_the_place_of_the_old_one_at_once_also_in_another_process(store: CallerStore, path: Path) -> None:
    key, other = add_caller(store), CallerStore(path)
    assert found(other, key) is not None
    new, new_hash = make_key()
    store.rotate("alice", new_hash)
    assert found(other, key) is None
    assert found(other, new) is not None


def test_limits_change_and_callers_go(store: CallerStore) -> None:
    key = add_caller(store, rate=1)
    assert store.take("alice", NOON) == 0
    assert store.take("alice", NOON) == 60
    store.change(Caller(name="alice", budget=None, rate=2))
    assert found(store, key) == Caller(name="alice", rate=2)
    assert [store.take("alice", NOON) for _ in range(2)] == [0, 0], "the bucket begins full"
    store.reserve("r", "alice", 5, NOON, may_fall_back=False)
    store.remove("alice")
    assert found(store, key) is None
    assert not store.listed()
    assert store.take("alice", NOON) == 0
    assert store.reserve("s", "alice", 5, NOON, may_fall_back=True) is None
    store.settle("r", SettledCost(cost=7))
    add_caller(store)
    assert store.figures("alice", NOON)[1].requests == 0, "its figures went with it"


@pytest.mark.parametrize("action", ["rotate", "remove", "change", "named", "figures", "history"])
def test_a_name_that_is_not_there_is_said(store: CallerStore, action: str) -> None:
    actions: dict[str, Callable[[], object]] = {
        "rotate": lambda: store.rotate("bob", b"x"),
        "remove": lambda: store.remove("bob"),
        "change": lambda: store.change(Caller(name="bob")),
        "named": lambda: store.named("bob"),
        "figures": lambda: store.figures("bob", NOON),
        "history": lambda: store.history("bob", NOON, 7),
    }
    with pytest.raises(ConfigError, match=r"expected the name of a caller in .*, got 'bob'"):
        actions[action]()


def test_names_are_unique_and_callers_not_too_many(store: CallerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_caller(store)
    with pytest.raises(ConfigError, match="expected a name of its own, got alice"):
        add_caller(store)
    monkeypatch.setattr("streamco.proxy.callers.store.MAX_CALLERS", 1)
    with pytest.raises(ConfigError, match="callers: the limit is 1"):
        add_caller(store, "bob")
    assert MAX_CALLERS > 1


def test_a_program_adds_a_caller_with_dollars(path: Path) -> None:
    key = add_dollars(path.with_name("new.sqlite"), "alice", budget=0.5, rate=60, sides=["server"])
    store = CallerStore(path.with_name("new.sqlite"))
    assert found(store, key) == Caller(name="alice", budget=500_000_000, rate=60, sides=("server",))
    store.close()
    with pytest.raises(ConfigError, match="expected a name of its own"):
        add_dollars(path.with_name("new.sqlite"), "alice", budget=None)
    with pytest.raises(ConfigError, match="expected US dollars >= 0"):
        add_dollars(path.with_name("other.sqlite"), "alice", budget=-1.0)
    assert not path.with_name("other.sqlite").exists()


# Budgets


def test_what_is_reserved_is_not_there_for_others_and_what_is_settled_is_what_counts(store: CallerStore) -> None:
    add_caller(store, budget=1e-6)
    first = store.reserve("a", "alice", 700, NOON, may_fall_back=False)
    assert first is not None
    assert (first.is_covered, first.left) == (True, 1000)
    second = store.reserve("b", "alice", 400, NOON, may_fall_back=False)
    assert second is not None
    assert (second.is_covered, second.left) == (False, 300)
    store.settle(
        "a", SettledCost(cost=100, prompt_tokens=10, completion_tokens=3, estimated_prompt_tokens=4, estimated_completion_tokens=1)
    )
    third = store.reserve("b", "alice", 400, NOON, may_fall_back=False)
    assert third is not None
    assert third.is_covered
    _, figures = store.figures("alice", NOON)
    assert (figures.spent, figures.reserved, figures.requests, figures.refused) == (100, 400, 2, 1)
    assert (figures.prompt_tokens, figures.completion_tokens) == (10, 3)
    assert (figures.estimated_prompt_tokens, figures.estimated_completion_tokens) == (4, 1)


def test_a_request_that_may_fall_back_is_admitted_without_cost(store: CallerStore) -> None:
    add_caller(store, budget=0.0)
    reserved = store.reserve("a", "alice", 5, NOON, may_fall_back=True)
    assert reserved is not None
    assert not reserved.is_covered
    store.settle("a", SettledCost(prompt_tokens=4))
    _, figures = store.figures("alice", NOON)
    assert (figures.spent, figures.reserved, figures.requests, figures.spared, figures.prompt_tokens) == (0, 0, 1, 1, 4)


def test_a_settlement_counts_once_and_one_without_a_reservation_not_at_all(store: CallerStore) -> None:
    add_caller(store)
    store.reserve("a", "alice", 50, NOON, may_fall_back=False)
    for _ in range(3):
        store.settle("a", SettledCost(cost=20))
    store.settle("never", SettledCost(cost=20))
    assert store.figures("alice", NOON)[1].spent == 20


def test_a_reservation_that_was_withdrawn_leaves_the_budget_whole(store: CallerStore) -> None:
    add_caller(store)
    store.reserve("a", "alice", 50, NOON, may_fall_back=False)
    store.withdraw("a")
    store.withdraw("never")
    _, figures = store.figures("alice", NOON)
    assert (figures.spent, figures.reserved) == (0, 0)


def test_a_day_has_its_own_budget_and_an_answer_counts_on_the_day_it_began(store: CallerStore) -> None:
    add_caller(store, budget=1e-7)
    late = NOON + DAY / 2 - 1
    store.reserve("a", "alice", 100, late, may_fall_back=False)
    next_day = store.reserve("b", "alice", 100, late + 1, may_fall_back=False)
    assert next_day is not None
    assert next_day.is_covered
    store.settle("a", SettledCost(cost=60))
    first, second = reversed(store.history("alice", late + 1, 2))
    assert (first.day, first.spent, first.reserved) == ("2026-11-27", 60, 0)
    assert (second.day, second.spent, second.reserved) == ("2026-11-28", 0, 100)
    assert store.history("alice", late + 1, 1) == [second]


RESERVE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from streamco.proxy.callers.store import CallerStore
store = CallerStore(Path(sys.argv[1]))
assert store.reserve("dead", "alice", 900, float(sys.argv[2]), may_fall_back=False).is_covered
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_dead_process_has_reserved_counts_until_its_day_has_ended_and_is_then_spent(store: CallerStore, path: Path) -> None:
    add_caller(store, budget=1e-6)
    died = subprocess.run([sys.executable, "-c", RESERVE_AND_DIE, str(path), str(NOON)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    same_day = store.reserve("a", "alice", 200, NOON + 60, may_fall_back=False)
    assert same_day is not None
    assert (same_day.is_covered, same_day.left) == (False, 100)
    next_day = store.reserve("b", "alice", 1000, NOON + DAY, may_fall_back=False)
    assert next_day is not None
    assert next_day.is_covered, "it blocks no other day"
    store.settle("b", SettledCost())
    assert store.reserve("c", "alice", 1000, NOON + 2 * DAY, may_fall_back=False) is not None
    first = store.history("alice", NOON + 2 * DAY, 7)[-1]
    assert (first.day, first.spent, first.reserved) == ("2026-11-27", 900, 0)


def test_figures_of_the_last_400_days_with_requests_are_kept(store: CallerStore) -> None:
    add_caller(store)
    add_caller(store, "bob")
    store.reserve("bob", "bob", 5, NOON, may_fall_back=False)
    for number in range(401):
        store.reserve(str(number), "alice", 5, NOON + number * DAY, may_fall_back=False)
        store.settle(str(number), SettledCost(cost=number))
    store.reserve("last", "alice", 5, NOON + 401 * DAY, may_fall_back=False)
    days = [each.spent for each in store.history("alice", NOON + 401 * DAY, 1000)]
    assert days == [0, *range(400, 0, -1)]
    assert store.figures("bob", NOON)[1].requests == 1, "each caller has its own"


def test_a_clock_that_jumps_ahead_and_back_forgets_nothing(store: CallerStore) -> None:
    add_caller(store, budget=1e-6)
    for name in ("a", "b"):
        store.reserve(name, "alice", 500, NOON, may_fall_back=False)
    store.settle("a", SettledCost(cost=500))
    store.reserve("ahead", "alice", 500, NOON + 500 * DAY, may_fall_back=False)
    back = store.reserve("back", "alice", 1, NOON + 1, may_fall_back=False)
    assert back is not None
    assert (back.is_covered, back.left) == (False, 0)


class Budgets(RuleBasedStateMachine):
    """Two processes' stores over one file: what is spent and reserved never exceeds the budget by more than answers cost too much."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name) / "callers.sqlite"
        self.stores = (new_store(path), CallerStore(path))
        add_caller(self.stores[0], budget=1e-6)  # 1000 nanodollars
        self.now = NOON
        self.running: dict[str, int] = {}
        self.excess = 0
        self.count = 0

    @rule(store=st.integers(0, 1), cost=st.integers(0, 1200), may_fall_back=st.booleans())
    def reserve(self, store: int, cost: int, may_fall_back: bool) -> None:
        self.count += 1
        _, before = self.stores[store].figures("alice", self.now)
        reserved = self.stores[store].reserve(str(self.count), "alice", cost, self.now, may_fall_back=may_fall_back)
        assert reserved is not None
        assert reserved.is_covered == (cost == 0 or before.spent + before.reserved + cost <= 1000)
        if reserved.is_covered or may_fall_back:
            self.running[str(self.count)] = cost if reserved.is_covered else 0

    @precondition(lambda self: bool(self.running))
    @rule(store=st.integers(0, 1), data=st.data(), over=st.integers(-500, 50))
    def settle(self, store: int, data: st.DataObject, over: int) -> None:
        reservation = data.draw(st.sampled_from(sorted(self.running)))
        amount = self.running.pop(reservation)
        real = max(0, amount + over) if amount else 0
        self.excess += max(0, real - amount)
        self.stores[store].settle(reservation, SettledCost(cost=real))

    @precondition(lambda self: bool(self.running))
    @rule(store=st.integers(0, 1), data=st.data())
    def withdraw(self, store: int, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[reservation]
        self.stores[store].withdraw(reservation)

    @invariant()
    def the_budget_holds(self) -> None:
        seen = [store.figures("alice", self.now)[1] for store in self.stores]
        assert seen[0] == seen[1]
        assert seen[0].reserved == sum(self.running.values())
        assert seen[0].spent + seen[0].reserved <= 1000 + self.excess

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()


TestBudgets = Budgets.TestCase

TAKE_AND_RESERVE = """
import json, sys
from pathlib import Path
from streamco.proxy.callers.store import CallerStore
store, name, now = CallerStore(Path(sys.argv[1]), patience=30.0), sys.argv[2], float(sys.argv[3])
sys.stdin.readline()
covered = [number for number in range(60) if store.reserve(f"{name}{number}", "alice", 10, now, may_fall_back=False).is_covered]
admitted = [number for number in range(60) if not store.take("alice", now)]
print(json.dumps([len(covered), len(admitted)]))
"""


def test_two_processes_at_once_share_a_budget_and_a_rate_to_the_last_cent(store: CallerStore, path: Path) -> None:
    add_caller(store, budget=1e-6, rate=70)
    store.close()
    words = [sys.executable, "-c", TAKE_AND_RESERVE, str(path)]
    running = [subprocess.Popen([*words, name, str(NOON)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
    outputs = [process.communicate("go\n", timeout=60)[0] for process in running]
    covered, admitted = zip(*(json.loads(output) for output in outputs), strict=True)
    assert sum(covered) == 100, "1000 nanodollars at 10 each"
    assert sum(admitted) == 70
    assert store.figures("alice", NOON)[1].reserved == 1000


# Failing closed


def test_a_file_that_was_removed_is_not_used_any_more_and_not_made_again(store: CallerStore, path: Path) -> None:
    key = add_caller(store)
    assert found(store, key) is not None
    path.unlink()
    uses: list[Callable[[], object]] = [
        lambda: found(store, key),
        lambda: store.reserve("a", "alice", 5, NOON, may_fall_back=True),
        store.listed,
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=r"expected a file that can be read and written at .*, got: No such file"):
            use()
    assert not path.exists()


def test_a_file_that_took_the_place_of_another_is_the_one_that_counts(store: CallerStore, path: Path) -> None:
    key = add_caller(store)
    other = new_store(path.with_name("other.sqlite"))
    other_key = add_caller(other, "bob")
    other.close()
    store.close()
    assert found(store, key) is not None
    path.with_name("other.sqlite").replace(path)
    assert found(store, key) is None
    assert found(store, other_key) is not None


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + b"\0" * 5000])
def test_a_file_of_something_else_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^callers: expected a file"):
        CallerStore(path).open()
    assert path.read_bytes() == content


def test_a_folder_and_a_file_in_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a file that can be read and written"):
        CallerStore(tmp_path).open()
    with pytest.raises(ConfigError, match="No such file"):
        CallerStore(tmp_path / "none" / "callers.sqlite").create()


def test_a_file_that_is_locked_for_longer_than_a_call_waits_is_refused_and_works_again_later(path: Path) -> None:
    store = new_store(path, patience=0.01)
    key = add_caller(store)
    connection = store._connection
    with locked(path):
        with pytest.raises(ConfigError, match="database is locked"):
            store.reserve("a", "alice", 5, NOON, may_fall_back=True)
        with pytest.raises(ConfigError, match="database is locked"):
            store.take("alice", NOON)
        assert connection is not None
        assert store._connection is connection, "it isn't opened again, because that locks the file"
    assert found(store, key) is not None
    assert store.reserve("a", "alice", 5, NOON, may_fall_back=True) is not None


def test_an_error_without_a_code_closes_the_file_too(path: Path) -> None:
    store = new_store(path)
    add_caller(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE callers SET name = CAST(x'ff' AS TEXT)")
    with pytest.raises(ConfigError, match="UTF-8"):
        store.listed()
    assert store._connection is None


def test_a_cost_that_could_not_be_written_is_written_by_the_next_call_that_can(path: Path) -> None:
    store = new_store(path, patience=0.01)
    add_caller(store, budget=1e-6)
    store.reserve("a", "alice", 900, NOON, may_fall_back=False)
    with locked(path), pytest.raises(ConfigError, match="database is locked"):
        store.settle("a", SettledCost(cost=100))
    assert store.figures("alice", NOON)[1].reserved == 900, "until then all of it is reserved"
    reserved = store.reserve("b", "alice", 900, NOON, may_fall_back=False)
    assert reserved is not None
    assert reserved.is_covered
    assert store.figures("alice", NOON)[1].spent == 100
    store.write_settled()
    assert store.figures("alice", NOON)[1].spent == 100


def test_a_file_that_may_only_be_read_admits_nothing(store: CallerStore) -> None:
    key = add_caller(store, rate=5)
    assert store._connection is not None
    store._connection.execute("PRAGMA query_only = ON")
    assert found(store, key) is not None
    with pytest.raises(ConfigError, match="readonly database"):
        store.reserve("a", "alice", 5, NOON, may_fall_back=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
def test_a_write_protected_file_admits_nothing(store: CallerStore, path: Path) -> None:
    add_caller(store, rate=5)
    store.close()
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="expected a file that can be read and written"):
            store.reserve("a", "alice", 5, NOON, may_fall_back=True)
    finally:
        path.parent.chmod(0o700)


def test_a_row_that_no_caller_can_have_is_refused(store: CallerStore, path: Path) -> None:
    key = add_caller(store)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE callers SET device = 0, server = 0")
    other.close()
    with pytest.raises(ConfigError, match="sides: expected device, server or both, got none"):
        found(store, key)
