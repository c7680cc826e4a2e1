"""Chat templates: what models ask for, and strangers' programs kept in their box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.chat_template import ChatTemplate, plain_messages
from streamco.errors import EngineError, PromptError

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


# The form of contents

IN_PARTS = "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "tool", "content": "T"},
]


def checked(source: str, left_out: Sequence[str] = ()) -> ChatTemplate:
    template = ChatTemplate(source)
    assert template.check() == list(left_out)
    return template


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "SUAT"),
        ("{% for m in messages %}{{ m.content | trim | e }}{% endfor %}", "SUAT"),
        ("{% for m in messages %}" + IN_PARTS + "{% endfor %}", "SUAT"),
        ("{% for m in messages %}{{ m.content[0].text }}{% endfor %}", "SUAT"),
        ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}" + IN_PARTS + "{% endif %}{% endfor %}", "SUAT"),
        ("{% for m in messages %}{% if m.role == 'user' %}" + IN_PARTS + "{% else %}{{ m.content }}{% endif %}{% endfor %}", "SUAT"),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ m.content | trim }}{% else %}" + IN_PARTS + "{% endif %}{% endfor %}",
            "SUAT",
        ),
    ],
)
def test_contents_have_the_form_in_which_they_come_out(source: str, seen: str) -> None:
    assert checked(source).render(TALK) == seen


@pytest.mark.parametrize("written", ["{{ m.content }}", IN_PARTS])
def test_another_role_has_the_form_of_the_user(written: str) -> None:
    assert checked("{% for m in messages %}" + written + "{% endfor %}").render([*user("U"), {"role": "critic", "content": "C"}]) == "UC"


def test_calls_and_nothing_said_are_parts_too() -> None:
    template = checked("{% for m in messages %}{{ m.content[0].type }}" + IN_PARTS + "{% endfor %}")
    assert template.render([*user("U"), {"role": "assistant", "content": None}]) == "textUtext"


@pytest.mark.parametrize(
    "source",
    ["Hello", "{{ messages | length }}", "{% for m in messages %}{{ m.content.words }}{% endfor %}", "{{ messages[0].content[:2] }}"],
)
def test_a_template_that_leaves_out_the_user_s_words_is_refused(source: str) -> None:
    with pytest.raises(PromptError, match="expected one that writes what the user says"):
        ChatTemplate(source).check()


@pytest.mark.parametrize(
    ("source", "left_out"),
    [
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", ["system", "developer", "assistant", "tool"]),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", ["system"]),
        ("{% for m in messages if m.role != 'developer' %}{{ m.content }}{% endfor %}", []),
        ("{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}", ["tool"]),
    ],
)
def test_roles_that_a_template_leaves_out_are_known_and_refused(source: str, left_out: list[str]) -> None:
    template = ChatTemplate(source)
    assert template.check() == left_out
    for role in left_out:
        with pytest.raises(PromptError, match=rf"messages\[1\]: expected a role that the chat template writes, got {role}"):
            template.render([*user("U"), {"role": role, "content": "X"}])
        assert template.render([*user("U"), {"role": role, "content": ""}]) == "U", "nothing is lost"


def test_what_a_developer_says_is_the_system_s_where_the_template_knows_that_name_alone() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *user("U")]
    known = "{% for m in messages if m.role in ('system', 'user') %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert checked(known, ["assistant", "tool"]).render(messages) == "system:Be brief.;user:U;"
    assert checked(CHATML).render(messages).startswith("<|im_start|>developer\nBe brief.")


@pytest.mark.parametrize("written", ["{{ m.content }}", IN_PARTS])
def test_a_template_that_refuses_the_developer_gets_the_system_instead(written: str) -> None:
    refused = "{% else %}{{ raise_exception('Unknown role ' ~ m.role) }}{% endif %}{% endfor %}"
    source = "{% for m in messages %}{% if m.role in ('system', 'user') %}{{ m.role }}:" + written + ";" + refused
    messages = [{"role": "developer", "content": "Be brief."}, *user("U")]
    assert checked(source).render(messages) == "system:Be brief.;user:U;"
    with pytest.raises(PromptError, match="Unknown role developer"):
        checked(source.replace("'system'", "'assistant'")).render(messages)


def test_what_a_template_refuses_by_itself_is_left_to_it() -> None:
    source = (
        "{% for m in messages %}{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    template = checked(source)
    assert template.render([*user("U"), {"role": "assistant", "content": "A"}]) == "UA"
    with pytest.raises(PromptError, match="roles must alternate"):
        template.render(TALK)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=8)), min_size=1, max_size=4), st.booleans())
def test_every_word_comes_out_in_either_form(said: list[tuple[str, str]], in_parts: bool) -> None:
    template = PARTS if in_parts else TEXTS
    messages = [{"role": role, "content": text} for role, text in said]
    assert template.render(messages) == "".join(f"[{text}]" for _, text in said)


TEXTS = checked("{% for m in messages %}[{{ m.content }}]{% endfor %}")
PARTS = checked("{% for m in messages %}[" + IN_PARTS + "]{% endfor %}")
