"""One answer of a split model in virtual time: the prompt in chunks, then rounds of drafting and verification (HAT, section 3).

The answer's machine decides which rows are computed and sent, and when, as on asyncio. A round adds the rows of the last token and of the
draft after it, and the device's head verifies the draft with the deep states that come back. The live policies determine the chunk size,
where drafts end, and the steps of parallel drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf
from random import Random
from typing import Any

import simpy
from msgspec import Struct

from streamco.core.split.events import (
    AnswerEnded,
    ComputeRows,
    OpenSession,
    RowsAdded,
    RowsComputed,
    SendRows,
    SessionReady,
    StatesArrived,
    Truncated,
)
from streamco.core.split.machine import SplitMachine
from streamco.policies.chunking import PromptPlan, chunk_size, chunks_in_flight, fastest_chunk_size, parallel_steps
from streamco.profiles.chunk_times import ChunkTimes
from streamco.profiles.row_costs import RowCosts
from streamco.sim.driver import call_at
from streamco.sim.split.draft_laws import DraftSpan, draft_length, draw_tree, predrafted, tree_probability, verify_draft
from streamco.sim.split.driver import SimulatedSplit
from streamco.sim.split.options import SplitPolicyOptions
from streamco.sim.split.split_device import SimulatedSplitDevice, wire_bytes
from streamco.sim.split.split_server import SentRows, SimulatedSplitServer
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["SimulatedSplitAnswer", "SplitAnswerOutcome"]

Steps = Generator[simpy.Event, Any, None]

_ANY_NUMBER = 1 << 30  # no limit on rows in a frame, or on unanswered chunks


class SplitAnswerOutcome(Struct, kw_only=True):
    """The outcome of one request. Times are in seconds since the simulation began.

    Args:
        request: the request.
        first: time of its first token.
        ended: time of its last token.
        tokens: tokens of the answer.
        rounds: rounds after the prompt.
        judged, accepted: draft tokens that were sent, and draft tokens that were accepted.
        hits: rounds whose draft was begun while the previous verdict was pending.
        chunks: rows of each chunk of the prompt.
        rows: rows that were sent to the server.
        bytes_up, bytes_down: bytes on the link, including headers.
        device_seconds: time that the processor took for the prompt.
        link_seconds: total time that the prompt's chunks and their states were on the way, even if these times overlapped.
        server_seconds: total time that the prompt's chunks were at the server.
    """

    request: SimulatedRequest
    first: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    rounds: int = 0
    judged: int = 0
    accepted: int = 0
    hits: int = 0
    chunks: list[int] = []
    rows: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    device_seconds: float = 0.0
    link_seconds: float = 0.0
    server_seconds: float = 0.0


class SimulatedSplitAnswer:
    """One answer: the device's work for it, and its session at the server. Implements ``DeviceSide`` and ``ServerSide``.

    Args:
        device: the device.
        server: the server.
        request: the request, with the acceptance of drafts.
        policy: the policies of device and server.
        state_bytes: bytes of a state on the wire.
        seed: seed of its random draws.
        on_outcome: called when the answer has ended.
    """

    def __init__(
        self,
        env: simpy.Environment,
        device: SimulatedSplitDevice,
        server: SimulatedSplitServer,
        request: SimulatedRequest,
        policy: SplitPolicyOptions,
        *,
        state_bytes: int,
        seed: int,
        on_outcome: Callable[[SplitAnswerOutcome], None],
    ) -> None:
        self.outcome = SplitAnswerOutcome(request=request, chunks=[])
        self._env = env
        self._device = device
        self._server = server
        self._request = request
        self._policy = policy
        self._state_bytes = state_bytes
        self._rng = Random(f"{seed} tree {request.number}")
        self._tree = tree_probability(policy.tree_accept, policy.tree_heads)
        self._on_outcome = on_outcome
        self._session = f"request{request.number}"
        self._answered = env.event()  # succeeds when the wanted states have come
        self._rows = 0  # rows of the sequence
        self._planned: tuple[float, int, PromptPlan] | None = None  # when it was made, for how many rows, and the plan
        self._driver = SimulatedSplit(env, SplitMachine(plan=self._plan, max_rows=_ANY_NUMBER), device=self, server=self)

    def start(self) -> None:
        """Start the answer now."""
        self._device = self._device.begin()
        self._driver.start()
        self._env.process(self._run())

    def _run(self) -> Steps:
        yield from self._read_prompt()
        while self.outcome.tokens < self._request.output_tokens:
            yield from self._run_round()
        self.outcome.ended = self._env.now
        self._driver.receive(AnswerEnded())
        self._on_outcome(self.outcome)

    # The prompt

    def _plan(self, rows: int, _computed: int) -> PromptPlan:
        """Plan how to cut the rows that are still to be sent.

        Within one moment the plan stays the same, because opening the session takes no time.
        """
        if self._planned is not None and self._planned[:2] == (self._env.now, rows):
            return self._planned[2]
        size = self._chunk_rows(rows)
        limit = self._policy.chunks_in_flight
        if limit == "covering":
            limit = chunks_in_flight(rows, size, self._chunk_times(), round_trip=self._device.link.round_trip)
        self._planned = self._env.now, rows, PromptPlan(size, _ANY_NUMBER if limit is None else limit)
        return self._planned[2]

    def _chunk_rows(self, prompt: int) -> int:
        """Return how many rows a chunk of the prompt has."""
        chunking = self._policy.chunking
        if chunking == "whole":
            return prompt
        if isinstance(chunking, int):
            return min(prompt, chunking)
        if chunking == "balanced":
            return chunk_size(
                prompt,
                costs=self._server.load.costs(),
                row_bytes=self._state_bytes,
                upload_rate=self._device.upload_rate,
                load_rows=self._load_rows(),
                stages=self._server.stages,
                largest=self._policy.room,
            ).size
        return fastest_chunk_size(prompt, self._chunk_times(), largest=self._policy.room).size

    def _load_rows(self) -> float:
        """Return the average number of rows in the server's batches. For equation 3, rows of prompts count, too."""
        load = self._server.load
        return load.rows if self._policy.chunking == "balanced" else load.steady_rows

    def _chunk_times(self) -> ChunkTimes:
        return ChunkTimes.from_costs(
            costs=self._server.load.costs(),
            row_bytes=self._state_bytes,
            upload_rate=self._device.upload_rate,
            load_rows=self._load_rows(),
            stages=self._server.stages,
            room=self._policy.room,
            is_merged=self._policy.is_merged,
            input_costs=RowCosts({rows: max(1e-9, self._device.input_seconds(rows)) for rows in (1, 4096)}),
            download_rate=self._device.download_rate if self._policy.prompt_rows == "all" else inf,
        )

    def _read_prompt(self) -> Steps:
        yield self._add(self._request.prompt_tokens, 1)
        self.outcome.device_seconds += (seconds := self._device.head_seconds())
        yield self._compute(seconds)
        self._deliver(1)

    # Rounds

    def _run_round(self) -> Steps:
        match self._policy.drafting:
            case "none":
                yield self._add(1, 1)
                yield self._compute(self._device.head_seconds())
                self._conclude(0, 0)
            case "tree":
                rows = self._policy.tree_rows
                yield self._compute(self._device.tree_seconds(rows))
                yield self._verify(rows)
                yield self._compute(self._device.head_seconds(rows))
                self._conclude(rows - 1, draw_tree(self._tree, self._policy.tree_heads, self._rng))
            case "threshold":
                yield from self._run_drafts()

    def _run_drafts(self) -> Steps:
        """Run rounds with drafts until a round finds that nothing was drafted for it in advance."""
        made, device, policy = 0, self._device, self._policy
        while self.outcome.tokens < self._request.output_tokens:
            draft = self._next_draft()
            for _ in range(draft.tokens - made):
                yield self._compute(device.step_seconds())
            yield self._compute(device.input_seconds())  # the last draft token's row
            steps = 0
            answered = self._verify(1 + draft.tokens)
            for _ in range(self._parallel_steps(draft) if policy.branches and draft.tokens else 0):
                if answered.triggered or device.is_busy(self._env.now):  # busy with another answer
                    break
                yield self._compute(device.step_seconds(policy.branches))
                steps += 1
            yield answered
            yield self._compute(device.head_seconds(1 + draft.tokens))
            accepted = verify_draft(self._request, draft)
            self._conclude(draft.tokens, accepted)
            found = predrafted(self._request, draft, accepted, steps=steps, branches=policy.branches)
            made = min(found, self._next_draft().tokens)
            self.outcome.hits += made > 0

    def _next_draft(self) -> DraftSpan:
        start = self.outcome.tokens
        return DraftSpan(start, draft_length(self._request, start, threshold=self._policy.threshold, max_draft=self._policy.max_draft))

    def _parallel_steps(self, draft: DraftSpan) -> int:
        """Return how many draft steps fit into the waiting time (equation 6)."""
        load, device = self._server.load, self._device
        rows = 1 + draft.tokens
        return parallel_steps(
            rows,
            row_bytes=self._state_bytes,
            upload_rate=device.upload_rate,
            download_rate=device.download_rate,
            server_seconds=load.costs().seconds(max(rows, load.rows)),
            step_seconds=device.step_seconds(self._policy.branches),
        )

    def _conclude(self, judged: int, accepted: int) -> None:
        self.outcome.rounds += 1
        self.outcome.judged += judged
        self.outcome.accepted += accepted
        self._deliver(1 + accepted)
        self._rows = self._request.prompt_tokens + self.outcome.tokens - 1
        self._driver.receive(Truncated(self._rows))

    def _deliver(self, tokens: int) -> None:
        outcome = self.outcome
        if not outcome.tokens:
            outcome.first = self._env.now
        outcome.tokens = min(self._request.output_tokens, outcome.tokens + tokens)

    # The device

    def _compute(self, seconds: float) -> simpy.Event:
        return self._env.timeout(self._device.occupy(self._env.now, seconds))

    def _add(self, rows: int, wanted: int) -> simpy.Event:
        """Add rows to the sequence, and return an event that succeeds when the deep states of the last ``wanted`` rows have come."""
        self._rows += rows
        self._answered = self._env.event()
        self._driver.receive(RowsAdded(self._rows, wanted))
        return self._answered

    def _verify(self, rows: int) -> simpy.Event:
        """Add the rows of a round, which are computed already, and return an event that succeeds when their deep states have come."""
        self._driver.receive(RowsComputed(self._rows + rows))
        return self._add(rows, rows)

    def compute(self, command: ComputeRows) -> None:
        """Compute rows on the device; see ``DeviceSide``."""
        rows = command.stop - command.start
        seconds = self._device.input_seconds(rows)
        self.outcome.device_seconds += seconds * self._is_prompt(command.start)
        call_at(self._env, self._device.occupy(self._env.now, seconds), lambda: self._driver.receive(RowsComputed(command.stop)))

    def read(self, _event: StatesArrived) -> None:
        """Read the states that have come; see ``DeviceSide``."""
        self._answered.succeed()

    def _is_prompt(self, position: int) -> bool:
        return position < self._request.prompt_tokens

    # The session

    def open(self, command: OpenSession) -> None:
        """Open the session, which takes no time; see ``ServerSide``."""
        call_at(self._env, 0.0, lambda: self._driver.receive(SessionReady(command.attempt, 0)))

    def close(self) -> None:
        """Close the session; see ``ServerSide``."""
        self._server.close(self._session)

    def send(self, command: SendRows) -> None:
        """Send rows up, and the deep states that were wanted down; see ``ServerSide``."""
        outcome, link, is_prompt = self.outcome, self._device.link, self._is_prompt(command.start)
        rows = command.stop - command.start
        wanted = rows if is_prompt and self._policy.prompt_rows == "all" else command.wanted
        outcome.rows += rows
        if is_prompt:
            outcome.chunks.append(rows)

        def arrive() -> None:
            came = self._env.now

            def emit() -> None:
                outcome.bytes_down += wire_bytes(wanted * self._state_bytes)
                down = link.delay(self._env.now, wanted * self._state_bytes, is_up=False)
                outcome.server_seconds += is_prompt * (self._env.now - came)
                outcome.link_seconds += is_prompt * down
                call_at(self._env, down, lambda: self._driver.receive(StatesArrived(command.attempt)))

            self._server.submit(
                SentRows(
                    session=self._session,
                    device=self._device.name,
                    kind="prefill" if is_prompt else "verify",
                    position=command.start,
                    rows=rows,
                    emit=emit,
                )
            )

        outcome.bytes_up += wire_bytes(rows * self._state_bytes)
        up = link.delay(self._env.now, rows * self._state_bytes, is_up=True)
        outcome.link_seconds += is_prompt * up
        call_at(self._env, up, arrive)
