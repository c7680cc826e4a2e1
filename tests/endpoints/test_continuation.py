"""Going on with an answer: what is added to the request, in each endpoint's form."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.continuation import continue_request
from streamco.errors import UsageError
from streamco.testing import ScriptedServer
from tests.endpoints.helpers import ask, opened

QUESTION = {"role": "user", "content": "count"}
ASKED = Request(messages=[QUESTION], sampling=SamplingOptions(max_tokens=5), extra={"user": "u"})


def test_a_prefix_is_marked() -> None:
    request = continue_request(ASKED, "one two", "prefix")
    assert request.messages == [QUESTION, {"role": "assistant", "content": "one two", "prefix": True}]
    assert (request.sampling, request.extra) == (ASKED.sampling, ASKED.extra)


def test_a_final_message_is_left_open() -> None:
    request = continue_request(ASKED, "one two", "continue_final_message")
    assert request.messages == [QUESTION, {"role": "assistant", "content": "one two"}]
    assert request.extra == {"user": "u", "continue_final_message": True, "add_generation_prompt": False}
    assert ASKED.messages == [QUESTION]


def test_a_text_prompt_grows() -> None:
    assert continue_request(Request(prompt="a"), "b", "prefix").prompt == "ab"


@pytest.mark.parametrize("how", ["none", "token_ids"])
def test_an_endpoint_that_can_not_is_refused(how: str) -> None:
    with pytest.raises(UsageError, match="continuation"):
        continue_request(ASKED, "x", how)  # type: ignore[arg-type]


def test_token_ids_do_not_go_on_with_text() -> None:
    with pytest.raises(UsageError, match="token ids"):
        continue_request(Request(prompt_ids=[1]), "x", "prefix")


async def test_deepseeks_prefix_goes_to_its_beta_url() -> None:
    async with ScriptedServer() as server, opened(server.url, provider="deepseek", api_key="k") as endpoint:
        here = replace(endpoint._address.provider, continuation_base_url=server.url.replace("/v1", "/beta"))
        endpoint._address = replace(endpoint._address, provider=here)
        await ask(endpoint, ASKED)
        await ask(endpoint, continue_request(ASKED, "one", endpoint.capabilities.continuation))
        assert [request.path for request in server.requests] == ["/v1/chat/completions", "/beta/chat/completions"]
