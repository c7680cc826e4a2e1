"""What the tests of grammars share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.llamacpp.vocabularies import SmallVocabulary


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallVocabulary]:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    found = SmallVocabulary(tmp_path_factory.mktemp("vocabulary"))
    yield found
    found.close()
