"""Settings of the server: ranges, exposure, and a key that doesn't leak."""

from __future__ import annotations

import math
from typing import Any

import pytest

from streamco.errors import ConfigError
from streamco.server.options import ServeOptions


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_a_loopback_host_needs_no_key(host: str) -> None:
    ServeOptions(host=host).check_exposure()


@pytest.mark.parametrize("host", ["::", "192.168.1.5", "127.0.0.1.example.com", "api.localhost", ""])
def test_another_host_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="expected a loopback address while no api key is set"):
        ServeOptions(host=host).check_exposure()


def test_an_open_host_needs_a_key_or_somebody_who_says_so() -> None:
    with pytest.raises(ConfigError, match=r"expected a loopback address while no api key is set, got 0\.0\.0\.0"):
        ServeOptions(host="0.0.0.0").check_exposure()
    ServeOptions(host="0.0.0.0", api_key="k").check_exposure()
    ServeOptions(host="0.0.0.0", allow_open=True).check_exposure()
    ServeOptions().check_exposure()


def test_the_key_is_not_shown() -> None:
    shown = f"{ServeOptions(api_key='sk-very-secret')} {ServeOptions(api_key='sk-very-secret')!r}"
    assert "sk-very-secret" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "changes",
    [{"port": -1}, {"max_streams": 0}, {"max_body_bytes": 0}, {"retry_after": -1.0}, {"max_tokens": 0}, {"max_prompt_tokens": -1},
     {"keepalive": 0.0}, {"reader_timeout": -1.0}, {"shutdown": 0.0}, {"api_key": ""}, {"api_key": "schlüssel"}, {"port": 65536},
     {"keepalive": math.inf}, {"idle_timeout": math.nan}, {"api_key": " k"}, {"api_key": "k\n"}],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        ServeOptions(**changes)
