"""The child of the AMX probe: a real model decodes several tokens with repacked weights, or the child dies."""

from __future__ import annotations

import signal
import sys

import pytest

from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp import amx_probe as probe
from streamco.engines.llamacpp.amx_child import main
from streamco.engines.llamacpp.amx_probe import advertises_amx, allows_repacking
from streamco.engines.llamacpp.gguf import derived


@pytest.mark.model
def test_the_childs_part_decodes_several_tokens(engine: LlamaEngine) -> None:
    status = probe._run([sys.executable, "-m", "streamco.engines.llamacpp.amx_child", str(engine.path)])
    assert status == (0 if allows_repacking(engine.path, engine._model.library) else -signal.SIGSEGV)
    assert status == 0 or advertises_amx(), "nothing else kills it"


@pytest.mark.model
def test_the_childs_part_runs_here_too(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.setrlimit", lambda *_limits: None)
    safe = allows_repacking(engine.path, engine._model.library)  # weights in 16 bits are not repacked
    assert main([str(engine.path if safe else derived(engine.path, "F16"))]) == 0
