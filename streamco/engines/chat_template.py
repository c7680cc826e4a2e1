"""A model's chat template: it turns messages into the prompt's text.

GGUF files carry Hugging Face's Jinja templates. These are untrusted programs, so they run in Jinja's sandbox, within bounds of time and
size (``llamacpp/template_sandbox.py``), with the names that transformers gives them (``apply_chat_template``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from streamco.errors import EngineError, PromptError

__all__ = ["ChatTemplate", "plain_messages"]

MAX_SOURCE = 1 << 17  # characters of a template; those of today's models have up to 20,000
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,32}")


class ChatTemplate:
    """A compiled template; ``render`` is thread-safe.

    Args:
        source: Jinja text.
        tokens: texts of the model's special tokens by the names that templates have for them, as "bos_token".

    Raises:
        EngineError: the template does not compile or is too long, or Jinja is not installed.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        self._names = {"bos_token": "", "eos_token": "", **(tokens or {}), "tools": None, "documents": None}
        try:
            from streamco.engines.llamacpp.template_sandbox import BoundedEnvironment, Bounds, TemplateBoundError
        except ImportError as exc:
            raise EngineError(f"chat template: expected jinja2 (pip install 'streamco[llama]'), got {exc}") from exc
        if len(source) > MAX_SOURCE:
            raise EngineError(f"chat template: expected at most {MAX_SOURCE} characters, got {len(source)}")
        self._environment = environment = BoundedEnvironment({"tojson": _to_json})
        environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
        self._bounds, self._bound_error = Bounds, TemplateBoundError
        try:
            self._template = environment.from_string(source)
        except Exception as exc:  # Jinja's and Python's compilers have errors of many kinds for what is nested too deeply
            raise EngineError(f"chat template: expected Jinja that compiles, got {type(exc).__name__}: {exc}") from exc

    def check(self) -> None:
        """Render a short conversation, and refuse a template that can't do it within its bounds. Other refusals are its own business.

        Raises:
            EngineError: it runs for too long, or makes too large a value.
        """
        try:
            self.render([{"role": "user", "content": "Hello"}])
        except EngineError as exc:
            if isinstance(exc.__cause__, self._bound_error):
                raise

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt's text.

        Raises:
            PromptError: the template refused these messages, or they hold something other than text.
        """
        plain = plain_messages(messages)
        try:
            return self._environment.run(
                lambda: self._template.generate(messages=plain, add_generation_prompt=add_generation_prompt, **self._names),
                self._bounds(sum(len(message["content"]) for message in plain)),
            )
        except Exception as exc:  # a template may fail with any error of the objects it touches
            raise PromptError(f"chat template: expected messages it accepts, got {type(exc).__name__}: {exc}") from exc


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as templates of text models expect them: ``content`` is a text, arguments of calls are objects.

    Text parts are joined, and the ``arguments`` of earlier calls, which come as JSON, are read. What is no JSON object stays.

    Raises:
        PromptError: no messages, a message without a role, or a content part that isn't text.
    """
    if not messages:
        raise PromptError("messages: expected at least one, got none")
    return [_plain_message(index, message) for index, message in enumerate(messages)]


def _plain_message(index: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise PromptError(f"messages[{index}]: expected a mapping, got {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str):
        raise PromptError(f"messages[{index}].role: expected a string, got {type(role).__name__}")
    if not _ROLE.fullmatch(role):  # a template puts it between control tokens
        raise PromptError(f"messages[{index}].role: expected 1 to 32 letters, digits, _ or -, got other characters or more")
    content = message.get("content")
    if content is None:
        content = ""
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "".join(_part_text(part, f"messages[{index}].content[{part_index}]") for part_index, part in enumerate(content))
    if not isinstance(content, str):
        raise PromptError(f"messages[{index}].content: expected a string or text parts, got {type(content).__name__}")
    return {**message, **_plain_calls(message), "content": content}


def _part_text(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise PromptError(f"{where}: expected a part of type text, got {kind!r}")
    return text


def _plain_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's calls with arguments that are objects."""
    calls, single = message.get("tool_calls"), message.get("function_call")
    plain: dict[str, Any] = {}
    if isinstance(calls, list | tuple):
        plain["tool_calls"] = [{**call, "function": _plain_function(call.get("function"))} if _is_call(call) else call for call in calls]
    if isinstance(single, Mapping):
        plain["function_call"] = _plain_function(single)
    return plain


def _is_call(call: Any) -> bool:
    return isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)


def _plain_function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    return {**function, "arguments": _read_object(arguments)} if isinstance(arguments, str) else dict(function)


def _read_object(text: str) -> Any:
    """Return the object that a text is as JSON, {} if it is blank (a call without arguments), and the text if it is something else."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _refuse(message: str) -> None:
    raise ValueError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    from datetime import datetime

    return datetime.now().astimezone().strftime(pattern)
