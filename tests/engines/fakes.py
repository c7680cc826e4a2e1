"""A model and a context without llama.cpp: 256 tokens that are bytes, and decodes that a test holds, fails or watches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import streamco.engines.llama as llama_module
from streamco.config import SamplingOptions
from streamco.engines.base import EngineOptions, Generation, GenerationEnd, GenerationRequest, ModelInfo, TextPiece
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.context import ABORTED
from streamco.errors import EngineError

END = 0
GREEDY = SamplingOptions(temperature=0)


@dataclass(frozen=True)
class Row:
    token: int
    position: int
    sequence: int
    wants_logits: bool
    others: tuple[int, ...] = ()  # sequences that share it


class Flag:
    """As ``AbortFlag``; remembers that it was set."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.times_set = 0

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    def set(self) -> None:
        self.times_set += 1
        self.event.set()

    def clear(self) -> None:
        self.event.clear()


class FakeModel:
    """Stands in for ``LlamaModel``."""

    can_share_prefixes: ClassVar[bool] = True
    library = SimpleNamespace(llama_supports_gpu_offload=lambda: False)

    def __init__(self, path: Path, *, on_progress: Callable[[float], None] | None = None, repack: bool | None = None) -> None:
        self.path = path
        self.end_ids = frozenset({END})
        self.vocabulary_size = 256
        self.is_closed = False
        self.info = ModelInfo(
            name="bytes",
            vocabulary_size=256,
            vocabulary="256:0",
            context_tokens=4096,
            has_chat_template=False,
            parameters=0,
            layers=1,
            width=1,
            heads=1,
            ffn_width=1,
        )

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def detokenize(self, ids: Sequence[int]) -> bytes:
        return bytes(ids)

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        raise EngineError("no template")

    def close(self, reason: str = "") -> None:
        self.is_closed = True


class FakeContext:
    """Stands in for ``LlamaContext``: the token after ``t`` is ``t + 1``, unless ``answer`` says otherwise.

    ``hold()`` makes every decode wait for ``allow``; an abort ends the waiting. ``statuses`` are given out before zeros.
    """

    last: ClassVar[FakeContext]
    answer: ClassVar[Callable[[int], int]] = staticmethod(lambda token: token + 1)
    readable: ClassVar[bool] = True  # its attention

    def __init__(
        self,
        model: FakeModel,
        *,
        cells: int,
        sequences: int,
        rows: int,
        threads: int,
        unified: bool = True,
        attention_layers: Sequence[int] = (),
    ) -> None:
        FakeContext.last = self
        self.attention_layers = attention_layers
        self.has_attention = bool(attention_layers)
        self.reads_attention = False
        self.cells, self.sequences, self.rows, self.threads, self.unified = cells, sequences, rows, threads, unified
        self.abort = Flag()
        self.batches: list[list[Row]] = []
        self.kv: dict[int, list[int]] = {}
        self.statuses: deque[int | Exception] = deque()
        self.removable = True
        self.is_closed = False
        self.entered = threading.Semaphore(0)
        self._held = False
        self._allowed = threading.Semaphore(0)
        self._batch: list[Row] = []

    @property
    def count(self) -> int:
        return len(self._batch)

    @count.setter
    def count(self, value: int) -> None:
        del self._batch[value:]

    @property
    def last_place(self) -> tuple[int, int]:
        return self._batch[-1].sequence, self._batch[-1].position

    def add(self, token: int, position: int, sequence: int, *, wants_logits: bool) -> int:
        self._batch.append(Row(token, position, sequence, wants_logits))
        assert len(self._batch) <= self.rows
        return len(self._batch) - 1

    def add_shared(self, token: int, position: int, sequences: Sequence[int], *, wants_logits: bool) -> int:
        self._batch.append(Row(token, position, sequences[0], wants_logits, tuple(sequences[1:])))
        assert len(self._batch) <= self.rows
        return len(self._batch) - 1

    def add_run(self, tokens: Sequence[int], position: int, sequence: int, *, wants_logits: int) -> int:
        for index, token in enumerate(tokens):
            self.add(token, position + index, sequence, wants_logits=index >= len(tokens) - wants_logits)
        return len(self._batch) - 1

    def hold(self) -> None:
        self._held = True

    def allow(self, count: int = 1) -> None:
        self._allowed.release(count)

    def let_go(self) -> None:
        self._held = False
        self._allowed.release(1000)

    def decode(self) -> int:
        batch, self._batch = self._batch, []
        self.batches.append(batch)
        self.entered.release()
        while self._held and not self._allowed.acquire(timeout=0.001):
            if self.abort.is_set:
                return ABORTED
        status = self.statuses.popleft() if self.statuses else 0
        if isinstance(status, Exception):
            raise status
        if status == 0:
            for row in batch:
                for sequence in (row.sequence, *row.others):
                    tokens = self.kv.setdefault(sequence, [])
                    assert len(tokens) == row.position, f"sequence {sequence}: expected position {len(tokens)}, got {row.position}"
                    tokens.append(row.token)
        return status

    def logits(self, row: int) -> NDArray[np.float32]:
        asked = self.batches[-1][row]
        assert asked.wants_logits
        logits = np.zeros(256, dtype=np.float32)
        logits[type(self).answer(asked.token) % 256] = 10.0
        return logits

    def attention(self, row: int) -> NDArray[np.float32]:
        """All of it on the row's own token, but for 0.1 on each before it."""
        asked = self.batches[-1][row]
        if not self.readable:
            raise EngineError("attention: expected one that can be read")
        others = np.full(asked.position, 0.1, dtype=np.float32)
        return np.tile(np.append(others, 1.0 - others.sum()), (len(self.attention_layers), 1)).astype(np.float32)

    def use_threads(self, count: int) -> None:
        self.threads = count

    def remove(self, sequence: int, start: int, stop: int = -1) -> bool:
        if start > 0 and not self.removable and len(self.kv.get(sequence, [])) > start:
            return False
        del self.kv.setdefault(sequence, [])[start:]
        return True

    def copy(self, source: int, target: int, stop: int) -> None:
        self.kv[target] = self.kv[source][:stop]

    def clear(self) -> None:
        self.kv.clear()

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Reader:
    """A consumer thread's view of one generation."""

    woken: threading.Event = field(default_factory=threading.Event)
    pieces: list[TextPiece] = field(default_factory=list)
    end: GenerationEnd | None = None
    wakes: int = 0

    def wake(self) -> None:
        self.wakes += 1
        self.woken.set()

    def read(self, generation: Generation) -> GenerationEnd:
        """To the end."""
        while self.end is None:
            assert self.woken.wait(30), "the engine did not wake its consumer"
            self.woken.clear()
            pieces, self.end = generation.take()
            self.pieces += pieces
        return self.end

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def ids(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.ids]


def start(engine: LlamaEngine, prompt: str | list[int], **options: Any) -> tuple[Generation, Reader]:
    """Submit with sampling options (greedy unless told) and request options."""
    reader = Reader()
    names = set(SamplingOptions.__struct_fields__)
    sampling = {"temperature": 0.0} | {name: value for name, value in options.items() if name in names}
    further = {name: value for name, value in options.items() if name not in names}
    ids = engine.tokenize(prompt) if isinstance(prompt, str) else prompt
    return engine.submit(GenerationRequest(prompt_ids=ids, sampling=SamplingOptions(**sampling), **further), reader.wake), reader


def complete(engine: LlamaEngine, prompt: str | list[int], **options: Any) -> Reader:
    """Submit and read to the end."""
    generation, reader = start(engine, prompt, **options)
    reader.read(generation)
    return reader


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``LlamaEngine`` be built from fakes."""
    monkeypatch.setattr(llama_module, "LlamaModel", FakeModel)
    monkeypatch.setattr(llama_module, "LlamaContext", FakeContext)


def options(**changes: Any) -> EngineOptions:
    """One thread, a short context."""
    return EngineOptions(**({"threads": 1, "context_tokens": 256, "prefill_chunk": 16} | changes))
