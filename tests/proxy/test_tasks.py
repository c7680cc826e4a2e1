"""Requests that a front end sends in the background go to the device alone."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.endpoints.base import Request
from streamco.errors import ConfigError
from streamco.proxy.tasks import OPEN_WEBUI, TASK_HEADER, TaskRules, check_patterns

TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Guidelines:\n- ..."


def asking(content: Any) -> Request:
    return Request(messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (TITLE, "recognised"),
        ([{"type": "text", "text": TITLE}], "recognised"),
        ("What does '### Task:\n' mean?", ""),
        ([{"type": "image_url", "image_url": {"url": "data:"}}], ""),
        (None, ""),
    ],
)
def test_a_task_is_recognised_by_the_beginning_of_its_last_message(content: Any, name: str) -> None:
    assert TaskRules([OPEN_WEBUI], takes_header=False).name_of(asking(content), {}) == name


def test_a_prompt_without_messages_is_looked_at_too() -> None:
    rules = TaskRules([OPEN_WEBUI], takes_header=False)
    assert rules.name_of(Request(prompt=TITLE), {}) == "recognised"
    assert rules.name_of(Request(messages=[]), {}) == ""
    assert rules.name_of(Request(prompt_ids=[1]), {}) == ""


def test_a_callers_header_names_a_task_if_that_is_allowed() -> None:
    headers = {TASK_HEADER: "title"}
    assert TaskRules([], takes_header=True).name_of(asking("Hi"), headers) == "title"
    assert TaskRules([], takes_header=False).name_of(asking("Hi"), headers) == ""


@pytest.mark.parametrize("pattern", ["(", "a" * 1001])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.patterns: expected"):
        check_patterns([pattern])
