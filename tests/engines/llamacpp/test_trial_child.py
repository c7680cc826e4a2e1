"""The child that tries a model: a real model decodes several tokens with repacked weights, or the child dies."""

from __future__ import annotations

import signal
import sys

import numpy as np
import pytest

from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp import trials
from streamco.engines.llamacpp.amx_probe import Repacking, advertises_amx, allows_repacking, allows_tiles
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.gguf import derived
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.trial_child import main


@pytest.mark.model
def test_the_childs_part_decodes_several_tokens(engine: LlamaEngine) -> None:
    status = trials._run([sys.executable, "-m", "streamco.engines.llamacpp.trial_child", str(engine.path)])
    assert status is not None
    if allows_repacking(engine.path, engine._model.library):
        assert status == 0
    else:  # which signal is the processor's choice: SIGSEGV on some, SIGILL on others
        assert status < 0, "a signal killed the child, and nothing else went wrong in it"
        assert -status in set(signal.Signals)
        assert advertises_amx(), "nothing else kills it"


@pytest.mark.model
def test_the_childs_part_runs_here_too(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.setrlimit", lambda *_limits: None)
    safe = allows_repacking(engine.path, engine._model.library)  # weights in 16 bits are not repacked
    assert main([str(engine.path if safe else derived(engine.path, "F16"))]) == 0


@pytest.mark.model
def test_weights_in_tiles_give_the_same_tokens_and_other_buffers(engine: LlamaEngine) -> None:
    library = engine._model.library
    path = derived(engine.path, "Q4_0")
    if not allows_tiles(path, library):
        pytest.skip("this build has no kernels for tiles, or they don't run here")
    assert main([str(path), "tiles"]) == 0
    prompt = engine.tokenize("The capital of France is")
    found = []
    repackings: tuple[Repacking, ...] = (False, "tiles")
    for repack in repackings:
        model = LlamaModel(path, repack=repack)
        context = LlamaContext(model, cells=256, sequences=1, rows=16, threads=1)
        context.add_run(prompt, 0, 0, wants_logits=1)
        assert context.decode() == 0
        found.append(context.logits(len(prompt) - 1).copy())
        context.close()
        model.close()
    assert int(found[0].argmax()) == int(found[1].argmax())
    assert float(np.corrcoef(found[0], found[1])[0, 1]) > 0.99, "other kernels round otherwise, no more"
