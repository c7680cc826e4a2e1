"""Faults are drawn the same from the same seed, and each kind does to an answer what its name says."""

from __future__ import annotations

import asyncio
import random

import pytest

from streamco.errors import ConfigError
from streamco.testing import BodyFault, FaultPlan, FaultProxy, Faults, ScriptedResponse, ScriptedServer, chunk_event
from streamco.testing.faults import FAULT_KINDS, draw_faults

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n"
EVENTS = [chunk_event(text) for text in ("one é", "zwei é", "drei é", "vier é")]


LAST = b"0\r\n\r\n"  # chunk


async def ask(faults: Faults, *, requests: int = 1, seconds: float = 0.2) -> tuple[bytes, str]:
    """All bytes that the proxy lets through, and how they end."""
    received = b""
    async with ScriptedServer(ScriptedResponse(steps=EVENTS)) as server, FaultProxy(server.port, faults) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(REQUEST * requests)
        try:
            async with asyncio.timeout(seconds):
                while received.count(LAST) < requests and (data := await reader.read(65536)):
                    received += data
            end = "open" if received.count(LAST) == requests else "closed"
        except ConnectionResetError:
            end = "reset"
        except TimeoutError:
            end = "open"
        writer.close()
    return received, end


def body(received: bytes) -> bytes:
    return received.split(b"\r\n\r\n", 1)[1]


def framed(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


ALL = framed(*EVENTS) + LAST


async def test_a_strike_that_is_never_reached_leaves_the_answer_as_it_was() -> None:
    received, end = await ask(Faults(body_fault=BodyFault(kind="cut", events=9)))
    assert (body(received), end) == (ALL, "open")


async def test_a_cut_inside_an_event_breaks_its_chunk_off() -> None:
    received, end = await ask(Faults(body_fault=BodyFault(kind="cut", events=1, offset=10)))
    assert (body(received), end) == (framed(*EVENTS[:2])[: len(framed(EVENTS[0])) + 4 + 10], "closed")


async def test_a_cut_between_events_leaves_whole_chunks_without_the_last_one() -> None:
    received, end = await ask(Faults(body_fault=BodyFault(kind="cut", events=2)))
    assert (body(received), end) == (framed(*EVENTS[:2]), "closed")


async def test_a_cut_in_a_character_ends_after_its_first_byte() -> None:
    received, _ = await ask(Faults(body_fault=BodyFault(kind="cut", in_character=True)))
    assert received.endswith("one é".encode()[:-1])


async def test_a_strike_resets_or_stalls() -> None:
    assert (await ask(Faults(body_fault=BodyFault(kind="reset", events=1))))[1] == "reset"
    received, end = await ask(Faults(body_fault=BodyFault(kind="stall", events=1, offset=3)))
    assert (body(received)[-3:], end) == (b"dat", "open")


async def test_a_pause_delays_the_rest_and_loses_nothing() -> None:
    received, end = await ask(Faults(body_fault=BodyFault(kind="pause", events=1, offset=3, seconds=0.01)))
    assert (body(received), end) == (framed(EVENTS[0], EVENTS[1][:3], EVENTS[1][3:], *EVENTS[2:]) + LAST, "open")


async def test_an_early_end_is_proper_http_and_the_connection_goes_on() -> None:
    received, end = await ask(Faults(body_fault=BodyFault(kind="end", events=2, data=b"data: x\n\n")), requests=2)
    first, second = received.split(b"HTTP/1.1")[1:]
    assert body(first) == framed(*EVENTS[:2], b"data: x\n\n") + LAST
    assert (body(second), end) == (ALL, "open")


async def test_garbage_takes_the_place_of_framing() -> None:
    received, end = await ask(Faults(body_fault=BodyFault(kind="garbage", events=2, data=b"\xff\x00")))
    assert (body(received), end) == (framed(*EVENTS[:2]) + b"\xff\x00", "closed")


async def test_answers_before_the_struck_one_pass_whole() -> None:
    received, end = await ask(Faults(body_fault=BodyFault(kind="cut", events=1, answers=1)), requests=3)
    first, second = received.split(b"HTTP/1.1")[1:]
    assert (body(first), body(second), end) == (ALL, framed(EVENTS[0]), "closed")


async def test_the_proxy_answers_by_itself() -> None:
    for kind, status in (("429", b"429"), ("429 with Retry-After", b"429"), ("500", b"500"), ("503", b"503")):
        received, _ = await ask(draw_faults(kind, random.Random(1)))
        assert received.startswith(b"HTTP/1.1 " + status)
        assert (b"Retry-After" in received) == (kind == "429 with Retry-After")


@pytest.mark.parametrize("kind", FAULT_KINDS)
async def test_every_kind_is_carried_out(kind: str) -> None:
    rng = random.Random(5)
    ends = [await ask(draw_faults(kind, rng, events=4, seconds=0.02), seconds=0.1) for _ in range(3)]
    harmless = {"delay", "split", "pause"}
    for received, _ in ends:
        is_whole = received.endswith(EVENTS[3][EVENTS[3].index(b"vier") :] + b"\r\n" + LAST)
        assert is_whole == (kind in harmless), f"{kind}: {received!r}"


def test_a_plan_draws_the_same_from_the_same_seed_and_says_what() -> None:
    one, other = FaultPlan(7, faultless=0.5), FaultPlan(7, faultless=0.5)
    assert [one() for _ in range(50)] == [other() for _ in range(50)]
    assert one.drawn == other.drawn
    assert 10 < one.drawn.count("none") < 40
    assert "seed=7" in repr(one)
    assert one.drawn[0] in repr(one)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of delay"):
        draw_faults("earthquake", random.Random(1))


async def test_a_proxy_asks_its_plan_for_each_connection() -> None:
    plan = FaultPlan(3)
    async with ScriptedServer() as server, FaultProxy(server.port, plan) as proxy:
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.close()
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while len(plan.drawn) < 5:
                await asyncio.sleep(0.001)
