"""Log-probabilities in OpenAI's shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from streamco.wire.openai.logprobs import UNLIKELY, chat_logprobs, token_logprobs


def detokenize(ids: Sequence[int]) -> bytes:
    return bytes(ids)


def test_each_token_of_a_text_has_its_own_probabilities() -> None:
    found = token_logprobs((65, 66), (((65, 1.0),), ((67, 0.5), (66, 0.25), (68, 0.0))), 2)
    assert found == [(65, 0.0, [(65, 0.0)]), (66, math.log(0.25), [(67, math.log(0.5)), (66, math.log(0.25))])]


def test_a_token_without_a_probability_is_unlikely() -> None:
    assert token_logprobs((65,), (((66, 1.0),),), 0) == [(65, UNLIKELY, [])]
    assert token_logprobs((65,), (((65, 0.0),),), 0) == [(65, UNLIKELY, [])]


def test_what_is_not_known_is_none_and_not_unlikely() -> None:
    assert token_logprobs((65, 66), None, 3) == [(65, None, []), (66, None, [])]
    assert token_logprobs((), None, 3) == []
    (entry,) = chat_logprobs(token_logprobs((65,), None, 3), detokenize)["content"]
    assert entry == {"token": "A", "logprob": None, "bytes": [65], "top_logprobs": []}


def test_a_token_has_its_text_and_bytes() -> None:
    (entry,) = chat_logprobs([(200, -1.0, [(65, -0.5)])], detokenize)["content"]
    assert entry == {
        "token": "\ufffd",
        "logprob": -1.0,
        "bytes": [200],
        "top_logprobs": [{"token": "A", "logprob": -0.5, "bytes": [65]}],
    }
