"""A real pair, measured by the command against ``streamco serve``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamco.calibration.profile_store import load_profile
from streamco.cli.main import main
from streamco.client.client import Client
from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.errors import EngineError
from streamco.testing import running_server
from streamco.testing.engine import FakeEngine
from tests.support.modes import drafting

pytestmark = pytest.mark.model


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_real_pair_is_measured_and_a_client_begins_with_it(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    try:
        draft, target = (derived(packaged_model(), kind) for kind in ("Q4_0", "Q8_0"))
    except EngineError as exc:
        pytest.skip(str(exc))
    path = tmp_path / "pair.json"
    serve = ("--model", str(target), "--port", "0", "--threads", "1", "--context", "512", "--verify-places", "2")
    async with running_server(*serve) as url:
        words = ["--pair", "--device", str(draft), "--threads", "1", "--verifier", url.removesuffix("/v1"), "--rounds", "24"]
        code = await asyncio.to_thread(main, ["calibrate", *words, "--sequences", "3", "--max-tokens", "32", "--profile", str(path)])
    assert code == 0
    pair = load_profile(path).pair
    assert pair is not None
    assert 0.2 < pair.acceptance < 0.98
    assert (pair.rounds, pair.window, len(pair.step_times)) == (24, 4, 3)
    assert len(pair.importance_thresholds) == 9
    assert all(importance is not None for _, importance in pair.chunks)
    assert [size for size, _ in pair.verify_times] == [1, 2, 4, 8, 16]
    assert pair.rtt is not None
    assert pair.remote_step is not None
    assert pair.note == ""
    client = Client(DeviceEndpoint(FakeEngine()), profile=path, mode="speculate")
    assert drafting(client).estimates.acceptance == pytest.approx(pair.acceptance)
    await client.aclose()
