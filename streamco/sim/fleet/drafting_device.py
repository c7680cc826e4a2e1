"""A drafting device in virtual time. It has one sequence with branches, and the more sequences draft, the longer its steps take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import simpy
from msgspec import Struct

from streamco.core.speculation.events import AdoptBranch, DeviceFailed, DraftBranch, DraftToken, DraftTokens, DropDrafts, TokensDrafted
from streamco.errors import EngineError
from streamco.sim.driver import call_at
from streamco.sim.workload.token_models import TokenModel, choose_token

__all__ = ["DraftingDevice", "SimulatedDrafts"]


class DraftingDevice(Struct, frozen=True, kw_only=True):
    """The properties of a device that drafts.

    Args:
        model: the draft model, which is called with the answer's ids.
        writes: returns the model's next token without computing the distribution, or None to choose the token from the distribution.
        importance: returns the importance of a draft's first tokens, given the position of the first one and their number. None
            if importance isn't used.
        step_times: seconds that a step takes, by the number of sequences that draft in it; the last value also applies to more sequences.
        read_time: seconds for each token that must be read first, except the last, which is part of the step. As in real engines, the
            newest token of a sequence hasn't been read yet, and is read together with the tokens that are appended next.
        prompt_time: seconds to read the prompt, before the first token.
        is_sampled: True if tokens are drawn from the model, False if the likeliest is taken.
        end_ids: tokens that end a draft.
        context: maximum tokens of the answer, or None for no limit.
        burst: tokens per event.
        top: number of alternatives that come with each token.
        jitter: fraction by which a step may take more or less time.
        emit_delay: seconds from a token to its event, which comes even if the draft was dropped meanwhile.
        fails_at: seconds after which it fails, or None if it never does.
    """

    model: TokenModel
    writes: Callable[[Sequence[int]], DraftToken] | None = None
    importance: Callable[[int, int], float | None] | None = None
    step_times: tuple[float, ...] = (0.02, 0.021, 0.022, 0.023, 0.024, 0.025)
    read_time: float = 0.0
    prompt_time: float = 0.0
    is_sampled: bool = False
    end_ids: frozenset[int] = frozenset()
    context: int | None = None
    burst: int = 1
    top: int = 4
    jitter: float = 0.0
    emit_delay: float = 0.0
    fails_at: float | None = None


@dataclass(slots=True)
class _Sequence:
    version: int
    ids: list[int]
    left: int
    read: int  # ids in its cache, without ids that it was given and the last one that it wrote
    start: int = 0  # position of the first token of its draft
    pending: list[DraftToken] = field(default_factory=list)


class SimulatedDrafts:
    """Carries out the speculation machine's commands for the device.

    A step is interrupted when all its sequences have been dropped, except for the step that reads the prompt.

    Args:
        emit: called with each event when it happens.
        rng: random source for draws and jitter.

    Attributes:
        made: number of tokens written, including the tokens of dropped drafts.
    """

    def __init__(
        self, env: simpy.Environment, device: DraftingDevice, emit: Callable[[TokensDrafted | DeviceFailed], None], rng: Random
    ) -> None:
        self.made = 0
        self._env = env
        self._device = device
        self._emit = emit
        self._rng = rng
        self._own = _Sequence(0, [], 0, 0)
        self._branches: dict[int, _Sequence] = {}
        self._is_busy = self._is_scheduled = False
        self._running: list[_Sequence] = []  # sequences of the current step, if it may be interrupted
        self._steps = 0
        self._has_failed = False
        self._unread_prompt = device.prompt_time
        if device.fails_at is not None:
            call_at(env, device.fails_at, self._fail)

    @property
    def has_failed(self) -> bool:
        """True after the device has failed."""
        return self._has_failed

    @property
    def ids(self) -> list[int]:
        """Ids of the device's own sequence."""
        return self._own.ids

    def run(self, command: DraftTokens | DraftBranch | AdoptBranch | DropDrafts) -> None:
        """Start carrying out the command."""
        match command:
            case DraftTokens(version, length, ids, count):
                if self._own.left:
                    raise AssertionError(f"draft {version}: expected the draft before it to be dropped or finished")
                self._own = self._begin(version, length, ids, count)
            case DraftBranch(version, length, ids, count):
                self._branches[version] = self._begin(version, length, ids, count)
            case AdoptBranch(version):
                self._own = self._branches.pop(version)
            case DropDrafts(versions):
                for version in versions:
                    self._drop(version)
        if self._running and not any(map(self._is_wanted, self._running)):
            self._stop()
        if not self._is_busy and not self._is_scheduled:
            self._is_scheduled = True
            call_at(self._env, 0.0, self._step)  # commands at the same time share a batch

    def _begin(self, version: int, length: int, ids: tuple[int, ...], count: int) -> _Sequence:
        held = self._own.ids
        if length > len(held) or count < 1:
            raise AssertionError(
                f"draft {version}: expected a length of at most {len(held)} and a token to write, got {length} and {count}"
            )
        read = len(held) if self._own in self._running else self._own.read  # these will have been read by the time it begins
        return _Sequence(version, [*held[:length], *ids], count, min(length, read), length + len(ids))

    def _drop(self, version: int) -> None:
        if version == self._own.version:
            self._own.left = 0
        else:
            del self._branches[version]

    def _step(self) -> None:
        """Start a step of all sequences that draft."""
        self._is_scheduled = False
        active = [sequence for sequence in (self._own, *self._branches.values()) if sequence.left]
        if self._is_busy or self._has_failed or not active:
            return
        times, missing = self._device.step_times, sum(max(0, len(one.ids) - one.read - 1) for one in active)
        seconds = times[min(len(active), len(times)) - 1] + self._device.read_time * missing
        if not self._unread_prompt:
            self._running = active
        seconds, self._unread_prompt = seconds + self._unread_prompt, 0.0
        self._is_busy = True
        number = self._steps
        call_at(self._env, seconds * (1.0 + self._device.jitter * self._rng.uniform(-1.0, 1.0)), lambda: self._end_step(active, number))

    def _end_step(self, active: list[_Sequence], number: int) -> None:
        if number != self._steps:
            return  # the step was interrupted
        self._stop()
        for sequence in active:
            if self._is_wanted(sequence) and not self._has_failed:
                self._write(sequence)
        self._step()

    def _stop(self) -> None:
        """End or interrupt the current step."""
        self._is_busy, self._running = False, []
        self._steps += 1

    def _is_wanted(self, sequence: _Sequence) -> bool:
        return bool(sequence.left) and (sequence is self._own or self._branches.get(sequence.version) is sequence)

    def _write(self, sequence: _Sequence) -> None:
        device = self._device
        sequence.read = len(sequence.ids)
        if device.context is None or len(sequence.ids) < device.context:
            drafted = self._draw(sequence.ids) if device.writes is None else device.writes(sequence.ids)
            token = drafted.id
            sequence.pending.append(drafted)
            sequence.ids.append(token)
            sequence.left -= 1
            self.made += 1
            if token in device.end_ids:
                sequence.left = 0
        else:
            sequence.left = 0
        if not sequence.left or len(sequence.pending) >= device.burst:
            pending, sequence.pending = tuple(sequence.pending), []
            read = device.importance
            importance = None if read is None else read(sequence.start, len(sequence.ids) - sequence.start)
            event = TokensDrafted(sequence.version, pending, is_finished=not sequence.left, importance=importance)
            if device.emit_delay:
                call_at(self._env, device.emit_delay, lambda: self._emit(event))
            else:
                self._emit(event)

    def _draw(self, ids: list[int]) -> DraftToken:
        device = self._device
        model = device.model(ids)
        token = choose_token(model, self._rng if device.is_sampled else None)
        best = sorted(model.items(), key=lambda item: (-item[1], item[0]))[: device.top]
        return DraftToken(token, model[token], tuple(best), model if device.is_sampled else None)

    def _fail(self) -> None:
        self._has_failed = True
        self._emit(DeviceFailed(EngineError("device: expected a decode, got a failure")))
