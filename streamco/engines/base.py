"""What a compute engine offers: sequences of tokens in, pieces of text out, from a thread of its own.

An engine knows no event loop. It writes pieces into a bounded buffer per sequence and calls ``wake`` (from its own thread) once per burst;
the owner of the sequence drains with ``Generation.take()``.

A generation begins with a prompt and is over when it ends. A *token sequence* is held across requests: its keys and values stay in memory
while its owner extends it, cuts it back, branches it, and has drafts verified or written. docs/engine.md shows both at work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from streamco.config import SamplingOptions
from streamco.wire.verify.topk import TopK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Engine",
    "EngineOptions",
    "Generation",
    "GenerationEnd",
    "GenerationRequest",
    "GenerationTimings",
    "HoldingEngine",
    "ModelInfo",
    "Prediction",
    "RowReader",
    "SequenceTask",
    "TaskEnd",
    "TaskTimings",
    "TextPiece",
    "TokenSequence",
]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How a model is loaded and run."""

    context_tokens: int = 2048  # per sequence: prompt + completion
    max_sequences: int = 4  # how many are decoded together
    threads: int | None = None  # None: a fair share of the cores; all engines of a process together never exceed them
    prefill_chunk: int = 128  # tokens; measured: no cost against one big batch, and a cancel waits at most one chunk
    ring_tokens: int = 512  # pieces buffered a sequence before it is parked
    exact: bool = False  # the same ids give the same logits, bit by bit, whatever runs beside or ran before; takes twice the memory
    held_sequences: int = 0  # token sequences held at once, beside ``max_sequences`` generations
    held_tokens: int | None = None  # what those may keep together; None: ``context_tokens`` each, as always in exact mode
    private: bool = False  # a held sequence finds what those of the same label have read, and nobody else finds that; else all find all
    separate: bool = False  # memory for a whole context each: no sequence takes longer because there are others; exact: always
    # whose attention is ``Prediction.importance`` (``streamco.policies.importance.LAYERS``); -1: the last; (): none, and nothing it costs
    attention_layers: tuple[int, ...] = ()


class TextPiece(Struct, frozen=True):
    """What one or more tokens became: ``text`` is whole code points, so ``ids`` may hold several tokens."""

    text: str
    ids: tuple[int, ...]
    top: tuple[tuple[int, float], ...] | None = None  # (id, probability) best first, of the last id's row, when asked for
    is_cut: bool = False  # a stop string begins inside: the ids say more than the text, and nobody can go on behind them


class GenerationTimings(Struct, frozen=True, kw_only=True):
    """Seconds and tokens of one generation."""

    prompt_tokens: int
    reused_tokens: int  # prompt tokens found in the KV cache
    completion_tokens: int
    prefill_s: float
    decode_s: float
    queued_s: float = 0.0  # from submit until it had a place among the running sequences


class GenerationEnd(Struct, frozen=True):
    """Why a generation ended: stop (end token or stop string), length, cancelled or error."""

    reason: str
    timings: GenerationTimings
    error: Exception | None = None


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """One sequence to generate."""

    prompt_ids: Sequence[int]
    sampling: SamplingOptions = SamplingOptions()
    top: int = 0  # return this many most likely tokens with each piece
    ignore_eos: bool = False
    prefill_only: bool = False  # leave the prompt in the cache and end with reason length
    pending_bytes: bytes = b""  # of a code point the prompt ends inside of: the first piece's text has all of it


class ModelInfo(Struct, frozen=True, kw_only=True):
    """Facts of a loaded model."""

    name: str
    vocabulary_size: int
    vocabulary: str  # fingerprint
    context_tokens: int
    has_chat_template: bool
    parameters: int
    layers: int
    width: int  # d_model
    heads: int
    ffn_width: int
    end_ids: frozenset[int] = frozenset()  # tokens that end a text


class Generation(Protocol):
    """One running generation. ``take`` and ``cancel`` belong to one consumer thread (the event loop's)."""

    def take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return all pieces since the last call and, with the last of them, the end. Never blocks; empty list: nothing new yet."""
        ...

    def cancel(self) -> None:
        """Ask to stop; ``take`` gives the end with reason ``cancelled`` soon after. Idempotent, never blocks."""
        ...


class Engine(Protocol):
    """A loaded model."""

    @property
    def info(self) -> ModelInfo:
        """Facts of the model; ``context_tokens`` is what one sequence may use here."""
        ...

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Token ids of a text; thread-safe."""
        ...

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Bytes of token ids, special tokens left out; thread-safe."""
        ...

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the chat template of the model, rendered; thread-safe.

        Raises:
            EngineError: the model has no chat template, or it refused these messages.
        """
        ...

    def submit(self, request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        """Queue a generation. ``wake`` is called from the engine's thread once per burst and at the end; it must not block.

        Raises:
            EngineError: the engine is closed, or the prompt does not fit ``context_tokens``.
        """
        ...

    def close(self) -> None:
        """Cancel everything, join the thread, free the memory; idempotent. May block for one chunk."""
        ...


class Prediction(Struct, frozen=True, kw_only=True):
    """What the model says of one position of a sequence."""

    position: int  # of the token that is predicted, counted from 0 at the beginning of the sequence
    greedy: int  # the id of the largest logit, of equal ones the lowest
    token: int | None = None  # what stands there: the token drawn, or the draft's; None behind the last of a draft
    probability: float | None = None  # of ``token`` under the sampling options, 0.0 where they rule it out; None: no token, or top=0
    drawable: tuple[tuple[int, float], ...] = ()  # (id, probability) under the sampling options, best first, at most ``top``
    is_complete: bool = False  # ``drawable`` holds everything that may be drawn: a residual made from it is exact
    likeliest: tuple[tuple[int, float], ...] = ()  # (id, probability) of the model itself (temperature 1, nothing cut off), best first
    logits: tuple[float, ...] = ()  # of ``likeliest``, as the model gave them
    share: float | None = None  # of ``token`` by the model itself, whether among ``likeliest`` or not; None: no token, or top=0
    row: TopK | None = None  # what ``token`` was drawn from, to the last bit; None: not asked for
    importance: float | None = None  # mean attention to its draft so far; None: not read, or not to be read in this model

    @property
    def confidence(self) -> float:
        """The model's own probability of its first choice (Synera section 3.2, c); 0.0 where ``likeliest`` was not asked for."""
        return self.likeliest[0][1] if self.likeliest else 0.0

    @property
    def margin(self) -> float:
        """By how much the largest logit exceeds the second; infinite where there is no second."""
        return self.logits[0] - self.logits[1] if len(self.logits) > 1 else float("inf")


class RowReader(Protocol):
    """Reads the rows of one verification in place of the engine."""

    def read_row(self, logits: NDArray[np.float32], position: int, token: int | None, /) -> Prediction:
        """Return what a row says; called from the engine's thread with each row in turn, must be quick.

        Args:
            logits: the model's, shape (vocabulary,); the next batch overwrites them.
            position: of the token that is predicted.
            token: what the draft has there; None: nothing.

        Raises:
            EngineError: the row says nothing; the task ends with it.
        """
        ...


class TaskTimings(Struct, frozen=True, kw_only=True):
    """Seconds and rows of one task."""

    queued_s: float  # from asking until its first batch
    compute_s: float  # from there to the end, what else was decoded in between included
    rows: int  # tokens it had decoded; more than it was asked for after memory was lost
    late_s: float = 0.0  # by which its batches took longer than the imposed step times


class TaskEnd(Struct, frozen=True):
    """Why a task ended: done, stop (a draft met an end token), cancelled, evicted (its sequence is gone) or error."""

    reason: str
    timings: TaskTimings
    error: Exception | None = None


class SequenceTask(Protocol):
    """Something asked of a token sequence. ``take`` and ``cancel`` belong to the consumer thread of its sequence."""

    def take(self) -> tuple[list[Prediction], TaskEnd | None]:
        """Return all predictions since the last call and, with the last of them, the end. Never blocks; empty list: nothing new yet."""
        ...

    def cancel(self) -> None:
        """Ask to stop; ``take`` gives the end with reason ``cancelled`` soon after. Idempotent, never blocks.

        The sequence is then as it was before the task, except that a draft leaves the tokens it has drawn (their predictions say which).
        """
        ...


class TokenSequence(Protocol):
    """Token ids whose keys and values stay in the engine's memory from one request to the next.

    Tasks run in the order in which they were asked for, those of several sequences together. None of the methods blocks; all belong to
    one consumer thread. A task that is cancelled or fails takes with it those asked for before its end was taken: they would run on ids
    that aren't there.

    The last id is decoded only with the next batch that needs what follows it, so that cutting a sequence back and adding one token costs
    nothing: a round of speculation is ``truncate``, ``extend`` by the corrected token, ``verify``, and one decode.
    """

    def extend(
        self, ids: Sequence[int], wake: Callable[[], None] | None = None, *, top: int = 0, sampling: SamplingOptions = ...
    ) -> SequenceTask:
        """Add ids at the end; a partial prefill in chunks of at most 32.

        Args:
            ids: what comes next; all that a sequence is asked before its first id ends with an error.
            wake: called from the engine's thread once per burst and at the end; None: nobody waits for it.
            top: above 0: also predict what follows the last id, with this many alternatives.
            sampling: for ``Prediction.drawable``.

        Raises:
            EngineError: the engine is closed, or an id is not in the vocabulary.
            UsageError: the sequence is closed.
        """
        ...

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` ids. A model whose memory can't be cut forgets it all and reads what is kept again when it needs it.

        Asking for more than there are is an error, which the next task ends with.
        """
        ...

    def fork(self, length: int | None = None) -> TokenSequence:
        """Return a sequence that begins with the first ``length`` ids (None: all) as they are when the tasks asked for so far are done.

        It shares the memory of what they have in common (in exact mode: gets a copy) and takes a place of its own. Where every other
        place is at work, its tasks end with an error.
        """
        ...

    def read(self, ids: Sequence[int], wake: Callable[[], None]) -> SequenceTask:
        """Add ids at the end as ``extend`` does, but the last is decoded too, and all of them in the batches of verifications."""
        ...

    def verify(
        self,
        draft_ids: Sequence[int],
        wake: Callable[[], None],
        *,
        given: Sequence[int] = (),
        top: int = 0,
        sampling: SamplingOptions = ...,
        reader: RowReader | None = None,
    ) -> SequenceTask:
        """Predict in place of each id of a draft, and after the last one: one prediction more than the draft has ids.

        One batch, up to 32 rows. The draft stays at the end of the sequence: ``truncate`` to what is accepted.

        Args:
            draft_ids: what a smaller model proposes to come next; may be empty.
            wake: as in ``extend``.
            given: ids between the sequence and the draft, not in question; they stay too.
            top: alternatives a position; 0: ``Prediction.greedy`` alone, which is cheapest.
            sampling: what ``probability`` and ``drawable`` are under (its ``max_tokens``, ``stop`` and ``seed`` mean nothing here).
            reader: makes the predictions; ``top`` and ``sampling`` mean nothing then.
        """
        ...

    def draft(
        self,
        count: int,
        wake: Callable[[], None],
        *,
        ids: Sequence[int] = (),
        top: int = 0,
        row_ids: int = 0,
        sampling: SamplingOptions = ...,
    ) -> SequenceTask:
        """Write up to ``count`` tokens, one prediction each; fewer where the context ends, or behind an end token (it is kept).

        Drafts of several sequences, forks among them, are decoded together.

        Args:
            count: tokens, at least 1.
            wake: as in ``extend``.
            ids: added to the sequence first, in the batch that the first token comes from; they stay when a token was drawn behind them.
            top: alternatives a position; ``likeliest`` has at least two, for ``margin``.
            row_ids: above 0: tokens are drawn from ``Prediction.row``, the whole-number weights of at most so many ids, up to 255.
            sampling: how tokens are drawn; ``seed`` is this draft's alone.
        """
        ...

    def close(self) -> None:
        """Cancel what is asked for and let others have the memory; idempotent. Its ids may still be found by whoever begins like it."""
        ...


class HoldingEngine(Engine, Protocol):
    """An engine that also holds token sequences."""

    @property
    def held_sequences(self) -> int:
        """How many have memory at once; 0: it can't hold any."""
        ...

    @property
    def held_tokens(self) -> int:
        """What those may keep together."""
        ...

    @property
    def batch_tokens(self) -> int:
        """Most rows of one decode."""
        ...

    @property
    def step_time(self) -> Callable[[int, int], float] | None:
        """Seconds imposed on a step of (decode rows, prefill tokens); None: it takes what it takes."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """What is asked inside is taken in at once, and goes into one batch as far as there is room. Not to be awaited in."""
        ...

    def hold(self, label: object = None) -> TokenSequence:
        """Return a new, empty sequence. It takes one of ``held_sequences`` places with its first ids.

        When there is none left, the sequence that nobody has asked anything for the longest time is evicted: its tasks end with reason
        ``evicted`` from then on. Hold a new one and extend it by all ids; what has not been overwritten meanwhile is found again.

        Args:
            label: in private mode the owner of the sequence and its forks: sequences of the same label share what they have read.

        Raises:
            EngineError: the engine is closed, or holds no sequences (``EngineOptions.held_sequences``).
        """
        ...
