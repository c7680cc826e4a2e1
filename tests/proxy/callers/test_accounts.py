"""The callers' file in a thread of its own: order, cancelling, time limits, its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from streamco.errors import ConfigError
from streamco.proxy.callers import accounts as module
from streamco.proxy.callers.accounts import CallerAccounts
from streamco.proxy.callers.keys import hash_key
from streamco.proxy.callers.store import CallerStore, SettledCost
from tests.proxy.callers.support import NOON, add_caller, locked, new_store
from tests.server.support import until
from tests.support.leaks import holding_nothing_new


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = new_store(tmp_path / "callers.sqlite")
    (tmp_path / "key").write_text(add_caller(store, budget=1e-6, rate=1))
    store.close()
    return store.path


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[CallerAccounts]:
    async with holding_nothing_new():
        accounts = CallerAccounts(path, clock=lambda: NOON)
        await accounts.start()
        yield accounts
        await accounts.aclose()


async def fail_to(call: Awaitable[None]) -> None:
    with pytest.raises(ConfigError, match="database is locked"):
        await call


async def test_all_calls_leave_the_event_loop_free(path: Path) -> None:
    with blockbuster_ctx("streamco"):
        async with opened(path) as accounts:
            reserved = await accounts.reserve("a", "alice", 600, may_fall_back=False)
            assert reserved is not None
            assert reserved.is_covered
            await accounts.settle("a", SettledCost(cost=10))
            await accounts.reserve("b", "alice", 600, may_fall_back=False)
            await accounts.withdraw("b")
            key_hash = hash_key((path.parent / "key").read_text()) or b""
            admitted = [await accounts.admit(key_hash) for _ in range(2)]
            assert [each and (each[0].name, each[1]) for each in admitted] == [("alice", 0.0), ("alice", 60.0)]
            assert await accounts.find(b"another") is None
            assert await accounts.admit(b"another") is None
            caller, figures = await accounts.figures("alice")
    assert (caller.name, figures.day, figures.spent, figures.reserved) == ("alice", "2026-11-27", 10, 0)


async def test_a_reservation_that_was_cancelled_can_be_taken_back_whenever_it_is_made(path: Path) -> None:
    async with opened(path) as accounts:
        gate = threading.Event()
        blocked = asyncio.create_task(accounts.run(gate.wait))
        reserving = asyncio.create_task(accounts.reserve("a", "alice", 600, may_fall_back=False))
        await asyncio.sleep(0)
        reserving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reserving
        withdrawing = asyncio.create_task(accounts.withdraw("a"))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(blocked, withdrawing)
        _, figures = await accounts.figures("alice")
        assert (figures.requests, figures.reserved) == (1, 0), "it was made after its caller had left, and then taken back"


async def test_a_call_that_takes_too_long_fails_and_its_own_error_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as accounts:
        monkeypatch.setattr(module, "LONGEST_WAIT", 0.01)
        gate = threading.Event()

        def fail() -> None:
            gate.wait()
            raise ConfigError("too late")

        with pytest.raises(ConfigError, match=r"expected an answer of .* within 0\.01 s, got none"):
            await accounts.run(fail)
        gate.set()
        monkeypatch.setattr(module, "LONGEST_WAIT", 10.0)
        await accounts.check()


async def test_a_check_that_succeeded_counts_for_a_second_unless_a_call_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as accounts:
        checked, real = 0, accounts._store.check

        def count() -> None:
            nonlocal checked
            checked += 1
            real()

        monkeypatch.setattr(accounts._store, "check", count)
        monkeypatch.setattr(module, "CHECK_INTERVAL", 1e6)
        accounts._checked_until = 0.0
        await asyncio.gather(*(accounts.check() for _ in range(5)))
        await accounts.check()
        assert checked == 1
        with pytest.raises(ConfigError, match="got 'bob'"):
            await accounts.figures("bob")
        await accounts.check()
        assert checked == 2


async def test_a_check_finds_a_file_that_is_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL", 0.0)
    async with opened(path) as accounts:
        monkeypatch.setattr(accounts._store, "_patience", 0.01)
        await accounts.run(accounts._store.close)
        with locked(path):
            for _ in range(2):
                await fail_to(accounts.check())
        await accounts.check()


async def test_what_cannot_be_written_is_written_as_soon_as_the_file_is_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_INTERVAL", 0.01)
    async with opened(path) as accounts:
        monkeypatch.setattr(accounts._store, "_patience", 0.01)
        await accounts.run(accounts._store.close)  # so that the patience counts
        with closing(CallerStore(path)) as reader:
            for reservation, cost in (("a", 3), ("b", 0), ("c", 4)):
                assert await accounts.reserve(reservation, "alice", 600, may_fall_back=False)
                with locked(path):
                    for _ in range(2):
                        await fail_to(accounts.settle(reservation, SettledCost(cost=cost)) if cost else accounts.withdraw(reservation))
                    await asyncio.sleep(0.05)
                    assert reader.figures("alice", NOON)[1].reserved == 600
                await until(lambda: not reader.figures("alice", NOON)[1].reserved)
            assert reader.figures("alice", NOON)[1].spent == 7


async def test_what_nobody_waits_for_is_written_later_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_INTERVAL", 0.01)
    async with opened(path) as accounts:
        assert await accounts.reserve("a", "alice", 600, may_fall_back=False)
        accounts._store._patience = 0.01
        await accounts.run(accounts._store.close)
        await accounts.run(accounts._store.check)
        with locked(path):
            settling = asyncio.create_task(accounts.settle("a", SettledCost(cost=3)))
            await asyncio.sleep(0)
            settling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await settling
            await accounts.run(int)  # the calls before it have failed
            assert accounts._store.has_unsettled
            assert accounts._writing is not None
        await accounts._writing
        assert (await accounts.figures("alice"))[1].spent == 3


async def test_a_cost_that_came_while_others_were_written_is_written_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_INTERVAL", 0.01)
    async with opened(path) as accounts:
        assert await accounts.reserve("a", "alice", 600, may_fall_back=False)
        write, attempts = accounts._store.write_settled, 0

        def write_third() -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ConfigError("callers: locked")
            if attempts > 2:
                write()

        monkeypatch.setattr(accounts._store, "write_settled", write_third)
        with pytest.raises(ConfigError, match="locked"):
            await accounts.settle("a", SettledCost(cost=3))
        assert accounts._writing is not None
        await accounts._writing
        assert attempts == 3
        assert (await accounts.figures("alice"))[1].spent == 3


async def test_a_cost_that_nobody_waits_for_and_that_fails_after_others_were_written_is_written_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_INTERVAL", 0.01)
    async with opened(path) as accounts:
        monkeypatch.setattr(accounts._store, "_patience", 0.01)
        await accounts.run(accounts._store.close)  # so that the patience counts
        for reservation in ("a", "b"):
            assert await accounts.reserve(reservation, "alice", 300, may_fall_back=False)
        write, written, may_end, may_settle = accounts._store.write_settled, threading.Event(), threading.Event(), threading.Event()

        def write_and_wait() -> None:
            write()
            written.set()
            may_end.wait()

        with locked(path):
            await fail_to(accounts.settle("a", SettledCost(cost=3)))
        monkeypatch.setattr(accounts._store, "write_settled", write_and_wait)
        try:
            await until(written.is_set)
            monkeypatch.setattr(accounts._store, "write_settled", write)
            with locked(path):
                holding = asyncio.create_task(accounts.run(may_settle.wait))  # until those who write have looked
                await asyncio.sleep(0)
                settling = asyncio.create_task(accounts.settle("b", SettledCost(cost=4)))
                await asyncio.sleep(0)
                settling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await settling
                may_end.set()
                await asyncio.sleep(0.1)
                may_settle.set()
                await holding
                await accounts.run(int)  # the calls before it have failed
                assert accounts._store.has_unsettled
        finally:
            may_end.set()
            may_settle.set()
        assert accounts._writing is not None
        await accounts._writing
        assert (await accounts.figures("alice"))[1].spent == 7


async def test_accounts_that_are_closed_try_no_longer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_INTERVAL", 1e6)
    async with opened(path) as accounts:
        monkeypatch.setattr(accounts._store, "_patience", 0.01)
        await accounts.run(accounts._store.close)
        assert await accounts.reserve("a", "alice", 600, may_fall_back=False)
        with locked(path):
            await fail_to(accounts.settle("a", SettledCost(cost=3)))
    assert accounts._writing is not None
    assert accounts._writing.cancelled()
    with closing(CallerStore(path)) as reader:
        assert reader.figures("alice", NOON)[1].spent == 3


async def test_another_reason_is_logged_once(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "WRITE_INTERVAL", 0.01)
    attempts = 0

    def write() -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= 4:
            raise ConfigError(f"callers: {'locked' if attempts <= 3 else 'read-only'}")
        accounts._store._unsettled.clear()

    async with opened(path) as accounts:
        monkeypatch.setattr(accounts._store, "write_settled", write)
        with pytest.raises(ConfigError, match="locked"):
            await accounts.settle("a", SettledCost(cost=3))
        assert accounts._writing is not None
        await accounts._writing
    assert [record.getMessage() for record in caplog.records] == ["callers: read-only; costs are not written until then"]


async def test_accounts_that_could_not_start_leave_nothing(tmp_path: Path) -> None:
    async with holding_nothing_new():
        with pytest.raises(ConfigError, match="No such file"):
            await CallerAccounts(tmp_path / "none.sqlite").start()


async def test_what_is_not_written_is_written_at_the_end(path: Path) -> None:
    accounts = CallerAccounts(path, clock=lambda: NOON)
    await accounts.start()
    await accounts.reserve("a", "alice", 600, may_fall_back=False)
    accounts._store._unsettled["a"] = SettledCost(cost=3)
    await accounts.aclose()
    store = new_store(path)
    assert store.figures("alice", NOON)[1].spent == 3
    store.close()
