"""What a compute engine offers: sequences of tokens in, pieces of text out, from a thread of its own.

An engine knows no event loop. It writes pieces into a bounded buffer per sequence and calls ``wake`` (from its own thread) once per burst;
the owner of the sequence drains with ``Generation.take()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from streamco.config import SamplingOptions

__all__ = ["Engine", "EngineOptions", "Generation", "GenerationEnd", "GenerationRequest", "GenerationTimings", "ModelInfo", "TextPiece"]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How a model is loaded and run."""

    context_tokens: int = 2048  # per sequence: prompt + completion
    max_sequences: int = 4  # how many are decoded together
    threads: int | None = None  # None: a fair share of the cores; all engines of a process together never exceed them
    prefill_chunk: int = 128  # tokens; measured: no cost against one big batch, and a cancel waits at most one chunk
    ring_tokens: int = 512  # pieces buffered a sequence before it is parked
    exact: bool = False  # the same ids give the same logits, bit by bit, whatever runs beside or ran before; takes twice the memory


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
    opened: bytes = b""  # of a code point the prompt ends inside of: the first piece's text has all of it


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


class Generation(Protocol):
    """One running generation. ``take`` and ``cancel`` belong to one consumer thread (the event loop's)."""

    def take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        """All pieces since the last call and, with the last of them, the end. Never blocks; empty list: nothing new yet."""
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
        """The chat template of the model, rendered; thread-safe.

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
