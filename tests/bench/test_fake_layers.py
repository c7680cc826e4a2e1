"""Middle layers without weights: states come back as they went, after the time they should take, through a real split server, too."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from bench.fake_layers import FakeLayers
from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartInfo, read_part, split_model
from streamco.engines.split.layers import StateRun
from streamco.engines.split.middle_engine import RowsBatch
from streamco.errors import ConfigError, EngineError
from streamco.events import StreamEnded
from streamco.server.options import ServeOptions
from streamco.server.split.service import serving_middle

INFO = PartInfo("middle", "digest", 2, 28, 30, 4, "llama")


def ended(layers: FakeLayers, *sizes: int) -> RowsBatch:
    done = threading.Event()
    batch = RowsBatch([StateRun(index, 0, np.full((rows, 4), index, np.float32)) for index, rows in enumerate(sizes)], done.set)
    layers.submit(batch)
    assert done.wait(10)
    return batch


def test_states_come_back_as_they_went_and_no_sooner_than_told() -> None:
    layers = FakeLayers(INFO, lambda rows: 0.01 + 0.001 * rows)
    began = time.monotonic()
    batch = ended(layers, 3, 2)
    assert time.monotonic() - began >= 0.015
    assert batch.seconds >= 0.015
    assert batch.states is not None
    for run, states in zip(batch.runs, batch.states, strict=True):
        assert np.array_equal(states, run.states)
        assert states is not run.states
    assert layers.batches == [(3, 2)]
    layers.close()


def test_states_may_come_from_a_function_of_the_run() -> None:
    layers = FakeLayers(INFO, lambda _rows: 0.0, compute=lambda run: run.states + np.float32(run.position + 1))
    batch = ended(layers, 2, 3)
    assert batch.states is not None
    for run, states in zip(batch.runs, batch.states, strict=True):
        assert np.array_equal(states, run.states + 1)
    layers.close()


def test_costs_are_those_that_were_told() -> None:
    layers = FakeLayers(INFO, lambda rows: 0.0 if rows == 1 else 0.002 * rows, cells=100, batch_rows=40)
    assert layers.row_costs() == {1: 1e-6, 2: 0.004, 4: 0.008, 8: 0.016, 16: 0.032, 32: 0.064}
    layers.close()


def test_after_closing_nothing_is_taken() -> None:
    layers = FakeLayers(INFO, lambda _rows: 0.0)
    woken = threading.Event()
    layers.ping(woken.set)
    assert woken.wait(10)
    layers.close()
    layers.close()
    with pytest.raises(EngineError, match="expected open layers, got closed ones"):
        layers.ping(woken.set)


def test_another_part_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected the middle part of a model, got its head part"):
        FakeLayers(replace(INFO, kind="head"), lambda _rows: 0.0)


@pytest.mark.long
@pytest.mark.model
async def test_a_split_server_can_have_them(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    files = split_model(packaged_model(), tmp_path)
    layers = FakeLayers(read_part(files.middle), lambda _rows: 0.0, cells=256, sequences=2)
    async with serving_middle(layers, ServeOptions(port=0)) as url:
        endpoint = SplitEndpoint(files.stem, url, options=EngineOptions(threads=1, context_tokens=256, max_sequences=1), drafts=None)
        await endpoint.start()
        stream = endpoint.open(
            Request(messages=[{"role": "user", "content": "Hello"}], sampling=SamplingOptions(temperature=0, max_tokens=3))
        )
        while not isinstance(await stream.receive(), StreamEnded):
            pass
        assert sum(map(sum, layers.batches)) == endpoint.traffic.rows_up > 3
        await endpoint.aclose()
    layers.close()
