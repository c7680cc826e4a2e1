"""A LangChain chat model that uses a client in the same process, with streams, tools, structured output, usage and the report."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from operator import itemgetter
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, ConfigDict, Field

from streamco.client.client import Client
from streamco.core.report import Report
from streamco.errors import ConfigError
from streamco.integrations.chunk_parts import ToolCallNumbers, report_fields, thinking_of
from streamco.openai_types import ChatCompletionChunk, ChatCompletionMessage, CompletionUsage

__all__ = ["ChatStreamco"]

NAME = "streamco"
_SETTINGS = ("temperature", "top_p", "seed", "max_tokens", "stop", "timeout", "max_retries")
_THINKING = frozenset({"reasoning", "thinking"})


class ChatStreamco(BaseChatModel):
    """A chat model that answers with a client: ``ChatStreamco(client=client)``.

    Only the async methods work (``ainvoke``, ``astream``, ``abatch``, ``astream_events``). The report of each answer is in the message's
    ``response_metadata["report"]``; in a stream, it is in the last chunk.

    Args:
        client: the client. You start it and close it.
        model: the remote model's name, or None for the server endpoint's model.
        stop: texts that end an answer.
        timeout: seconds to wait for the connection, for the first token and for each next token.
        max_retries: number of retries at each server before the first token.
        streaming: if True, ``ainvoke`` reads a stream, too, so that callbacks get its tokens.
        model_kwargs: other arguments of ``client.chat.completions.create``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, populate_by_name=True)

    client: Client = Field(exclude=True, repr=False)
    model: str | None = Field(default=None, alias="model_name")
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    timeout: float | None = None
    max_retries: int | None = None
    streaming: bool = False
    model_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return NAME

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Return the settings that an answer depends on, so that LangChain's cache keeps the answers of different endpoints apart."""
        settings = {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}
        return {"model": self.model, "endpoints": sorted(self.client.endpoint_names), **settings, **self.model_kwargs}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = NAME
        params["ls_model_name"] = kwargs.get("model") or self.model or NAME
        return params

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError(
            "expected one of the async methods (ainvoke, astream, abatch, astream_events), got a call that blocks: a client lives on an "
            "event loop"
        )

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = await self.client.chat.completions.create(messages=_openai_messages(messages), **self._options(stop, kwargs))
        report = answer.report
        generations = [
            ChatGeneration(
                message=_message(
                    choice.message,
                    usage=answer.usage,
                    metadata=_metadata(answer.model, choice.finish_reason or report.finish_reason, report),
                    identity=answer.id,
                )
            )
            for choice in answer.choices
        ]
        return ChatResult(generations=generations)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        options = self._options(stop, kwargs)
        stream = await self.client.chat.completions.create(messages=_openai_messages(messages), stream=True, **options)
        numbers = ToolCallNumbers()
        model = ""
        async with stream:
            async for chunk in stream:
                model = chunk.model or model
                if (message := _message_chunk(chunk, numbers)) is not None:
                    yield ChatGenerationChunk(message=message)
        report = stream.report
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                usage_metadata=_usage(report.usage),
                response_metadata=_metadata(model, report.finish_reason, report),
                chunk_position="last",
            )
        )

    def _options(self, stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``create``: the model's, overridden by the arguments of this call."""
        own = {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}
        called = {name: value for name, value in kwargs.items() if name != "stream"}
        options = {"model": self.model, **own, **self.model_kwargs, **called}
        if stop is not None:
            options["stop"] = stop
        return options

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools that it may call.

        Args:
            tools: functions, classes, LangChain tools, or schemas in OpenAI's format.
            tool_choice: "auto", "none", the name of the tool that must be called, or "any" (also "required" or True) if at least one must.
                None leaves it to the model.
            strict: whether the arguments must match the schema exactly, or None to let the server decide.
            kwargs: additional arguments for each call.
        """
        converted = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        choice = _tool_choice(tool_choice, [tool["function"]["name"] for tool in converted if "function" in tool])
        return self.bind(tools=converted, **({} if choice is None else {"tool_choice": choice}), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "json_mode", "function_calling"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Return the model with output that follows a schema; see ``BaseChatModel.with_structured_output``.

        Args:
            schema: class or schema of the output.
            include_raw: also return the message and any parsing error.
            method: "json_schema" for a response format, which a device enforces with a grammar; "json_mode" for any JSON, which the prompt
                must describe; "function_calling" for a tool call.
            strict: whether a server must follow the schema exactly, or None to let it decide.
            kwargs: additional arguments for each call.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        shape: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            described = convert_to_json_schema(schema, strict=strict)
            named = {"name": described.get("title", "output"), "schema": described, **({} if strict is None else {"strict": strict})}
            shape = {"type": "json_schema", "json_schema": named}
        traced = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        model = self.bind(response_format=shape, ls_structured_output_format=traced, **kwargs)
        parser: BaseOutputParser[Any] = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser(pydantic_object=schema)
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([unparsed], exception_key="parsing_error")


def _tool_choice(choice: str | dict[str, Any] | bool | None, names: Sequence[str]) -> str | dict[str, Any] | None:
    if choice is True or choice == "any":
        return "required"
    if choice is False or choice is None:
        return None
    if isinstance(choice, dict) or choice in {"auto", "none", "required"}:
        return choice
    if choice not in names:
        raise ConfigError(f"tool_choice: expected auto, none, any or the name of a tool ({', '.join(names)}), got {choice!r}")
    return {"type": "function", "function": {"name": choice}}


def _openai_messages(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Return a conversation in OpenAI's format. Thinking is left out, because only some servers accept it in a request."""
    return [_without_thinking(message) for message in convert_to_openai_messages(messages)]


def _without_thinking(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list) or not any(part.get("type") in _THINKING for part in content):
        return message
    kept = [part for part in content if part.get("type") not in _THINKING]
    if all(part.get("type") == "text" for part in kept):
        return {**message, "content": "".join(part["text"] for part in kept)}
    return {**message, "content": kept}


def _message(message: ChatCompletionMessage, *, usage: CompletionUsage | None, metadata: dict[str, Any], identity: str) -> AIMessage:
    calls, invalid = [], []
    for call in message.tool_calls or ():
        if call.custom is not None:
            continue
        raw = call.to_dict()
        try:
            if (parsed := parse_tool_call(raw)) is not None:
                calls.append(parsed)
        except OutputParserException as error:
            invalid.append(make_invalid_tool_call(raw, str(error)))
    further = {name: text for name in ("refusal", "reasoning_content") if (text := getattr(message, name))}
    return AIMessage(
        content=message.content or "",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        additional_kwargs=further,
        usage_metadata=None if usage is None else _usage(usage),
        response_metadata=metadata,
        id=identity or None,
    )


def _message_chunk(chunk: ChatCompletionChunk, numbers: ToolCallNumbers) -> AIMessageChunk | None:
    """Return the part of the message that a chunk adds, or None if it adds nothing."""
    if not chunk.choices:
        return None
    delta = chunk.choices[0].delta
    further = {name: text for name, text in (("refusal", delta.refusal), ("reasoning_content", thinking_of(delta))) if text}
    calls: list[ToolCallChunk] = []
    for piece in delta.tool_calls or ():
        if piece.custom is None:  # LangChain doesn't support calls of custom tools
            function = piece.function
            name, arguments = (None, None) if function is None else (function.name, function.arguments)
            calls.append(tool_call_chunk(name=name, args=arguments, id=piece.id, index=numbers.number(piece)))
    if not delta.content and not further and not calls:
        return None
    return AIMessageChunk(content=delta.content or "", additional_kwargs=further, tool_call_chunks=calls, id=chunk.id or None)


def _metadata(model: str, finish_reason: str | None, report: Report | None) -> dict[str, Any]:
    return {"model_name": model, "model_provider": NAME, "finish_reason": finish_reason, "report": report_fields(report)}


def _usage(usage: CompletionUsage) -> UsageMetadata:
    found = UsageMetadata(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, total_tokens=usage.total_tokens)
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    if prompt is not None and prompt.cached_tokens is not None:
        found["input_token_details"] = InputTokenDetails(cache_read=prompt.cached_tokens)
    if completion is not None and completion.reasoning_tokens is not None:
        found["output_token_details"] = OutputTokenDetails(reasoning=completion.reasoning_tokens)
    return found
