"""The table of providers is coherent, and refusals are learned."""

from __future__ import annotations

import pytest

from streamco.endpoints.known_servers.providers import GENERIC, PROVIDERS, Dialect, Provider, find_provider
from streamco.errors import ConfigError, EndpointStatusError


def refusal(body: str, status: int = 400) -> EndpointStatusError:
    return EndpointStatusError("x", status=status, body=body)


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_every_entry_has_a_source_and_is_found_by_name_and_hosts(provider: Provider) -> None:
    assert provider.source
    assert find_provider(provider.name) is provider
    for host in provider.hosts:
        assert find_provider(host=f"some{host}" if host.startswith(".") else host) is provider


def test_names_and_hosts_are_unique() -> None:
    names = [provider.name for provider in PROVIDERS]
    hosts = [host for provider in PROVIDERS for host in provider.hosts]
    assert len(set(names)) == len(names)
    assert len(set(hosts)) == len(hosts)


def test_urls_are_https_without_a_trailing_slash() -> None:
    for provider in PROVIDERS:
        for url in (provider.base_url, provider.continuation_base_url):
            assert url is None or (url.startswith("https://") and not url.endswith("/"))


def test_an_unknown_host_is_generic_and_lookalikes_are_unknown() -> None:
    assert find_provider(host="llm.example.com") is GENERIC
    assert find_provider(host="evil-api.openai.com") is GENERIC
    assert find_provider(host="api.openai.com.example.com") is GENERIC
    assert find_provider(host="openai.azure.com") is GENERIC


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"provider: expected one of .*deepseek.*, got 'openia'"):
        find_provider("openia")


def test_an_unknown_server_says_itself_what_it_cannot_do_but_nothing_is_handed_over_to_it() -> None:
    can = GENERIC.capabilities
    assert (can.tools, can.json_schema, can.images, can.choices) == (True, True, True, True)
    assert (can.continuation, can.takes_token_ids, can.pre_copy) == ("none", False, "none")


@pytest.mark.parametrize("name", ["vllm", "sglang", "llama-server"])
def test_what_a_local_server_can_do_depends_on_how_it_was_started(name: str) -> None:
    assert find_provider(name).capabilities.tools
    assert find_provider(name).capabilities.images


# Bodies as servers sent them: the issues named in the table.
MISTRAL = (
    '{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options","include_usage"],'
    '"msg":"Extra inputs are not permitted","input":true}]},"type":"invalid_request_error"}'
)
AZURE = '{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error"}}'
REASONING = (
    '{"error":{"message":"Unsupported parameter: \'max_tokens\' is not supported with this model. Use \'max_completion_tokens\' instead.",'
    '"type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}'
)
OLDER = '{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]}'


@pytest.mark.parametrize(("status", "body"), [(422, MISTRAL), (400, AZURE)])
def test_a_refused_stream_options_is_left_out_from_then_on(status: int, body: str) -> None:
    dialect = Dialect(GENERIC)
    assert dialect.record_refusal(refusal(body, status), b"{}")
    assert not dialect.has_stream_options
    assert not dialect.record_refusal(refusal(body, status), b"{}")


def test_a_refusal_of_a_stream_option_that_the_caller_wants_says_nothing_about_the_field() -> None:
    dialect = Dialect(GENERIC)
    unknown = refusal('{"error":{"message":"Unknown parameter: \'stream_options.continuous_usage_stats\'."}}')
    assert not dialect.record_refusal(unknown, b'{"stream_options": {"include_usage": true, "continuous_usage_stats": true}}')
    assert dialect.has_stream_options
    assert dialect.record_refusal(unknown, b'{"stream_options": {"include_usage": true}}')


def test_the_name_of_the_length_limit_is_learned_both_ways() -> None:
    dialect = Dialect(GENERIC)
    fields = []
    for error in (refusal(REASONING), refusal(OLDER, 422)):
        assert dialect.record_refusal(error, b"{}")
        fields.append(dialect.max_tokens_field)
    assert fields == ["max_completion_tokens", "max_tokens"]


@pytest.mark.parametrize(
    "error",
    [
        refusal('{"error":{"message":"max_completion_tokens is too large: 99999"}}'),
        refusal('{"error":{"message":"messages: unknown role"}}'),
        refusal(AZURE, 500),
        refusal(AZURE, 401),
        refusal(""),
    ],
)
def test_other_errors_teach_nothing(error: EndpointStatusError) -> None:
    dialect = Dialect(find_provider("openai"))
    assert not dialect.record_refusal(error, b"{}")
    assert dialect.has_stream_options
    assert dialect.max_tokens_field == "max_completion_tokens"
