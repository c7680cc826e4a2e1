"""A scripted engine, which writes a given text at given times, without a model."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any, Literal

from streamco.engines.base import (
    Generation,
    GenerationEnd,
    GenerationRequest,
    GenerationTimings,
    ModelInfo,
    TextPiece,
)
from streamco.engines.llamacpp.control_tokens import ControlTokens
from streamco.engines.sequence import HeldSequence
from streamco.errors import ConfigError, EngineError
from streamco.events import common_prefix_length
from streamco.sim.workload.token_models import TokenModel
from streamco.testing.sequences import FakeSequenceEngine

__all__ = ["FakeEngine", "FakeGeneration", "FakeVocabulary"]

Mode = Literal["instant", "thread", "manual"]
Script = str | Sequence[str] | Callable[[GenerationRequest], Sequence[str]]


class FakeVocabulary:
    """A vocabulary of words, each with the space before it. Ids are assigned in the order in which words are first seen. Thread-safe.

    Args:
        name: name that the fingerprint is made from.
        size: number of ids, and maximum number of different words.
    """

    def __init__(self, name: str = "words", size: int = 1 << 16) -> None:
        self.name = name
        self.size = size
        self._words: list[str] = []
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """The fingerprint; equal for vocabularies of the same name and size."""
        return f"{self.size}:{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; ``decode`` restores it exactly."""
        return [self.id_of(word) for word in re.findall(r"\s*\S+|\s+$", text)]

    def id_of(self, word: str) -> int:
        """Return the id of one token's text; a new text gets the next id.

        Raises:
            EngineError: the vocabulary is full.
        """
        with self._lock:
            known = self._ids.get(word)
            if known is None:
                if len(self._words) >= self.size:
                    raise EngineError(f"vocabulary: the limit is {self.size} different words")
                known = self._ids[word] = len(self._words)
                self._words.append(word)
            return known

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids.

        Raises:
            EngineError: an id has no word.
        """
        unknown = [token for token in ids if not 0 <= token < len(self._words)]
        if unknown:
            raise EngineError(f"vocabulary: expected ids below {len(self._words)}, got {unknown[0]}")
        return "".join(self._words[token] for token in ids)


WORDS = FakeVocabulary()


class FakeEngine:
    """An engine that answers every request with a script, one token per piece. Implements ``HoldingEngine``.

    ``successor`` predicts the tokens of held sequences. Without it, a held sequence continues the script after the longest
    prefix of the script that the sequence's ids end with. ``end_id`` follows the script.

    Prompts of requests with ``prefill_only`` are kept forever. Prompts that begin like one of them take less time, and their timings
    show that.

    Args:
        script: a text (split into words), the pieces themselves, or a function from the request to the pieces.
        mode: with ``instant``, all pieces are ready when ``submit`` returns; with ``thread``, a thread writes them on time; with
            ``manual``, they come when the test calls ``step``.
        prefill_s: seconds per prompt token before the first piece (thread).
        token_s: seconds before each further piece (thread).
        ring_tokens: number of pieces to buffer before the generation is paused.
        fail_after: end with an error after this many pieces, or None to never fail.
        context_tokens: maximum number of tokens in a prompt.
        vocabulary: engines with the same vocabulary understand each other's ids. With None, all engines share one.
        successor: the model of held sequences, from ids to the probabilities of the next id; ``FakeDistribution`` makes pairs of models.
        held_sequences: number of held sequences that can have memory at once.
        step_time: a function from the number of sequences that write and the number of tokens that are read to the seconds that a batch of
            held sequences takes; used instead of ``prefill_s`` and ``token_s`` (thread).
        name: name of the model.
        probability: probability that it reports for each of its tokens, 0..1, or a function from the request to this probability.
    """

    def __init__(
        self,
        script: Script = "Hello there, how are you today?",
        *,
        mode: Mode = "instant",
        prefill_s: float = 0.0,
        token_s: float = 0.0,
        ring_tokens: int = 512,
        fail_after: int | None = None,
        context_tokens: int = 2048,
        vocabulary: FakeVocabulary | None = None,
        successor: TokenModel | None = None,
        held_sequences: int = 16,
        step_time: Callable[[int, int], float] | None = None,
        name: str = "fake",
        probability: float | Callable[[GenerationRequest], float] = 1.0,
    ) -> None:
        if mode not in {"instant", "thread", "manual"}:
            raise ConfigError(f"mode: expected instant, thread or manual, got {mode!r}")
        self.script = script
        self.mode = mode
        self.prefill_s = prefill_s
        self.token_s = token_s
        self.ring_tokens = ring_tokens
        self.fail_after = fail_after
        self.probability = probability
        self.vocabulary = vocabulary or WORDS
        self.requests: list[GenerationRequest] = []
        self.generations: list[FakeGeneration] = []
        self.kept: list[tuple[str | None, list[int]]] = []  # with their owners
        self.is_closed = False
        self.held_sequences = held_sequences
        self.held_tokens = held_sequences * context_tokens
        self.batch_tokens = 128
        self.step_time = step_time
        self.control_tokens: ControlTokens | None = None
        self.end_id = self.vocabulary.size - 1
        self.sequences = FakeSequenceEngine(
            successor or self._follow,
            vocabulary_size=self.vocabulary.size,
            max_sequences=held_sequences,
            context_tokens=context_tokens,
            mode=mode,
            prefill_s=prefill_s,
            token_s=token_s,
            step_time=step_time,
            end_ids=frozenset({self.end_id}),
        )
        self.info = ModelInfo(
            name=name,
            vocabulary_size=self.vocabulary.size,
            vocabulary=self.vocabulary.fingerprint,
            context_tokens=context_tokens,
            has_chat_template=True,
            parameters=1,
            layers=1,
            width=1,
            heads=1,
            ffn_width=1,
            end_ids=frozenset({self.end_id}),
        )

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the ids of the text's words; there are no special tokens."""
        return self.vocabulary.encode(text)

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Return the text of the ids; the end token has none."""
        return self.vocabulary.decode([token for token in ids if token != self.end_id]).encode()

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the messages as ``role: content`` lines."""
        lines = [f"{message['role']}: {_text(message.get('content'))}\n" for message in messages]
        return "".join(lines) + ("assistant:" if add_generation_prompt else "")

    def submit(self, request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        """Start answering a request with the script.

        Raises:
            EngineError: the engine is closed, or the prompt is empty or doesn't fit the context.
        """
        if self.is_closed:
            raise EngineError("engine: already closed")
        if not request.prompt_ids:
            raise EngineError("prompt: expected at least one token, got none")
        limit = self.info.context_tokens
        max_tokens = limit if request.prefill_only else limit - 1
        if len(request.prompt_ids) > max_tokens:
            raise EngineError(f"prompt: expected at most {max_tokens} tokens (the context is {limit}), got {len(request.prompt_ids)}")
        generation = FakeGeneration(self, request, self._pieces(request), wake)
        self.requests.append(request)
        self.generations.append(generation)
        generation.begin(self.mode)
        return generation

    def ping(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` at once.

        Raises:
            EngineError: the engine is closed.
        """
        if self.is_closed:
            raise EngineError("engine: already closed")
        wake()

    def together(self) -> AbstractContextManager[None]:
        """Return a context manager. Tasks that are submitted inside it start together."""
        return self.sequences.together()

    def row_costs(self) -> Mapping[int, float]:
        """Return the seconds that ``step_time`` gives a batch of verification rows, by number of rows; {} without ``step_time``."""
        return {} if self.step_time is None else {rows: max(1e-6, self.step_time(0, rows)) for rows in range(1, 33)}

    @property
    def draft_paths(self) -> int:
        """Number of paths that a tree draft may have."""
        return self.sequences.draft_paths

    def hold(self, label: Hashable = None, *, owner: str | None = None) -> HeldSequence:
        """Return a new, empty sequence.

        Raises:
            EngineError: the engine is closed.
            UsageError: the label isn't hashable.
        """
        return self.sequences.hold(label, owner=owner)

    def _follow(self, ids: Sequence[int]) -> Mapping[int, float]:
        script = [self.vocabulary.id_of(word) for word in self._pieces(GenerationRequest(prompt_ids=ids))]
        found = next(count for count in range(min(len(script), len(ids)), -1, -1) if list(ids[len(ids) - count :]) == script[:count])
        return {script[found] if found < len(script) else self.end_id: 1.0}

    def count_kept(self, ids: Sequence[int], owner: str | None = None) -> int:
        """Return how many of a prompt's first tokens are kept for an owner; never the last one, because its successor must be computed."""
        lengths = [common_prefix_length(kept, list(ids)) for holder, kept in self.kept if holder == owner]
        return min(max(lengths, default=0), len(ids) - 1)

    def _pieces(self, request: GenerationRequest) -> list[str]:
        if request.prefill_only:
            return []
        script = self.script(request) if callable(self.script) else self.script
        return re.findall(r"\s*\S+|\s+$", script) if isinstance(script, str) else list(script)

    def step(self, count: int = 1) -> None:
        """Make every running generation write ``count`` more pieces, and run ``count`` batches of held sequences (manual)."""
        for generation in list(self.generations):
            generation.write(count)
        for _ in range(count):
            self.sequences.step()

    def close(self) -> None:
        """Cancel everything; idempotent."""
        self.is_closed = True
        self.sequences.close()
        for generation in self.generations:
            generation.cancel()
            generation.join()


class FakeGeneration:
    """One answer of a ``FakeEngine``. Implements ``Generation``."""

    def __init__(self, engine: FakeEngine, request: GenerationRequest, pieces: list[str], wake: Callable[[], None]) -> None:
        self.request = request
        self._engine = engine
        self._script = pieces
        self._wake = wake
        self._changed = threading.Condition()
        self._ready: list[TextPiece] = []
        self._is_awaited = True  # the consumer has taken every piece, so the next one wakes it
        self._end: GenerationEnd | None = None
        self._is_cancelled = False
        self._is_paused = False
        self._probability = engine.probability(request) if callable(engine.probability) else engine.probability
        self._made = 0
        self._max_buffered = min(engine.ring_tokens, request.max_buffered or engine.ring_tokens)
        self._reused = engine.count_kept(request.prompt_ids, request.owner)
        self._thread: threading.Thread | None = None

    @property
    def is_cancelled(self) -> bool:
        """True after the consumer has cancelled the generation."""
        return self._is_cancelled

    def begin(self, mode: Mode) -> None:
        """Start writing pieces."""
        if mode == "thread":
            self._thread = threading.Thread(target=self._run, name="streamco-fake", daemon=True)
            self._thread.start()
        elif mode == "instant":
            self.write(len(self._script) + 1)

    def take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return all pieces since the last call, and the end along with the last ones."""
        with self._changed:
            pieces, self._ready = self._ready, []
            self._is_awaited = True
            self._changed.notify_all()
            end = self._end
        if end is None and self._engine.mode == "instant" and pieces:
            self.write(len(self._script) + 1)  # the buffer may have been full
        return pieces, end

    def cancel(self) -> None:
        """Ask to stop; idempotent."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()
        if self._thread is None:
            self.write(1)

    @property
    def is_paused(self) -> bool:
        """True while the consumer has paused the generation."""
        return self._is_paused

    def pause(self) -> None:
        """Write nothing more until ``resume``."""
        with self._changed:
            self._is_paused = True

    def resume(self) -> None:
        """Continue after ``pause``."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()
        if self._engine.mode == "instant":
            self.write(len(self._script) + 1)

    def join(self) -> None:
        """Wait for the generation's thread, if there is one."""
        if self._thread is not None:
            self._thread.join()

    def write(self, count: int) -> None:
        """Write up to ``count`` pieces, as many as fit in the buffer. The end comes after the last one."""
        wakes = False
        with self._changed:
            for _ in range(count):
                is_full = self._is_paused or len(self._ready) >= self._max_buffered
                if self._end is not None or (is_full and not self._is_cancelled):
                    break
                self._write_one()
                wakes = wakes or self._is_awaited
                self._is_awaited = False
        if wakes:
            self._wake()

    def _write_one(self) -> None:
        reason = self._reason()
        if reason is not None:
            if reason == "length" and self.request.prefill_only:
                self._engine.kept.append((self.request.owner, list(self.request.prompt_ids)))
            error = EngineError(f"engine: failed after {self._made} tokens, as scripted") if reason == "error" else None
            self._end = GenerationEnd(reason, self._timings(), error)
            return
        text = self._script[self._made]
        token = self._engine.vocabulary.id_of(text)
        tops = (((token, self._probability),),) if self.request.top else None
        self._ready.append(TextPiece(text, (token,), tops))
        self._made += 1
        reason = self._reason()
        if reason in {"stop", "length"}:
            self._end = GenerationEnd(reason, self._timings())

    def _reason(self) -> str | None:
        limit = self.request.sampling.max_tokens
        if self._is_cancelled:
            return "cancelled"
        if self._engine.fail_after is not None and self._made >= self._engine.fail_after:
            return "error"
        if self.request.prefill_only:
            return "length"
        if self._made >= len(self._script):
            return "stop"
        if limit is not None and self._made >= limit:
            return "length"
        return None

    def _timings(self) -> GenerationTimings:
        prompt = len(self.request.prompt_ids)
        return GenerationTimings(
            prompt_tokens=prompt,
            reused_tokens=self._reused,
            completion_tokens=self._made,
            prefill_s=self._engine.prefill_s * (prompt - self._reused),
            decode_s=self._engine.token_s * self._made,
        )

    def _run(self) -> None:
        due = monotonic() + self._engine.prefill_s * (len(self.request.prompt_ids) - self._reused)
        while self._end is None:
            with self._changed:
                self._changed.wait_for(lambda: self._is_cancelled, timeout=max(0.0, due - monotonic()))
                since = monotonic()
                self._changed.wait_for(lambda: self._is_cancelled or not self._is_paused)
                due += monotonic() - since
                self._changed.wait_for(lambda: self._is_cancelled or len(self._ready) < self._max_buffered)
            self.write(1)
            due += self._engine.token_s


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is not None and not isinstance(content, list | tuple):
        raise EngineError(f"content: expected text or parts, got {type(content).__name__}")  # a model's template refuses it too
    return "".join(part.get("text", "") for part in content or ())
