"""The error tree."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from streamco import errors
from streamco.errors import (
    MAX_NAME,
    MAX_TEXT,
    AllEndpointsFailed,
    ConfigError,
    EndpointConnectError,
    EndpointError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
    StreamcoError,
    UsageError,
    shorten,
)

SAMPLES = [
    EndpointConnectError("expected a connection, got none", endpoint="server", partial="Hel"),
    EndpointTimeoutError("expected a token, got none", phase="next_token", limit=3.0, endpoint="server", partial="Hel"),
    EndpointStatusError("expected 200, got 429", status=429, body="{}", retry_after=2.5, code="c", endpoint="server"),
    AllEndpointsFailed({"server": EndpointConnectError("refused", endpoint="server"), "device": ValueError("odd")}, partial="Hel"),
    ConfigError("pace: expected None, got -1"),
    ConfigError("messages: expected less, got more", field="messages", code="context_length_exceeded"),
    StreamClosed("expected an open stream, got a closed one"),
]


def kinds() -> list[type[StreamcoError]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StreamcoError)]


def test_every_error_is_in_the_drawn_tree_and_public() -> None:
    for kind in kinds():
        assert re.search(rf"[─ ]{kind.__name__}\b|^    {kind.__name__}$", errors.__doc__ or "", flags=re.MULTILINE), kind
        assert kind.__name__ in errors.__all__


def test_whose_fault_it_is_decides_the_branch() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(UsageError, RuntimeError)
    assert not issubclass(AllEndpointsFailed, EndpointError)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("carry", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_an_error_crosses_process_borders_with_all_its_fields(error: StreamcoError, carry: Callable[[StreamcoError], Any]) -> None:
    carried = carry(error)
    assert type(carried) is type(error)
    assert str(carried) == str(error)
    for name, value in vars(error).items():
        assert getattr(carried, name) == value or name == "errors"
    if isinstance(error, AllEndpointsFailed):
        assert {n: str(each) for n, each in vars(carried)["errors"].items()} == {n: str(each) for n, each in error.errors.items()}


def test_an_endpoints_name_stands_before_its_text() -> None:
    assert str(SAMPLES[0]) == "server: expected a connection, got none"
    assert str(EndpointError("something")) == "something"


def test_all_endpoints_failed_tells_each_ones_own() -> None:
    assert str(SAMPLES[3]) == "no endpoint could finish the answer: server: refused; device: odd"
    assert str(AllEndpointsFailed({"a": ValueError("x")})) == "no endpoint could give the answer: a: x"


LONG = "x" * 900_000


@pytest.mark.parametrize("kind", [EndpointError, ConfigError, UsageError, EndpointConnectError])
def test_a_text_is_bounded_and_keeps_both_ends(kind: type[StreamcoError]) -> None:
    text = str(kind(f"model: expected the name of a model, got {LONG!r}; see the list"))
    assert len(text) < MAX_TEXT + 50
    assert text.startswith("model: expected the name of a model, got 'xxx")
    assert " ... (9000" in text
    assert text.endswith("xxx'; see the list")


def test_a_text_of_many_errors_is_bounded() -> None:
    error = AllEndpointsFailed({f"endpoint {number}": EndpointError(LONG) for number in range(50)})
    assert len(str(error)) < MAX_TEXT + 50


def test_what_is_short_stays_as_it_is() -> None:
    assert shorten("x" * MAX_NAME, MAX_NAME) == "x" * MAX_NAME
    assert shorten("abcdefghij", 8) == "abcdef ... (10 characters) ... ij"
    assert str(EndpointError("a" * MAX_TEXT)) == "a" * MAX_TEXT


def test_the_failure_of_all_says_when_the_first_endpoint_may_be_asked_again() -> None:
    busy = [EndpointStatusError("busy", status=429, retry_after=seconds) for seconds in (60.0, 4.0)]
    assert AllEndpointsFailed({"a": busy[0], "b": busy[1], "c": ValueError("odd")}).retry_after == 4.0
    assert AllEndpointsFailed({"c": ValueError("odd")}).retry_after is None


def test_the_failure_of_all_has_a_code_if_all_say_the_same() -> None:
    one, other = (EndpointStatusError("no", status=400, code=code) for code in ("context_length_exceeded", "other"))
    assert AllEndpointsFailed({"a": one, "b": one}).code == "context_length_exceeded"
    assert AllEndpointsFailed({"a": one, "b": other}).code is None
    assert AllEndpointsFailed({"a": one, "b": EndpointConnectError("cut")}).code is None
    assert AllEndpointsFailed({"a": ValueError("odd")}).code is None
