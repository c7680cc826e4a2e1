"""Response objects as dicts and JSON, as OpenAI's SDK gives them for the same data (compared with it where it is installed)."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import msgspec
import pytest

from streamco.client.chat import Answer
from streamco.client.driver import SpeculatedChunk
from streamco.core.report_parts import AnswerUsage
from streamco.openai_types import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    Choice,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionTokensDetails,
    CompletionUsage,
    FunctionDelta,
    PromptTokensDetails,
    ResponseModel,
    ToolCall,
    ToolCallDelta,
    further_fields,
    with_further,
    without_further,
)

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
HEAD = {"id": "c-1", "created": 7, "model": "gpt-4o"}
COMPLETIONS: list[dict[str, Any]] = [
    {
        **HEAD,
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hé"}}],
    },
    {
        **HEAD,
        "object": "chat.completion",
        "choices": [
            {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None, "tool_calls": [CALL]}},
            {
                "index": 1,
                "finish_reason": "length",
                "message": {"role": "assistant", "content": "x", "refusal": "no", "reasoning_content": "hm"},
                "logprobs": {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}], "refusal": None},
            },
        ],
        "usage": USAGE,
        "service_tier": "default",
        "system_fingerprint": "fp",
    },
]
CHUNKS: list[dict[str, Any]] = [
    {
        **HEAD,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
    },
    {
        **HEAD,
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": 0,
                "delta": {"reasoning": "so", "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}]},
                "finish_reason": None,
            }
        ],
    },
    {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE},
]
DATA = [*((ChatCompletion, each) for each in COMPLETIONS), *((ChatCompletionChunk, each) for each in CHUNKS)]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"exclude_unset": True},
    {"exclude_none": True},
    {"mode": "json"},
    {"include": {"id", "choices"}},
    {"exclude": {"choices", "usage"}},
]


def openais(kind: type[ResponseModel], data: dict[str, Any]) -> Any:
    """The same data as OpenAI's SDK holds it."""
    chat = pytest.importorskip("openai.types.chat")
    return getattr(chat, kind.__name__).model_validate(data)


@pytest.mark.parametrize(("kind", "data"), DATA)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings) or "defaults")  # sets have no order
def test_a_dump_is_that_of_openais_sdk(kind: type[ResponseModel], data: dict[str, Any], settings: dict[str, Any]) -> None:
    assert msgspec.convert(data, kind).model_dump(**settings) == openais(kind, data).model_dump(**settings)


@pytest.mark.parametrize(("kind", "data"), DATA)
def test_dicts_and_json_are_those_of_openais_sdk(kind: type[ResponseModel], data: dict[str, Any]) -> None:
    ours, theirs = msgspec.convert(data, kind), openais(kind, data)
    assert ours.to_dict() == theirs.to_dict() == data
    assert ours.to_dict(exclude_none=True) == theirs.to_dict(exclude_none=True)
    assert json.loads(ours.to_json()) == json.loads(theirs.to_json())
    assert json.loads(ours.model_dump_json(exclude_none=False)) == json.loads(theirs.model_dump_json())
    assert json.loads(ours.model_dump_json()) == json.loads(theirs.model_dump_json(exclude_none=True))
    assert json.loads(ours.model_dump_json(exclude_unset=True)) == json.loads(theirs.model_dump_json(exclude_unset=True))


@pytest.mark.parametrize(("kind", "data"), DATA)
def test_a_dict_holds_what_the_server_sent(kind: type[ResponseModel], data: dict[str, Any]) -> None:
    assert msgspec.convert(data, kind).to_dict() == data


@pytest.mark.parametrize(("kind", "data"), DATA)
def test_an_object_is_read_as_pairs_as_openais_are(kind: type[ResponseModel], data: dict[str, Any]) -> None:
    ours = msgspec.convert(data, kind)
    assert dict(ours).keys() == dict(openais(kind, data)).keys() == ours.model_dump().keys()
    assert all(getattr(ours, name) is value for name, value in ours if hasattr(ours, name)), "nested objects stay what they are"


@pytest.mark.parametrize(("kind", "data"), DATA)
def test_fastapi_encodes_an_object_as_it_encodes_openais(kind: type[ResponseModel], data: dict[str, Any]) -> None:
    encode = pytest.importorskip("fastapi.encoders").jsonable_encoder
    assert encode(msgspec.convert(data, kind)) == encode(openais(kind, data))


def test_a_view_of_fastapi_returns_an_answer_with_all_that_its_server_sent() -> None:
    fastapi, client = pytest.importorskip("fastapi"), pytest.importorskip("fastapi.testclient")
    answer = with_further(msgspec.convert(COMPLETIONS[0], Answer), {"citations": ["https://a.example"]})
    app = fastapi.FastAPI()
    app.get("/", response_model=None)(lambda: answer)
    assert client.TestClient(app).get("/").json() == answer.model_dump(mode="json")
    assert "report" not in dict(answer)


@pytest.mark.parametrize(("kind", "data"), DATA)
def test_the_type_of_an_answer_may_be_the_return_type_of_a_view(kind: type[ResponseModel], data: dict[str, Any]) -> None:
    fastapi, client = pytest.importorskip("fastapi"), pytest.importorskip("fastapi.testclient")
    answer = with_further(msgspec.convert(data, kind), {"citations": ["https://a.example"], "note": None})

    def view() -> Any:
        return answer

    view.__annotations__["return"] = kind
    app = fastapi.FastAPI()
    app.get("/")(view)
    app.get("/list", response_model=list[kind])(lambda: [answer])  # type: ignore[valid-type]
    browser = client.TestClient(app)
    assert browser.get("/").text == answer.model_dump_json()
    assert browser.get("/list").json() == [json.loads(answer.model_dump_json())]
    assert kind.__name__ in browser.get("/openapi.json").text


def test_json_that_is_sent_on_has_no_nulls() -> None:
    chunk = msgspec.convert(CHUNKS[0], ChatCompletionChunk)
    assert "null" not in chunk.model_dump_json()
    assert chunk.model_dump()["usage"] is None, "a dict is OpenAI's"


@pytest.mark.parametrize(("kind", "data"), DATA)
def test_reading_as_pairs_leaves_equality_truth_and_msgspec_alone(kind: type[ResponseModel], data: dict[str, Any]) -> None:
    ours, same = msgspec.convert(data, kind), msgspec.convert(data, kind)
    assert ours == same
    assert ours
    assert msgspec.json.decode(msgspec.json.encode(ours), type=kind) == ours
    assert msgspec.structs.asdict(ours).keys() == set(kind.__struct_fields__)


def test_fields_of_openai_that_were_not_sent_are_null_in_a_whole_dump() -> None:
    dumped = ChatCompletionMessage(content="x").model_dump()
    assert dumped == {
        "content": "x",
        "role": "assistant",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }


def test_json_is_one_line_unless_indented() -> None:
    message = ChatCompletionMessage(content="Hé")
    assert message.model_dump_json(exclude_unset=True) in {'{"content":"Hé","role":"assistant"}', '{"role":"assistant","content":"Hé"}'}
    assert message.to_json().splitlines()[0] == "{"
    assert message.to_json(indent=None).count("\n") == 0


def test_fields_that_openai_does_not_have_are_dumped_only_if_set() -> None:
    assert "reasoning_content" not in ChatCompletionMessage(content="x").model_dump()
    assert ChatCompletionMessage(content="x", reasoning_content="hm").model_dump()["reasoning_content"] == "hm"
    assert ChunkChoice(delta=ChoiceDelta(content="x"), token_ids=[5]).to_dict()["token_ids"] == [5]
    assert "is_estimated" not in AnswerUsage().to_dict()
    assert AnswerUsage(is_estimated=True).to_dict()["is_estimated"] is True
    chunk = SpeculatedChunk(origin="draft", retracted=3)
    assert {name: chunk.model_dump()[name] for name in ("origin", "retracted")} == {"origin": "draft", "retracted": 3}
    assert "settled" not in chunk.model_dump()


def test_the_report_is_no_part_of_the_answer() -> None:
    assert "report" not in Answer(id="a").model_dump()


def test_further_fields_of_a_server_are_dumped() -> None:
    message = with_further(ChatCompletionMessage(content="x"), {"citations": ["https://x"], "sources": None})
    assert message.to_dict() == {"role": "assistant", "content": "x", "citations": ["https://x"], "sources": None}
    assert message.to_dict(exclude_none=True) == {"role": "assistant", "content": "x", "citations": ["https://x"]}
    assert "further" not in message.model_dump()
    assert json.loads(message.model_dump_json())["citations"] == ["https://x"]


def test_further_fields_are_attributes_and_in_model_extra_as_in_openais_sdk() -> None:
    data = {**CHUNKS[0], "citations": ["https://x"], "timings": {"predicted_n": 3}, "error": None}
    chunk = with_further(msgspec.convert(CHUNKS[0], ChatCompletionChunk), {name: data[name] for name in ("citations", "timings", "error")})
    theirs = openais(ChatCompletionChunk, data)
    for name in ("citations", "timings", "error", "model_extra"):
        assert getattr(chunk, name) == getattr(theirs, name)
    for each in (chunk, theirs):
        assert not hasattr(each, "search_results")
        with pytest.raises(AttributeError, match="search_results"):
            getattr(each, "search_results")  # noqa: B009  the types don't have it
    assert chunk.to_dict() == theirs.to_dict() == data
    assert isinstance(chunk, ChatCompletionChunk)
    assert repr(chunk).startswith("ChatCompletionChunk(")


def test_ordinary_objects_have_no_further_fields_and_cost_nothing_more() -> None:
    chunk = ChatCompletionChunk(id="c")
    assert with_further(chunk, {}) is chunk
    assert chunk.model_extra == further_fields(chunk) == {}
    assert not hasattr(ChatCompletionChunk, "__getattr__")


def test_model_extra_has_what_openai_does_not_declare() -> None:
    assert ChoiceDelta(content="x", reasoning="hm", reasoning_details=[1]).model_extra == {"reasoning": "hm", "reasoning_details": [1]}
    assert ChatCompletionChunk(provider="Azure", obfuscation="xx", usage=CompletionUsage(cost=0.5)).model_extra == {"provider": "Azure"}
    assert Answer(id="a").model_extra == {}


def test_further_fields_are_kept_by_copies_and_changes() -> None:
    message: Any = with_further(ChatCompletionMessage(content="x"), {"citations": [1]})
    for copied in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert copied == message
        assert copied.citations == [1]
    changed = msgspec.structs.replace(message, content="y")
    assert (changed.content, changed.citations) == ("y", [1])
    both = with_further(message, {"sources": 2})
    assert both.model_extra == {"citations": [1], "sources": 2}
    assert message != ChatCompletionMessage(content="x")


@pytest.mark.parametrize("name", ["__deepcopy__", "__class__", "__reduce_ex__", "model_dump", "content", "further"])
def test_no_name_that_a_server_sends_changes_what_an_object_does(name: str) -> None:
    message = with_further(ChatCompletionMessage(content="x"), {name: "evil"})
    assert copy.deepcopy(message) == message
    assert type(message).__name__ == "ChatCompletionMessage"
    assert message.content == "x"
    assert message.model_dump()["role"] == "assistant"


def test_a_message_is_dumped_with_the_name_of_reasoning_that_its_server_uses() -> None:
    message = ChatCompletionMessage(content="x", reasoning="hm", reasoning_content="hm")
    assert message.to_dict() == {"role": "assistant", "content": "x", "reasoning": "hm"}
    assert ChatCompletionMessage(content="x", reasoning_content="hm").to_dict()["reasoning_content"] == "hm"


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(TypeError, match="exclude_nothing"):
        ToolCall().model_dump(exclude_nothing=True)  # type: ignore[call-arg]


def test_a_message_has_all_fields_of_openais() -> None:
    message = ChatCompletionMessage(content="x")
    assert (message.annotations, message.audio, message.function_call) == (None, None, None)


def test_responses_are_copied_and_pickled() -> None:
    message = ChatCompletionMessage(content="x", tool_calls=[ToolCall(id="c")])
    assert copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message


@pytest.mark.parametrize("form", ["model_dump_json", "to_json"])
@pytest.mark.parametrize("further", [{}, {"citations": ["https://x"]}])
def test_what_an_answer_writes_can_be_read_as_its_own_type(form: str, further: dict[str, Any]) -> None:
    usage = with_further(CompletionUsage(1, 2, 3, PromptTokensDetails(1), CompletionTokensDetails(1)), further)
    choice = Choice(message=ChatCompletionMessage(content="hi", tool_calls=[ToolCall()]), finish_reason="stop")
    answer = with_further(ChatCompletion(id="x", choices=[choice], usage=usage), further)
    read = msgspec.json.decode(getattr(answer, form)(), type=ChatCompletion)
    assert (read.id, read.choices) == ("x", [choice])
    assert read.usage == without_further(usage)


@pytest.mark.parametrize("form", ["model_dump_json", "to_json"])
def test_what_a_chunk_writes_can_be_read_as_its_own_type(form: str) -> None:
    call = ToolCallDelta(index=0, function=FunctionDelta("f", "{}"))
    chunk = ChatCompletionChunk(id="x", choices=[ChunkChoice(ChoiceDelta("hi", tool_calls=[call]))], usage=CompletionUsage(1, 2, 3))
    assert msgspec.json.decode(getattr(chunk, form)(), type=ChatCompletionChunk) == chunk


LOGPROBS: dict[str, Any] = {
    "content": [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -2.0, "bytes": None}]},
        {"token": "x", "logprob": -0.1, "bytes": [120], "top_logprobs": [], "token_id": 7},
    ],
    "refusal": None,
}


@pytest.mark.parametrize("kind", [ChatCompletion, ChatCompletionChunk])
def test_log_probabilities_have_openais_attributes(kind: type[ChatCompletion | ChatCompletionChunk]) -> None:
    part = "message" if kind is ChatCompletion else "delta"
    data = {**HEAD, "choices": [{"index": 0, "finish_reason": "stop", part: {"role": "assistant"}, "logprobs": LOGPROBS}]}
    ours = msgspec.convert(data, kind)
    both: list[Any] = [ours.choices[0].logprobs, openais(kind, {**data, "object": ours.object}).choices[0].logprobs]
    for logprobs in both:
        assert (len(logprobs.content), logprobs.refusal) == (2, None)
        first, second = logprobs.content
        assert (first.token, first.logprob, first.bytes, second.top_logprobs) == ("é", -0.5, [195, 169], [])
        assert [(each.token, each.logprob, each.bytes) for each in first.top_logprobs] == [("e", -2.0, None)]
        assert second.token_id == 7, "a server's own field"
        with pytest.raises(AttributeError, match="seed"):
            _ = second.seed


def test_log_probabilities_are_sent_on_as_they_came() -> None:
    odd: list[Any] = [LOGPROBS, {"tokens": ["a"], "token_logprobs": [-1.0]}, {"content": [None, 5, {}]}, {"content": "x"}, [2], "no", {}]
    for sent in odd:
        encoded = msgspec.json.encode(sent)
        choice = ChunkChoice(logprobs=msgspec.json.decode(encoded))
        assert msgspec.json.encode(choice.logprobs) == encoded
        if isinstance(choice.logprobs, ChoiceLogprobs):
            assert choice.logprobs.content is choice.logprobs.content, "made once"
            assert choice.logprobs.model_dump() == choice.to_dict()["logprobs"] == sent
        assert msgspec.json.encode(choice.logprobs) == encoded, "also after it was read"
        assert pickle.loads(pickle.dumps(choice)) == copy.deepcopy(choice) == choice


def test_a_dump_has_plain_log_probabilities() -> None:
    choice = msgspec.convert({"logprobs": LOGPROBS}, ChunkChoice)
    assert choice.logprobs is not None
    assert choice.logprobs.content
    dumped = choice.model_dump()["logprobs"]
    assert {type(dumped), type(dumped["content"]), type(dumped["content"][0])} == {dict, list}
