"""The proxy of the environment: what each variable means, and that httpx finds the same one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamco.endpoints.network.environment_proxies import find_proxy
from streamco.errors import ConfigError

PORTS = {"http": 80, "https": 443}


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """The process's environment with these proxies and no others."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name == "REQUEST_METHOD":
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def found(url: str, **variables: str) -> str | None:
    parts = urlsplit(url)
    with environment(**variables):
        return find_proxy(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme])


# Which variable counts


ONE, TWO, THREE = "http://one:3128", "http://two:3128", "http://three:3128"


@pytest.mark.parametrize(
    ("variables", "http", "https"),
    [
        ({}, None, None),
        ({"HTTP_PROXY": ONE}, ONE, None),
        ({"HTTPS_PROXY": TWO}, None, TWO),
        ({"ALL_PROXY": THREE}, THREE, THREE),
        ({"all_proxy": THREE}, THREE, THREE),
        ({"HTTP_PROXY": ONE, "HTTPS_PROXY": TWO, "ALL_PROXY": THREE}, ONE, TWO),
        ({"HTTP_PROXY": ONE, "ALL_PROXY": THREE}, ONE, THREE),
        ({"http_proxy": ONE, "HTTP_PROXY": TWO}, ONE, None),
        ({"HTTP_PROXY": "", "ALL_PROXY": THREE}, THREE, THREE),
        ({"FTP_PROXY": ONE, "TRAVIS_APT_PROXY": TWO}, None, None),
        ({"HTTP_PROXY": ONE, "REQUEST_METHOD": "GET"}, None, None),  # a header of a CGI request could have set it
    ],
)
def test_the_schemes_own_proxy_counts_and_all_proxy_is_the_last_resort(
    variables: dict[str, str], http: str | None, https: str | None
) -> None:
    assert found("http://example.com", **variables) == http
    assert found("https://example.com", **variables) == https


@pytest.mark.parametrize("setting", ["127.0.0.1:3128", "proxy.example", "proxy.example:3128", "user:word@proxy.example:3128", "[::1]:3128"])
def test_a_proxy_without_a_scheme_is_completed(setting: str) -> None:
    assert found("http://example.com", HTTP_PROXY=setting) == f"http://{setting}"


@pytest.mark.parametrize("setting", ["http://proxy:3128/", "HTTP://proxy:3128", "https://user:word@proxy.example"])
def test_a_proxy_with_a_scheme_stays_as_it_is(setting: str) -> None:
    assert found("http://example.com", HTTP_PROXY=setting) == setting


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "https_proxy"])
@pytest.mark.parametrize(
    "setting",
    [
        "socks5://user:word@proxy:1080",
        "http://us:se/word@proxy:1080",
        "http://user:word@[::1",
        "socks5h://proxy:1080",
        "socks4://proxy",
        "ftp://proxy",
        "http://",
        "http://proxy:port",
        "http://:3128",
    ],
)
def test_a_proxy_that_can_not_be_used_is_named_with_its_variable_and_without_its_password(variable: str, setting: str) -> None:
    scheme = "https" if variable.startswith("https") else "http"
    with pytest.raises(ConfigError, match=rf"^{variable.upper()}: expected a URL like .* got '{setting.partition(':')[0]}:") as caught:
        found(f"{scheme}://example.com", **{variable: setting})
    assert "word" not in str(caught.value)
    assert found(f"{scheme}://example.com", **{variable: setting}, NO_PROXY="example.com") is None, "it isn't used there"


# What NO_PROXY exempts


@pytest.mark.parametrize(
    ("entry", "exempt", "through"),
    [
        ("*", ["http://example.com", "https://10.0.0.1:8080", "http://[2001:db8::1]"], []),
        ("example.com", ["http://example.com", "http://EXAMPLE.com.", "https://a.b.example.com:8443"], ["http://wwwexample.com"]),
        (".example.com", ["http://www.example.com"], ["http://example.com"]),
        ("*.example.com", ["http://www.example.com"], ["http://example.com", "http://wwwexample.com"]),
        ("example.com:8080", ["http://example.com:8080", "http://www.example.com:8080"], ["http://example.com", "http://example.com:80"]),
        ("example.com:443", ["https://example.com"], ["http://example.com"]),
        ("https://example.com", ["https://example.com:8443"], ["http://example.com", "https://www.example.com"]),
        ("all://example.com:80/", ["http://example.com"], ["http://example.com:8080"]),
        ("10.0.0.0/8", ["http://10.0.0.0", "http://10.255.1.2:8000"], ["http://11.0.0.1", "http://10.example.com"]),
        ("10.1.2.3/8", ["http://10.9.9.9"], ["http://11.0.0.1"]),
        ("10.0.0.1", ["http://10.0.0.1:99"], ["http://10.0.0.10", "http://110.0.0.1"]),
        ("10.0.0.1:8080", ["http://10.0.0.1:8080"], ["http://10.0.0.1:8081"]),
        ("2001:db8::/32", ["http://[2001:db8::5]:8080"], ["http://[2001:db9::5]"]),
        ("2001:db8::1", ["http://[2001:DB8:0::1]"], ["http://[2001:db8::2]"]),
        ("[2001:db8::1]:8080", ["http://[2001:db8::1]:8080"], ["http://[2001:db8::1]:8081"]),
        ("localhost", ["http://localhost:1"], ["http://api.localhost"]),
        (" , example.org ,,example.com ", ["http://example.com", "http://example.org"], ["http://example.net"]),
        ("", [], ["http://example.com"]),
        (",", [], ["http://example.com"]),
    ],
)
def test_an_entry_exempts_its_hosts_networks_and_ports_alone(entry: str, exempt: list[str], through: list[str]) -> None:
    for url in exempt:
        assert found(url, ALL_PROXY=ONE, NO_PROXY=entry) is None, url
    for url in through:
        assert found(url, ALL_PROXY=ONE, NO_PROXY=entry) == ONE, url


def test_what_the_system_exempts_counts_if_the_environment_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamco.endpoints.network import environment_proxies

    monkeypatch.setattr(environment_proxies, "getproxies", lambda: {"http": ONE})  # Windows and macOS
    monkeypatch.setattr(environment_proxies, "proxy_bypass", lambda host: host == "intranet")
    with environment():
        assert find_proxy("http", "example.com", 80) == ONE
        assert find_proxy("http", "intranet", 80) is None


# httpx


def httpx_proxy(url: str, variables: Mapping[str, str]) -> str | None:
    """The proxy that httpx would use."""
    with environment(**variables):
        client = httpx.AsyncClient(verify=False)
    transport: Any = client._transport_for_url(httpx.URL(url))
    proxy = getattr(transport._pool, "_proxy_url", None)
    if proxy is None:
        return None
    return f"{proxy.scheme.decode()}://{proxy.host.decode()}:{proxy.port}"


NAMES = ["example.com", "www.example.com", "a.www.example.com", "wwwexample.com", "example.org", "10.0.0.1", "10.0.0.10", "localhost"]
# without what httpx only compares as text: networks, `*.`, and the ports that a scheme implies
ENTRIES = [
    *NAMES,
    ".example.com",
    "EXAMPLE.com",
    "*",
    "",
    "example.com:8080",
    "10.0.0.1:8080",
    "http://example.com",
    "https://example.com:8080",
]
PROXIES = st.sampled_from([ONE, TWO, "three:3128", ""])
VARIABLES = st.sampled_from(["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"])


@given(
    variables=st.dictionaries(VARIABLES, PROXIES),
    entries=st.lists(st.sampled_from(ENTRIES), max_size=3),
    scheme=st.sampled_from(["http", "https"]),
    host=st.sampled_from(NAMES),
    port=st.sampled_from(["", ":8080", ":8081"]),
)
@example({"HTTP_PROXY": ONE}, ["http://example.com"], "http", "www.example.com", "")
def test_httpx_finds_the_same(variables: dict[str, str], entries: list[str], scheme: str, host: str, port: str) -> None:
    variables = {**variables, "NO_PROXY": ", ".join(entries)}
    url = f"{scheme}://{host}{port}"
    assert found(url, **variables) == httpx_proxy(url, variables)
