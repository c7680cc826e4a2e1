"""A split server over real sockets: every answer is of its own session's rows, whatever is cut, shared, refused, evicted or lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from streamco.wire.split.frames import LayersMark, Refusal, SplitOpened, States
from streamco.wire.verify.errors import NotResumableError
from tests.server.split.serving_layers import PATIENT, WIDTH, SplitDevice, SummingLayers, device_at, mark_of, serving_layers
from tests.support.leaks import settled

MARK = mark_of(SummingLayers())


def some(rows: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(-8, 9, (rows, WIDTH)).astype(np.float32)  # whole numbers: sums are exact


def sums(states: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.cumsum(states, axis=0, dtype=np.float32)


async def test_a_prompt_in_chunks_a_draft_and_a_cut_give_the_sessions_own_states() -> None:
    text = some(100)
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        await device.send(session, 0, text[:60], wanted=0)
        await device.send(session, 60, text[60:90], wanted=1)
        first, last = await device.take(), await device.take()
        assert isinstance(first, States)
        assert isinstance(last, States)
        assert first.states.shape == (0, WIDTH)
        assert np.array_equal(last.states, sums(text)[89:90])
        draft = await device.rows(session, 90, some(4, 1), wanted=4)
        assert np.array_equal(draft.states, sums(np.concatenate([text[:90], some(4, 1)]))[90:])
        again = await device.rows(session, 91, some(2, 2), wanted=2)
        assert np.array_equal(again.states, sums(np.concatenate([text[:90], some(4, 1)[:1], some(2, 2)]))[91:])
        assert again.compute_us > 0
        assert server.figures["rows"] == 96


async def test_rows_may_all_come_back() -> None:
    text = some(100)
    async with serving_layers(SummingLayers(), room=64) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        answer = await device.rows(session, 0, text, wanted=100)
        assert np.array_equal(answer.states, sums(text))
        assert server.figures["batches"] == 2


async def test_chunks_that_wait_and_follow_each_other_are_computed_in_one_batch_and_answered_each() -> None:
    engine = SummingLayers(is_manual=True)
    async with serving_layers(engine) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        for start in (0, 40, 80):
            await device.send(session, start, some(40, start), wanted=0)
        await device.send(session, 120, some(3, 120), wanted=2)
        await settled(lambda: server.figures["pending_rounds"] == 4 and bool(engine.waiting))
        engine.compute()
        await settled(lambda: len(engine.batches) == 2)
        assert engine.batches == [[(0, 0, 40)], [(0, 40, 83)]]
        assert (await device.take()).round_number == 0  # type: ignore[union-attr]
        engine.compute()
        answers = [await device.take() for _ in range(3)]
        assert [each.round_number for each in answers if isinstance(each, States)] == [1, 2, 3]
        assert [len(each.states) for each in answers if isinstance(each, States)] == [0, 0, 2]
        text = np.concatenate([some(40), some(40, 40), some(40, 80), some(3, 120)])
        assert isinstance(answers[2], States)
        assert np.array_equal(answers[2].states, sums(text)[121:])
        assert all(each.compute_us == 1000 for each in answers if isinstance(each, States)), "that of their batch"
        assert server.figures["merged_rounds"] == 2


async def test_a_chunk_is_answered_when_its_last_row_is_computed_though_more_of_the_prompt_waits() -> None:
    engine = SummingLayers(is_manual=True)
    async with serving_layers(engine, room=64) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        for start in range(0, 200, 40):
            await device.send(session, start, some(40, start), wanted=40)
        await settled(lambda: server.figures["pending_rounds"] == 5 and bool(engine.waiting))
        computed, text = 0, sums(np.concatenate([some(40, start) for start in range(0, 200, 40)]))
        answered: list[int] = []
        while len(answered) < 5:
            await settled(lambda: bool(engine.waiting))
            _, start, rows = engine.batches[-1][0]
            assert start == computed
            computed += rows
            engine.compute()
            while len(answered) < computed // 40:
                answer = await device.take()
                assert isinstance(answer, States)
                assert np.array_equal(answer.states, text[40 * len(answered) :][:40])
                answered.append(answer.round_number)
        assert answered == [0, 1, 2, 3, 4]
        assert [rows for [(_, _, rows)] in engine.batches] == [40, 64, 64, 32]


async def test_verifications_of_nine_devices_go_first_in_every_batch_of_a_long_prompt() -> None:
    engine = SummingLayers(sequences=10, is_manual=True)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving_layers(engine, room=64))
        long = await stack.enter_async_context(device_at(server.url, MARK))
        others = [await stack.enter_async_context(device_at(server.url, MARK)) for _ in range(9)]
        sessions = [(await device.open())[0] for device in others]
        prompt, _ = await long.open()
        for start in range(0, 240, 16):
            await long.send(prompt, start, some(16, start), wanted=int(start == 224))

        def came() -> int:
            figures: dict[str, int] = server.figures
            return figures["pending_rounds"] + figures["rounds"]

        for turn in range(2):
            for device, session in zip(others, sessions, strict=True):
                await device.send(session, 3 * turn, some(3, turn), wanted=3)
            await settled(partial(lambda sent: came() == sent and bool(engine.waiting), 15 + 9 * (turn + 1)))
            engine.compute()
            await settled(lambda: bool(engine.waiting))
            assert sorted(rows for _, _, rows in engine.batches[-1])[:9] == [3] * 9
            assert sum(rows for _, _, rows in engine.batches[-1]) == 64, "the prompt fills the room"
            engine.compute()
            for device in others:
                assert isinstance(await device.take(), States)


async def test_a_failure_in_the_middle_of_merged_chunks_refuses_what_was_not_computed() -> None:
    engine = SummingLayers(is_manual=True)
    async with serving_layers(engine, room=64) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        for start in range(0, 200, 40):
            await device.send(session, start, some(40, start), wanted=int(start == 160))
        await settled(lambda: server.figures["pending_rounds"] == 5 and bool(engine.waiting))
        engine.compute()
        await settled(lambda: len(engine.batches) == 2)
        engine.failures = 1
        engine.compute()
        assert isinstance(await device.take(), States)
        refused = [await device.refused()]
        assert [(each.code, each.round_number) for each in refused] == [("failed", 1)]
        assert device.client.length(session) == 40
        assert server.figures["pending_rounds"] == 0
        await device.send(session, 40, some(1))
        assert (await device.refused()).code == "evicted"
        text = some(30, 3)
        await device.send(session, 0, text)
        await settled(lambda: bool(engine.waiting))
        engine.compute()
        answer = await device.take()
        assert isinstance(answer, States)
        assert np.array_equal(answer.states, sums(text)[29:])


async def test_states_that_are_not_finite_in_the_middle_of_merged_chunks_refuse_that_round_and_those_after_it() -> None:
    engine = SummingLayers(is_manual=True)
    async with serving_layers(engine, room=64) as server:
        async with device_at(server.url, MARK) as device:
            session, opened = await device.open()
            spoiled = some(40, 1)
            spoiled[-2:] = 3e38
            for start, states in ((0, some(40)), (40, spoiled), (80, some(40, 2)), (120, some(40, 3))):
                await device.send(session, start, states, wanted=1)
            await settled(lambda: server.figures["pending_rounds"] == 4 and bool(engine.waiting))
            while server.figures["pending_rounds"]:
                await settled(lambda: bool(engine.waiting))
                engine.compute()
                await asyncio.sleep(0.01)
            assert isinstance(await device.take(), States)
            assert [(each.code, each.round_number) for each in [await device.refused()]] == [("failed", 1)]
            assert device.client.length(session) == 40
            await device.lose()
        async with device_at(server.url, MARK) as device:
            session, resumed = await device.resume(opened.key)
            assert resumed.length == 40, "no row after those that are not finite"
            await device.send(session, 40, some(2, 4), wanted=2)
            await settled(lambda: bool(engine.waiting))
            engine.compute()
            answer = await device.take()
            assert isinstance(answer, States)
            assert np.array_equal(answer.states, sums(np.concatenate([some(40), some(2, 4)]))[40:])


async def open_at(device: SplitDevice) -> int:
    """Open a session as soon as there is room for one."""
    while True:
        number = device.client.open()
        await device.say()
        if isinstance(await device.take(), SplitOpened):
            return number
        await asyncio.sleep(0.005)  # all sequences are in use


async def upload(device: SplitDevice, session: int, text: NDArray[np.float32], keep: int, own: random.Random) -> Refusal | None:
    """Send a text's rows from a position in random rounds, and compare the answers; return what was refused."""
    rounds, position = [], keep
    while position < len(text):
        end = min(len(text), position + own.choice([1, 5, 20, 40]))
        wanted = own.choice([0, 1, end - position]) if end < len(text) else 1
        await device.send(session, position, text[position:end], wanted=wanted)
        rounds.append((end, wanted))
        position = end
    for end, wanted in rounds:
        frame = await device.take()
        if isinstance(frame, Refusal):
            return frame
        assert isinstance(frame, States)
        assert np.array_equal(frame.states, sums(text)[end - wanted : end])
    return None


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("seed", range(6))
async def test_every_answer_is_of_its_own_rows_whatever_is_cut_merged_lost_or_failed(seed: int) -> None:
    rng, engine = random.Random(seed), SummingLayers(sequences=3, is_manual=True)

    async def compute() -> None:
        while True:
            await settled(lambda: bool(engine.waiting))
            if rng.random() < 0.5:
                await asyncio.sleep(0.002 * rng.random())  # so that chunks wait
            engine.failures = rng.random() < 0.05
            engine.compute()

    async def answer(number: int) -> None:
        own = random.Random(100 * seed + number)
        async with device_at(server.url, MARK) as device:
            session = await open_at(device)
            text = some(0)
            for _ in range(25):
                keep = own.randrange(max(0, len(text) - 40), len(text) + 1)
                text = np.concatenate([text[:keep], some(own.randrange(1, 60), own.randrange(1000))])[:250]
                keep = min(keep, len(text) - 1)
                while (refusal := await upload(device, session, text, keep, own)) is not None:
                    keep = 0
                    if refusal.round_number is None:  # its batches have failed three times in a row
                        session = await open_at(device)

    async with serving_layers(engine, room=64) as server:
        computing = asyncio.create_task(compute())
        await asyncio.gather(*(answer(number) for number in range(4)))
        computing.cancel()
        assert server.figures["merged_rounds"] > 0


async def test_a_verification_shares_the_batches_of_a_long_prompt() -> None:
    engine = SummingLayers(is_manual=True)
    async with serving_layers(engine, room=64) as server, device_at(server.url, MARK) as long, device_at(server.url, MARK) as short:
        prompt, _ = await long.open()
        draft, _ = await short.open()
        await long.send(prompt, 0, some(200), wanted=1)
        await settled(lambda: bool(engine.waiting))
        await short.send(draft, 0, some(4), wanted=4)
        await settled(lambda: server.figures["pending_rounds"] == 2)
        engine.compute()
        await settled(lambda: bool(engine.waiting))
        assert sorted(rows for _, _, rows in engine.batches[1]) == [4, 60]
        engine.compute()
        answer = await short.take()
        assert isinstance(answer, States)
        assert np.array_equal(answer.states, sums(some(4)))


async def test_many_devices_are_served_fairly_and_no_states_are_mixed() -> None:
    engine = SummingLayers(sequences=32)
    async with serving_layers(engine) as server:
        done: list[int] = []

        async def answer(number: int) -> None:
            rng = random.Random(number)
            async with device_at(server.url, MARK) as device:
                session, _ = await device.open()
                text = some(0)
                for turn in range(12):
                    keep = rng.randrange(max(0, len(text) - 3), len(text) + 1)
                    new = some(rng.randrange(1, 5 if turn else 50), number * 100 + turn)
                    text = np.concatenate([text[:keep], new])
                    states = (await device.rows(session, keep, new, wanted=len(new))).states
                    assert np.array_equal(states, sums(text)[keep:])
                    done.append(number)
                    if turn == 6:
                        assert max(done.count(each) for each in range(32)) <= 12

        await asyncio.gather(*(answer(number) for number in range(32)))
        assert len(done) == 32 * 12
        assert server.figures["shared_batches"] > 0
        await settled(lambda: server.figures["connections"] == 0)


async def test_a_session_that_lost_its_cells_is_evicted_and_goes_on_from_its_devices_states() -> None:
    async with (
        serving_layers(SummingLayers(sequences=1)) as server,
        device_at(server.url, MARK) as first,
        device_at(server.url, MARK) as other,
    ):
        session, _ = await first.open()
        text = some(20)
        await first.rows(session, 0, text)
        await asyncio.sleep(0.01)
        await other.rows((await other.open())[0], 0, some(5, 1))
        await asyncio.sleep(0.01)
        await first.send(session, 20, some(1, 2))
        refusal = await first.refused()
        assert (refusal.code, refusal.round_number) == ("evicted", 1)
        again = await first.rows(session, 0, np.concatenate([text, some(1, 2)]))
        assert np.array_equal(again.states, sums(np.concatenate([text, some(1, 2)]))[20:])
        assert server.figures["evicted"] == 2


async def test_a_failed_batch_refuses_its_rounds_and_the_session_begins_again() -> None:
    engine = SummingLayers()
    async with serving_layers(engine) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        await device.rows(session, 0, some(5))
        engine.failures = 1
        await device.send(session, 5, some(40, 1), wanted=0)
        await device.send(session, 45, some(3, 2))
        refusal = await device.refused()
        if refusal.round_number == 2:  # it had come before the batch failed, and is refused first
            assert refusal.code == "stale_round"
            refusal = await device.refused()
        assert (refusal.code, refusal.round_number) == ("failed", 1)
        await device.send(session, 5, some(1))
        assert (await device.refused()).code == "evicted"
        text = some(6, 3)
        assert np.array_equal((await device.rows(session, 0, text)).states, sums(text)[5:])
        assert server.figures["failed_batches"] == 1


async def test_an_engine_that_always_fails_ends_the_session() -> None:
    engine = SummingLayers()
    async with serving_layers(engine) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        engine.failures = 3
        codes = []
        for _ in range(3):
            await device.send(session, 0, some(1))
            codes.append(await device.refused())
        assert [(each.code, each.round_number) for each in codes] == [("failed", 0), ("failed", 1), ("failed", None)]
        assert server.figures["sessions"] == 0


async def test_results_that_are_not_finite_are_refused_and_reach_no_other_session() -> None:
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as bad, device_at(server.url, MARK) as good:
        session, _ = await bad.open()
        other, _ = await good.open()
        await bad.send(session, 0, np.full((3, WIDTH), 3e38, np.float32))
        text = some(4)
        assert np.array_equal((await good.rows(other, 0, text)).states, sums(text)[3:])
        refusal = await bad.refused()
        assert (refusal.code, refusal.round_number) == ("failed", 0)
        assert np.array_equal((await bad.rows(session, 0, text)).states, sums(text)[3:])


async def test_a_lost_connections_session_goes_on_where_it_was() -> None:
    text = some(30)
    async with serving_layers(SummingLayers()) as server:
        async with device_at(server.url, MARK) as device:
            session, opened = await device.open()
            await device.rows(session, 0, text)
            await device.lose()
        async with device_at(server.url, MARK) as device:
            session, resumed = await device.resume(opened.key)
            assert resumed.length == 30
            answer = await device.rows(session, 28, some(3, 1), wanted=3)
            assert np.array_equal(answer.states, sums(np.concatenate([text[:28], some(3, 1)]))[28:])
        assert server.figures["resumed"] == 1


async def test_a_connection_lost_in_mid_chunk_is_resumed_when_the_chunk_is_computed() -> None:
    engine = SummingLayers(is_manual=True)
    async with serving_layers(engine) as server:
        async with device_at(server.url, MARK) as device:
            session, opened = await device.open()
            await device.send(session, 0, some(50), wanted=0)
            await device.send(session, 50, some(50, 1), wanted=1)
            await settled(lambda: server.figures["pending_rounds"] == 2)
            await device.lose()
        async with device_at(server.url, MARK) as device:
            number = device.client.resume(opened.key)
            await device.say()
            for _ in range(2):
                await settled(lambda: bool(engine.waiting))
                engine.compute()
            await device.take()
            assert device.client.length(number) == 100
            await device.send(number, 50, some(50, 1), wanted=1)
            await settled(lambda: bool(engine.waiting))
            engine.compute()
            answer = await device.take()
            assert isinstance(answer, States)
            assert np.array_equal(answer.states, sums(np.concatenate([some(50), some(50, 1)]))[99:])


async def test_a_key_resumes_one_session_and_another_one_is_refused() -> None:
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as device, device_at(server.url, MARK) as second:
        _, opened = await device.open()
        second.client.resume(bytes(16))
        await second.say()
        assert isinstance((await second.refused()).error(), NotResumableError)
        await second.resume(opened.key)
        assert (await device.refused()).code == "evicted"


async def test_a_lost_session_is_forgotten_in_time() -> None:
    async with serving_layers(SummingLayers(), verify=replace(PATIENT, resume_s=0)) as server:
        async with device_at(server.url, MARK) as device:
            await device.open()
            await device.lose()
        await settled(lambda: server.figures["sessions"] == 0)


async def test_a_replayed_a_reordered_and_a_misplaced_frame_are_refused_and_the_session_goes_on() -> None:
    text = some(10)
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        device.client.rows(session, 0, text, wanted=1, form="f32")
        (frame,) = device.client.take_messages()
        await device.socket.send(frame)
        assert isinstance(await device.take(), States)
        await device.socket.send(frame)
        replayed = device.client.codec.decode_down(await device.socket.recv())
        assert replayed.code == "stale_round"  # type: ignore[union-attr]
        answer = await device.rows(session, 10, some(2, 1), wanted=2)
        assert np.array_equal(answer.states, sums(np.concatenate([text, some(2, 1)]))[10:])


async def test_chunks_in_another_order_and_rows_at_another_position_are_refused_until_the_rows_before_them_are_there() -> None:
    text = some(120)
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        for start in (0, 40, 80):
            device.client.rows(session, start, text[start : start + 40], wanted=1, form="f32")
        first, second, third = device.client.take_messages()
        codec, codes = device.client.codec, []
        for message in (third, second):
            await device.socket.send(message)
            codes.append(codec.decode_down(await device.socket.recv()).code)  # type: ignore[union-attr]
        assert codes == ["wrong_base", "wrong_base"]
        await device.socket.send(first)
        assert isinstance(codec.decode_down(await device.socket.recv()), States)
        device.client._sessions[session].rounds.clear()
        device.client._sessions[session].length = 40
        answer = await device.rows(session, 40, text[40:], wanted=80)
        assert np.array_equal(answer.states, sums(text)[40:])


@pytest.mark.parametrize("change", [{"source": "other"}, {"first_layer": 3}, {"width": WIDTH * 2}])
async def test_a_device_of_another_model_is_refused_by_name(change: dict[str, object]) -> None:
    async with serving_layers(SummingLayers()) as server:
        with pytest.raises(AssertionError, match="model_mismatch"):
            async with device_at(server.url, LayersMark(**{field: getattr(MARK, field) for field in MARK.__struct_fields__} | change)):
                pass


async def test_closing_a_session_in_mid_batch_affects_no_other() -> None:
    engine = SummingLayers(is_manual=True)
    async with serving_layers(engine) as server, device_at(server.url, MARK) as device:
        first, _ = await device.open()
        second, _ = await device.open()
        await device.send(first, 0, some(3))
        await settled(lambda: bool(engine.waiting))
        device.client.close(first)
        await device.send(second, 0, some(4, 1))
        await settled(lambda: server.figures["sessions"] == 1)
        engine.compute()
        await settled(lambda: bool(engine.waiting))
        engine.compute()
        answer = await device.take()
        assert isinstance(answer, States)
        assert np.array_equal(answer.states, sums(some(4, 1))[3:])


async def test_more_sessions_than_places_take_turns_and_stay_bounded() -> None:
    engine = SummingLayers(sequences=2)
    async with serving_layers(engine, verify=replace(PATIENT, load=replace(PATIENT.load, min_retry=0.001))) as server:

        async def answer(number: int) -> None:
            async with device_at(server.url, MARK) as device:
                session = await open_patiently(device)
                text = some(0)
                for turn in range(8):
                    new = some(3, number * 50 + turn)
                    text = np.concatenate([text, new])
                    states = await patiently(device, session, text, 3)
                    assert np.array_equal(states.states, sums(text)[-3:])

        await asyncio.gather(*(answer(number) for number in range(6)))
        assert max(sequence for batch in engine.batches for sequence, _, _ in batch) == 1


async def open_patiently(device: SplitDevice) -> int:
    while True:
        session = device.client.open()
        await device.say()
        answer = await device.take()
        if not hasattr(answer, "code"):
            return session
        await asyncio.sleep(0.002)


async def patiently(device: SplitDevice, session: int, text: NDArray[np.float32], new: int) -> States:
    """The states of the last rows; evicted and refused rounds are sent again."""
    start = len(text) - new
    while True:
        await device.send(session, start, text[start:], wanted=new)
        answer = await device.take()
        if isinstance(answer, States):
            return answer
        start = 0 if answer.code == "evicted" else start  # type: ignore[union-attr]
        await asyncio.sleep(0.002)
