"""Runs a split answer's machine on asyncio: the engine's thread computes and drafts, and a session with the servers sends and receives.

The session's events arrive on the event loop. The engine's thread sends its events there with ``call_soon_threadsafe``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamco.core.split.events import (
    AnswerEnded,
    CloseSession,
    ComputeRows,
    OpenSession,
    SendRows,
    SessionLost,
    SplitCommand,
    SplitEvent,
)
from streamco.core.split.machine import SplitMachine
from streamco.endpoints.split.base import AnswerEngine, DeepStates, LinkEvent, LinkFailed, LinkSession, SplitLink
from streamco.engines.base import Generation, GenerationRequest
from streamco.engines.split.answer import SplitGeneration
from streamco.engines.split.tally import SplitTally
from streamco.machine_driver import StepLog, TaskDriver
from streamco.policies.chunking import PromptPlan

__all__ = ["SplitDriver"]


class SplitDriver(TaskDriver[SplitEvent, SplitCommand]):
    """Runs one answer between the engine and the servers. Implements ``AnswerOwner``.

    Args:
        engine: the engine, which has the input layers and the head.
        link: the servers.
        on_over: called once when the answer is over.
        clock: a monotonic clock in seconds; None uses the system's, or the loop's if the loop doesn't use the system's (virtual time).
        log: records every step, for replay or for log lines; None records nothing.

    Attributes:
        tally: counts what the answer has sent, received and drafted so far.
        generation: the answer in the engine, or None if it isn't there yet or has ended.
    """

    machine: SplitMachine

    def __init__(
        self,
        engine: AnswerEngine,
        link: SplitLink,
        *,
        on_over: Callable[[Any], None] | None = None,
        clock: Callable[[], float] | None = None,
        log: StepLog[SplitEvent, SplitCommand] | None = None,
    ) -> None:
        machine = SplitMachine(plan=partial(_plan, engine, link), max_rows=link.max_rows)
        super().__init__(machine, on_over=on_over, clock=clock, log=log)
        self.tally = SplitTally(machine.counts)
        self.generation: SplitGeneration | None = None
        self._made = 0  # tokens of a generation that has ended
        self._engine, self._link = engine, link
        self._session: LinkSession | None = None

    @property
    def made(self) -> int:
        """Number of tokens drawn so far."""
        return self._made if self.generation is None else self.generation.made

    def submit(self, request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        """Queue the answer in the engine; thread-safe. See ``AnswerEngine.submit``."""
        return self._engine.submit(request, wake, self)

    def tell(self, event: SplitEvent) -> None:
        """Receive an event from the engine's thread; see ``AnswerOwner``."""
        try:
            self._loop.call_soon_threadsafe(self.emit, event)
        except RuntimeError:  # the loop was closed, and with it all connections
            if self.generation is not None:
                self.generation.cancel()

    def end(self) -> None:
        """End the session if the engine hasn't reported the end of the answer yet; idempotent."""
        if not self.machine.is_over:
            self.emit(AnswerEnded())

    def leave(self) -> None:
        """Cancel the answer without waiting."""
        if self.generation is not None:
            self.generation.cancel()  # the engine reports the end
        else:
            self.end()

    # The machine's events and commands

    def _receive(self, event: SplitEvent, now: float) -> None:
        was_waiting = self.machine.is_waiting
        super()._receive(event, now)
        generation = self.generation
        if generation is None:
            return
        match event:
            case DeepStates(states=states) if was_waiting and not self.machine.is_waiting:
                self._engine.read(generation, states)
            case SessionLost():
                self._engine.record_loss(generation)
            case AnswerEnded():
                self.generation, self._made = None, generation.made  # the two refer to each other

    def _run_command(self, command: SplitCommand, now: float) -> None:
        match command:
            case CloseSession():
                self._close_session()
            case ComputeRows():
                self._engine.compute(self._running(), command)
            case OpenSession():
                self._find_session().open(command)
            case SendRows(start=start, stop=stop):
                self._find_session().send(command, self._running().rows(start, stop))

    def _running(self) -> SplitGeneration:
        assert self.generation is not None, "an answer that is over has no commands"
        return self.generation

    def _find_session(self) -> LinkSession:
        if self._session is None:
            self._session = self._link.session(self._receive_link, self._running().most_tokens)
            self.tally.traffic = self._session.traffic
        return self._session

    def _close_session(self) -> None:
        session, self._session = self._session, None  # the two refer to each other
        if session is not None:
            session.close()

    def _receive_link(self, event: LinkEvent) -> None:
        if not isinstance(event, LinkFailed):
            self.emit(event)
        elif self.generation is not None:
            self._engine.fail(self.generation, event.error)

    # The end

    def _is_done(self) -> bool:
        return self.machine.is_over or self._has_crashed

    def _crash(self, error: BaseException) -> None:
        """End the answer with this error, which is a defect in this class or in the link."""
        self._has_crashed = True
        self._events.clear()
        generation, self.generation = self.generation, None
        if generation is not None and isinstance(error, Exception):
            self._engine.fail(generation, error)
        else:
            self._report_error("streamco split answer failed", error)
        self._close_session()
        self._end_if_idle()


def _plan(engine: AnswerEngine, link: SplitLink, rows: int, computed: int) -> PromptPlan:
    return link.plan(rows, computed=computed, input_costs=engine.input_costs)
