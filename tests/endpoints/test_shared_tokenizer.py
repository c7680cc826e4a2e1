"""Answers go over to stock servers by plain ids where both sides read a sample alike, and by text everywhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.shared_tokenizer import SAMPLE
from streamco.engines.base import Engine
from streamco.errors import EngineError
from streamco.events import Partial
from streamco.server.app import serving
from streamco.testing import DONE, FakeEngine, RecordedRequest, ScriptedResponse, ScriptedServer, json_answer, sse_event, stream_answer
from streamco.testing.engine import FakeVocabulary
from tests.endpoints.helpers import ask, opened

QUESTION = {"role": "user", "content": "count"}
ASKED = Request(messages=[QUESTION], sampling=SamplingOptions(max_tokens=5), extra={"user": "u"})
MODELS = {"vllm": "vllm", "llama-server": "llamacpp"}
OTHER_PATHS = ("/props", "/version", "/get_model_info", "/api/version", "/tokenize", "/apply-template")


def emitted(texts: Sequence[tuple[str, list[int]]]) -> ScriptedResponse:
    """A text completion as vLLM streams it, ids included."""
    choices: list[dict[str, Any]] = [{"index": 0, "text": text, "token_ids": ids, "finish_reason": None} for text, ids in texts]
    choices.append({"index": 0, "text": "", "finish_reason": "stop"})
    events = [sse_event({"id": "1", "object": "text_completion", "choices": [choice]}) for choice in choices]
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[*events, DONE])


@asynccontextmanager
async def stock(kind: str, engine: Engine, *, reads: Engine | None = None) -> AsyncIterator[ScriptedServer]:
    """A server that calls itself vLLM or llama.cpp's and reads prompts as ``reads`` does, by default as the engine."""
    reader = reads or engine

    def tokenize(request: RecordedRequest) -> ScriptedResponse:
        body = request.json()
        if "messages" in body:
            assert kind == "vllm"
            return json_answer({"tokens": reader.tokenize(reader.apply_template(body["messages"])), "count": 1, "max_model_len": 9})
        return json_answer({"tokens": reader.tokenize(body["prompt" if kind == "vllm" else "content"])})

    async with ScriptedServer(stream_answer()) as server:
        for path in OTHER_PATHS:
            server.route(path, json_answer({}, status=404))
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": MODELS[kind], "max_model_len": 64}]}))
        server.route("/v1/completions", emitted([(" three", [7]), (" four", [8])]))
        server.route("/tokenize", tokenize)
        if kind == "llama-server":
            server.route("/apply-template", lambda request: json_answer({"prompt": reader.apply_template(request.json()["messages"])}))
            server.route("/props", json_answer({"default_generation_settings": {"n_ctx": 64}}))
        yield server


def begun(engine: Engine, text: str = " one two") -> Partial:
    ids = tuple(engine.tokenize(text))
    return Partial(text=text, ids=ids, vocabulary=engine.info.vocabulary, tokens=len(ids))


async def sent(server: ScriptedServer, endpoint: OpenAIEndpoint, request: Request) -> tuple[str, dict[str, Any]]:
    """Path and body of what goes out for a request."""
    await ask(endpoint, request)
    body: dict[str, Any] = server.requests[-1].json()
    return server.requests[-1].path, body


@pytest.mark.parametrize("kind", MODELS)
async def test_a_chat_is_handed_over_as_a_prompt_of_ids(kind: str) -> None:
    engine = FakeEngine()
    async with stock(kind, engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        info = await endpoint.probe()
        assert (info.kind, info.vocabulary, info.vocabulary_size) == (kind, engine.info.vocabulary, engine.info.vocabulary_size)
        assert endpoint.capabilities.vocabulary == engine.info.vocabulary
        assert (endpoint.capabilities.continuation, endpoint.capabilities.pre_copy) == ("token_ids", "warm")
        path, body = await sent(server, endpoint, replace(ASKED, partial=begun(engine)))
        assert path == "/v1/completions"
        assert engine.detokenize(body["prompt"]).decode() == "user: count\nassistant: one two"
        assert (body["max_tokens"], body["user"], body.get("return_token_ids")) == (5, "u", True if kind == "vllm" else None)
        assert "messages" not in body
        answered = await ask(endpoint, replace(ASKED, partial=begun(engine)))
        assert answered.text == " three four"
        assert [choice.token_ids for chunk in answered.chunks for choice in chunk.choices][:2] == [[7], [8]]


@pytest.mark.parametrize("kind", MODELS)
async def test_both_read_the_same_sample(kind: str) -> None:
    engine = FakeEngine()
    async with stock(kind, engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        asked = next(r for r in server.requests if r.path == ("/tokenize" if kind == "vllm" else "/apply-template")).json()
        assert asked["model"] == "m"
        assert asked["messages"][0] == {"role": "user", "content": SAMPLE}
        if kind == "llama-server":
            there = server.requests[-1].json()
            assert (there["add_special"], there["parse_special"]) == (True, True)


@pytest.mark.parametrize("kind", MODELS)
async def test_a_text_prompt_is_compared_without_a_template(kind: str) -> None:
    engine = FakeEngine()
    async with stock(kind, engine) as server, opened(server.url, tokenizer=engine, api="completions") as endpoint:
        await endpoint.probe()
        assert server.count("/apply-template") == 0
        path, body = await sent(server, endpoint, Request(prompt="count", sampling=ASKED.sampling, partial=begun(engine)))
        assert path == "/v1/completions"
        assert engine.detokenize(body["prompt"]).decode() == "count one two"


async def test_a_prompt_in_the_chat_api_is_a_message_first() -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        _, body = await sent(server, endpoint, Request(prompt="count", sampling=ASKED.sampling, partial=begun(engine)))
        assert engine.detokenize(body["prompt"]).decode() == "user: count\nassistant: one two"


async def test_a_device_is_loaded_to_compare_and_used_from_then_on() -> None:
    engine = FakeEngine()
    device = DeviceEndpoint(engine)
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=device) as endpoint:
        assert (await endpoint.probe()).vocabulary == engine.info.vocabulary
        assert (await sent(server, endpoint, replace(ASKED, partial=begun(engine))))[0] == "/v1/completions"


async def test_a_device_that_can_not_be_loaded_says_so(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=DeviceEndpoint(tmp_path / "none.gguf")) as endpoint:
        with pytest.raises(EngineError):
            await endpoint.probe()


class Otherwise(FakeEngine):
    """Reads words without their spaces: same vocabulary, other ids."""

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        return super().tokenize(" ".join(text.split()))


class Untemplated(FakeEngine):
    """A base model."""

    def apply_template(self, messages: Any, *, add_generation_prompt: bool = True) -> str:
        raise EngineError("template: expected one, got none")


@pytest.mark.parametrize("kind", MODELS)
async def test_a_server_that_reads_otherwise_gets_text(kind: str) -> None:
    engine = FakeEngine()
    async with stock(kind, engine, reads=Otherwise()) as server, opened(server.url, tokenizer=engine) as endpoint:
        assert (await endpoint.probe()).vocabulary is None
        assert (endpoint.capabilities.vocabulary, endpoint.capabilities.continuation) == (None, "continue_final_message")
        path, body = await sent(server, endpoint, replace(ASKED, partial=begun(engine)))
        assert path == "/v1/chat/completions"
        assert body["messages"] == [QUESTION, {"role": "assistant", "content": " one two"}]
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert "return_token_ids" not in body


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({}, status=404),
        json_answer({"tokens": ["a"]}),
        json_answer({"count": 3}),
        json_answer([1]),
        ScriptedResponse(steps=[b"nonsense"]),
    ],
)
@pytest.mark.parametrize(("kind", "path"), [("vllm", "/tokenize"), ("llama-server", "/tokenize"), ("llama-server", "/apply-template")])
async def test_a_server_that_does_not_say_gets_text(kind: str, path: str, answer: ScriptedResponse) -> None:
    engine = FakeEngine()
    async with stock(kind, engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        server.route(path, answer)
        assert (await endpoint.probe()).vocabulary is None
        assert endpoint.capabilities.vocabulary is None


async def test_a_later_probe_forgets_what_is_no_longer_so() -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        assert (await endpoint.probe()).vocabulary is not None
        server.route("/tokenize", json_answer({"tokens": [1, 2, 3]}))
        assert (await endpoint.probe()).vocabulary is None
        assert (endpoint.capabilities.vocabulary, endpoint.capabilities.continuation) == (None, "continue_final_message")


async def test_a_model_without_a_template_compares_no_chats() -> None:
    engine = Untemplated()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        assert (await endpoint.probe()).vocabulary is None
        assert server.count("/tokenize") == 0


async def test_a_server_that_takes_strings_only_is_not_asked() -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": "me"}]}))
        assert (await endpoint.probe()).kind == "llama-cpp-python"
        assert endpoint.capabilities.vocabulary is None
        assert server.count("/tokenize") == 0


async def test_what_was_declared_keeps_a_server_from_being_asked() -> None:
    engine = FakeEngine()
    declared = Capabilities(continuation="continue_final_message")
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine, capabilities=declared) as endpoint:
        await endpoint.probe()
        assert endpoint.capabilities.vocabulary is None
        assert server.count("/tokenize") == 0


async def test_streamco_serve_says_it_itself_and_takes_them_packed() -> None:
    engine = FakeEngine()
    async with serving(engine) as url, opened(url, model="fake", tokenizer=engine) as endpoint:
        assert (await endpoint.probe()).kind == "streamco"
        assert endpoint.capabilities.pre_copy == "append"
        await ask(endpoint, replace(ASKED, partial=begun(engine)))
        assert engine.detokenize(engine.requests[-1].prompt_ids).decode() == "user: count\nassistant: one two"


# What goes as text all the same


TEXT_ONLY = {
    "tools": replace(ASKED, extra={"tools": []}),
    "a schema": replace(ASKED, extra={"response_format": {"type": "json_object"}}),
    "a template's option": replace(ASKED, extra={"chat_template_kwargs": {"enable_thinking": False}}),
    "an image": replace(ASKED, messages=[{"role": "user", "content": [{"type": "text", "text": "x"}]}]),
    "a name": replace(ASKED, messages=[{"role": "user", "content": "x", "name": "n"}]),
    "another model": replace(ASKED, model="other"),
}


@pytest.mark.parametrize("request_", TEXT_ONLY.values(), ids=TEXT_ONLY)
async def test_what_only_the_chat_api_does_goes_as_text(request_: Request) -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        path, body = await sent(server, endpoint, replace(request_, partial=begun(engine)))
        assert (path, body["messages"][-1]["content"]) == ("/v1/chat/completions", " one two")


@pytest.mark.parametrize("partial", [Partial(text="one"), Partial(text="one", ids=(1,), vocabulary="other"), Partial(text="one", ids=())])
async def test_an_answer_without_ids_of_this_vocabulary_goes_as_text(partial: Partial) -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        path, body = await sent(server, endpoint, replace(ASKED, partial=partial))
        assert (path, body["messages"][-1]["content"]) == ("/v1/chat/completions", "one")


class Halves(FakeEngine):
    """The last token of every text is the first half of a code point."""

    def detokenize(self, ids: Sequence[int]) -> bytes:
        return super().detokenize(ids) + b"\xf0\x9f"


async def test_ids_that_end_inside_a_code_point_go_as_text() -> None:
    """vLLM 0.32 writes the whole prompt out before the answer then."""
    engine = Halves()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        path, _ = await sent(server, endpoint, replace(ASKED, partial=begun(engine)))
        assert path == "/v1/chat/completions"


async def test_a_template_that_refuses_the_messages_leaves_the_text() -> None:
    class Refusing(FakeEngine):
        def apply_template(self, messages: Any, *, add_generation_prompt: bool = True) -> str:
            if messages[0]["role"] == "system":
                raise EngineError("template: expected no system message, got one")
            return super().apply_template(messages, add_generation_prompt=add_generation_prompt)

    engine = Refusing()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        system = {"role": "system", "content": "be brief"}
        path, _ = await sent(server, endpoint, replace(ASKED, messages=[system, QUESTION], partial=begun(engine)))
        assert path == "/v1/chat/completions"


async def test_a_closed_device_leaves_the_text() -> None:
    engine = FakeEngine()
    device = DeviceEndpoint(engine)
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=device) as endpoint:
        await endpoint.probe()
        device._engine = None
        path, _ = await sent(server, endpoint, replace(ASKED, partial=begun(engine)))
        assert path == "/v1/chat/completions"


# Limits and stop strings


async def test_an_answer_without_a_limit_may_fill_the_context() -> None:
    """The completions API has a limit of its own, of 16 tokens."""
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        _, body = await sent(server, endpoint, replace(ASKED, sampling=SamplingOptions(), partial=begun(engine)))
        assert body["max_tokens"] == 64 - len(body["prompt"])


async def test_without_a_limit_and_a_known_context_it_goes_as_text() -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": "vllm"}]}))
        await endpoint.probe()
        path, _ = await sent(server, endpoint, replace(ASKED, sampling=SamplingOptions(), partial=begun(engine)))
        assert path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "request_", [replace(ASKED, sampling=SamplingOptions(stop=("x",))), replace(ASKED, extra={"stop": "x"})], ids=["sampling", "extra"]
)
async def test_vllm_is_asked_for_no_ids_beside_stop_strings(request_: Request) -> None:
    """vLLM holds text back for them and gives its ids at once: no endpoint could continue after those."""
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        assert (await sent(server, endpoint, ASKED))[1]["return_token_ids"] is True
        assert "return_token_ids" not in (await sent(server, endpoint, request_))[1]


async def test_a_cache_is_warmed_with_the_ids_that_will_follow() -> None:
    engine = FakeEngine()
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        path, ahead = await sent(server, endpoint, replace(ASKED, partial=begun(engine), prefill_only=True))
        _, then = await sent(server, endpoint, replace(ASKED, partial=begun(engine, " one two three")))
        assert (path, ahead["max_tokens"]) == ("/v1/completions", 1)
        assert then["prompt"][: len(ahead["prompt"])] == ahead["prompt"]


async def test_another_vocabulary_of_the_same_words_is_another() -> None:
    engine, other = FakeEngine(), FakeEngine(vocabulary=FakeVocabulary("other"))
    async with stock("vllm", engine) as server, opened(server.url, tokenizer=engine) as endpoint:
        await endpoint.probe()
        path, _ = await sent(server, endpoint, replace(ASKED, partial=begun(other)))
        assert path == "/v1/chat/completions"
