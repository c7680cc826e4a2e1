"""The scripted vLLM and SGLang: the package's own readers understand them, and their refusals and oddities are the real servers'."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from asyncio import to_thread
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from streamco.errors import EndpointProtocolError
from streamco.testing import json_answer
from streamco.wire.openai.stream import ChatStreamParser
from streamco.wire.prompt_logprobs import read_sglang, read_vllm, sglang_request, vllm_request
from tests.support.logprob_servers import ScriptedSGLang, ScriptedVLLM
from tests.wire.openai.events import text_of

IDS = [3, 1, 4, 1]


def target(ids: Sequence[int]) -> Mapping[int, float]:
    """After an id comes the next higher one, mostly."""
    return {ids[-1] + 1: 0.75, ids[-1]: 0.25, 99: 0.0}


def tokenize(text: str) -> Sequence[int]:
    return [len(word) for word in text.split()]


async def post(server: ScriptedVLLM | ScriptedSGLang, path: str, body: object = None, key: str = "") -> tuple[int, bytes]:
    url = server.url.removesuffix("/v1") + path
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {key}"})

    def send() -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    return await to_thread(send)


async def test_vllm_gives_the_targets_logprobs_at_each_position_of_the_draft() -> None:
    async with ScriptedVLLM(target, tokenize) as server:
        _, answer = await post(server, "/v1/completions", vllm_request("scripted", IDS, 2, 2))
        assert server.answered == 1
    first, second, last = read_vllm(answer, IDS, 2).positions
    assert (first.best, second.best, last.best) == (2, 5, 2)
    assert dict(zip(first.ids, first.logprobs, strict=True)) == pytest.approx({2: math.log(0.75), 1: math.log(0.25), 4: -math.inf})


async def test_sglang_gives_the_same_and_counts_what_its_cache_holds() -> None:
    async with ScriptedSGLang(target, tokenize) as server:
        body = sglang_request(IDS, 2, 2)
        _, cold = await post(server, "/generate", body)
        _, warm = await post(server, "/generate", body)
    assert [json.loads(answer)["meta_info"]["cached_tokens"] for answer in (cold, warm)] == [0, 1]
    assert read_sglang(cold, IDS, 2) == read_sglang(warm, IDS, 2)
    assert [position.best for position in read_sglang(cold, IDS, 2).positions] == [2, 5, 2]


async def test_vllm_writes_a_number_and_sglang_null_for_a_probability_of_zero() -> None:
    async with ScriptedVLLM(target, tokenize) as vllm, ScriptedSGLang(target, tokenize) as sglang:
        _, one = await post(vllm, "/v1/completions", vllm_request("scripted", IDS, 1, 3))
        _, other = await post(sglang, "/generate", sglang_request(IDS, 1, 3))
    row = json.loads(one)["choices"][0]["prompt_logprobs"][-1]
    assert row["99"]["logprob"] == -9999.0
    assert json.loads(other)["meta_info"]["input_top_logprobs"][-1][-1] == [None, 99, None]
    assert json.loads(other)["meta_info"]["input_top_logprobs"][0] is None, "the first row is empty"


async def test_the_next_answers_may_be_replaced_or_corrupted() -> None:
    def without_rows(body: Any) -> Any:
        body["choices"][0]["prompt_logprobs"] = None
        return body

    async with ScriptedVLLM(target, tokenize) as server:
        server.plan(json_answer({"detail": "busy"}, status=503), without_rows, None)
        request = vllm_request("scripted", IDS, 2, 2)
        assert (await post(server, "/v1/completions", request))[0] == 503
        _, corrupted = await post(server, "/v1/completions", request)
        with pytest.raises(EndpointProtocolError, match="prompt_logprobs for 4 tokens, got 0"):
            read_vllm(corrupted, IDS, 2)
        for _ in range(2):
            assert read_vllm((await post(server, "/v1/completions", request))[1], IDS, 2).positions


@pytest.mark.parametrize("kind", [ScriptedVLLM, ScriptedSGLang])
async def test_what_is_too_long_is_refused(kind: type[ScriptedVLLM | ScriptedSGLang]) -> None:
    path, body = ("/v1/completions", vllm_request("m", IDS, 1, 1)) if kind is ScriptedVLLM else ("/generate", sglang_request(IDS, 1, 1))
    async with kind(target, tokenize, context_tokens=4) as server:
        status, answer = await post(server, path, body)
        assert server.answered == 0
    assert status == 400
    assert b"maximum context length is 4 tokens, got 5" in answer


async def test_vllm_refuses_more_logprobs_than_its_limit() -> None:
    async with ScriptedVLLM(target, tokenize, max_logprobs=2) as server:
        status, answer = await post(server, "/v1/completions", vllm_request("m", IDS, 1, 3))
    assert status == 400
    assert b"greater than max allowed: 2" in answer


async def test_a_key_is_asked_for_on_every_path() -> None:
    async with ScriptedVLLM(target, tokenize, key="secret") as server:
        assert (await post(server, "/v1/models"))[0] == 401
        assert (await post(server, "/v1/models", key="secret"))[0] == 200


async def test_models_versions_and_ids_of_a_text_are_served() -> None:
    async with ScriptedVLLM(target, tokenize, model="m", context_tokens=77) as vllm, ScriptedSGLang(target, tokenize, model="m") as sglang:
        models = [json.loads((await post(server, "/v1/models"))[1])["data"][0] for server in (vllm, sglang)]
        assert [(each["id"], each["owned_by"]) for each in models] == [("m", "vllm"), ("m", "sglang")]
        assert models[0]["max_model_len"] == 77
        assert json.loads((await post(vllm, "/version"))[1])["version"]
        assert json.loads((await post(sglang, "/get_model_info"))[1])["model_path"] == "m"
        assert json.loads((await post(vllm, "/tokenize", {"prompt": "to be or"}))[1]) == {"tokens": [2, 2, 2]}
        assert (await post(vllm, "/generate", {}))[0] == 404


async def test_a_plain_stream_is_greedy_and_has_its_ids() -> None:
    async with ScriptedVLLM(target, tokenize) as server:
        _, answer = await post(server, "/v1/completions", {"prompt": [5], "max_tokens": 3, "stream": True})
    parser = ChatStreamParser(api="completions")
    chunks = parser.feed(answer) + parser.close()
    assert text_of(chunks) == " 6 7 8"
    assert [choice.token_ids for chunk in chunks for choice in chunk.choices if choice.token_ids] == [[6], [7], [8]]
    assert parser.finish_reason == "length"
