"""Engines for the tests: on fakes, and on the packaged model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamco.emulation.step_emulation import StepEmulator
from streamco.engines.base import EngineOptions, StepTime
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.library import load_library
from streamco.errors import EngineError
from tests.engines import fakes
from tests.engines.llamacpp.vocabularies import SmallVocabulary

MakeEngine = Callable[..., LlamaEngine]


def _library() -> Any:
    """The llama.cpp that runs, compiled or prebuilt; skips where there is none."""
    try:
        return load_library()
    except EngineError as exc:
        pytest.skip(str(exc))


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    """Engines on ``FakeContext``; closed after the test."""
    fakes.install(monkeypatch)
    made: list[tuple[LlamaEngine, fakes.FakeContext]] = []

    def make(step_time: StepTime | None = None, **changes: Any) -> LlamaEngine:
        engine = LlamaEngine("bytes.gguf", fakes.options(**changes), pace=None if step_time is None else StepEmulator(step_time))
        made.append((engine, fakes.FakeContext.last))
        fakes.FakeContext.last.batches.clear()  # the warm-up
        while fakes.FakeContext.last.entered.acquire(blocking=False):
            pass
        return engine

    yield make
    for engine, context in made:
        context.let_go()
        engine.close()


@pytest.fixture(scope="session")
def engine() -> Iterator[LlamaEngine]:
    """The packaged model, one thread; skips where it isn't installed."""
    _library()
    try:
        path = packaged_model()
    except EngineError as exc:
        pytest.skip(str(exc))
    loaded = LlamaEngine(path, EngineOptions(threads=1, context_tokens=512, max_sequences=4))
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallVocabulary]:
    """A vocabulary without a model, for grammars."""
    _library()
    pytest.importorskip("llguidance")
    pytest.importorskip("gguf")
    found = SmallVocabulary(tmp_path_factory.mktemp("vocabulary"))
    yield found
    found.close()


@pytest.fixture
def quantising() -> None:
    """Skip a test that quantises a model if the llama.cpp that runs can't, as the prebuilt one."""
    library = _library()
    if lacks := [name for name in getattr(library, "missing", ()) if "quantize" in name]:
        pytest.skip(f"{library.__version__} lacks {', '.join(lacks)}")
