"""The interface of a compute engine, which turns sequences of tokens into pieces of text in its own thread.

An engine knows no event loop. It writes pieces into a bounded buffer per sequence and calls ``wake`` from its own thread once per burst.
The owner of the sequence drains the buffer with ``Generation.take()``.

A generation answers one prompt, and is then finished. A *token sequence* is held across requests: its keys and values stay in memory while
its owner extends, truncates and forks it, and has drafts verified or generated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from msgspec import Struct

from streamco.config import Options, SamplingOptions
from streamco.engines.llamacpp.control_tokens import ControlTokens
from streamco.errors import ConfigError
from streamco.openai_types import CompletionUsage, PromptTokensDetails
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
    "ReasoningFormat",
    "RowReader",
    "SequenceTask",
    "StepPace",
    "StepTime",
    "TaskEnd",
    "TaskTimings",
    "TextPiece",
    "TokenSequence",
    "TokenVocabulary",
]


# What becomes of the text between <think> and </think> at the beginning of an answer to messages. "deepseek": it is ``reasoning_content``;
# "none": content, tags included; "auto": like "deepseek" if the model's chat template or name says that it thinks, otherwise like "none".
ReasoningFormat = Literal["auto", "none", "deepseek"]

StepTime = Callable[[int, int], float]
"""Returns how many seconds a step takes, given the number of sequences that decode a token in it and the number of prefill tokens."""


class EngineOptions(Options, frozen=True, kw_only=True):
    """Settings of an engine: how a model is loaded and run."""

    context_tokens: int = 2048  # for each sequence: prompt + completion
    max_sequences: int = 4  # generations decoded together
    threads: int | None = None  # None for a fair share of the cores, which all engines of a process together never exceed
    prefill_chunk: int = 128  # tokens; measured: as fast as one big batch, and a cancel waits at most one chunk
    ring_tokens: int = 512  # tokens generated but not yet taken at which a sequence is parked
    exact: bool = False  # equal ids give bit-identical logits, whatever else runs or ran before; takes twice the memory
    held_sequences: int = 0  # token sequences held at once, in addition to ``max_sequences`` generations
    held_tokens: int | None = None  # tokens that these may keep together; None for ``context_tokens`` each, as always in exact mode
    private: bool = False  # held sequences share what they have read only with sequences of the same label; if False, all share with all
    separate: bool = False  # each sequence has memory for a whole context, so that none slows another down; always so in exact mode
    # measure at load, in about two seconds, what batches of 1 to 32 rows cost (``row_costs``), once for each machine, build and file
    measure_rows: bool = False
    # layers whose attention gives ``Prediction.importance`` (``streamco.policies.importance.LAYERS``); -1 is the last; () reads none
    attention_layers: tuple[int, ...] = ()
    reasoning_format: ReasoningFormat = "auto"
    # drafts for the engine's own answers, where they pay: "lookup" drafts from earlier text in the prompt or answer; or the GGUF file of a
    # small model with the same vocabulary; "" for none. Answers don't change. Measures rows, as ``measure_rows`` does.
    draft: str = ""

    def __post_init__(self) -> None:
        """Refuse values whose type differs from the default's; the engine checks their ranges."""
        for name in ("context_tokens", "max_sequences", "threads", "prefill_chunk", "ring_tokens", "held_sequences", "held_tokens"):
            value = getattr(self, name)
            if not (value is None and name in {"threads", "held_tokens"}) and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"engine: {name}: expected a whole number, got {value!r}")
        if self.reasoning_format not in get_args(ReasoningFormat):
            raise ConfigError(f"engine: reasoning_format: expected auto, none or deepseek, got {self.reasoning_format!r}")


class TextPiece(Struct, frozen=True):
    """Text of one or more tokens. ``text`` consists of whole code points, so ``ids`` may hold several tokens."""

    text: str
    ids: tuple[int, ...]
    tops: tuple[tuple[tuple[int, float], ...], ...] | None = None  # for each id ``top_probabilities`` of its row; None if not asked for
    is_cut: bool = False  # a stop string begins inside, so the ids hold more than the text, and no answer can continue after them
    is_reasoning: bool = False  # what the model thinks, or (without text) a tag around it


class GenerationTimings(Struct, frozen=True, kw_only=True):
    """Durations in seconds and token counts of one generation, and its share of the machine's energy."""

    prompt_tokens: int
    reused_tokens: int  # prompt tokens found in the KV cache
    completion_tokens: int
    prefill_s: float
    decode_s: float
    queued_s: float = 0.0  # from submitting until it was among the running sequences
    joules: float | None = None  # measured while it was computed (``engines.rapl``); None if it wasn't measured
    drafted_tokens: int = 0  # draft tokens that were verified (``EngineOptions.draft``)
    accepted_tokens: int = 0  # draft tokens that were also drawn; a stop string may cut off the last ones

    def usage(self) -> CompletionUsage:
        """Return the token counts as a ``usage`` object like OpenAI's; cached tokens are the ones found in the KV cache."""
        return CompletionUsage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.reused_tokens),
        )


class GenerationEnd(Struct, frozen=True):
    """The end of a generation and the reason for it: stop (end token or stop string), length, cancelled or error."""

    reason: str
    timings: GenerationTimings
    error: Exception | None = None
    stop: str | None = None  # the stop string that ended it; None if something else did


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """Prompt and options of one sequence to generate."""

    prompt_ids: Sequence[int]
    sampling: SamplingOptions = SamplingOptions()
    top: int = 0  # number of most likely tokens that come with each token, along with its own probability; 0 for neither
    ignore_eos: bool = False
    prefill_only: bool = False  # only leave the prompt in the KV cache and end with reason length
    max_buffered: int | None = None  # tokens generated but not yet taken at which the sequence is parked; at most ``ring_tokens``
    owner: str | None = None  # prompts that are still in memory are reused only for the same owner
    grammar: str | None = None  # a JSON schema, as text, that the answer must match; None for any text
    begun: bytes = b""  # the beginning of the JSON, with which the prompt ends
    pending_bytes: bytes = b""  # beginning of a code point at the prompt's end: the first piece's text has the whole code point


class ModelInfo(Struct, frozen=True, kw_only=True):
    """Size, vocabulary and limits of a loaded model."""

    name: str
    vocabulary_size: int
    vocabulary: str  # fingerprint
    context_tokens: int  # 0 if the file doesn't say
    has_chat_template: bool  # True only if it can be used
    parameters: int
    layers: int
    width: int  # d_model
    heads: int
    ffn_width: int
    end_ids: frozenset[int] = frozenset()  # tokens that end a text
    content_mark: str = ""  # digest of the model's file, equal for equal files; "" if not known
    has_reasoning: bool = False  # answers to messages may begin with reasoning, which is kept apart from their content


class Generation(Protocol):
    """One running generation. ``take`` and ``cancel`` belong to one consumer thread, usually the event loop's."""

    def take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        """Return all pieces since the last call and, with the last of them, the end. Never blocks.

        The list is empty if there is nothing new yet.
        """
        ...

    def cancel(self) -> None:
        """Ask to stop; ``take`` gives the end with reason ``cancelled`` soon after. Idempotent, never blocks."""
        ...

    def pause(self) -> None:
        """Ask the engine to compute nothing until ``resume``, and to keep what it has. Never blocks.

        The token in progress may still come. An engine may continue the generation anyway if others are waiting for its place.
        """
        ...

    def resume(self) -> None:
        """Continue after ``pause``. Never blocks."""
        ...


class TokenVocabulary(Protocol):
    """The token ids of a model and their text. Every engine implements it."""

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        ...

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Return the text of token ids as bytes, without special tokens; thread-safe."""
        ...


class Engine(Protocol):
    """A loaded model that generates text."""

    @property
    def info(self) -> ModelInfo:
        """Facts about the model; ``context_tokens`` is the number that one sequence may use here."""
        ...

    @property
    def control_tokens(self) -> ControlTokens | None:
        """Control tokens of the vocabulary; None if it has none."""
        ...

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the token ids of a text; thread-safe."""
        ...

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Return the text of token ids as bytes, without special tokens; thread-safe."""
        ...

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the messages as text, through the model's chat template; thread-safe.

        Raises:
            PromptError: the model has no chat template that can be used, or it refused these messages.
        """
        ...

    def submit(self, request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        """Queue a generation.

        Args:
            request: what to generate.
            wake: called from the engine's thread once per burst and at the end; must not block.

        Raises:
            EngineError: the engine is closed, or the prompt does not fit ``context_tokens``.
        """
        ...

    def ping(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called from the engine's thread in its next round, which shows that the thread is alive.

        Raises:
            EngineError: the engine is closed or has failed.
        """
        ...

    def close(self) -> None:
        """Cancel everything, join the thread, free the memory; idempotent. May block until the current chunk is computed."""
        ...


class Prediction(Struct, frozen=True, kw_only=True):
    """The model's prediction for one position of a sequence."""

    position: int  # of the token that is predicted, counted from 0 at the beginning of the sequence
    greedy: int  # id of the largest logit, the lowest id among equals
    token: int | None = None  # the token at that position, drawn or drafted; None after the last of a draft
    probability: float | None = None  # of ``token`` under the sampling options, 0.0 if they exclude it; None without a token or with top=0
    drawable: tuple[tuple[int, float], ...] = ()  # (id, probability) under the sampling options, best first, at most ``top``
    is_complete: bool = False  # ``drawable`` holds all tokens that may be drawn, so a residual made from it is exact
    likeliest: tuple[tuple[int, float], ...] = ()  # (id, probability) of the model itself (temperature 1, nothing cut off), best first
    logits: tuple[float, ...] = ()  # logits of ``likeliest``, as the model gave them
    share: float | None = None  # probability of ``token`` by the model itself, in ``likeliest`` or not; None without a token or with top=0
    row: TopK | None = None  # the exact distribution that ``token`` was drawn from; None if not asked for
    importance: float | None = None  # mean attention to its draft so far; None if not read, or not readable in this model

    @property
    def confidence(self) -> float:
        """The model's own probability of its first choice (c in Synera, section 3.2); 0.0 if ``likeliest`` was not asked for."""
        return self.likeliest[0][1] if self.likeliest else 0.0

    @property
    def margin(self) -> float:
        """Difference between the largest logit and the second; infinite if there is no second."""
        return self.logits[0] - self.logits[1] if len(self.logits) > 1 else float("inf")


class RowReader(Protocol):
    """Makes predictions from the rows of one verification, in place of the engine."""

    def read_row(self, logits: NDArray[np.float32], position: int, token: int | None, /) -> Prediction:
        """Return the prediction made from one row of logits. Called from the engine's thread with each row in turn; must be quick.

        Args:
            logits: logits of the model, shape (vocabulary,); the next batch overwrites them.
            position: position of the token that is predicted.
            token: the draft's token there; None if there is none.

        Raises:
            EngineError: the row can't be read; the task ends with this error.
        """
        ...


class TaskTimings(Struct, frozen=True, kw_only=True):
    """Durations of one task in seconds, and the number of rows decoded for it."""

    queued_s: float  # from the request until its first batch
    compute_s: float  # from its first batch to its end, other work in between included
    rows: int  # tokens decoded for it; more than requested after memory was lost
    late_s: float = 0.0  # seconds by which its batches exceeded the imposed step times


class TaskEnd(Struct, frozen=True):
    """The end of a task and the reason: done, stop (a draft reached an end token), cancelled, evicted (its sequence is gone) or error."""

    reason: str
    timings: TaskTimings
    error: Exception | None = None


class StepPace(Protocol):
    """Decides when the results of an engine's steps may be shown, so that steps can be made to take longer than the hardware needs.

    ``streamco.emulation`` has an implementation that imitates a larger model. The engine's thread calls all methods.
    """

    @property
    def step_time(self) -> StepTime:
        """The function that returns the seconds imposed on a step."""
        ...

    def begin_round(self, *, was_idle: bool) -> None:
        """Begin a step. ``was_idle`` is True if the engine had no work before it."""
        ...

    def due(self, rows: int, prefill_tokens: int, *, started: float, now: float, requested: float = ...) -> float:
        """Return when the results of this decode may be shown, in seconds on the same clock as the arguments.

        Args:
            rows: number of sequences that decoded a token.
            prefill_tokens: number of prompt tokens decoded.
            started, now: times when the decode began and ended.
            requested: time when the most recent work in it was requested.
        """
        ...

    def end_early(self, now: float) -> None:
        """End the step at ``now``, because no work is waiting for it any more."""
        ...


class SequenceTask(Protocol):
    """One request to a token sequence. ``take`` and ``cancel`` belong to the consumer thread of its sequence."""

    def take(self) -> tuple[list[Prediction], TaskEnd | None]:
        """Return all predictions since the last call and, with the last of them, the end. Never blocks.

        The list is empty if there is nothing new yet.
        """
        ...

    def cancel(self) -> None:
        """Ask to stop; ``take`` gives the end with reason ``cancelled`` soon after. Idempotent, never blocks.

        The sequence is then as it was before the task, except that a draft keeps the tokens for which it has given predictions.
        """
        ...


class TokenSequence(Protocol):
    """Token ids with keys and values that stay in the engine's memory from one request to the next.

    Tasks of one sequence run in the order in which they were requested; tasks of different sequences run together. No method blocks; all of
    them belong to one consumer thread. If a task is cancelled or fails, later tasks that were requested before its end was taken end in the
    same way, because they would run on ids that aren't there.

    The last id isn't decoded until a batch needs the logits after it. So truncating a sequence and adding one token cost nothing: a round
    of speculation is ``truncate``, ``extend`` by the corrected token, and ``verify``, which together take one decode.
    """

    def extend(
        self, ids: Sequence[int], wake: Callable[[], None] | None = None, *, top: int = 0, sampling: SamplingOptions = ...
    ) -> SequenceTask:
        """Add ids at the end, as a partial prefill in chunks of at most 32 ids.

        Args:
            ids: the ids to add. The first task of a sequence must add some, or it ends with an error.
            wake: called from the engine's thread once per burst and at the end; may be None.
            top: number of alternatives in a prediction of the token after the last id; 0 for no prediction.
            sampling: the options that ``Prediction.drawable`` applies.

        Raises:
            EngineError: the engine is closed, or an id is not in the vocabulary.
            UsageError: the sequence is closed.
        """
        ...

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` ids. If the model's memory can't be cut, it is emptied, and the kept ids are read again when needed.

        If there are fewer ids, the next task ends with an error.
        """
        ...

    def fork(self, length: int | None = None) -> TokenSequence:
        """Return a new sequence with the first ``length`` ids (by default all) that this one has once all earlier tasks are done.

        It shares the memory of the common ids (in exact mode it gets a copy), but takes a place of its own. If every other place is busy,
        its tasks end with an error.
        """
        ...

    def read(self, ids: Sequence[int], wake: Callable[[], None]) -> SequenceTask:
        """Add ids at the end as ``extend`` does, but decode all of them, even the last one, in the batches of verifications."""
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
        parents: Sequence[int] = (),
    ) -> SequenceTask:
        """Predict each id of a draft and the id that follows the draft, which is one prediction more than the draft has ids.

        This takes one batch if there are at most 32 rows. The draft stays at the end of the sequence; call ``truncate`` to remove the part
        that isn't accepted. If the draft is a tree, its longest path stays. If the next ids follow another path, they are found in memory.

        Args:
            draft_ids: the ids that a smaller model proposes; may be empty.
            wake: see ``extend``.
            given: ids between the sequence and the draft that need no verification; they stay too.
            top: alternatives for each position; 0 for only ``Prediction.greedy``, which is cheapest.
            sampling: the options that ``probability`` and ``drawable`` apply; ``max_tokens``, ``stop`` and ``seed`` are ignored.
            reader: makes the predictions, and then ``top`` and ``sampling`` are ignored; if None, the engine makes them.
            parents: parent of each id, which makes the draft a tree (``streamco.policies.drafts.tree_acceptance``) of at most 31 ids and
                ``HoldingEngine.draft_paths`` paths; empty for a chain. The predictions are in the order of nodes, without ``token``.
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
        """Generate up to ``count`` tokens, with a prediction for each. Stops early at the end of the context or after an end token.

        Drafts of several sequences, forks included, are decoded together.

        Args:
            count: number of tokens, at least 1.
            wake: see ``extend``.
            ids: ids to add to the sequence first, in the batch that gives the first token; they stay once a token is drawn after them.
            top: alternatives for each position; ``likeliest`` has at least two, for ``margin``.
            row_ids: number of ids in ``Prediction.row``, at most 255. Tokens are then drawn from its whole-number weights. 0 for no row.
            sampling: how tokens are drawn; ``seed`` applies to this draft alone.
        """
        ...

    def close(self) -> None:
        """Cancel all tasks and release the memory; idempotent.

        Until the memory is overwritten, a sequence that begins with the same ids can reuse it.
        """
        ...


class HoldingEngine(Engine, Protocol):
    """An engine that also holds token sequences."""

    @property
    def held_sequences(self) -> int:
        """Number of sequences that can have memory at once; 0 if the engine can't hold any."""
        ...

    @property
    def held_tokens(self) -> int:
        """Maximum number of tokens that all held sequences may keep together."""
        ...

    @property
    def batch_tokens(self) -> int:
        """Maximum number of rows in one decode."""
        ...

    def row_costs(self) -> Mapping[int, float]:
        """Return how many seconds a batch of verification rows takes if nothing else runs, by number of rows from 1; {} if not known.

        Never blocks, because these times are imposed, or were measured while the model was loaded.
        """
        ...

    @property
    def draft_paths(self) -> int:
        """Number of paths that a tree draft may have; 1 for chains only."""
        ...

    @property
    def step_time(self) -> StepTime | None:
        """Function from (decode rows, prefill tokens) to the seconds imposed on a step, or None if no times are imposed."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Submit all tasks requested inside the ``with`` block at once, so that they share a batch if they fit. Don't await inside it."""
        ...

    def hold(self, label: Hashable = None, *, owner: str | None = None) -> TokenSequence:
        """Return a new, empty sequence. It takes one of the ``held_sequences`` places when it gets its first ids.

        If no place is left, the sequence that has been idle longest is evicted: its tasks end with reason ``evicted`` from then on. To
        continue, hold a new one and extend it by all of its ids; ids that have not been overwritten are found again.

        Args:
            label: a hashable value; in private mode the sequence and its forks share what they have read only with sequences that have the
                same label.
            owner: in every mode, the sequence reuses only what sequences and generations of the same owner have read.

        Raises:
            EngineError: the engine is closed, or holds no sequences (``EngineOptions.held_sequences``).
            UsageError: the label isn't hashable.
        """
        ...
