"""Requests that a front end sends in the background go to the device alone."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.endpoints.base import Request
from streamco.errors import ConfigError
from streamco.proxy.config import ProxyOptions, format_config, parse_config
from streamco.proxy.from_config import build_options
from streamco.proxy.tasks import OPEN_WEBUI, TASK_HEADER, TaskRules, check_patterns
from tests.client.helpers import device, server
from tests.proxy.support import CHAT, HELLO, proxying

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


async def test_the_device_answers_a_task_alone_and_everything_else_goes_on_as_before() -> None:
    sides = device(), server()
    options: dict[str, Any] = {"policy": "server-only", "task_patterns": (OPEN_WEBUI,), "takes_tasks": True}
    async with proxying(*sides, **options) as proxy:
        for body, headers, winner in (
            (HELLO, {}, "server"),
            ({"messages": [{"role": "user", "content": TITLE}]}, {}, "device"),
            (HELLO, {TASK_HEADER: "tags"}, "device"),
        ):
            async with proxy.client.post(CHAT, json=body, headers=headers) as response:
                assert response.status == 200
                assert response.headers["x-streamco-winner"] == winner
        async with proxy.client.post(CHAT, json={**HELLO, "stream": True}, headers={TASK_HEADER: "title"}) as response:
            assert b"D" in await response.read()
    assert len(sides[1].streams) == 1


async def test_without_the_section_the_header_means_nothing() -> None:
    async with (
        proxying(device(), server(), policy="server-only") as proxy,
        proxy.client.post(CHAT, json=HELLO, headers={TASK_HEADER: "title"}) as response,
    ):
        assert response.headers["x-streamco-winner"] == "server"


def test_the_section_of_the_file_sets_the_rules() -> None:
    config = parse_config('[device]\nmodel = "packaged"\n[tasks]\nopen_webui = true\npatterns = ["Title:"]\n')
    options = build_options(config, environ={})
    assert options.task_patterns == (OPEN_WEBUI, "Title:")
    assert options.takes_tasks
    assert parse_config(format_config(config)) == config
    assert not build_options(parse_config('[device]\nmodel = "packaged"\n'), environ={}).takes_tasks


def test_tasks_need_a_device() -> None:
    config = parse_config('[tasks]\n[[server]]\nmodel = "large"\nbase_url = "http://127.0.0.1:9/v1"\n')
    with pytest.raises(ConfigError, match=r"tasks: only valid with a \[device\]"):
        build_options(config, environ={})
    with pytest.raises(ConfigError, match="regular expressions"):
        ProxyOptions(task_patterns=("(",))
