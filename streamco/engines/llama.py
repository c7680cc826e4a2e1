"""The engine that runs on llama.cpp: one thread owns one context and runs all of its sequences (see ``loop``)."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from streamco.engines.base import EngineOptions, Generation, GenerationRequest, ModelInfo, StepPace, TokenSequence
from streamco.engines.consumer import Consumer
from streamco.engines.decoder import CHUNK
from streamco.engines.generation import RunningGeneration
from streamco.engines.kv_slots import SlotTable
from streamco.engines.llamacpp.attention import has_readable_attention
from streamco.engines.llamacpp.cache_dir import machine_key
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.control_tokens import ControlTokens
from streamco.engines.llamacpp.json_schema import has_grammars
from streamco.engines.llamacpp.model import LlamaModel, context_limit
from streamco.engines.llamacpp.reasoning import splits_reasoning
from streamco.engines.llamacpp.row_costs import ROW_SIZES, kept_costs, measured_costs
from streamco.engines.loop import EngineLoop
from streamco.engines.rapl import machine_meter
from streamco.engines.sequence import HeldSequence
from streamco.engines.threads import budget
from streamco.errors import ConfigError, EngineError, UsageError

if TYPE_CHECKING:
    from streamco.engines.answer_drafts import BatchDrafts, DraftSource

__all__ = ["LlamaEngine"]

logger = logging.getLogger("streamco.engine")

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
SIDE_SEQUENCES = 32  # for the side paths of tree drafts, in all batches together
MAX_PATHS = 8  # of one tree draft
# A copy always covers the whole context. So it pays from this many tokens on, or from one MIN_COPY_SHARE-th of the context if that is
# more, which take over seven times as long to compute.
MIN_COPY_TOKENS = 16
MIN_COPY_SHARE = 128


class LlamaEngine:
    """A GGUF model, loaded and ready. Loading takes about as long as reading the file, so create it in a worker thread.

    Args:
        path: the GGUF file.
        options: settings of the engine; None for the defaults.
        on_progress: called with 0.0 to 1.0 while it loads.
        pace: decides when the results of a step may be shown, to behave like a larger model; None to show them at once.

    Raises:
        EngineError: llama-cpp-python is missing, the file can't be loaded, or there is not enough memory.
        ConfigError: an option is out of range.
    """

    load_seconds: float
    """Seconds that it took to open the file and the context, not counting the first decodes and the measuring of row costs."""

    draft_gain: float = 1.0
    """Maximum number of tokens that drafts can give in the time of one token, reached if all are right; 1.0 without drafts."""

    takes_grammars = has_grammars()
    """True if answers can be made to match ``GenerationRequest.grammar``."""

    def __init__(
        self,
        path: str | Path,
        options: EngineOptions | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        pace: StepPace | None = None,
    ) -> None:
        self.path = Path(path).expanduser()
        self.options = options = options or EngineOptions()
        self.step_time = None if pace is None else pace.step_time
        _check_options(options)
        self.held_sequences = options.held_sequences
        self._share = budget.claim(options.threads)
        began = time.monotonic()
        try:
            self._model = LlamaModel(self.path, on_progress=on_progress)
            self._open_context(options)
            try:
                self._draft_source = self._open_draft_source()
            except BaseException:
                self._context.close()
                self._model.close()
                raise
        except BaseException:
            self._share.release()
            raise
        self.load_seconds = time.monotonic() - began
        tokens = self.info.context_tokens
        self._loop = EngineLoop(self._context, self._slots, options, self._share, pace, tokens=tokens, draft_paths=self.draft_paths)
        self._thread = threading.Thread(target=self._run, name=f"streamco-{self._model.info.name}", daemon=True)
        meter = machine_meter()  # it can't measure a GPU's energy
        self._meter = None if meter is None or self._model.library.llama_supports_gpu_offload() else meter
        self._row_costs: Mapping[int, float] = {}
        self._is_warm = threading.Event()
        self._thread.start()
        self._is_warm.wait()
        failure = self._loop.failure
        if failure is not None:
            raise EngineError(f"model {path}: can't run: {failure}") from failure
        _open_engines.add(self)
        total = time.monotonic() - began
        logger.info("%s: loaded in %.2f s, ready after %.2f s", self.info.name, self.load_seconds, total)

    def _open_context(self, options: EngineOptions) -> None:
        model = self._model
        limit = context_limit(model.info, options.context_tokens)
        has_reasoning = splits_reasoning(options.reasoning_format, has_reasoning=model.info.has_reasoning)
        self.info: ModelInfo = replace(model.info, context_tokens=limit, has_reasoning=has_reasoning)
        count = options.max_sequences + options.held_sequences
        is_separate = options.separate or options.exact
        has_room_each = options.held_tokens is None or is_separate
        held_tokens = self.held_tokens = limit * options.held_sequences if has_room_each else options.held_tokens or 0
        stride = 2 if options.exact else 1
        attention_layers = _layers(options, model.info.layers) if model.can_share_prefixes else []
        is_treeless = is_separate or not options.held_sequences or not model.can_share_prefixes or bool(attention_layers)
        sides = 0 if is_treeless else min(SIDE_SEQUENCES, MAX_SEQUENCES - 1 - count)
        self.draft_paths = min(MAX_PATHS, 1 + sides)
        sequences = 2 * count if options.exact else count + 1 + sides
        rows = self.batch_tokens = max(options.prefill_chunk, 2 * count, CHUNK if options.held_sequences else 0)
        try:
            self._context = LlamaContext(
                model,
                cells=(limit * sequences if is_separate else limit * options.max_sequences + held_tokens) + rows,
                sequences=sequences,
                rows=rows,
                threads=self._share.threads,
                unified=not is_separate,
                attention_layers=attention_layers,
            )
        except BaseException:
            model.close()
            raise
        can_fork = model.can_share_prefixes
        can_share = can_fork and not is_separate
        min_copy = max(MIN_COPY_TOKENS, limit // MIN_COPY_SHARE) if is_separate else 1
        self._slots = SlotTable(
            self._context,
            count,
            max_idle_tokens=limit,
            can_share=can_share,
            can_fork=can_fork,
            min_copy=min_copy,
            stride=stride,
            side_sequences=range(count + 1, count + 1 + sides),
        )

    # Any thread

    @property
    def reads_attention(self) -> bool:
        """True if predictions come with their importance (``EngineOptions.attention_layers``)."""
        return self._context.has_attention

    @property
    def control_tokens(self) -> ControlTokens:
        """Control tokens of the vocabulary."""
        return self._model.control_tokens

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the token ids of a text."""
        return self._model.tokenize(text, special=special, bos=bos)

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Return the text of token ids as bytes, without control tokens."""
        return self._model.detokenize(ids)

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt's text; see ``LlamaModel.apply_template``."""
        return self._model.apply_template(messages, add_generation_prompt=add_generation_prompt)

    def submit(self, request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        """Queue a generation.

        Raises:
            EngineError: the engine is closed or has failed, the prompt is empty, contains unknown ids or doesn't fit the context.
            ConfigError: a sampling option is out of range.
        """
        sequence = RunningGeneration(
            request,
            self._model,
            limit=self._completion_limit(request),
            buffered=min(self.options.ring_tokens, request.max_buffered or self.options.ring_tokens),
            wake=wake,
            engine=self._loop,
            meter=self._meter,
        )
        self._loop.put(sequence)
        return sequence

    def ping(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called from the engine's thread; see ``Engine.ping``.

        Raises:
            EngineError: the engine is closed or has failed.
        """
        self._loop.put(Consumer(wake))

    def _completion_limit(self, request: GenerationRequest) -> int:
        ids, context = request.prompt_ids, self.info.context_tokens
        if not ids:
            raise EngineError("prompt: expected at least one token, got none")
        if min(ids) < 0 or max(ids) >= self.info.vocabulary_size:
            raise EngineError(f"prompt: expected ids from 0 to {self.info.vocabulary_size - 1}, got {min(ids)} to {max(ids)}")
        free_tokens = context - len(ids)
        minimum = 0 if request.prefill_only else 1
        if free_tokens < minimum:
            raise EngineError(f"prompt: expected at most {context - minimum} tokens (the context is {context}), got {len(ids)}")
        wanted = request.sampling.max_tokens
        return free_tokens if wanted is None else min(wanted, free_tokens)

    def row_costs(self) -> Mapping[int, float]:
        """Return the seconds that a batch of verification rows takes, by its number of rows; see ``HoldingEngine.row_costs``.

        The result is {} if the engine was loaded without ``EngineOptions(measure_rows=True)`` and without drafts.
        """
        return self._row_costs

    def together(self) -> AbstractContextManager[None]:
        """Submit all tasks requested inside the ``with`` block at once; see ``HoldingEngine.together``."""
        return self._loop.together()

    def hold(self, label: Hashable = None, *, owner: str | None = None) -> TokenSequence:
        """Return a new, empty sequence; see ``HoldingEngine.hold``.

        Raises:
            EngineError: the engine was loaded without ``held_sequences``.
            UsageError: the label isn't hashable.
        """
        if not self.options.held_sequences:
            raise EngineError("hold: expected an engine with EngineOptions(held_sequences=...) above 0, got 0")
        return HeldSequence(self._loop, self._model, label, owner=owner)

    def close(self) -> None:
        """Cancel everything, join the thread, free the memory; idempotent, and safe from any thread except the engine's own."""
        if threading.current_thread() is self._thread:
            raise UsageError("close: expected a thread other than the engine's, got a call from inside a wake-up")
        self._loop.close()
        self._thread.join()
        _open_engines.discard(self)

    def _measure_rows(self) -> Mapping[int, float]:
        """Return the seconds that batches take, by number of rows: imposed, measured earlier, or measured now, on the engine's thread."""
        from streamco.profiles.row_costs import padded_costs, split_costs  # their package needs numpy

        sizes = [rows for rows in ROW_SIZES if rows <= self._context.rows]
        if self.step_time is not None:
            return {rows: max(1e-6, self.step_time(0, rows)) for rows in range(1, sizes[-1] + 1)}
        cpu_clock = None if self._model.library.llama_supports_gpu_offload() else time.thread_time
        measure = partial(measured_costs, self._loop.time_batch, sizes, cpu_clock=cpu_clock)
        try:
            key = machine_key(self.path, self._model.library, self._share.threads, self._model.repacking, sizes)
        except OSError:  # the file has been removed since it was loaded
            costs: Mapping[int, float] = measure().seconds
        else:
            costs = kept_costs(key, measure)
        if self.options.exact:
            return split_costs(costs, self._loop.exact_rows) if costs else {}
        if self._model.can_share_prefixes and not self._context.has_attention:  # otherwise rows can't be taken back, or aren't added
            self._loop.pad_batches(costs)
            return padded_costs(costs)
        return costs

    def _open_draft_source(self) -> DraftSource | None:
        """Return the source of drafts for answers, or None if there should be none.

        Raises:
            ConfigError: drafts are impossible with this model, or with the chosen draft model.
            EngineError: the draft model can't be loaded.
        """
        options = self.options
        if not options.draft:
            return None
        if not self._model.can_share_prefixes:
            raise ConfigError(f"draft: expected a model without recurrent states or sliding windows, got {self.path.name}")
        from streamco.engines.answer_drafts import LookupSource  # what it uses needs numpy
        from streamco.engines.llamacpp.model_drafts import ModelSource

        if options.draft == "lookup":
            return LookupSource()
        file, tokens = Path(options.draft).expanduser(), self.info.context_tokens
        return ModelSource(file, self._model, answers=options.max_sequences, tokens=tokens, share=self._share)

    def _make_drafts(self, source: DraftSource) -> BatchDrafts | None:
        """Return the object that chooses drafts for answers, or None if the row costs show that drafting can't pay off."""
        from streamco.engines.answer_drafts import BatchDrafts
        from streamco.policies.drafts.batch_drafts import MIN_GAIN

        costs, exact, rows = self._row_costs, self.options.exact, self._context.rows
        gain = max(count * costs[1] / seconds for count, seconds in costs.items()) if 1 in costs else 1.0
        if gain >= MIN_GAIN:
            self.draft_gain = gain
            longest = self._loop.exact_rows - 1 if exact else rows
            return BatchDrafts(source, costs, most=rows, longest=longest, padding=int(exact))
        source.close()
        reason = "rows take as long in one batch as one by one" if 1 in costs else "what rows cost could not be measured"
        logger.warning("%s: no drafts, because %s on this machine", self.info.name, reason)
        return None

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._loop.warm_up()
            if self.options.measure_rows or self.options.draft:
                self._row_costs = self._measure_rows()
            if self._draft_source is not None:
                self._loop.drafts = self._make_drafts(self._draft_source)
            if self._context.has_attention and not has_readable_attention(self._context):
                self._context.has_attention = False
            self._is_warm.set()
            self._loop.run()
        except BaseException as exc:  # every consumer gets it
            failure = exc
            logger.critical("the engine of %s has stopped and answers no more requests", self._model.info.name, exc_info=exc)
        self._loop.end(failure)
        if self._draft_source is not None:
            self._draft_source.close()
        self._context.close()
        self._model.close("" if failure is None else f"the engine has failed: {type(failure).__name__}: {failure}")
        self._share.release()
        self._is_warm.set()


def _check_options(options: EngineOptions) -> None:
    for name, minimum in (
        ("context_tokens", 2),
        ("max_sequences", 1),
        ("prefill_chunk", 1),
        ("ring_tokens", 1),
        ("held_sequences", 0),
        ("held_tokens", 1),
    ):
        value = getattr(options, name)
        if value is not None and value < minimum:
            raise ConfigError(f"{name}: expected at least {minimum}, got {value}")
    sequences = options.max_sequences + options.held_sequences
    max_sequences = MAX_SEQUENCES // 2 if options.exact else MAX_SEQUENCES - 1
    if sequences > max_sequences:
        raise ConfigError(f"max_sequences and held_sequences: expected at most {max_sequences} together, got {sequences}")


def _layers(options: EngineOptions, count: int) -> list[int]:
    """Return the layers to read, counted from 0. A layer before the first one counts as the first."""
    for layer in options.attention_layers:
        if layer >= count:
            raise ConfigError(f"attention_layers: expected layers below {count}, got {layer}")
    return sorted({layer if layer >= 0 else max(0, count + layer) for layer in options.attention_layers})


_open_engines: weakref.WeakSet[LlamaEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all engines, because a thread that is inside llama.cpp while the interpreter exits would crash the process."""
    for engine in list(_open_engines):
        engine.close()
