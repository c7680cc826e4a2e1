"""Settings of the server over an engine: limits beside those that every server has."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.errors import ConfigError
from streamco.server.options import ServeOptions


@pytest.mark.parametrize("changes", [{"max_tokens": 0}, {"max_prompt_tokens": -1}, {"port": -1}])
def test_settings_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        ServeOptions(**changes)


def test_no_limit_is_the_default() -> None:
    options = ServeOptions()
    assert (options.max_tokens, options.max_prompt_tokens, options.model, options.hold) == (None, None, None, None)
    assert options.verify is not None


def test_the_key_is_not_shown() -> None:
    assert "sk-very-secret" not in repr(ServeOptions(api_key="sk-very-secret", model="tiny"))
