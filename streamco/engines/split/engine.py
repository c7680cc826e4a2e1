"""The engine of a split model on the device: one thread owns the input layers and the head; servers compute the layers between them.

It is an ``Engine`` like the one that runs a whole model: tokens, text, template and sampling never leave this machine. But an answer needs
an owner that runs its machine (``core.split.machine``) and sends the states to a server. The engine computes what the owner requests, and
tells it what happened.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from msgspec.structs import replace

from streamco.core.split.events import AnswerEnded, ComputeRows
from streamco.engines.base import EngineOptions, Generation, GenerationRequest, ModelInfo
from streamco.engines.consumer import Consumer
from streamco.engines.kv_slots import Slot
from streamco.engines.llamacpp.control_tokens import ControlTokens
from streamco.engines.llamacpp.json_schema import has_grammars
from streamco.engines.llamacpp.model import context_limit
from streamco.engines.llamacpp.model_parts import PartInfo, check_same_model
from streamco.engines.llamacpp.reasoning import splits_reasoning
from streamco.engines.split.answer import AnswerOwner, ProposeDrafts, SplitAnswer, SplitGeneration
from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.draft_lengths import DraftLengths
from streamco.engines.split.drafts import AnswerDrafts, DraftOptions, find_draft_layer
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.engines.split.parallel_drafting import ParallelDrafting
from streamco.engines.threads import budget
from streamco.errors import ConfigError, EngineError, UsageError
from streamco.profiles.row_costs import RowCosts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MakeLink", "ServerFacts", "SplitEngine", "device_parts", "no_drafts"]

logger = logging.getLogger("streamco.engine")


class ServerFacts(Protocol):
    """Facts about the servers that the engine asks their link for, from its own thread or another."""

    @property
    def max_positions(self) -> int:
        """Maximum number of positions in a session, prompt and answer together."""
        ...

    def row_seconds(self, rows: int) -> float:
        """Return how many seconds longer a trip with ``rows`` rows takes than one with one row fewer; 0 if not known."""
        ...

    @property
    def round_trip(self) -> float:
        """Seconds of a trip during which the server computes nothing, without the upload; 0 if not measured."""
        ...


class MakeLink(Protocol):
    """Makes the link once the parts are known."""

    def __call__(self, info: PartInfo, context_tokens: int, /) -> ServerFacts:
        """Return the link to servers with the layers after those of ``info``."""
        ...


class _Work(NamedTuple):
    """A request of an answer's owner: a method of the answer, with its argument."""

    generation: SplitGeneration
    function: Callable[..., None]
    arguments: tuple[object, ...] = ()


def device_parts(parts: str | Path) -> tuple[Path, Path]:
    """Return the files of the input layers and of the head, given the common prefix of their paths.

    For example, ``parts/NAME`` stands for ``parts/NAME.input.gguf`` and ``parts/NAME.head.gguf``.

    Raises:
        ConfigError: one of them is missing; the message says what is at the path instead, if anything.
    """
    start = Path(parts).expanduser()
    files = start.with_name(f"{start.name}.input.gguf"), start.with_name(f"{start.name}.head.gguf")
    for file in files:
        if not file.is_file():
            raise ConfigError(f"split model: expected {file} (streamco split writes it), got no such file{_hint(start)}")
    return files


def _hint(start: Path) -> str:
    """Return a hint that says what is at a path that isn't the prefix of parts, or "" if nothing is there."""
    if start.is_dir():
        names = sorted(file.name.removesuffix(".input.gguf") for file in start.glob("*.input.gguf"))
        return f"; {start} is a folder, with the parts {', '.join(str(start / name) for name in names) or 'of no model'}"
    beginning = re.sub(r"\.(input|middle|head)\.gguf$", "", str(start))
    if beginning != str(start):
        return f"; {start} is one file of the parts, which are named by their beginning: {beginning}"
    return f"; {start} is a file of its own: streamco split cuts a whole model" if start.is_file() else ""


def no_drafts(_tokens: Sequence[int]) -> Sequence[int]:
    """Propose nothing, so that each trip gives one token."""
    return ()


class SplitEngine:
    """The device's parts of a model, loaded and ready. Loading blocks, so create it in a worker thread.

    Args:
        parts: common prefix of the paths of the parts' files; see ``device_parts``.
        link: makes the link to the servers.
        options: ``context_tokens``, ``max_sequences``, ``threads``, ``ring_tokens`` and ``exact`` have an effect; the others must be the
            defaults.
        propose: proposes drafts from the tokens alone; used only if there is no draft layer.
        drafts: how to draft with a draft layer; "auto" uses this model's layer from the package or the user's cache folder, if there is
            one; None for no draft layer.

    Raises:
        ConfigError: a file is missing or belongs to another model, or an option has no effect here.
        EngineError: the parts can't be loaded.
    """

    takes_grammars = has_grammars()
    """True if answers can be made to match ``GenerationRequest.grammar``."""

    def __init__(
        self,
        parts: str | Path,
        link: MakeLink,
        options: EngineOptions | None = None,
        *,
        propose: ProposeDrafts = no_drafts,
        drafts: DraftOptions | Literal["auto"] | None = None,
    ) -> None:
        self.options = options = options or EngineOptions()
        _check_options(options)
        input_file, head_file = device_parts(parts)
        self._propose = propose
        self._share = budget.claim(options.threads)
        try:
            self._input = InputPart(
                input_file,
                cells=options.context_tokens,
                sequences=options.max_sequences,
                threads=self._share.threads,
                exact=options.exact,
            )
            self._head = HeadPart(head_file, threads=self._share.threads, exact=options.exact)
            check_same_model(self._input.info, self._head.info)
            self.drafts = self._find_drafts(drafts)
            """How answers are drafted, or None without a draft layer."""
            self._layer = None if self.drafts is None else self._load_layer(self.drafts, (input_file, head_file))
        except BaseException:
            self._share.release()
            raise
        model = self._head.model.info
        limit = context_limit(model, options.context_tokens)
        has_reasoning = splits_reasoning(options.reasoning_format, has_reasoning=model.has_reasoning)
        layers = self._input.info.layers  # the layers that use energy here
        self.info: ModelInfo = replace(model, context_tokens=limit, layers=layers, has_reasoning=has_reasoning)
        self.link = link(self._input.info, limit)
        self._lengths = None if self.drafts is None else DraftLengths(self.drafts.policy, self.link.row_seconds)
        self._parallel = None if self.drafts is None else ParallelDrafting(self.drafts.parallel, lambda: self.link.round_trip)
        self._inbox: SimpleQueue[SplitGeneration | _Work | Consumer | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closing = False
        self._failure: BaseException | None = None
        self._waiting: list[SplitGeneration] = []
        self._running: dict[SplitGeneration, SplitAnswer] = {}
        self._free = list(range(options.max_sequences))
        self._thread = threading.Thread(target=self._run, name=f"streamco-split-{self.info.name}", daemon=True)
        self._thread.start()
        _open_engines.add(self)

    def _find_drafts(self, wanted: DraftOptions | Literal["auto"] | None) -> DraftOptions | None:
        """Return the options including the file of the weights, or None if there is no draft layer."""
        if wanted is None or (wanted != "auto" and wanted.weights is not None):
            return wanted
        info, model = self._input.info, self._head.model.info
        weights = find_draft_layer(model.vocabulary, info.width, info.layers)
        if weights is not None:
            return DraftOptions(weights) if wanted == "auto" else replace(wanted, weights=weights)
        if wanted != "auto":
            missing = f"none for {model.name} are packaged or in the cache folder"
            raise ConfigError(f"drafts: expected the weights of a draft layer, because {missing}, got none")
        logger.info("%s: no draft layer is packaged or in the cache folder, so each trip to the server makes one token", model.name)
        return None

    def _load_layer(self, drafts: DraftOptions, files: tuple[Path, Path]) -> DraftPart:
        assert drafts.weights is not None, "the file was found"
        return DraftPart(
            drafts.weights,
            input_part=files[0],
            head_part=files[1],
            vocabulary=self._head.model.info.vocabulary,
            cells=self.options.context_tokens,
            sequences=self.options.max_sequences,
            threads=self._share.threads,
        )

    # Any thread

    @property
    def control_tokens(self) -> ControlTokens:
        """Control tokens of the vocabulary."""
        return self._head.model.control_tokens

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the token ids of a text."""
        return self._head.model.tokenize(text, special=special, bos=bos)

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Return the text of token ids as bytes, without control tokens."""
        return self._head.model.detokenize(ids)

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt's text; see ``LlamaModel.apply_template``."""
        return self._head.model.apply_template(messages, add_generation_prompt=add_generation_prompt)

    @property
    def input_costs(self) -> RowCosts | None:
        """Seconds that the input layers take, by number of rows, or None if not measured yet."""
        return self._input.costs

    def submit(self, request: GenerationRequest, wake: Callable[[], None], owner: AnswerOwner | None = None) -> Generation:
        """Queue a generation. Its ``owner`` is told ``RowsAdded`` when its turn has come, and ``AnswerEnded`` when it has ended.

        Raises:
            EngineError: the engine is closed, the prompt is empty, contains unknown ids or doesn't fit the context.
            ConfigError: a sampling option is out of range.
            UsageError: it has no owner, so nothing would send its states to a server.
        """
        if owner is None:
            raise UsageError("submit: expected the driver of a split answer (SplitEndpoint.open has one), got none")
        ids, context = request.prompt_ids, min(self.info.context_tokens, self.link.max_positions)
        if not ids or min(ids) < 0 or max(ids) >= self.info.vocabulary_size or len(ids) >= context:
            raise EngineError(f"prompt: expected 1 to {context - 1} ids of the vocabulary, got {len(ids)}")
        free, wanted = context - len(ids), request.sampling.max_tokens
        generation = SplitGeneration(
            request,
            self._head.model,
            limit=free if wanted is None else min(wanted, free),
            buffered=min(self.options.ring_tokens, request.max_buffered or self.options.ring_tokens),
            wake=wake,
            engine=self,
            owner=owner,
        )
        owner.generation = generation
        self._put(generation)
        return generation

    def compute(self, generation: SplitGeneration, rows: ComputeRows) -> None:
        """Compute shallow states; the owner is told ``RowsComputed``."""
        self._inbox.put(_Work(generation, SplitAnswer.ask, (rows,)))

    def read(self, generation: SplitGeneration, states: NDArray[np.float32]) -> None:
        """Draw tokens from the deep states of the last rows; the owner is told ``Truncated`` and ``RowsAdded``."""
        self._inbox.put(_Work(generation, SplitAnswer.read, (states,)))

    def record_loss(self, generation: SplitGeneration) -> None:
        """Record that a session was lost, so that this round's time tells nothing about drafts."""
        self._inbox.put(_Work(generation, SplitAnswer.record_loss))

    def fail(self, generation: SplitGeneration, error: Exception) -> None:
        """End a generation with an error."""
        self._inbox.put(_Work(generation, SplitAnswer.fail, (error,)))

    def ping(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called from the engine's thread; see ``Engine.ping``.

        Raises:
            EngineError: the engine is closed or has failed.
        """
        self._put(Consumer(wake))

    def notify(self) -> None:
        """Make the thread check its work again, because something changed."""
        self._inbox.put(None)

    def interrupt(self, work: object) -> None:
        """Do nothing, because no computation here takes long."""

    def close(self) -> None:
        """Cancel everything, join the thread, free the memory; idempotent, and safe from any thread except the engine's own."""
        if threading.current_thread() is self._thread:
            raise UsageError("close: expected a thread other than the engine's, got a call from inside a wake-up")
        with self._lock:
            self._is_closing = True
        self.notify()
        self._thread.join()
        _open_engines.discard(self)

    def _put(self, arrival: SplitGeneration | Consumer) -> None:
        with self._lock:
            if self._failure is not None:
                raise EngineError(f"engine: has failed: {self._failure}") from self._failure
            if self._is_closing:
                raise EngineError("engine: already closed")
            self._inbox.put(arrival)

    # The engine's thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._round()
        except BaseException as exc:  # every consumer gets it
            logger.critical("the engine of %s has stopped and answers no more requests", self.info.name, exc_info=exc)
            with self._lock:
                self._failure = exc
        self._end()

    def _round(self) -> None:
        """Accept new work, or sleep until some arrives; then compute one chunk for each answer that needs one.

        Before it sleeps, the thread drafts along the verdicts that are still out, one step at a time.
        """
        is_idle = all(answer.computing is None for answer in self._running.values())
        if is_idle and self._inbox.empty() and self._predraft():
            return
        if is_idle:
            self._take_in(self._inbox.get())
        while not self._inbox.empty():
            self._take_in(self._inbox.get())
        self._reap()
        self._admit()
        for generation, answer in list(self._running.items()):
            self._guarded(generation, answer.compute)

    def _predraft(self) -> bool:
        """Draft one step for the answer that has waited longest for its turn; return False if there is nothing to draft."""
        for generation, answer in self._running.items():
            if answer.can_predraft:
                self._guarded(generation, answer.predraft)
                if generation in self._running:
                    self._running[generation] = self._running.pop(generation)
                return True
        return False

    def _take_in(self, arrived: SplitGeneration | _Work | Consumer | None) -> None:
        match arrived:
            case SplitGeneration():
                self._waiting.append(arrived)
            case Consumer():
                arrived.wake()
            case _Work(generation, function, arguments):
                answer = self._running.get(generation)
                if answer is not None:
                    self._guarded(generation, function, answer, *arguments)
            case None:
                for generation, answer in list(self._running.items()):
                    if generation.is_parked:
                        generation.unpark()
                        self._guarded(generation, answer.resume)

    def _reap(self) -> None:
        for generation in [each for each in self._waiting if each.is_cancelled]:
            self._waiting.remove(generation)
            generation.finish("cancelled")
            generation.owner.tell(AnswerEnded())
        for generation in [each for each in self._running if each.is_cancelled]:
            generation.finish("cancelled")
            self._release(generation)

    def _admit(self) -> None:
        while self._waiting and self._free:
            generation = self._waiting.pop(0)
            sequence = self._free.pop()
            generation.admit(Slot(sequence))
            self._running[generation] = SplitAnswer(
                generation,
                (self._input, self._head),
                sequence=sequence,
                propose=self._propose,
                drafts=self._drafts_of(sequence),
            )

    def _drafts_of(self, sequence: int) -> AnswerDrafts | None:
        if self._layer is None or self.drafts is None or self._lengths is None or self._parallel is None:
            return None
        return AnswerDrafts(
            self._layer,
            (self._input, self._head),
            sequence=sequence,
            lengths=self._lengths,
            parallel=self._parallel,
            options=self.drafts,
        )

    def _guarded(self, generation: SplitGeneration, function: Callable[..., None], *arguments: object) -> None:
        """Call a function of one answer. If it raises, that answer ends with the error, and the others continue."""
        if not generation.is_done:
            try:
                function(*arguments)
            except EngineError as exc:
                generation.finish("error", error=exc)
            except Exception as exc:  # noqa: BLE001  # the reader gets it
                generation.finish("error", error=exc)
        if generation.is_done:
            self._release(generation)

    def _release(self, generation: SplitGeneration) -> None:
        answer = self._running.pop(generation, None)
        if answer is not None:
            answer.close()
            self._free.append(answer.sequence)
            generation.owner.tell(AnswerEnded())

    def _end(self) -> None:
        error = None
        if self._failure is not None:
            error = EngineError(f"engine: expected its thread to go on, got {type(self._failure).__name__}: {self._failure}")
        reason = "error" if error else "cancelled"
        while not self._inbox.empty():
            arrived = self._inbox.get()
            if isinstance(arrived, SplitGeneration):
                self._waiting.append(arrived)
        for generation in self._waiting:
            generation.finish(reason, error=error)
            generation.owner.tell(AnswerEnded())
        for generation in self._running:
            generation.finish(reason, error=error)
        for generation in list(self._running):
            self._release(generation)
        self._input.close()
        self._head.close()
        if self._layer is not None:
            self._layer.close()
        self._share.release()


def _check_options(options: EngineOptions) -> None:
    usual = EngineOptions()
    for name in ("held_sequences", "held_tokens", "attention_layers", "private", "separate"):
        if getattr(options, name) != getattr(usual, name):
            raise ConfigError(f"{name}: expected {getattr(usual, name)!r} for a split model, got {getattr(options, name)!r}")
    for name, minimum in (("context_tokens", 2), ("max_sequences", 1), ("ring_tokens", 1)):
        if getattr(options, name) < minimum:
            raise ConfigError(f"{name}: expected at least {minimum}, got {getattr(options, name)}")


_open_engines: weakref.WeakSet[SplitEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all engines, because a thread that is inside llama.cpp while the interpreter exits would crash the process."""
    for engine in list(_open_engines):
        engine.close()
