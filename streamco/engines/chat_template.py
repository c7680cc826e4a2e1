"""A model's chat template, which turns messages into the prompt's text.

GGUF files contain Hugging Face's Jinja templates. These are untrusted programs, so they run in Jinja's sandbox, within limits of time and
size (``llamacpp/template_sandbox.py``), with the names that transformers provides to them (``apply_chat_template``).

Some templates expect ``content`` to be a string, others a list of parts. A template that gets the wrong form doesn't fail, but writes a
prompt without the message's words. So ``check`` renders a marked message of each role in both forms, and uses the one in which the mark
appears.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamco.errors import EngineError, PromptError

__all__ = ["ChatTemplate", "plain_messages"]

MAX_SOURCE = 1 << 17  # characters of a template; today's models have up to 20,000
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,32}")

_MARK = "streamco7marks3this"  # letters and digits, which templates neither trim nor escape
_CALL = {"id": "call12345", "type": "function", "function": {"name": "look_up", "arguments": {"word": "sky"}}}
_CALLING = {"role": "assistant", "tool_calls": [_CALL]}
_CONVERSATIONS: Mapping[str, Sequence[Mapping[str, Any]]] = {  # for each role, one in which it has its usual place
    "user": [{"role": "user"}],
    "system": [{"role": "system"}, {"role": "user"}],
    "developer": [{"role": "developer"}, {"role": "user"}],
    "assistant": [{"role": "user"}, {"role": "assistant"}, {"role": "user"}],
    "tool": [{"role": "user"}, _CALLING, {"role": "tool", "tool_call_id": "call12345", "name": "look_up"}],
}

Message = dict[str, Any]
Form = Callable[[str], Any]


class ChatTemplate:
    """A compiled template; ``render`` is thread-safe.

    Args:
        source: Jinja text.
        tokens: texts of the model's special tokens, by the names that templates use for them, such as "bos_token".

    Raises:
        PromptError: the template does not compile.
        EngineError: it is too long, or Jinja is not installed.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        self._names = {"bos_token": "", "eos_token": "", **(tokens or {}), "tools": None, "documents": None}
        self._forms: dict[str, Form | None] = {}  # for each role how its content is given; None if the template leaves it out
        self._refused: set[str] = set()  # roles for which ``check`` got no prompt
        self._roles: Mapping[str, str] = {}  # roles that are rendered under a different name
        try:
            from streamco.engines.llamacpp.template_sandbox import BoundedEnvironment, Bounds, TemplateBoundError
        except ImportError as exc:
            raise EngineError(f"chat template: expected jinja2 (pip install 'streamco[prebuilt]'), got {exc}") from exc
        if len(source) > MAX_SOURCE:
            raise EngineError(f"chat template: expected at most {MAX_SOURCE} characters, got {len(source)}")
        self._environment = environment = BoundedEnvironment({"tojson": _to_json})
        environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
        self._bounds, self._bound_error = Bounds, TemplateBoundError
        try:
            self._template = environment.from_string(source)
        except Exception as exc:  # Jinja's and Python's compilers raise many kinds of errors for what is nested too deeply
            raise PromptError(f"chat template: expected Jinja that compiles, got {type(exc).__name__}: {exc}") from exc

    def check(self) -> list[str]:
        """Render a short conversation for each role, and remember the form of content with which its words appear in the prompt.

        Returns:
            The roles that the template leaves out; ``render`` refuses their messages.

        Raises:
            PromptError: the user's words don't appear in the prompt.
            EngineError: the template runs for too long, or creates too large a value.
        """
        for role, conversation in _CONVERSATIONS.items():
            self._forms[role] = self._find_form(role, conversation)
        if self._forms["user"] is None:
            raise PromptError("chat template: expected one that writes what the user says, got a prompt without it")
        if not self._knows("developer") and self._knows("system"):
            self._roles = {"developer": "system"}  # the newer name of the same role
        return [role for role, form in self._forms.items() if form is None and role not in self._roles]

    def _find_form(self, role: str, conversation: Sequence[Mapping[str, Any]]) -> Form | None:
        """Return the form of content with which a role's words appear in the prompt, or None if neither works or both are refused."""
        has_answered = False
        for form in (_as_text, _as_parts):
            messages = [
                {**each, "content": form(_MARK) if each["role"] == role else (self._form_of(each["role"]) or _as_text)(_words(each))}
                for each in conversation
            ]
            try:
                text = self._render(messages, len(_MARK), add_generation_prompt=True)
            except PromptError as exc:
                if isinstance(exc.__cause__, self._bound_error):
                    raise EngineError(str(exc)) from exc
                continue
            if _MARK in text and f"'text': '{_MARK}'" not in text:  # a list that is rendered as a list hasn't been understood
                return form
            has_answered = True
        if has_answered:
            return None
        self._refused.add(role)
        return _as_text

    def _knows(self, role: str) -> bool:
        """Return True if the template renders the words of a role."""
        return self._forms[role] is not None and role not in self._refused

    def _form_of(self, role: str) -> Form | None:
        """Return the form of a role's content, or None if the template leaves the role out. An unknown role has the user's form."""
        return self._forms.get(role, self._forms.get("user", _as_text))

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt's text.

        Raises:
            PromptError: the template refused these messages or leaves one out, or they contain something other than text.
        """
        plain = plain_messages(messages)
        size = sum(len(message["content"]) for message in plain)
        for index, message in enumerate(plain):
            role = message["role"] = self._roles.get(message["role"], message["role"])
            form = self._form_of(role)
            if form is None and message["content"]:
                raise PromptError(f"messages[{index}]: expected a role that the chat template writes, got {role}, which it leaves out")
            message["content"] = (form or _as_text)(message["content"])
        return self._render(plain, size, add_generation_prompt=add_generation_prompt)

    def _render(self, messages: list[Message], size: int, *, add_generation_prompt: bool) -> str:
        try:
            return self._environment.run(
                lambda: self._template.generate(messages=messages, add_generation_prompt=add_generation_prompt, **self._names),
                self._bounds(size),
            )
        except Exception as exc:  # a template may fail with any error of the objects it touches
            raise PromptError(f"chat template: expected messages it accepts, got {type(exc).__name__}: {exc}") from exc


def _words(message: Mapping[str, Any]) -> str:
    return "" if "tool_calls" in message else "Hello"


def _as_text(text: str) -> str:
    return text


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages in the form that templates of text models expect: ``content`` is a string, and arguments of calls are objects.

    Text parts are joined, and the ``arguments`` of earlier calls, which come as JSON, are parsed. Arguments that aren't a JSON object stay
    as they are.

    Raises:
        PromptError: there are no messages, one has no role, or a content part isn't text.
    """
    if not messages:
        raise PromptError("messages: expected at least one, got none")
    return [_plain_message(index, message) for index, message in enumerate(messages)]


def _plain_message(index: int, message: Any) -> Message:
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


def _plain_calls(message: Mapping[str, Any]) -> Message:
    """Return a message's calls, with their arguments as objects."""
    calls, single = message.get("tool_calls"), message.get("function_call")
    plain: Message = {}
    if isinstance(calls, list | tuple):
        plain["tool_calls"] = [{**call, "function": _plain_function(call.get("function"))} if _is_call(call) else call for call in calls]
    if isinstance(single, Mapping):
        plain["function_call"] = _plain_function(single)
    return plain


def _is_call(call: Any) -> bool:
    return isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)


def _plain_function(function: Mapping[str, Any]) -> Message:
    arguments = function.get("arguments")
    return {**function, "arguments": _read_object(arguments)} if isinstance(arguments, str) else dict(function)


def _read_object(text: str) -> Any:
    """Parse a text as a JSON object. Returns {} if it is blank (a call without arguments), and the text itself if it is anything else."""
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
