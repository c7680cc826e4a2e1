"""The model "streamco" for the ``llm`` command and its Python API, in which a device and a server work together.

    llm -m streamco -o device ~/models/qwen.gguf -o server gpt-4o-mini "Why is the sky blue?"

``llm`` finds it through ``llm_plugin``, the entry point of this package.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import llm
from llm.parts import AttachmentPart, Message, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field

from streamco.errors import ConfigError

if TYPE_CHECKING:
    from streamco.client.client import Client
    from streamco.core.report import Report
    from streamco.integrations.llm_clients import PluginSettings
    from streamco.openai_types import ChatCompletion

__all__ = ["AsyncLLMModel", "LLMModel", "LLMOptions"]

MODEL = "streamco"
DEFAULT_FILE = "streamco.toml"  # in llm's folder

_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_SAMPLING = ("temperature", "max_tokens", "top_p", "seed", "stop", "reasoning_effort")


class LLMOptions(llm.KeyModel.Options):
    """The options of a prompt: its endpoints, how they share the work, and sampling."""

    config: str | None = Field(
        default=None, description=f"TOML file as streamco proxy has it; without endpoints, {DEFAULT_FILE} in llm's folder, if it exists"
    )
    device: str | None = Field(
        default=None,
        description="model on this machine: a GGUF file, packaged, hf:org/repo:QUANT or the URL of a server that runs here; "
        "without a server the packaged one, if it is installed",
    )
    device_model: str | None = Field(default=None, description="name of the model at the device's URL; not needed if it has only one")
    server: str | None = Field(default=None, description="name of a remote model, such as gpt-4o-mini")
    base_url: str | None = Field(default=None, description="URL of the server, up to /v1; OpenAI's own if it is not given")
    budget: float | None = Field(
        default=None, ge=0, le=1, description="share of the work for the expensive side: prompt tokens in a race, else drafts to verify"
    )
    policy: str | None = Field(default=None, description="dispatch policy: auto, device-only, server-only, both ...")
    pace: float | Literal["reading", "listening"] | None = Field(default=None, description="tokens per second of a stream")
    mode: Literal["race", "speculate", "auto"] | None = Field(
        default=None, description="race: the first side writes the answer; speculate: the device drafts, the server verifies"
    )
    verifier: str | None = Field(default=None, description="URL of a streamco serve that verifies drafts; the server itself if not given")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0: always the likeliest token")
    max_tokens: int | None = Field(default=None, ge=1, description="longest answer, in tokens")
    top_p: float | None = Field(default=None, gt=0, le=1, description="share of probability that is sampled from")
    seed: int | None = Field(default=None, description="makes sampling repeatable, if the endpoint can")
    stop: str | None = Field(default=None, description="text that ends the answer")
    reasoning_effort: str | None = Field(default=None, description="how long a reasoning model thinks: low, medium, high")


class _Model:
    """The name, the capabilities and the key, which are the same for both kinds of the model."""

    model_id = MODEL
    can_stream = True
    attachment_types: set[str] | frozenset[str] = _IMAGES
    supports_schema = True
    supports_tools = True

    def __str__(self) -> str:
        return f"streamco: {self.model_id}"

    def get_key(self, explicit_key: str | None = None) -> str | None:
        """Return the key given with ``--key``, directly or as the name of a stored key, or None if there is none."""
        return llm.get_key(input=explicit_key) if explicit_key else None


class LLMModel(_Model, llm.KeyModel):
    """The model ``streamco`` for programs without an event loop, and for the command."""

    Options = LLMOptions

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
        key: str | None = None,
    ) -> Iterator[str | StreamEvent]:
        """Yield the answer's text and thinking. ``response`` gets the tool calls, usage and report at the end.

        Raises:
            ConfigError: an option is wrong or has no effect, or no endpoint can serve the prompt.
            StreamcoError: no endpoint could answer.
        """
        from streamco.integrations.llm_clients import CLIENTS

        yield from CLIENTS.iterate(read_settings(prompt, key), answering(prompt, response, is_streamed=stream))


class AsyncLLMModel(_Model, llm.AsyncKeyModel):
    """The model ``streamco`` for programs with an event loop."""

    Options = LLMOptions

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None = None,
        key: str | None = None,
    ) -> AsyncGenerator[str | StreamEvent, None]:
        """Yield the answer's text and thinking; see ``LLMModel.execute``. Cancelling stops all work for the answer."""
        from contextlib import aclosing

        from streamco.integrations.llm_clients import CLIENTS

        async with aclosing(CLIENTS.aiterate(read_settings(prompt, key), answering(prompt, response, is_streamed=stream))) as events:
            async for event in events:
                yield event


def read_settings(prompt: llm.Prompt, key: str | None) -> PluginSettings:
    """Return the settings of a prompt's client.

    For OpenAI's API, the key that ``llm keys set openai`` stored can be used. It is sent nowhere else.

    Args:
        prompt: the prompt, with its options.
        key: the key given with ``--key``, or None.
    """
    from streamco.integrations.llm_clients import PluginSettings

    options: Any = prompt.options
    if key is None and options.server is not None and options.base_url is None and not os.environ.get("OPENAI_BASE_URL"):
        key = llm.get_key(alias="openai", env="OPENAI_API_KEY")
    names = [name for name in PluginSettings.__struct_fields__ if name not in {"default", "key"}]
    folder: Callable[[], Path] = llm.user_dir
    return PluginSettings(default=str(folder() / DEFAULT_FILE), key=key, **{name: getattr(options, name) for name in names})


def answering(
    prompt: llm.Prompt, response: llm.Response | llm.AsyncResponse, *, is_streamed: bool
) -> Callable[[Client], AsyncGenerator[StreamEvent, None]]:
    """Return a function that asks a client for the answer to a prompt, and yields its events.

    Args:
        prompt: the prompt. Its attachments are read here, in the caller's thread.
        response: gets the tool calls, usage and report.
        is_streamed: False if the caller wants the whole answer at once, so that no pacing applies.
    """
    messages = list(build_messages(prompt.messages))
    options = _build_options(prompt)

    async def ask(client: Client) -> AsyncGenerator[StreamEvent, None]:
        from streamco.integrations.chunk_parts import thinking_of
        from streamco.wire.openai.assembler import CompletionAssembler

        pace: dict[str, Any] = {} if is_streamed else {"pace": None}
        stream = await client.chat.completions.create(messages=messages, stream=True, **pace, **options)
        assembler = CompletionAssembler()
        async with stream:
            async for chunk in stream:
                assembler.add(chunk)
                for choice in chunk.choices[:1]:
                    if thinking := thinking_of(choice.delta):
                        yield StreamEvent(type="reasoning", chunk=thinking)
                    if choice.delta.content:
                        yield StreamEvent(type="text", chunk=choice.delta.content)
        _finish(response, assembler.completion(), stream.report)

    return ask


def _finish(response: llm.Response | llm.AsyncResponse, whole: ChatCompletion, report: Report) -> None:
    """Add the tool calls, usage and report to the response; they are known only at the end of the answer."""
    from streamco.integrations.chunk_parts import report_fields

    choice = whole.choices[0] if whole.choices else None
    for call in (choice and choice.message.tool_calls) or ():
        if call.function is not None:  # llm doesn't offer custom tools
            arguments = _parse_arguments(call.function.arguments)
            response.add_tool_call(llm.ToolCall(name=call.function.name, arguments=arguments, tool_call_id=call.id or None))
    usage = report.usage.to_dict(mode="json", exclude_none=True)
    counts = {name: usage.pop(name, 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    response.set_usage(input=counts["prompt_tokens"], output=counts["completion_tokens"], details=usage or None)
    if whole.model:
        response.set_resolved_model(whole.model)
    response.response_json = {
        "id": whole.id,
        "model": whole.model,
        "finish_reason": report.finish_reason,
        "report": report_fields(report),
    }


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except json.JSONDecodeError:
        return {"_raw": text}  # llm's own plugins pass on text that isn't JSON in this way
    return arguments if isinstance(arguments, dict) else {"_raw": text}


def _build_options(prompt: llm.Prompt) -> dict[str, Any]:
    options: dict[str, Any] = {name: value for name in _SAMPLING if (value := getattr(prompt.options, name)) is not None}
    if prompt.schema:
        options["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": prompt.schema}}
    tools = [tool for tool in prompt.tools if isinstance(tool, llm.Tool)]
    if tools:
        functions = [{"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema} for tool in tools]
        options["tools"] = [{"type": "function", "function": function} for function in functions]
    return options


def build_messages(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """Yield a conversation in OpenAI's format. Thinking is left out, because only some servers accept it in a request.

    Raises:
        ConfigError: an attachment isn't an image, or belongs to the result of a tool.
    """
    for message in messages:
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        images = [_image(part.attachment) for part in message.parts if isinstance(part, AttachmentPart) and part.attachment]
        calls = [_tool_call(part) for part in message.parts if isinstance(part, ToolCallPart) and not part.server_executed]
        if message.role == "tool":
            yield from (_tool_result(part) for part in message.parts if isinstance(part, ToolResultPart))
        elif text or images or calls:
            content: Any = text or None
            if images:
                content = [*([{"type": "text", "text": text}] if text else []), *images]
            yield {"role": message.role, "content": content, **({"tool_calls": calls} if calls else {})}


def _image(attachment: Any) -> dict[str, Any]:
    url = attachment.url
    if not url:
        kind = attachment.resolve_type()
        if kind not in _IMAGES:
            raise ConfigError(f"attachment: expected an image ({', '.join(sorted(_IMAGES))}), got {kind}")
        url = f"data:{kind};base64,{attachment.base64_content()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(part: ToolCallPart) -> dict[str, Any]:
    return {"id": part.tool_call_id, "type": "function", "function": {"name": part.name, "arguments": json.dumps(part.arguments)}}


def _tool_result(part: ToolResultPart) -> dict[str, Any]:
    if part.attachments:
        raise ConfigError(f"attachment: expected text alone as the result of a tool, got {len(part.attachments)} from {part.name}")
    return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.output}
