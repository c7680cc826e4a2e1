"""The address that a request goes to, and the key that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pydantic
import pytest
import yarl

from streamco.endpoints.address import Address, Url, account_headers, find_address, is_loopback, read_key
from streamco.endpoints.known_servers.providers import PROVIDERS, find_provider
from streamco.endpoints.network.credentials import ApiKey
from streamco.errors import ConfigError

KEYS = {
    "OPENAI_API_KEY": "sk-openai",
    "DEEPSEEK_API_KEY": "sk-deepseek",
    "OPENROUTER_API_KEY": "sk-openrouter",
    "AZURE_OPENAI_API_KEY": "azure-key",
}


def find(
    base_url: Url | None = None, api_key: ApiKey | None = None, provider: str | None = None, environ: Mapping[str, str] = KEYS
) -> tuple[Address, ApiKey | None]:
    return find_address(base_url, api_key, provider, environ)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "127.255.255.255", "::1", "[::1]"])
def test_the_machine_itself_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "1127.0.0.1", "127.1", "::2", "fe80::1", "example.com",
     "127.0.0.1.example.com", "127.example.com", "localhost.example.com", "api.localhost"],
)  # fmt: skip
def test_another_host_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_without_anything_it_is_openai_with_its_key() -> None:
    address, key = find()
    assert (address.base_url, address.provider.name, key) == ("https://api.openai.com/v1", "openai", "sk-openai")
    assert address.url("/chat/completions") == "https://api.openai.com/v1/chat/completions"
    assert address.label == "openai"


def test_the_environment_names_another_url() -> None:
    address, key = find(environ={**KEYS, "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1/"})
    assert (address.base_url, address.provider.name, key) == ("http://127.0.0.1:8000/v1", "generic", "sk-openai")


def test_a_provider_by_name_has_its_url_and_its_own_key() -> None:
    address, key = find(provider="deepseek")
    assert (address.base_url, key) == ("https://api.deepseek.com/v1", "sk-deepseek")


def test_a_provider_is_known_by_its_host_and_gets_its_own_key() -> None:
    address, key = find("https://openrouter.ai/api/v1")
    assert (address.provider.name, key) == ("openrouter", "sk-openrouter")


def test_an_argument_goes_before_the_environment() -> None:
    assert find("https://api.deepseek.com", "sk-mine")[1] == "sk-mine"


def test_a_known_provider_never_gets_the_key_of_another() -> None:
    with pytest.raises(ConfigError, match=r"expected a key for api\.mistral\.ai, got none; set MISTRAL_API_KEY"):
        find("https://api.mistral.ai/v1")


@pytest.mark.parametrize("provider", [provider for provider in PROVIDERS if provider.base_url], ids=lambda provider: provider.name)
def test_a_missing_key_names_the_variable(provider: object) -> None:
    assert isinstance(provider, type(PROVIDERS[0]))
    with pytest.raises(ConfigError, match=f"set {provider.key_variable} or pass api_key"):
        find(provider=provider.name, environ={})
    assert find(provider=provider.name, environ={provider.key_variable: "k"})[1] == "k"


def test_an_unknown_remote_server_gets_openais_key_and_needs_one() -> None:
    assert find("https://llm.example.com/v1")[1] == "sk-openai"
    with pytest.raises(ConfigError, match=r"expected a key for llm\.example\.com, got none; set OPENAI_API_KEY"):
        find("https://llm.example.com/v1", environ={})


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/v1", "http://localhost:8080/v1", "http://[::1]:8080/v1"])
def test_a_loopback_server_needs_no_key_and_gets_none_unasked(url: str) -> None:
    assert find(url)[1] is None
    assert find(url, environ={})[1] is None
    assert find(url, "local")[1] == "local"


def test_an_empty_key_means_no_key() -> None:
    assert find("http://192.168.1.5:8000/v1", "")[1] is None


@pytest.mark.parametrize("key", ["sk-\u00e9", "sk-a\nb", " sk-a", "sk-a\r\n", "sk-a "])
def test_a_malformed_key_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ConfigError) as info:
        find(api_key=key)
    assert "printable ASCII" in str(info.value)
    assert key.strip() not in str(info.value)


def test_a_function_is_a_key() -> None:
    def ask() -> str:
        return "sk-1"

    assert find(api_key=ask)[1] is ask
    assert find("http://127.0.0.1:8080/v1", ask, environ={})[1] is ask


def test_a_malformed_key_of_the_environment_names_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"^OPENAI_API_KEY: expected printable ASCII") as info:
        find(environ={"OPENAI_API_KEY": "sk-a\nb"})
    assert "sk-a" not in str(info.value)


@pytest.mark.parametrize("kind", [yarl.URL, httpx.URL, pydantic.AnyHttpUrl])
def test_a_url_may_be_an_object(kind: Callable[[str], Url]) -> None:
    assert find(kind("http://127.0.0.1:8080/v1"))[0].base_url == "http://127.0.0.1:8080/v1"


@pytest.mark.parametrize("url", [b"http://127.0.0.1/v1", 5, Path("/v1"), urlsplit("http://127.0.0.1/v1"), ["http://127.0.0.1/v1"]])
def test_another_object_than_a_url_is_named(url: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^base_url: expected a string or a URL, got {type(url).__name__}$"):
        find(url)


# Who pays at OpenAI


ACCOUNT = {**KEYS, "OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-1"}
BOTH = {"OpenAI-Organization": "org-1", "OpenAI-Project": "proj-1"}


def account(
    base_url: str | None = None,
    provider: str | None = None,
    *,
    organization: str | None = None,
    project: str | None = None,
    environ: Mapping[str, str] = ACCOUNT,
) -> dict[str, str]:
    address, _ = find(base_url, "k", provider, environ)
    return account_headers(address, organization, project, is_default=base_url is None and provider is None, environ=environ)


@pytest.mark.parametrize(("base_url", "provider"), [(None, None), (None, "openai"), ("https://api.openai.com/v1", None)])
def test_openai_gets_organisation_and_project_of_the_environment(base_url: str | None, provider: str | None) -> None:
    assert account(base_url, provider) == BOTH
    assert account(base_url, provider, environ={**KEYS, "OPENAI_PROJECT_ID": "proj-1"}) == {"OpenAI-Project": "proj-1"}
    assert account(base_url, provider, environ={**KEYS, "OPENAI_ORG_ID": ""}) == {}


def test_a_gateway_that_the_environment_names_gets_them_and_another_provider_does_not() -> None:
    assert account(environ={**ACCOUNT, "OPENAI_BASE_URL": "http://127.0.0.1:4000/v1"}) == BOTH
    assert account(environ={**ACCOUNT, "OPENAI_BASE_URL": "https://openrouter.ai/api/v1"}) == {}


@pytest.mark.parametrize("provider", [provider.name for provider in PROVIDERS if provider.base_url and provider.name != "openai"])
def test_no_other_provider_gets_the_ids_of_the_environment(provider: str) -> None:
    assert account(None, provider) == {}


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:8000/v1", "https://llm.example.com/v1", "https://my.openai.azure.com"])
def test_a_url_that_was_given_gets_them_only_if_they_were_given_as_well(base_url: str) -> None:
    assert account(base_url) == {}
    assert account(base_url, organization="org-2", project="proj-2") == {"OpenAI-Organization": "org-2", "OpenAI-Project": "proj-2"}


def test_arguments_go_before_the_environment_and_an_empty_one_means_none() -> None:
    assert account(organization="org-2") == {"OpenAI-Organization": "org-2", "OpenAI-Project": "proj-1"}
    assert account(organization="", project="") == {}


# Malformed addresses


@pytest.mark.parametrize(
    "url",
    ["api.openai.com/v1", "ftp://x/v1", "https://", "https://x:99999/v1", "https://x:a/v1", "/v1", "http://:80", "http://[::1:8000/v1"],
)
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url: expected"):
        find(url, "k")


def test_credentials_in_the_url_are_refused_and_not_shown() -> None:
    for url in ("https://user:pass@host.example/v1", "ftp://user:pass@host.example/v1", "https://user:://pass@host.example:0"):
        with pytest.raises(ConfigError) as info:
            find(url, "k")
        assert "pass@" not in str(info.value)


def test_v1_is_added_where_everybody_has_it_and_nowhere_else() -> None:
    assert find("http://127.0.0.1:8080")[0].base_url == "http://127.0.0.1:8080/v1"
    assert find("http://127.0.0.1:8080/")[0].base_url == "http://127.0.0.1:8080/v1"
    assert find("http://127.0.0.1:8080/api")[0].base_url == "http://127.0.0.1:8080/api"
    assert find("https://api.perplexity.ai", "k")[0].url("/chat/completions") == "https://api.perplexity.ai/chat/completions"
    assert find("https://api.deepseek.com")[0].base_url == "https://api.deepseek.com"


def test_azure_names_deployment_and_version_in_the_url() -> None:
    address, key = find("https://my.openai.azure.com/")
    assert (address.provider.name, key) == ("azure", "azure-key")
    assert address.url("/chat/completions", model="gpt4o-prod") == (
        "https://my.openai.azure.com/openai/deployments/gpt4o-prod/chat/completions?api-version=2024-10-21"
    )


def test_azure_takes_endpoint_and_version_from_the_environment() -> None:
    environ = {**KEYS, "AZURE_OPENAI_ENDPOINT": "https://my.openai.azure.com", "OPENAI_API_VERSION": "2025-01-01-preview"}
    address, _ = find(provider="azure", environ=environ)
    assert address.url("/completions", model="d").endswith("/openai/deployments/d/completions?api-version=2025-01-01-preview")


def test_azure_urls_that_say_more_are_kept() -> None:
    full = find("https://my.openai.azure.com/openai/deployments/mine?api-version=2024-12-01-preview")[0]
    assert full.url("/chat/completions", model="m") == (
        "https://my.openai.azure.com/openai/deployments/mine/chat/completions?api-version=2024-12-01-preview"
    )
    newer = find("https://my.openai.azure.com/openai/v1/")[0]
    assert newer.url("/chat/completions", model="m") == "https://my.openai.azure.com/openai/v1/chat/completions"


def test_azure_without_an_endpoint_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="set AZURE_OPENAI_ENDPOINT or pass base_url"):
        find(provider="azure")


def test_a_local_provider_without_a_url_says_so() -> None:
    with pytest.raises(ConfigError, match="expected the server's URL for provider 'vllm', got none"):
        find(provider="vllm")


def test_a_query_is_kept() -> None:
    assert find("https://llm.example.com/v1?team=a")[0].url("/models") == "https://llm.example.com/v1/models?team=a"


def test_root_urls_lie_beside_the_api() -> None:
    assert find("http://127.0.0.1:8080/v1")[0].root_url("/props") == "http://127.0.0.1:8080/props"
    assert find("http://127.0.0.1:8080/base/v1")[0].root_url("/props") == "http://127.0.0.1:8080/base/props"


def test_a_label_tells_unknown_servers_apart() -> None:
    assert find("http://127.0.0.1:8080/v1")[0].label == "127.0.0.1:8080"
    assert Address(find_provider("vllm"), "http://127.0.0.1:8080/v1").label == "vllm"


def test_a_named_variables_key_is_read() -> None:
    assert read_key("MY_KEY", setting="here", environ={"MY_KEY": "sk-1"}) == "sk-1"


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("OTHER", "here: expected a key in the environment variable OTHER, got none"),
        ("EMPTY", "here: expected a key in the environment variable EMPTY, got none"),
        ("sk-secret", "here: expected the name of an environment variable, got something else"),
    ],
)
def test_a_variable_without_a_key_is_named_and_a_key_in_its_place_is_not_repeated(variable: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_key(variable, setting="here", environ={"EMPTY": ""})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../x", "a/b", "a?api-version=1", "a#b", "a\r\nX: y", "%2e%2e"])
def test_a_deployment_can_not_change_the_path_or_the_query(name: str) -> None:
    address = find("https://my.openai.azure.com")[0]
    url = urlsplit(address.url("/chat/completions", model=name))
    assert url.path.startswith("/openai/deployments/")
    assert url.path.endswith("/chat/completions")
    assert unquote(url.path.removeprefix("/openai/deployments/").removesuffix("/chat/completions")) == name
    assert url.path.count("/") == 5
    assert url.query == "api-version=2024-10-21"


@pytest.mark.parametrize("name", [".", ".."])
def test_a_deployment_that_a_url_would_resolve_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="model: expected a deployment's name"):
        find("https://my.openai.azure.com")[0].url("/chat/completions", model=name)
