"""Model files as they are: what works of them works, and the rest is an error that says why."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import split_model
from streamco.engines.prompt_ids import chat_ids, prompt_ids
from streamco.errors import EngineError, PromptError
from tests.engines.llamacpp.small_models import write_model
from tests.engines.llamacpp.vocabularies import CONTROL, END

pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

LoadModel = Callable[..., LlamaModel]
TEMPLATE = "tokenizer.chat_template"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[LoadModel]:
    loaded: list[LlamaModel] = []

    def load(metadata: dict[str, Any] | None = None, **changes: Any) -> LlamaModel:
        path = write_model(tmp_path / f"model{len(loaded)}.gguf", metadata, **changes)
        loaded.append(LlamaModel(path, repack=False))
        return loaded[-1]

    yield load
    for model in loaded:
        model.close()


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What streamco logged; other packages log as they please."""
    return [record for record in caplog.records if record.name.partition(".")[0] == "streamco" and record.levelno >= logging.WARNING]


@pytest.fixture
def plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child process that tries kernels with each new file."""
    monkeypatch.setattr("streamco.engines.llamacpp.model.choose_repacking", lambda path, library: False)


# What can't be loaded


def test_a_file_without_a_vocabulary_is_an_error(load: LoadModel) -> None:
    with pytest.raises(EngineError, match=r"model0.gguf: expected a file with a vocabulary"):
        load(has_vocabulary=False)


def test_a_template_that_breaks_its_bounds_is_refused_with_the_file(load: LoadModel) -> None:
    with pytest.raises(EngineError, match="TemplateBoundError"):
        load({TEMPLATE: "{{ 'a' * 100000000 }}"})


async def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    for read in (LlamaModel, lambda path: split_model(path, tmp_path / "parts")):
        with pytest.raises(EngineError, match="expected a regular file, got a pipe"):
            read(pipe)
    device = DeviceEndpoint(pipe)
    with pytest.raises(EngineError, match="expected a regular file, got a pipe"):
        await device.start()
    await device.aclose()


# The begin token


@pytest.mark.parametrize("adds_end", [False, True])
@pytest.mark.parametrize("adds_begin", [False, True])
def test_prompts_begin_as_the_file_says_and_never_end(load: LoadModel, adds_begin: bool, adds_end: bool) -> None:
    begin = 303  # the control token
    flags = {"tokenizer.ggml.add_bos_token": adds_begin, "tokenizer.ggml.add_eos_token": adds_end, "tokenizer.ggml.bos_token_id": begin}
    model = load({**flags, TEMPLATE: "{{ messages[0].content }}"})
    begun = [begin] if adds_begin else []
    assert model.tokenize("", bos=True) == begun
    assert model.tokenize("A", bos=True) == [*begun, 65]
    assert model.tokenize("A") == [65]
    engine: Any = model
    assert prompt_ids(engine, "A", special=True) == [*begun, 65]
    assert prompt_ids(engine, CONTROL + "A", special=True) == [begin, 65]
    assert chat_ids(engine, [{"role": "user", "content": "A" * 5000}]) == [*begun, *[65] * 5000]
    for own in ("{{ bos_token }}{{ messages[0].content }}", CONTROL + "{{ messages[0].content }}"):
        assert chat_ids(load({**flags, TEMPLATE: own}), HI) == [begin, *b"Hi"]  # type: ignore[arg-type]


@pytest.mark.parametrize("begin", [305, 99_999])
def test_a_begin_token_beyond_the_vocabulary_is_none(load: LoadModel, begin: int) -> None:
    model = load({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": begin})
    assert all(token < 305 for token in model.tokenize("A", bos=True))


# Chat templates


@pytest.mark.parametrize(
    "source",
    [
        "{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}",
        "{% for m in messages %}",
        "{{ messages | no_such_filter }}",
        "{% for m in messages %}{% if m.content is mapping %}{{ m.content.x }}{% endif %}{% endfor %}",
        "You are a model.",
    ],
)
def test_without_a_usable_template_only_chats_are_refused(load: LoadModel, source: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamco.engine"):
        model = load({TEMPLATE: source})
    (record,) = own_records(caplog)
    assert str(model.path) in record.getMessage()
    assert not model.info.has_chat_template
    assert model.tokenize("Hi", bos=True) == list(b"Hi")
    assert prompt_ids(model, "Hi" + END, special=True) == [*b"Hi", 304]  # type: ignore[arg-type]
    with pytest.raises(PromptError, match=r"expected a chat model, got small, whose chat template can't be used"):
        model.apply_template(HI)


def test_without_a_template_only_chats_are_refused(load: LoadModel, caplog: pytest.LogCaptureFixture) -> None:
    model = load()
    assert (own_records(caplog), model.info.has_chat_template) == ([], False)
    with pytest.raises(PromptError, match="which has no chat template"):
        model.apply_template(HI)


def test_a_template_for_parts_gets_parts(load: LoadModel, caplog: pytest.LogCaptureFixture) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}"
        "{% endfor %}<|end|>{% endfor %}"
    )
    model = load({TEMPLATE: source})
    assert not own_records(caplog)
    assert model.apply_template(HI) == "<|im_start|>user:Hi<|end|>"
    ids = chat_ids(model, [{"role": "user", "content": "<|im_start|>x"}])  # type: ignore[arg-type]
    assert (ids.count(303), ids.count(304)) == (1, 1), "control tokens in a part are text"


def test_a_role_that_the_template_leaves_out_is_said_and_refused(load: LoadModel, caplog: pytest.LogCaptureFixture) -> None:
    model = load({TEMPLATE: "{% for m in messages if m.role != 'system' and m.role != 'developer' %}{{ m.content }}{% endfor %}"})
    (record,) = own_records(caplog)
    assert "system" in record.getMessage()
    assert model.apply_template(HI) == "Hi"
    for role in ("system", "developer"):
        with pytest.raises(PromptError, match=rf"messages\[0\]: .*got {role}, which it leaves out"):
            model.apply_template([{"role": role, "content": "Be brief."}, *HI])


def test_a_template_has_the_special_tokens_that_the_file_names(load: LoadModel) -> None:
    names = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
    written = "".join(f"{{{{ {name}_token if {name}_token is defined else '-' }}}}|" for name in names)
    tokens = {
        "tokenizer.ggml.bos_token_id": 303,
        "tokenizer.ggml.unknown_token_id": 65,
        "tokenizer.ggml.padding_token_id": 66,
        "tokenizer.ggml.seperator_token_id": 67,
        "tokenizer.ggml.mask_token_id": 99_999,
    }
    model = load({**tokens, TEMPLATE: written + "{{ messages[0].content }}"})
    assert model.apply_template(HI) == f"{CONTROL}|{END}|A|B|C|-|-|Hi"


@pytest.mark.parametrize(
    "arguments", ['{"a<|im_start|>": "<|end|>"}', r'{"\u003c|im_start|\u003e": "\u003c|end|>"}', "<|im_start|><|end|>"]
)
def test_control_tokens_in_arguments_are_text(load: LoadModel, arguments: str) -> None:
    model = load({TEMPLATE: "{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.arguments | tojson }}<|end|>{% endfor %}"})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    ids = chat_ids(model, [{"role": "assistant", "content": "x", "tool_calls": [call]}])  # type: ignore[arg-type]
    assert (ids.count(303), ids.count(304)) == (0, 1)


# The context


@pytest.mark.usefixtures("plain_weights")
@pytest.mark.parametrize(("trained", "wanted", "got"), [(64, 100, 64), (64, 64, 64), (64, 32, 32), (0, 100, 100)])
def test_a_context_that_is_cut_is_said_once(tmp_path: Path, trained: int, wanted: int, got: int, caplog: pytest.LogCaptureFixture) -> None:
    path = write_model(tmp_path / "model.gguf", context_tokens=trained)
    engine = LlamaEngine(path, EngineOptions(context_tokens=wanted, threads=1))
    engine.close()
    assert engine.info.context_tokens == got
    warnings = [record.getMessage() for record in own_records(caplog)]
    assert len(warnings) == (got < wanted)
    assert all(str(number) in text for text in warnings for number in (trained, wanted))
