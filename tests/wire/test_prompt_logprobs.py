from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import EndpointProtocolError
from streamco.wire.prompt_logprobs import read_sglang, read_vllm, sglang_request, vllm_request

IDS = [7, 8, 9, 4, 5]  # three of context, two of draft


def vllm_answer() -> dict[str, Any]:
    """As vLLM 0.32 wrote one, cut to what matters: the draft's first token is the likeliest, its second is of rank 4."""
    return {
        "id": "cmpl-1",
        "choices": [
            {
                "index": 0,
                "text": " x",
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": [6],
                "prompt_token_ids": list(IDS),
                "prompt_logprobs": [
                    None,
                    {"8": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}},
                    {"9": {"logprob": -9.5, "rank": 70, "decoded_token": "b"}, "3": {"logprob": -0.1, "rank": 1, "decoded_token": "c"}},
                    {"4": {"logprob": -0.25, "rank": 1, "decoded_token": "d"}, "2": {"logprob": -2.5, "rank": 2, "decoded_token": "e"}},
                    {
                        "5": {"logprob": -9999.0, "rank": 4, "decoded_token": "f"},
                        "1": {"logprob": -0.5, "rank": 1, "decoded_token": "g"},
                        "2": {"logprob": -1.0, "rank": 2, "decoded_token": "h"},
                    },
                ],
                "logprobs": {
                    "tokens": ["token_id:6"],
                    "token_logprobs": [-0.125],
                    "top_logprobs": [{"token_id:6": -0.125, "token_id:2": -3.0}],
                    "text_offset": [0],
                },
            }
        ],
        "usage": {"prompt_tokens": 5, "total_tokens": 6, "completion_tokens": 1},
    }


def sglang_answer() -> dict[str, Any]:
    return {
        "text": " x",
        "output_ids": [6],
        "meta_info": {
            "id": "r",
            "prompt_tokens": 5,
            "cached_tokens": 2,
            "completion_tokens": 1,
            "finish_reason": {"type": "length", "length": 1},
            "input_token_logprobs": [[None, 9, None], [-0.25, 4, None], [None, 5, None]],
            "input_top_logprobs": [None, [[-0.25, 4, None], [-2.5, 2, None]], [[-0.5, 1, None], [-1.0, 2, None]]],
            "output_token_logprobs": [[-0.125, 6, None]],
            "output_top_logprobs": [[[-0.125, 6, None], [-3.0, 2, None]]],
        },
    }


def encoded(answer: Any) -> bytes:
    return json.dumps(answer).encode()


@pytest.mark.parametrize(("read", "answer"), [(read_vllm, vllm_answer), (read_sglang, sglang_answer)])
def test_rows_tell_the_best_and_the_drafts_own_and_nothing_is_impossible_but_minus_infinity(
    read: Callable[..., Any], answer: Callable[[], Any]
) -> None:
    first, second, last = read(encoded(answer()), IDS, 2).positions
    assert (first.best, first.ids, first.logprobs) == (4, (4, 2), (-0.25, -2.5))
    assert (second.best, second.ids, second.logprobs) == (1, (1, 2, 5), (-0.5, -1.0, -math.inf))
    assert (last.best, last.ids, last.logprobs) == (6, (6, 2), (-0.125, -3.0))


def test_without_a_draft_no_rows_of_the_prompt_are_asked_for() -> None:
    assert "prompt_logprobs" not in vllm_request("m", IDS, 0, 1)
    answer = vllm_answer()
    answer["choices"][0]["prompt_logprobs"] = None
    assert [place.best for place in read_vllm(encoded(answer), IDS, 0).positions] == [6]
    meta = sglang_answer()
    meta["meta_info"] |= {"input_token_logprobs": [[None, 5, None]], "input_top_logprobs": [None], "cached_tokens": 4}
    assert [place.best for place in read_sglang(encoded(meta), IDS, 0).positions] == [6]


def test_requests_ask_for_one_token_and_the_rows_of_the_draft() -> None:
    asked = vllm_request("m", IDS, 2, 5)
    assert (asked["prompt"], asked["max_tokens"], asked["temperature"], asked["prompt_logprobs"]) == (IDS, 1, 0, 5)
    assert not asked["stream"]
    assert "cache_salt" not in asked
    assert vllm_request("m", IDS, 0, 5, salt="abc")["cache_salt"] == "abc"
    asked = sglang_request(IDS, 2, 5)
    assert (asked["input_ids"], asked["logprob_start_len"], asked["top_logprobs_num"]) == (IDS, 2, 5)
    assert asked["sampling_params"]["max_new_tokens"] == 1


def test_of_two_as_good_the_one_the_server_put_first_is_the_best() -> None:
    answer = vllm_answer()
    answer["choices"][0]["prompt_logprobs"][3] = {
        "4": {"logprob": -0.5, "rank": 2},
        "2": {"logprob": -0.5, "rank": 1},
    }
    assert read_vllm(encoded(answer), IDS, 2).positions[0].ids == (2, 4)


def choice(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    def spoil(answer: Any) -> None:
        change(answer["choices"][0])

    return spoil


def meta(**changes: Any) -> Callable[[Any], Any]:
    return lambda answer: answer["meta_info"].update(changes)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (choice(lambda it: it["prompt_logprobs"].pop()), "for 5 tokens"),
        (choice(lambda it: it.update(prompt_logprobs=None)), "for 5 tokens"),
        (choice(lambda it: it.update(prompt_token_ids=[7, 8, 9, 4, 6])), "the prompt of 5 ids"),
        (choice(lambda it: it["prompt_logprobs"][3].pop("4")), "row 3: expected id 4 itself"),
        (choice(lambda it: it["prompt_logprobs"][4].pop("1")), "row 4: expected one id of rank 1"),
        (choice(lambda it: it["prompt_logprobs"][4]["2"].update(rank=1)), "one id of rank 1, got 2"),
        (choice(lambda it: it["prompt_logprobs"][4]["2"].update(logprob=0.5)), "logarithms of probabilities"),
        (choice(lambda it: it["prompt_logprobs"].__setitem__(4, None)), "by token id"),
        (choice(lambda it: it["prompt_logprobs"].__setitem__(4, {"x": {"logprob": -1, "rank": 1}})), "by token id"),
        (choice(lambda it: it["prompt_logprobs"].__setitem__(4, {"5": {"logprob": "no", "rank": 1}})), "by token id"),
        (choice(lambda it: it.update(token_ids=[])), "one token"),
        (choice(lambda it: it.update(token_ids=None)), "one token"),
        (lambda it: it.update(choices=[]), "one choice"),
        (lambda it: it.pop("choices"), "expected log-probabilities"),
    ],
)
def test_what_vllm_does_not_write_is_refused(spoil: Callable[[Any], Any], what: str) -> None:
    answer = vllm_answer()
    spoil(answer)
    with pytest.raises(EndpointProtocolError, match=what):
        read_vllm(encoded(answer), IDS, 2)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (meta(cached_tokens=3), "at most 2 tokens from its cache"),
        (meta(prompt_tokens=4), "a prompt of 5 tokens"),
        (meta(input_token_logprobs=[[None, 9, None], [-0.25, 4, None]]), "input logprobs for 3 tokens"),
        (meta(input_token_logprobs=None), "input logprobs for 3 tokens"),
        (meta(input_top_logprobs=[None, None, None]), "row 1: expected the likeliest"),
        (meta(input_token_logprobs=[[None, 9, None], [-0.25, 4, None], [-1.0, 6, None]]), "the logprob of id 5 at row 2"),
        (meta(input_top_logprobs=[None, [[0.7, 4, None]], [[-1.0, 1, None]]]), "logarithms of probabilities"),
        (meta(input_top_logprobs=[None, [[-0.7, -4, None]], [[-1.0, 1, None]]]), "token ids"),
        (lambda it: it.update(output_ids=[6, 6]), "one token"),
        (lambda it: it.pop("meta_info"), "expected log-probabilities"),
    ],
)
def test_what_sglang_does_not_write_is_refused(spoil: Callable[[Any], Any], what: str) -> None:
    answer = sglang_answer()
    spoil(answer)
    with pytest.raises(EndpointProtocolError, match=what):
        read_sglang(encoded(answer), IDS, 2)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    for read in (read_vllm, read_sglang):
        with pytest.raises(EndpointProtocolError):
            read(data, IDS, 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1", "5", "logprob", "rank", "x"]), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, st.data())
def test_any_field_may_be_anything_and_gives_scores_or_our_own_error(value: Any, data: st.DataObject) -> None:
    answer = vllm_answer()
    holder = answer["choices"][0]
    key = data.draw(st.sampled_from(sorted(holder)))
    if key == "prompt_logprobs" and data.draw(st.booleans()):
        holder[key][data.draw(st.integers(0, 4))] = value
    else:
        holder[key] = value
    other = sglang_answer()
    other["meta_info"][data.draw(st.sampled_from(sorted(other["meta_info"])))] = value
    for read, spoilt in ((read_vllm, answer), (read_sglang, other)):
        try:
            scores = read(encoded(spoilt), IDS, 2)
        except EndpointProtocolError:
            continue
        assert len(scores.positions) == 3
        assert all(place.best in place.ids for place in scores.positions)
