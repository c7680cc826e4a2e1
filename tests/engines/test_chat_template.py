"""Chat templates: what models ask for, and strangers' programs kept in their box."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.engines.chat_template import ChatTemplate, plain_messages
from streamco.errors import EngineError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_messages_become_a_prompt() -> None:
    template = ChatTemplate(CHATML)
    assert template.render(user("hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(user("hi"), add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_the_names_transformers_gives_are_there() -> None:
    source = "{{ bos_token }}{{ messages | length }}{{ messages[0] | tojson }}{{ strftime_now('%Y') | length }}{{ eos_token }}"
    assert ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(user("é")) == '<s>1{"role": "user", "content": "é"}4</s>'


def test_blocks_leave_no_blank_lines_and_loops_can_be_left() -> None:
    source = "{% for message in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n{{ message.content }}\n{% endfor %}\n"
    assert ChatTemplate(source).render(user("a") + user("b")) == "a\n"


def test_a_templates_own_refusal_is_passed_on() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(EngineError, match="expected messages it accepts, got ValueError: roles must alternate"):
        template.render(user("hi"))


def test_a_template_cannot_leave_the_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__ }}")
    with pytest.raises(EngineError, match="SecurityError"):
        template.render(user("hi"))


def test_a_template_cannot_change_the_messages() -> None:
    with pytest.raises(EngineError, match="SecurityError"):
        ChatTemplate("{{ messages.append(1) }}").render(user("hi"))


def test_a_template_that_does_not_compile_is_an_error() -> None:
    with pytest.raises(EngineError, match="expected Jinja that compiles"):
        ChatTemplate("{% for %}")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain_messages(user(parts)) == user("ab")


def test_no_content_is_empty_content() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    assert plain_messages([message]) == [{**message, "content": ""}]


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = user([{"type": "text", "text": "a"}])
    plain_messages(messages)
    assert messages == user([{"type": "text", "text": "a"}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: expected at least one, got none"),
        ([{"content": "hi"}], r"messages\[0\].role: expected a string, got None"),
        (["hi"], r"messages\[0\]: expected a mapping, got str"),
        (user(5), r"messages\[0\].content: expected a string or text parts, got int"),
        (user([{"type": "image_url", "image_url": {}}]), r"messages\[0\].content\[0\]: expected a part of type text, got 'image_url'"),
        (user(["hi"]), r"messages\[0\].content\[0\]: expected a part of type text, got 'str'"),
        (user([{"type": "text", "text": 5}]), r"messages\[0\].content\[0\]: expected a part of type text"),
    ],
)
def test_messages_that_are_not_text_say_where(messages: list[Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        plain_messages(messages)


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_without_tools_and_documents_a_template_has_none(name: str) -> None:
    source = "{% if " + name + " is not none %}{{ " + name + " | tojson }}{% endif %}{{ messages[0].content }}"
    assert ChatTemplate(source).render(user("Hi")) == "Hi"


# Calls of earlier turns


def called(arguments: Any, **more: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call], **more}]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"a": [1, "é"], "b": {"c": null}}', {"a": [1, "é"], "b": {"c": None}}),
        (' {"a": 1.5}\n', {"a": 1.5}),
        ({"a": 1}, {"a": 1}),
        ("{}", {}),
        ("", {}),
        (" ", {}),
        ("[1]", "[1]"),
        ('"a"', '"a"'),
        ("5", "5"),
        ('{"a": ', '{"a": '),
        ('{"a": NaN}', '{"a": NaN}'),
        ("[" * 100_000, "[" * 100_000),
        ('{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 5000 + "}"),
        (None, None),
    ],
)
def test_arguments_that_are_an_object_are_one_and_others_stay(arguments: Any, seen: Any) -> None:
    messages = called(arguments)
    (call,) = plain_messages(messages)[1]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": seen}
    assert messages == called(arguments), "the caller's stay as they are"
    assert plain_messages(plain_messages(messages)) == plain_messages(messages)


def test_templates_read_arguments_as_models_have_seen_them() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
        "{% for key, value in c.function.arguments | items %}<{{ key }}>{{ value }}{% endfor %}{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(source).render(called('{"city": "Oslo"}')) == '{"city": "Oslo"}<city>Oslo'


def test_the_single_call_of_older_messages_is_read_too() -> None:
    message = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    assert plain_messages([message])[0]["function_call"] == {"name": "f", "arguments": {"a": 1}}


@pytest.mark.parametrize("calls", [None, [], [5], [{"id": "1"}], [{"function": "f"}], [{"function": {"name": "f"}}], "calls"])
def test_calls_of_another_shape_stay(calls: Any) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    assert plain_messages([message]) == [message]
