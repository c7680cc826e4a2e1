"""Settings that every server shares: ranges, exposure, and a key that doesn't leak."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from streamco.errors import ConfigError
from streamco.server.http.options import ListenOptions


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_a_loopback_host_needs_no_key(host: str) -> None:
    ListenOptions(host=host).check_exposure()


@pytest.mark.parametrize("host", ["::", "192.168.1.5", "127.0.0.1.example.com", "api.localhost", ""])
def test_another_host_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="expected a loopback address while no api key is set"):
        ListenOptions(host=host).check_exposure()


def test_an_open_host_needs_a_key_or_an_explicit_permission() -> None:
    with pytest.raises(ConfigError, match=r"expected a loopback address while no api key is set, got 0\.0\.0\.0"):
        ListenOptions(host="0.0.0.0").check_exposure()
    ListenOptions(host="0.0.0.0", api_key="k").check_exposure()
    ListenOptions(host="0.0.0.0", allow_open=True).check_exposure()
    ListenOptions().check_exposure()


def test_the_key_is_not_shown() -> None:
    shown = f"{ListenOptions(api_key='sk-very-secret')} {ListenOptions(api_key='sk-very-secret')!r}"
    assert "sk-very-secret" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "changes",
    [{"port": -1}, {"max_streams": 0}, {"max_body_bytes": 0}, {"retry_after": -1.0},
     {"keepalive": 0.0}, {"reader_timeout": -1.0}, {"shutdown": 0.0}, {"api_key": ""}, {"api_key": "schlüssel"}, {"port": 65536},
     {"keepalive": math.inf}, {"idle_timeout": math.nan}, {"api_key": " k"}, {"api_key": "k\n"}],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        ListenOptions(**changes)


def test_a_tls_key_needs_its_certificate() -> None:
    with pytest.raises(ConfigError, match="tls_key: only valid with a tls_cert"):
        ListenOptions(tls_key="key.pem")


def test_without_a_certificate_there_is_no_tls() -> None:
    assert ListenOptions().tls_context() is None


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    path.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"tls: expected a certificate and its key in PEM, got .* at .*cert\.pem"):
        ListenOptions(tls_cert=str(path)).tls_context()
