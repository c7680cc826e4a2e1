"""Abilities that a caller declares: all of them, or single ones."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.endpoints.base import Capabilities
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.known_servers.declared import check_declared, with_declared
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import ConfigError

KNOWN = Capabilities(tools=True, images=True, continuation="prefix", context_tokens=100)


def test_nothing_declared_leaves_what_is_known() -> None:
    assert with_declared(KNOWN, None) == with_declared(KNOWN, {}) == KNOWN


def test_single_abilities_change_what_is_known() -> None:
    changed = with_declared(KNOWN, {"tools": False, "continuation": "none", "context_tokens": None})
    assert changed == Capabilities(images=True)


def test_capabilities_are_all_abilities() -> None:
    assert with_declared(KNOWN, Capabilities(json_schema=True)) == Capabilities(json_schema=True)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (3, "capabilities: expected Capabilities, a mapping of single ones or None, got int"),
        ({"tool": True}, "capabilities: expected names among vocabulary, .*, got 'tool'"),
        ({"tools": "yes"}, r"capabilities: Expected `bool`, got `str` - at `\$.tools`"),
        ({"pre_copy": "cold"}, "capabilities: Invalid enum value 'cold'"),
    ],
)
def test_what_is_no_ability_is_refused_by_each_endpoint(declared: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_declared(declared)
    for make in (OpenAIEndpoint, AnthropicEndpoint):
        with pytest.raises(ConfigError, match=message):
            make("m", base_url="http://127.0.0.1:1", capabilities=declared)
    with pytest.raises(ConfigError, match=message):
        LocalServerEndpoint("http://127.0.0.1:1", capabilities=declared)
