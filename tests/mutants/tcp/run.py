"""Reading mutants over TCP: the servers, the clients and proxies before them, and what differs from the oracle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.config import Timeouts
from streamco.endpoints import openai_stream
from streamco.endpoints.base import Capabilities
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.testing.server import ScriptedServer
from tests.mutants.decoding import right_reading
from tests.mutants.mutant import Mutant
from tests.mutants.oracle.reading import Reading
from tests.mutants.stream import Api
from tests.mutants.tcp.callers import Callers, calling, read_answer_of, translated
from tests.mutants.tcp.observed import Observed, compare
from tests.mutants.tcp.sdk import hand_over_differences, read_stream, read_whole
from tests.mutants.tcp.servers import continuing, sending
from tests.support.endpoint_states import never_resting

__all__ = ["find_differences_over_tcp"]

_APIS: tuple[Api, ...] = ("chat", "responses", "messages")
_AT_ONCE = 16
_STALL_SHARE = 5  # one silent mutant in so many stays silent, the others are cut
_LIMIT = 0.3  # seconds of silence


@dataclass(slots=True)
class _Sides:
    """What asks one API's server.

    Args:
        alone: a client of it alone.
        followed: a client that has a second server, which can continue.
        callers, followed_callers: callers of a proxy before each of them.
    """

    alone: Client
    followed: Client
    callers: Callers
    followed_callers: Callers


async def find_differences_over_tcp(mutants: Sequence[Mutant]) -> list[str]:
    """Read mutants over TCP, and return what differs from the oracle, each with its mutant."""
    mutants = [_softened(mutant) for mutant in mutants]
    silent = [mutant for mutant in mutants if mutant.ends == "stall"]
    with _short_grace():
        for limit in (_LIMIT, 10 * _LIMIT):  # on a busy machine the first one may pass without a stall
            found = await _find(silent, Timeouts(first_token=limit, next_token=limit))
            silent = [*found]
    return [*found.values(), *(await _find([mutant for mutant in mutants if mutant.ends != "stall"], Timeouts())).values()]


@contextmanager
def _short_grace() -> Iterator[None]:
    """Wait for the usage of a whole answer no longer than for a token."""
    usual, openai_stream._END_GRACE = openai_stream._END_GRACE, _LIMIT
    try:
        yield
    finally:
        openai_stream._END_GRACE = usual


def _softened(mutant: Mutant) -> Mutant:
    is_silent = mutant.ends != "stall" or mutant.seed % _STALL_SHARE == 0
    return mutant if is_silent else replace(mutant, ends="cut")


async def _find(mutants: Sequence[Mutant], timeouts: Timeouts) -> dict[Mutant, str]:
    found: dict[Mutant, str] = {}
    if not mutants:
        return found
    waiting = iter(mutants)

    async def work(sides: dict[Api, _Sides]) -> None:
        for mutant in waiting:
            if differing := await _differences(mutant, sides[mutant.api]):
                found[mutant] = f"{mutant}\n    " + "\n    ".join(differing)

    async with _serving(mutants, timeouts) as sides:
        await asyncio.gather(*(work(sides) for _ in range(_AT_ONCE)))
    return found


@asynccontextmanager
async def _serving(mutants: Sequence[Mutant], timeouts: Timeouts) -> AsyncIterator[dict[Api, _Sides]]:
    by_seed = {mutant.seed: mutant for mutant in mutants}
    async with AsyncExitStack() as stack:
        broken = await stack.enter_async_context(ScriptedServer(sending(by_seed)))
        second = await stack.enter_async_context(ScriptedServer(continuing(by_seed)))

        async def client(*servers: OpenAIEndpoint) -> Client:
            made = Client(server=[*servers], max_retries=0, timeout=timeouts, mode=Race(check_access=False))
            never_resting(made)
            return await stack.enter_async_context(made)

        able = Capabilities(continuation="continue_final_message")
        sides = {}
        for api in _APIS:
            alone = await client(_endpoint(api, broken.url))
            target = OpenAIEndpoint("m", base_url=second.url, name="second", capabilities=able)
            followed = await client(_endpoint(api, broken.url), target)
            callers = [await stack.enter_async_context(calling(each)) for each in (alone, followed)]
            sides[api] = _Sides(alone, followed, *callers)
        yield sides


def _endpoint(api: Api, url: str) -> OpenAIEndpoint:
    if api == "messages":
        return AnthropicEndpoint("m", base_url=url, name="broken")
    return OpenAIEndpoint("m", base_url=url, api=api, name="broken")


async def _differences(mutant: Mutant, sides: _Sides) -> list[str]:
    """Read a mutant by the SDK in both ways, by the proxy in one of six, and where it fails with a second server as well."""
    expected = right_reading(mutant)
    told = _APIS[mutant.seed % len(_APIS)]  # the API of the proxy's caller
    is_streamed = mutant.seed // len(_APIS) % 2 == 0
    readings: list[tuple[str, Awaitable[Observed], Callable[[Observed], list[str]]]] = [
        ("SDK, streamed", read_stream(sides.alone, mutant), lambda seen: compare(expected, seen, api=mutant.api)),
        ("SDK, whole", read_whole(sides.alone, mutant), lambda seen: compare(_as_whole(expected), seen, api=mutant.api)),
    ]
    wanted = translated(expected, told, is_streamed=is_streamed, is_named_late="ids of calls late" in mutant.operators)
    readings.append(
        (
            f"proxy, {told}, {'streamed' if is_streamed else 'whole'}",
            read_answer_of(sides.callers, told, mutant, is_streamed=is_streamed),
            lambda seen: compare(wanted, seen, api=mutant.api),
        )
    )
    if not expected.whole:
        compare_hand_over = partial(hand_over_differences, has_audio=b'"audio"' in mutant.body)
        if is_streamed:
            readings.append(("hand-over, SDK", read_stream(sides.followed, mutant), partial(compare_hand_over, expected)))
        else:
            shown = replace(expected, text=expected.text + expected.refusal) if told == "messages" else expected
            proxied = read_answer_of(sides.followed_callers, told, mutant, is_streamed=True)
            readings.append((f"hand-over, proxy, {told}", proxied, partial(compare_hand_over, shown)))
    found = []
    for way, reading, check in readings:
        try:
            found += [f"{way}: {each}" for each in check(await reading)]
        except Exception as error:  # noqa: BLE001  one fault shall not hide the others
            found.append(f"{way}: {type(error).__name__}: {error}")
    return found


def _as_whole(expected: Reading) -> Reading:
    """Return what is known of an answer that is asked for whole: of one that fails, the text alone."""
    if expected.whole:
        return expected
    return Reading(text=expected.text, whole=False, failure=expected.failure, word=expected.word)
