"""Fields of a body: types, paths in errors, what is left over."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.wire.request_fields import BODY, FieldError, Fields, decode_fields, name_of, objects_of, unoffered


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "null"), (True, "true or false"), (1, "a number"), (0.5, "a number"), ("x", "a string"), ([], "a list"), ({}, "an object")],
)
def test_a_value_is_called_by_its_type_in_json(value: Any, name: str) -> None:
    assert name_of(value) == name


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        ("text", 1, "expected a string, got a number"),
        ("needed_text", None, "expected a string, got none"),
        ("flag", "yes", "expected true or false, got a string"),
        ("count", True, "expected an integer >= 1, got true or false"),
        ("count", 1.0, "expected an integer >= 1, got a number"),
        ("count", 0, "expected an integer >= 1, got 0"),
        ("items", {}, "expected a list, got an object"),
        ("inner", [], "expected an object, got a list"),
        ("json_object", 1, "expected an object, got a number"),
        ("needed_object", None, "expected an object, got none"),
    ],
)
def test_a_wrong_type_is_refused_with_its_path(read: str, value: Any, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        getattr(Fields({"x": value}, "a[2]"), read)("x")
    assert (caught.value.field, caught.value.message) == ("a[2].x", message)
    assert str(caught.value) == f"a[2].x: {message}"


def test_right_types_are_given_and_null_counts_as_not_given() -> None:
    fields = Fields({"text": "t", "flag": False, "count": 3, "items": [1], "inner": {"x": 1}, "objects": [{"y": "z"}], "null": None})
    assert (fields.text("text"), fields.flag("flag"), fields.count("count"), fields.items("items")) == ("t", False, 3, [1])
    inner = fields.inner("inner")
    assert inner is not None
    assert (inner.path, inner.take("x")) == ("inner", 1)
    (each,) = fields.objects("objects")
    assert (each.path, each.needed_text("y")) == ("objects[0]", "z")
    assert fields.rest() == {}
    for read in (fields.text, fields.flag, fields.count, fields.items, fields.inner, fields.json_object):
        assert read("null") is None
    assert fields.objects("null") == []


def test_an_object_that_is_read_whole_keeps_its_nulls() -> None:
    assert Fields({"x": {"default": None}}).json_object("x") == {"default": None}
    assert Fields({"x": {"default": None}}).needed_object("x") == {"default": None}


def test_an_item_that_is_no_object_is_named_by_its_place() -> None:
    with pytest.raises(FieldError, match=r"^tools\[1\]: expected an object, got a string$"):
        Fields({"tools": [{}, "x"]}).objects("tools")


def test_what_was_not_read_is_the_rest_and_is_refused_unless_it_is_empty() -> None:
    fields = Fields({"a": 1, "b": 2, "c": False, "d": [], "e": ""}, "tool")
    fields.skip("a", "unknown")
    assert fields.rest() == {"b": 2, "c": False, "d": [], "e": ""}
    with pytest.raises(FieldError) as caught:
        fields.refuse_rest()
    assert (caught.value.field, caught.value.code) == ("tool.b", "unsupported_parameter")
    assert fields.take("b") == 2
    fields.refuse_rest()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "expected JSON, got Input data was truncated"),
        (b"[]", "expected an object, got a list"),
        (b'"\xff"', "expected JSON, got"),
        (b'{"a":' + b"[" * 100_000, "expected JSON, got"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_fields(body)
    assert caught.value.field == BODY
    assert caught.value.message.startswith(message)


def test_a_field_that_is_not_offered_says_so() -> None:
    error = unoffered("background")
    assert str(error) == "background: expected none, got some: this server doesn't offer it"
    assert error.code == "unsupported_parameter"


def test_the_objects_of_a_list_are_those_that_it_has() -> None:
    assert objects_of([{"a": 1}, 5, None, {}]) == [{"a": 1}, {}]
    assert objects_of({"a": 1}) == objects_of(None) == []
