"""The draft model of one answer: carries out the speculator's commands with an engine's token sequences.

The trunk is the sequence after the committed answer; branches are forks of it. Each has a *state*: the ids that it should have (``wanted``)
and the ids that the engine's sequence already has (``held``). Commands only change ``wanted``. In its next iteration, the loop brings
``held`` up to date for all sequences together, so that the branches of a round share their batches from the start. Only a task that was
cancelled and hasn't reported its end can delay this. A sequence that the engine evicted is read again from the ids.

The engine wakes the loop once for everything that happened since the loop last looked, and all new tokens of a version become one event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.core.speculation.events import AdoptBranch, DeviceFailed, DraftBranch, DraftToken, DraftTokens, DropDrafts, TokensDrafted
from streamco.engines.base import HoldingEngine, Prediction, SequenceTask, TaskEnd, TokenSequence
from streamco.errors import EngineError, UsageError
from streamco.events import common_prefix_length
from streamco.policies.rejection import ALTERNATIVES

__all__ = ["DeviceDrafter", "DrafterCommand", "DrafterEvent"]

DrafterCommand = DraftTokens | DraftBranch | AdoptBranch | DropDrafts
DrafterEvent = TokensDrafted | DeviceFailed

TOP = ALTERNATIVES + 1  # ids at each position: the token itself and its alternatives
_COMPLETE = ("done", "stop")
_LOST = ("evicted", "error")
_MAX_BATCHED_IDS = 32  # ids read in the batch of a draft's first token; more are read before it, and stay if the draft is dropped


@dataclass(slots=True)
class _PendingDraft:
    """A draft that the engine is working on."""

    version: int | None
    task: SequenceTask
    given: list[int]  # ids that are read before its first token


@dataclass(slots=True, eq=False)
class _SequenceState:
    """A sequence of the engine, and the ids that it should have; owned by ``DeviceDrafter``.

    Args:
        version: version of the command that is being carried out; None if its draft was dropped.
        wanted: the prompt, the answer, and the tokens drafted for this version.
        count: number of tokens still to be drafted.
        held: ids that the sequence will have once all its tasks except the draft are done.
        sequence: the engine's sequence, or None.
        pending: the draft that the engine is working on, or None.
        source: the sequence that it was forked from; None if it isn't a fork.
        exists: False for a fork until its first token arrives, because a fork that is cancelled before that doesn't exist.
        is_lost: True if it is a branch that has lost its sequence; a new one is made if the branch is adopted.
        has_failed: True if its last task ended with an error.
    """

    version: int | None
    wanted: list[int]
    count: int = 0
    held: list[int] = field(default_factory=list)
    sequence: TokenSequence | None = None
    pending: _PendingDraft | None = None
    source: TokenSequence | None = None
    exists: bool = True
    is_lost: bool = False
    has_failed: bool = False

    @property
    def needs_draft(self) -> bool:
        """True if there are tokens to draft that the engine hasn't been asked for."""
        return self.pending is None and self.count > 0 and not self.is_lost

    def take(self) -> tuple[list[Prediction], TaskEnd | None]:
        """Return the draft's new tokens and its end, both only if the draft is still wanted."""
        pending = self.pending
        if pending is None:
            return [], None
        predictions, end = pending.task.take()
        ids = [_token(prediction) for prediction in predictions]
        if ids:
            self.held += (*pending.given, *ids)
            pending.given = []
        if end is not None:
            self.pending = None
        if ids:
            self.exists, self.has_failed = True, False
        if pending.version is None or pending.version != self.version:
            if end is not None and (end.reason in _LOST or not self.exists):
                self.discard()
            return [], None
        self.wanted += ids
        self.count -= len(ids)
        return predictions, end

    def stop(self) -> None:
        """Stop drafting; the sequence keeps its tokens."""
        self.version, self.count = None, 0
        if self.pending is not None:
            self.pending.task.cancel()
            self.take()  # it may have ended already

    def release(self) -> SequenceTask | None:
        """Give the sequence back to the engine; return its cancelled task, if there is one, because that task hasn't ended yet."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.task.cancel()
        self.discard()
        return pending.task if pending is not None else None

    def discard(self) -> None:
        """Close the sequence, which is no longer needed."""
        if self.sequence is not None:
            self.sequence.close()
        self.sequence, self.held = None, []


class DeviceDrafter:
    """Runs a speculator's drafts on an engine, for one answer; made by ``DeviceEndpoint.drafter``. It belongs to one event loop.

    It begins to read the prompt at once. It emits events on the loop, never from inside ``run``, and never for a version that was dropped
    or replaced. The trunk and each branch use one of the engine's ``EngineOptions.held_sequences``.

    Args:
        engine: the draft model.
        prompt_ids: the prompt, which isn't counted in lengths and positions.
        emit: called with ``TokensDrafted``, which may have several tokens, and with ``DeviceFailed``, which is the last event.
        sampling: how tokens are drawn; each draft has its own seed, derived from this one.
        top: number of alternatives for each token.
        row_ids: maximum number of ids in ``DraftToken.row``, the ``streamco.wire.verify.topk.TopK`` that the token was drawn from; 0 to
            get no rows.
        name: name in errors.
        on_close: called when the drafter is closed.

    Raises:
        EngineError: the engine is closed or holds no sequences, or the prompt doesn't fit.
    """

    def __init__(
        self,
        engine: HoldingEngine,
        prompt_ids: Sequence[int],
        *,
        emit: Callable[[DrafterEvent], None],
        sampling: SamplingOptions,
        top: int = TOP,
        row_ids: int = 0,
        name: str = "device",
        on_close: Callable[[DeviceDrafter], None] | None = None,
    ) -> None:
        self.prompt_ids = list(prompt_ids)
        self._engine = engine
        self._context = engine.info.context_tokens
        self._emit = emit
        self._sampling = sampling
        self._rng = Random(None if sampling.fixed_seed is None else f"drafts {sampling.fixed_seed}")
        self._top = top
        self._row_ids = row_ids
        self._name = name
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._is_woken = False
        self._is_over = False  # closed or failed
        self._is_closed = False
        self._cancelled_tasks: list[SequenceTask] = []  # tasks of sequences that were given back
        self._is_released = asyncio.Event()
        self._branches: dict[int, _SequenceState] = {}
        if not self.prompt_ids or len(self.prompt_ids) >= self._context:
            raise EngineError(
                f"prompt: expected 1 to {self._context - 1} tokens (the context is {self._context}), got {len(self.prompt_ids)}"
            )
        sequence = engine.hold(name)
        sequence.extend(self.prompt_ids)
        self._trunk = _SequenceState(None, list(self.prompt_ids), held=list(self.prompt_ids), sequence=sequence)

    def run(self, command: DrafterCommand) -> None:
        """Start carrying out a command; never blocks. Does nothing after ``DeviceFailed`` or ``aclose``.

        Raises:
            UsageError: the trunk is shorter than a command's length, or the branch to adopt doesn't exist.
        """
        if self._is_over:
            return
        match command:
            case DraftTokens():
                self._draft(command)
            case DraftBranch():
                self._branch(command)
            case AdoptBranch():
                self._adopt(command.version)
            case DropDrafts():
                self._drop(command.versions)
            case _:
                assert_never(command)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._collect)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a text; a draft stops after one."""
        return self._engine.info.end_ids

    async def aclose(self) -> None:
        """Give all sequences back, and wait until the engine has stopped working on them. Idempotent, safe to cancel."""
        self._is_closed = True
        if self._on_close is not None:
            self._on_close(self)
        self._release_all()
        self._collect()
        await self._is_released.wait()

    # Commands

    def _draft(self, command: DraftTokens) -> None:
        trunk, wanted = self._trunk, self._prefix(command.length) + list(command.ids)
        trunk.stop()
        trunk.version, trunk.count, trunk.wanted = command.version, command.count, wanted

    def _branch(self, command: DraftBranch) -> None:
        self._branches[command.version] = _SequenceState(command.version, self._prefix(command.length) + list(command.ids), command.count)

    def _prefix(self, length: int) -> list[int]:
        """Return the prompt and the first ``length`` tokens of the trunk's answer."""
        has = len(self._trunk.wanted) - len(self.prompt_ids)
        if not 0 <= length <= has:
            raise UsageError(f"draft: expected a length of 0 to {has}, got {length}")
        return self._trunk.wanted[: len(self.prompt_ids) + length]

    def _adopt(self, version: int) -> None:
        state = self._branches.pop(version, None)
        if state is None:
            raise UsageError(f"branch {version}: expected one of {sorted(self._branches)}, got none of them")
        old, self._trunk = self._trunk, state
        self._release(old)
        state.is_lost = False

    def _drop(self, versions: Sequence[int]) -> None:
        for version in versions:
            state = self._branches.pop(version, None)
            if state is not None:
                self._release(state)
            elif version == self._trunk.version:
                self._trunk.stop()

    def _release(self, state: _SequenceState) -> None:
        state.stop()
        self._give_back(state)

    def _give_back(self, state: _SequenceState) -> None:
        task = state.release()
        if task is not None:
            self._cancelled_tasks.append(task)

    # To the engine

    def _request_draft(self, state: _SequenceState) -> None:
        """Ask the engine for the tokens that are still to be drafted; a branch waits while the trunk drafts."""
        if len(state.wanted) >= self._context:
            self._wake()  # the next iteration of the loop emits that the draft is finished
            return
        sequence = state.sequence or self._find_sequence(state)
        if sequence is None:
            return
        shared = common_prefix_length(state.held, state.wanted)
        if shared < len(state.held):
            sequence.truncate(shared)
            state.held = state.held[:shared]
        given = state.wanted[shared:]
        if len(given) > _MAX_BATCHED_IDS:
            sequence.extend(given)
            state.held, given = list(state.wanted), []
        sampling = replace(self._sampling, seed=self._rng.getrandbits(63))
        task = sequence.draft(state.count, self._wake, ids=given, top=self._top, row_ids=self._row_ids, sampling=sampling)
        state.pending = _PendingDraft(state.version, task, given)

    def _find_sequence(self, state: _SequenceState) -> TokenSequence | None:
        """Return a new sequence, which for a branch is a fork of the trunk.

        The result is None if the trunk is drafting, because a fork that waits for the trunk could be lost with it.
        """
        trunk = self._trunk
        if not trunk.count:
            trunk.take()  # its draft was emitted to the end, or isn't wanted
        if state is trunk or trunk.sequence is None:
            state.sequence, state.exists = self._engine.hold(self._name), True
        elif trunk.pending is None:
            shared = common_prefix_length(trunk.held, state.wanted)
            state.sequence, state.source, state.exists = trunk.sequence.fork(shared), trunk.sequence, False
            state.held = state.wanted[:shared]
        return state.sequence

    # From the engine

    def _wake(self) -> None:
        """Have the loop check the engine once; may be called from any thread."""
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop was closed without the drafter: the task that wakes is cancelled
                self._is_woken = False
                raise

    def _collect(self) -> None:
        """Take everything that the engine has, emit it, and request the next drafts."""
        self._is_woken = False  # before anything is taken: what comes later wakes the loop again
        self._cancelled_tasks = [task for task in self._cancelled_tasks if task.take()[1] is None]
        try:
            for state in (self._trunk, *self._branches.values()):
                self._take(state)
            waiting = [state for state in (*self._branches.values(), self._trunk) if state.needs_draft]
            if waiting and not self._is_over:
                with self._engine.together():
                    for state in waiting:  # branches first: they begin with the tokens that the trunk has now
                        self._request_draft(state)
        except EngineError as error:
            self._fail(error)
        if self._is_over and not self._cancelled_tasks:
            self._is_released.set()

    def _take(self, state: _SequenceState) -> None:
        """Emit the new tokens of a sequence; reactions to them may change any sequence."""
        version, count = state.version, state.count
        predictions, end = state.take()
        if version is None or not count:
            return  # everything has been emitted
        is_full = state.pending is None and len(state.wanted) >= self._context
        is_finished = is_full or not state.count or (end is not None and end.reason in _COMPLETE)
        failure = self._handle_lost_draft(state, end) if end is not None and not is_finished else None
        if is_finished:
            state.count = 0
        if predictions or is_finished:
            importance = predictions[-1].importance if predictions else None
            self._emit(TokensDrafted(version, tuple(map(self._to_draft_token, predictions)), is_finished, importance))
        if failure is not None:
            raise failure

    def _handle_lost_draft(self, state: _SequenceState, end: TaskEnd) -> EngineError | None:
        """Handle a wanted draft that ended early; return the error if it means that drafting fails for this answer.

        A draft is evicted if other sequences need the memory. It is cancelled if the trunk that it should be forked from was given back, or
        if the engine was closed, which the next call to the engine reports. An error may mean that no sequence or memory was free. So the
        answer doesn't fail with a branch, which is just dropped. For the trunk, all branches are dropped to make room, and it is tried
        twice, because other sequences may be gone by then.
        """
        is_lost_with_source = end.reason == "evicted" and not state.exists  # the trunk was evicted, because a sequence with tasks never is
        if is_lost_with_source and state.source is self._trunk.sequence and self._trunk.pending is None:
            self._trunk.discard()
        state.discard()
        state.is_lost = state is not self._trunk and end.reason != "cancelled" and not is_lost_with_source
        if state is not self._trunk or end.reason != "error":
            return None
        others = [branch for branch in self._branches.values() if branch.sequence is not None]
        for branch in others:
            branch.is_lost = True
            self._give_back(branch)
        if others or not state.has_failed:
            state.has_failed = True
            return None
        return end.error if isinstance(end.error, EngineError) else EngineError(f"engine: expected drafts, got {end.error}")

    def _to_draft_token(self, prediction: Prediction) -> DraftToken:
        share = 0.0 if prediction.share is None else min(1.0, prediction.share)
        return DraftToken(_token(prediction), share, prediction.likeliest[: self._top], prediction.row)

    def _fail(self, error: EngineError) -> None:
        error.endpoint = error.endpoint or self._name
        self._release_all()
        self._loop.call_soon(self._emit_failure, error)

    def _emit_failure(self, error: EngineError) -> None:
        if not self._is_closed:
            self._emit(DeviceFailed(error))

    def _release_all(self) -> None:
        self._is_over = True
        for state in (self._trunk, *self._branches.values()):
            self._release(state)
        self._branches.clear()


def _token(prediction: Prediction) -> int:
    if prediction.token is None:
        raise AssertionError("a draft's prediction has the token that was drawn")
    return prediction.token
