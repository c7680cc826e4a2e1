"""A split model at the proxy: the openai package, the proxy and a split server, over real sockets."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

import streamco
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import split_model
from streamco.engines.split.middle_engine import MiddleEngine
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions, parse_config
from streamco.proxy.from_config import build_client
from streamco.server.options import ServeOptions
from streamco.server.split.service import serving_middle
from tests.engines.split.local_link import CELLS

pytestmark = [pytest.mark.peer, pytest.mark.model]

PROMPT = "Name three rivers in France."


@pytest.mark.long
async def test_a_program_that_speaks_openais_api_gets_the_whole_models_answer(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    files = split_model(packaged_model(), tmp_path)
    device = streamco.DeviceEndpoint(packaged_model(), options=EngineOptions(threads=1, context_tokens=CELLS, exact=True))
    async with streamco.Client(device) as whole:
        answer = await whole.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], max_tokens=10, temperature=0)
        expected = answer.choices[0].message.content
    middle = MiddleEngine(files.middle, cells=CELLS, sequences=4, threads=1, row_costs={1: 0.005, 64: 0.05})
    async with serving_middle(middle, ServeOptions(port=0)) as url:
        config = parse_config(f'[split]\nparts = "{files.stem}"\nservers = ["{url}"]\nthreads = 1\ncontext = {CELLS}\n')
        async with (
            build_client(config) as client,
            serving(client, ProxyOptions(port=0)) as base_url,
            openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as caller,
        ):
            raw = await caller.chat.completions.with_raw_response.create(
                model="streamco", messages=[{"role": "user", "content": PROMPT}], max_tokens=10, temperature=0
            )
    middle.close()
    assert raw.parse().choices[0].message.content == expected
    assert (raw.headers["x-streamco-mode"], raw.headers["x-streamco-exact"]) == ("split", "true")
    assert 0 < int(raw.headers["x-streamco-trips"]) <= 10
    assert int(raw.headers["x-streamco-bytes-up"]) > 4 * middle.info.width
