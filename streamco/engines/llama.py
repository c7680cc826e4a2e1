"""The engine on llama.cpp: one thread owns one context and runs all its sequences.

Each round of the thread is one decode of all sequences that are writing, then one chunk of one prompt, in turns. Prompts are never mixed
into the batch of the writers: a prefill batch holds one sequence alone, so that aborting it hurts nobody else, and a lost race stops
inside its chunk. On a CPU this costs next to nothing (a chunk of 32 takes as long as ten decodes).

A sequence whose consumer doesn't read is parked; the thread goes on with the others and sleeps only when nothing can be done.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from streamco.engines.base import EngineOptions, Generation, GenerationRequest, ModelInfo
from streamco.engines.context import ABORTED, NO_ROOM, LlamaContext
from streamco.engines.generation import RunningGeneration
from streamco.engines.model import LlamaModel
from streamco.engines.pacing import StepPacer, StepTime
from streamco.engines.slots import Slot, SlotTable
from streamco.engines.threads import budget
from streamco.errors import ConfigError, EngineError, UsageError

__all__ = ["LlamaEngine"]

MIXED_CHUNK = 32  # prompt tokens between two decodes of the others: about 0.1 s on two cores, below a reader's 0.2 s a token


class LlamaEngine:
    """A GGUF model, loaded and ready. Loading takes about as long as reading the file; call it from a worker thread.

    Args:
        path: the GGUF file.
        options: how it is run.
        on_progress: called with 0.0 to 1.0 while it loads.
        step_time: seconds that one step of (decode rows, prefill tokens) takes at least, to behave like a larger model.

    Raises:
        EngineError: llama-cpp-python is missing, the file can't be loaded, or there is not enough memory.
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        path: str | Path,
        options: EngineOptions | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        step_time: StepTime | None = None,
    ) -> None:
        self.path = Path(path)
        self.options = options = options or EngineOptions()
        _check_options(options)
        self._share = budget.claim(options.threads)
        try:
            self._model = LlamaModel(self.path, on_progress=on_progress)
            self._open_context(options)
        except BaseException:
            self._share.release()
            raise
        self._pacer = StepPacer(step_time)
        self._lock = threading.Lock()  # around _alone, _is_closing and _failure
        self._alone: RunningGeneration | None = None  # the batch being decoded holds this sequence and no other
        self._is_closing = False
        self._failure: BaseException | None = None
        self._inbox: SimpleQueue[RunningGeneration | None] = SimpleQueue()
        self._live: set[RunningGeneration] = set()  # everybody in the three queues below, and whoever is between them
        self._waiting: deque[RunningGeneration] = deque()
        self._prefilling: deque[RunningGeneration] = deque()
        self._writing: list[RunningGeneration] = []
        self._thread = threading.Thread(target=self._run, name=f"streamco-{self._model.info.name}", daemon=True)
        self._is_warm = threading.Event()
        self._thread.start()
        self._is_warm.wait()
        if self._failure is not None:
            raise EngineError(f"model {path}: expected it to run, got {self._failure}") from self._failure
        _open_engines.add(self)

    def _open_context(self, options: EngineOptions) -> None:
        model = self._model
        limit = min(options.context_tokens, model.info.context_tokens)
        self.info: ModelInfo = replace(model.info, context_tokens=limit)
        rows = max(options.prefill_chunk, options.max_sequences, 2)
        # one sequence more than asked for: the exact mode's dummy row lives there
        self._dummy = options.max_sequences
        try:
            self._context = LlamaContext(
                model,
                cells=limit * options.max_sequences + rows,
                sequences=options.max_sequences + 1,
                rows=rows,
                threads=self._share.threads,
            )
        except BaseException:
            model.close()
            raise
        self._slots = SlotTable(self._context, options.max_sequences, idle_tokens=limit, can_share=model.can_share_prefixes)

    # Any thread

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Token ids of a text."""
        return self._model.tokenize(text, special=special, bos=bos)

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Bytes of token ids, control tokens left out."""
        return self._model.detokenize(ids)

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The prompt's text; see ``LlamaModel.apply_template``."""
        return self._model.apply_template(messages, add_generation_prompt=add_generation_prompt)

    def submit(self, request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        """Queue a generation.

        Raises:
            EngineError: the engine is closed or has failed, the prompt is empty, holds foreign ids or does not fit the context.
            ConfigError: a sampling option is out of range.
        """
        limit = self._completion_limit(request)
        sequence = RunningGeneration(
            request,
            self._model,
            limit=limit,
            room=self.options.ring_tokens,
            wake=wake,
            nudge=self._nudge,
            interrupt=self._interrupt,
        )
        with self._lock:
            if self._failure is not None:
                raise EngineError(f"engine: expected a working engine, got one that failed: {self._failure}") from self._failure
            if self._is_closing:
                raise EngineError("engine: expected an open engine, got a closed one")
            self._inbox.put(sequence)
        return sequence

    def _completion_limit(self, request: GenerationRequest) -> int:
        ids, context = request.prompt_ids, self.info.context_tokens
        if not ids:
            raise EngineError("prompt: expected at least one token, got none")
        if min(ids) < 0 or max(ids) >= self.info.vocabulary_size:
            raise EngineError(f"prompt: expected ids from 0 to {self.info.vocabulary_size - 1}, got {min(ids)} to {max(ids)}")
        room = context - len(ids)
        if room < (0 if request.prefill_only else 1):
            raise EngineError(f"prompt: expected at most {context - 1} tokens (the context is {context}), got {len(ids)}")
        wanted = request.sampling.max_tokens
        return room if wanted is None else min(wanted, room)

    def close(self) -> None:
        """Cancel everything, join the thread, free the memory; idempotent, safe from any thread but the engine's own."""
        if threading.current_thread() is self._thread:
            raise UsageError("close: expected a thread other than the engine's, got a call from inside a wake-up")
        with self._lock:
            self._is_closing = True
            self._context.abort.set()
        self._nudge()
        self._thread.join()
        _open_engines.discard(self)

    def _nudge(self) -> None:
        self._inbox.put(None)

    def _interrupt(self, sequence: RunningGeneration) -> None:
        with self._lock:
            if self._alone is sequence:
                self._context.abort.set()

    # The engine's thread

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._warm_up()
            self._is_warm.set()
            while self._collect():
                self._reap()
                self._admit()
                self._decode_writing()
                self._prefill_next()
        except BaseException as exc:  # noqa: BLE001  # every consumer must hear of it
            failure = exc
        self._shut_down(failure)

    def _shut_down(self, failure: BaseException | None) -> None:
        with self._lock:
            self._failure = failure
            self._is_closing = True
        self._drain_inbox()
        error = None
        if failure is not None:
            error = EngineError(f"engine: expected its thread to go on, got {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        for sequence in self._live:
            sequence.finish("error" if error else "cancelled", error=error)
        self._context.close()
        self._model.close()
        self._share.release()
        self._is_warm.set()

    def _collect(self) -> bool:
        """Take in what arrived; sleeps while nothing can be done. False: the engine is closing."""
        self._drain_inbox()
        was_idle = False
        while not self._is_closing and not self._has_work():
            was_idle = True
            self._take_in(self._inbox.get())
            self._drain_inbox()
        self._pacer.begin_round(was_idle=was_idle)
        return not self._is_closing

    def _drain_inbox(self) -> None:
        while not self._inbox.empty():
            self._take_in(self._inbox.get())

    def _take_in(self, arrived: RunningGeneration | None) -> None:
        if arrived is not None:
            self._live.add(arrived)
            self._waiting.append(arrived)
            return
        for sequence in self._writing:
            sequence.unpark()

    def _has_work(self) -> bool:
        if self._prefilling or (self._waiting and self._slots.has_idle):
            return True
        return any(not sequence.is_parked or sequence.is_cancelled for sequence in self._writing) or any(
            sequence.is_cancelled for sequence in self._waiting
        )

    def _reap(self) -> None:
        """End what was cancelled, free the slots of what is done."""
        for queue in (self._waiting, self._prefilling, self._writing):
            for sequence in [each for each in queue if each.is_cancelled or each.is_done]:
                sequence.finish("cancelled")
                queue.remove(sequence)
                self._release(sequence)

    def _admit(self) -> None:
        while self._waiting and self._slots.has_idle:
            sequence = self._waiting.popleft()
            sequence.admit(self._slots.acquire(sequence.prompt))
            self._prefilling.append(sequence)

    def _decode_writing(self) -> None:
        """One token of every sequence that has one to decode."""
        ready = [sequence for sequence in self._writing if not sequence.is_parked]
        if not ready:
            return
        context = self._context
        for sequence in ready:
            slot = _slot(sequence)
            assert sequence.next_token is not None
            context.add(sequence.next_token, len(slot.ids), slot.sequence, wants_logits=True)
        if not self._compute(ready, rows=len(ready)):
            return
        for row, sequence in enumerate(ready):
            assert sequence.next_token is not None
            _slot(sequence).ids.append(sequence.next_token)
            self._accept(sequence, row)
        self._writing = [sequence for sequence in self._writing if not self._is_over(sequence)]

    def _prefill_next(self) -> None:
        """One chunk of the prompt whose turn it is."""
        if not self._prefilling:
            return
        sequence = self._prefilling.popleft()
        slot = _slot(sequence)
        start = len(slot.ids)
        chunk = sequence.prompt[
            start : start + (min(MIXED_CHUNK, self.options.prefill_chunk) if self._writing else self.options.prefill_chunk)
        ]
        is_last = len(chunk) == sequence.missing
        row = self._context.add_run(chunk, start, slot.sequence, wants_logits=is_last)
        if self._compute([sequence], prefill_tokens=len(chunk)):
            slot.ids += chunk
            if is_last:
                self._finish_prefill(sequence, row)
                return
        if not self._is_over(sequence):
            self._prefilling.append(sequence)

    def _finish_prefill(self, sequence: RunningGeneration, row: int) -> None:
        if sequence.request.prefill_only:
            sequence.finish("stop")
        else:
            self._accept(sequence, row)
        if not self._is_over(sequence):
            self._writing.append(sequence)

    def _accept(self, sequence: RunningGeneration, row: int) -> None:
        try:
            sequence.accept(self._context.logits(row))
        except EngineError as exc:
            sequence.finish("error", error=exc)

    def _is_over(self, sequence: RunningGeneration) -> bool:
        """Whether it has ended; its slot is then free."""
        if sequence.is_done:
            self._release(sequence)
        return sequence.is_done

    def _release(self, sequence: RunningGeneration) -> None:
        self._live.discard(sequence)
        if sequence.slot is not None:
            self._slots.release(sequence.slot)
            sequence.slot = None

    def _compute(self, sequences: list[RunningGeneration], *, rows: int = 0, prefill_tokens: int = 0) -> bool:
        """Decode the batch, which holds rows of these sequences; False: not done, and the cache is as it was before."""
        context = self._context
        context.use_threads(self._share.threads)
        has_dummy = self.options.exact and context.count == 1
        if has_dummy:
            context.add(0, 0, self._dummy, wants_logits=False)
        with self._lock:
            self._alone = sequences[0] if len(sequences) == 1 else None
            if self._is_closing or (self._alone is not None and self._alone.is_cancelled):
                context.count = 0
                self._alone = None
                return False
        started = perf_counter()
        status = context.decode()
        with self._lock:
            self._alone = None
            if not self._is_closing:
                context.abort.clear()
        if has_dummy:
            context.remove(self._dummy, 0)
        if status == 0:
            self._pass_time(self._pacer.due(rows, prefill_tokens, started=started, now=perf_counter()), sequences)
            return True
        self._clean_up(sequences, status)
        return False

    def _pass_time(self, until: float, sequences: list[RunningGeneration]) -> None:
        """Wait as long as these sequences still want the result, taking in what arrives."""
        while not self._is_closing and (left := until - perf_counter()) > 0 and not all(sequence.is_cancelled for sequence in sequences):
            with suppress(Empty):
                self._take_in(self._inbox.get(timeout=left))
        self._pacer.cut(perf_counter())

    def _clean_up(self, sequences: list[RunningGeneration], status: int) -> None:
        for sequence in sequences:
            slot = _slot(sequence)
            self._slots.truncate(slot, len(slot.ids))
        if status == ABORTED or (status == NO_ROOM and self._slots.forget_idle()):
            return  # cancelled and about to be reaped; or there is room now, and the next round tries again
        for sequence in sequences:
            error = EngineError(f"llama_decode: expected 0, got {status}" + (" (no room in the cache)" if status == NO_ROOM else ""))
            sequence.finish("error", error=error)

    def _warm_up(self) -> None:
        """Touch the weights once, so that the first answer isn't slower than the others."""
        self._context.add(0, 0, self._dummy, wants_logits=True)
        status = self._context.decode()
        if status not in {0, ABORTED}:
            raise EngineError(f"llama_decode: expected 0 from the first token, got {status}")
        self._context.clear()


def _slot(sequence: RunningGeneration) -> Slot:
    if sequence.slot is None:
        raise AssertionError("a sequence without a slot is still waiting")
    return sequence.slot


def _check_options(options: EngineOptions) -> None:
    for name, least in (("context_tokens", 2), ("max_sequences", 1), ("prefill_chunk", 1), ("ring_tokens", 1)):
        value = getattr(options, name)
        if value < least:
            raise ConfigError(f"{name}: expected at least {least}, got {value}")


_open_engines: weakref.WeakSet[LlamaEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A thread inside llama.cpp while the interpreter and its libraries go away would crash the process."""
    for engine in list(_open_engines):
        engine.close()
