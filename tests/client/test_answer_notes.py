"""The notes of answers: whatever differs from what was asked is in ``report.notes`` and in the log, and nothing else is.

The properties draw configurations, requests and faults. What was asked, and what happened, is found out without the code under test: by the
streams that scripted endpoints saw, the requests that they got, and the words that the reader got.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.client.client import Client
from streamco.client.modes.auto import Auto
from streamco.client.modes.base import Mode
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.client.modes.speculation.mode import Speculate
from streamco.core.race.learner import PolicyName
from streamco.core.report import Report
from streamco.endpoints.base import Capabilities, Request, TokenPrices
from streamco.errors import (
    AllEndpointsFailed,
    ConfigError,
    DegradedError,
    EndpointConnectError,
    EndpointError,
    EndpointStatusError,
    EngineError,
    StreamcoError,
)
from streamco.events import StreamEnded, TokensReceived
from streamco.testing.endpoint import ScriptedEndpoint, ScriptedStream
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.client.helpers import HELLO, recorded_log

TWO_SIDED = ("both", "device-constrained", "disco", "optimal", "proportional-wait", "server-constrained", "stochastic")
NAMED = {"device-only": "device", "device-first": "device", "server-only": "server", "server-first": "server"}
WORDS = 5  # of an answer
FAULTS: dict[str, type[EndpointError] | int] = {"down": EndpointConnectError, "401": 401, "404": 404, "503": 503}
NEEDS: dict[str, tuple[dict[str, Any], str]] = {  # a field of the request, and the capability that it needs
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    "n": ({"n": 2}, "choices"),
    "json": ({"response_format": {"type": "json_object"}}, "json_schema"),
    "effort": ({"reasoning_effort": "low"}, "server"),
    "penalty": ({"frequency_penalty": 1.0}, ""),
    "neutral": ({"reasoning_effort": "none", "user": "me", "tool_choice": "auto"}, ""),
}


class Watched(ScriptedEndpoint):
    """An endpoint that counts what its readers saw of it: its failures, and whether it was started."""

    failures = 0
    starts = 0

    async def start(self) -> None:
        self.starts += 1
        await super().start()

    def open(self, request: Request) -> ScriptedStream:
        return watch(self, super().open(request))


def watch(endpoint: Watched, stream: ScriptedStream) -> ScriptedStream:
    receive = stream.receive

    async def counted() -> TokensReceived | StreamEnded:
        try:
            return await receive()
        except EndpointError:
            endpoint.failures += not stream.is_cancelled
            raise

    stream.receive = counted  # type: ignore[method-assign]
    return stream


@dataclass(frozen=True)
class Side:
    """One endpoint of a drawn world."""

    name: str
    kind: str
    latency: float
    words: int  # that it gives before its fault
    fault: str | None
    starts: bool
    context: int | None
    able: frozenset[str]
    is_priced: bool
    continuation: str

    def endpoint(self) -> Watched:
        error = FAULTS.get(self.fault or "")
        script: list[tuple[float, Any]] = [(self.latency + 0.1 * index, f"{self.name}{index} ") for index in range(WORDS)]
        if isinstance(error, int):
            script[self.words] = (script[self.words][0], EndpointStatusError(f"got {error}", status=error, endpoint=self.name))
        elif error is not None:
            script[self.words] = (script[self.words][0], error("got none", endpoint=self.name))
        return Watched(
            self.name,
            script,
            kind="device" if self.kind == "device" else "server",
            tokens=10,
            capabilities=Capabilities(
                context_tokens=self.context,
                continuation=self.continuation,  # type: ignore[arg-type]
                tools="tools" in self.able,
                choices="choices" in self.able,
                json_schema="json_schema" in self.able,
            ),
            prices=TokenPrices(prompt=1e-6, completion=2e-6) if self.is_priced else None,
            start_error=None if self.starts else EngineError("broken", endpoint=self.name),
        )

    def can_serve(self, world: World) -> bool:
        """Whether this endpoint can serve the request, by this file's own reckoning."""
        is_device = self.kind == "device"
        need = NEEDS[world.field][1] if world.field else ""
        if is_device if need == "server" else need and need not in self.able:
            return False
        servers = (each for each in world.sides if each.kind != "device" and each.starts and not world.forbids(each))
        shortens = not is_device or not any(each.can_serve(world) for each in servers)
        return self.context is None or 10 + (1 if shortens else world.max_tokens or 1) <= self.context


@dataclass(frozen=True)
class World:
    """A client's configuration, its request and the faults."""

    sides: tuple[Side, ...]
    policy: PolicyName
    budget: float | None
    mode: str | None
    on_failure: str | None
    on_degraded: str
    pace: float | None
    migration: bool
    constrained: str | None
    explore: float
    hedge_tools: bool
    max_tokens: int | None
    field: str | None
    form: str  # how the answer is asked for

    def forbids(self, side: Side) -> bool:
        """Whether a promise keeps this endpoint out."""
        return self.forbids_kind(side.kind)

    def forbids_kind(self, kind: str) -> bool:
        if self.policy in {"device-only", "server-only"}:
            return kind != self.policy.partition("-")[0]
        constrained = self.constrained or ("device" if self.policy in {"device-constrained", "proportional-wait"} else "server")
        return self.budget == 0 and kind == constrained


def a_side(name: str, kind: str) -> st.SearchStrategy[Side]:
    return st.builds(
        Side,
        name=st.just(name),
        kind=st.just(kind),
        latency=st.sampled_from([0.0, 0.5, 5.0]),
        words=st.integers(0, WORDS - 1),
        fault=st.sampled_from([None, None, None, *FAULTS] if kind == "server" else [None, None, None, "down"]),
        starts=st.sampled_from([True, True, True, False]),
        context=st.sampled_from([None, None, 100]),
        able=st.sampled_from([frozenset[str](), frozenset({"tools", "choices", "json_schema"})])
        if kind == "server"
        else st.just(frozenset[str]()),
        is_priced=st.booleans() if kind == "server" else st.just(False),
        continuation=st.sampled_from(["none", "prefix"]),
    )


SIDES = st.tuples(st.none() | a_side("D", "device"), st.none() | a_side("A", "server"), st.none() | a_side("B", "server")).map(
    lambda sides: tuple(side for side in sides if side is not None)
)
WORLDS = st.builds(
    World,
    sides=SIDES.filter(bool),
    policy=st.sampled_from(["auto", *TWO_SIDED, *NAMED]),
    budget=st.sampled_from([None, 0.0, 0.01, 0.5, 1.0]),
    mode=st.sampled_from([None, "race", "speculate", "auto"]),
    on_failure=st.sampled_from([None, "migrate", "restart", "raise"]),
    on_degraded=st.sampled_from(["warn", "warn", "warn", "raise", "ignore"]),
    pace=st.sampled_from([None, None, 5.0]),
    migration=st.booleans(),
    constrained=st.sampled_from([None, "device", "server"]),
    explore=st.sampled_from([0.0, 1.0]),
    hedge_tools=st.booleans(),
    max_tokens=st.sampled_from([None, 5, 4096]),
    field=st.sampled_from([None, None, *NEEDS]),
    form=st.sampled_from(["tokens", "chunks", "whole"]),
)


@dataclass
class Outcome:
    """What a reader saw of one call."""

    text: str = ""
    report: Report | None = None
    error: StreamcoError | None = None
    failed: set[str] = field(default_factory=set)  # endpoints whose failure was seen in this call
    opened: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)  # endpoints that failed in an earlier call


async def call(client: Client, world: World, endpoints: dict[str, Watched]) -> Outcome:
    before = {name: (each.failures, len(each.streams)) for name, each in endpoints.items()}
    outcome = Outcome()
    options: dict[str, Any] = {**(NEEDS[world.field][0] if world.field else {}), "max_tokens": world.max_tokens}
    try:
        if world.form == "tokens":
            tokens = client.stream(HELLO, **options)
            outcome.text = "".join([token.text async for token in tokens])
            outcome.report = tokens.report
        elif world.form == "chunks":
            chunks = await client.chat.completions.create(messages=HELLO, stream=True, **options)
            async for chunk in chunks:
                outcome.text += "".join(choice.delta.content or "" for choice in chunk.choices)
            outcome.report = chunks.report
        else:
            answer = await client.chat.completions.create(messages=HELLO, **options)
            outcome.text, outcome.report = answer.choices[0].message.content or "", answer.report
    except StreamcoError as error:
        outcome.error = error
    for name, each in endpoints.items():
        if each.failures > before[name][0]:
            outcome.failed.add(name)
        if len(each.streams) > before[name][1]:
            outcome.opened.add(name)
    return outcome


def expected_notes(world: World, outcome: Outcome) -> tuple[dict[str, str], dict[str, str]]:
    """What has to be said of an answer that came, and what may be said beside it: subject to a pattern of its note."""
    promised = any(world.forbids_kind(kind) for kind in ("device", "server"))
    must = {f"{name} failed": rf"^{name} failed \(" for name in outcome.failed}
    may = {f"{name} refused": rf"^{name} can't take over: it has refused another request" for name in outcome.refused}
    may |= {f"{name} rests": rf"^{name} is asked only if others fail: it has just failed \(" for name in outcome.refused}
    may |= {f"{name} counts": f"^{name} may exceed max_tokens" for name in outcome.opened if world.max_tokens}
    down = [side.name for side in world.sides if not side.starts and not world.forbids(side)]
    must |= {f"{name} start": f"^endpoint left out, it could not start: {name}: broken" for name in down}
    add_abilities(world, must, may)
    if world.mode in {"speculate", "auto"}:
        must["mode"] = "^not speculated: "
    if world.policy in TWO_SIDED and {side.kind for side in world.sides} != {"device", "server"} and not promised:
        must["policy"] = f'^policy "{world.policy}" has no effect'
    if world.form == "whole" and world.pace is not None:
        must["pace"] = "^the client's pace has no effect"
    if (name := NAMED.get(world.policy)) is not None:
        asked = next(side.name for side in world.sides if side.kind == name)
        if outcome.text and outcome.text[0] != asked:
            must["winner"] = f"^(endpoint left out|{asked} left out|{asked} failed|{asked} is asked only)"
    return must, may


def add_abilities(world: World, must: dict[str, str], may: dict[str, str]) -> None:
    """Add what endpoints can't do of what was asked for."""
    started = [side for side in world.sides if side.starts and not world.forbids(side)]
    servers = [side for side in started if side.kind == "server"]
    for side in started:
        if not side.can_serve(world):
            is_before = side.kind == "device" or not any(each.can_serve(world) for each in servers[: servers.index(side)])
            (must if is_before else may)[f"{side.name} can't"] = rf"^{side.name} left out: "
        elif side.kind == "device" and side.context and world.max_tokens and 10 + world.max_tokens > side.context:
            must["shortened"] = "^D can give at most 90 of 4096 tokens"
    # the energy of the device's tokens isn't known, because these devices have no model, so they count as free
    able = [side for side in started if side.can_serve(world)]
    device = next((side for side in able if side.kind == "device"), None)
    stays = sum(side.is_priced or side is device for side in able) < 2 or (device is not None and device.continuation == "none")
    if world.pace is not None and device is not None and device.continuation != "none":
        may["moved"] = "^D went on for [AB], because it is cheaper"
    if world.migration and world.pace is not None and world.form != "whole" and stays:
        races = world.policy == "both" and world.budget == 1.0 and world.field in {None, "penalty", "neutral"}
        moves = world.on_failure != "raise" and world.on_degraded != "raise"
        is_sure = races and moves and len(started) > 1 and all(side.can_serve(world) for side in started)
        (must if is_sure else may)["migration"] = "^the answer moves to no cheaper endpoint"
    if world.constrained == "device" and not any(side.is_priced and side.continuation != "none" for side in able if side.kind == "server"):
        may["no server goes on"] = "^the answer moves to no cheaper endpoint"


def check_requests(world: World, endpoints: dict[str, Watched]) -> None:
    """Whatever was sent is what was asked for."""
    for name, endpoint in endpoints.items():
        side = next(each for each in world.sides if each.name == name)
        if world.forbids(side):
            assert not endpoint.streams
            assert not endpoint.starts
        for stream in endpoint.streams:
            asked = dict(NEEDS[world.field][0]) if world.field else {}
            assert stream.request.sampling.frequency_penalty == asked.pop("frequency_penalty", None)
            assert dict(stream.request.extra) == asked
            if stream.request.partial is None:
                assert stream.request.sampling.max_tokens == world.max_tokens


def check_outcome(world: World, outcome: Outcome) -> None:
    """Nothing was different without a note, and no note is there without a difference."""
    if outcome.report is None:
        return
    notes = outcome.report.notes
    must, may = expected_notes(world, outcome)
    for subject, pattern in must.items():
        assert any(re.search(pattern, note) for note in notes), (subject, pattern, notes)
    for note in notes:
        assert any(re.search(pattern, note) for pattern in (*must.values(), *may.values())), (note, must, may)
    assert len(set(notes)) == len(notes)
    if world.on_degraded == "raise":
        assert all(note.startswith(("the client's pace", "D failed", "A failed", "B failed", "A can't", "B can't")) for note in notes), (
            notes
        )


def check_log(world: World, outcomes: list[Outcome], records: list[logging.LogRecord]) -> None:
    """Each kind of note was a warning, once, unless degradations are ignored."""
    warned = [record.getMessage().removesuffix(" (logged once)") for record in records if record.levelno == logging.WARNING]
    if world.on_degraded == "ignore":
        assert warned == []
        return
    notes = [note for outcome in outcomes if outcome.report is not None for note in outcome.report.notes]
    for note in notes:
        kinds = {note, "answers are not speculated: " + note.removeprefix("not speculated: ")}
        begun = note.split(" (")[0] if " failed (" in note else None  # the endpoint that answered in its place may be another one
        if " can't take over: " in note:
            begun = note.split(" ")[0] + " failed"  # one kind: it was logged when the endpoint refused
        assert any(text in kinds or (begun and text.startswith(begun)) for text in warned), (note, warned)
    if len(outcomes) == 1:
        assert len(set(warned)) == len(warned), warned


def mode_of(world: World) -> Mode:
    race = Race(
        policy=world.policy,
        migration=MigrationOptions() if world.migration else None,
        constrained=world.constrained,  # type: ignore[arg-type]
        explore=world.explore,
        hedge_tools=world.hedge_tools,
    )
    other: dict[str, Mode] = {"speculate": Speculate(otherwise=race), "auto": Auto(race, Speculate())}
    return other.get(world.mode or "race", race)


async def play(world: World, records: list[logging.LogRecord], calls: int) -> None:
    endpoints = {side.name: side.endpoint() for side in world.sides}
    device = endpoints.get("D")
    try:
        client = Client(
            device,
            [each for name, each in endpoints.items() if name != "D"] or None,
            budget=world.budget,
            mode=mode_of(world),
            on_failure=world.on_failure,  # type: ignore[arg-type]
            on_degraded=world.on_degraded,  # type: ignore[arg-type]
            pace=world.pace,
            seed=1,
        )
    except ConfigError:
        return  # the settings contradict each other
    outcomes: list[Outcome] = []
    with suppress(EndpointError, AllEndpointsFailed, DegradedError):  # from the start: nothing was asked
        async with client:
            while len(outcomes) < calls:
                outcomes += [await call(client, world, endpoints)]
                outcomes[-1].refused = {name for each in outcomes[:-1] for name in each.failed}
    for outcome in outcomes:
        check_outcome(world, outcome)
    check_requests(world, endpoints)
    check_log(world, outcomes, records)


@settings(max_examples=500)
@given(WORLDS, st.integers(1, 3))
def test_whatever_is_not_as_asked_is_in_the_notes_and_in_the_log_and_nothing_else(world: World, calls: int) -> None:
    with recorded_log() as records:
        run_in_virtual_time(play(world, records, calls))
