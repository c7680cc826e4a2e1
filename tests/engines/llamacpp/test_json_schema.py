from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.llamacpp.json_schema import grammar_of, schema_grammar
from streamco.errors import ConfigError, EngineError
from tests.engines.llamacpp.vocabularies import SmallVocabulary


def fits(vocabulary: SmallVocabulary, schema: Any, text: str) -> bool:
    """Return True if a text is a whole answer."""
    try:
        grammar = vocabulary.grammar(schema_grammar(schema), text.encode())
    except EngineError:
        return False
    return bool(grammar.fits([vocabulary.end])[0])


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            PERSON,
            ['{"name":"Ada","age":36}', '{\n  "name": "Ada",\n  "age": 36,\n  "tags": ["x", "y"]\n}', '{"name":"","age":0,"tags":[]}'],
            ["{}", '{"age":36,"name":"Ada"}', '{"name":"Ada","age":-1}', '{"name":"Ada"}', '{"name":"Ada","age":36,"more":1}', '{"name":1'],
        ),
        ({"enum": ["a", "ab", 1, None, {"x": [1]}]}, ['"a"', '"ab"', "1", "null", '{"x":[1]}'], ['"', '"abc"', "true", "12"]),
        ({"const": 'say "\\n"\n'}, [json.dumps('say "\\n"\n')], ['"say "\\n"\n"']),
        ({"const": "\x01é"}, ['"\\u0001é"'], ['"\x01é"']),
        ({"type": "string"}, ['"a\\n\\u00e9é"'], ['"a\nb"', '"\\ud800"', '"\\x"', '"\x7f"']),
        ({"type": "string", "maxLength": 2}, ['""', '"éé"', '"\\nx"'], ['"abc"']),
        ({"type": "number"}, ["0", "-1.5", "1e10", "0.1E-5"], ["01", "1.", ".5", "+1", "-", "1e", "NaN"]),
        ({"type": "integer", "exclusiveMinimum": -2.5, "exclusiveMaximum": 3}, ["-2", "-1", "0", "2"], ["-3", "3", "1.0", "-0"]),
        ({"type": "integer", "minimum": 95, "maximum": 1203}, ["95", "99", "100", "999", "1203"], ["94", "1204", "9", "5000"]),
        ({"type": ["integer", "null"], "minimum": 5}, ["5", "null"], ["4", '"5"']),
        ({"type": ["integer", "number"], "minimum": 0}, ["5", "100.5", "0"], ["-4", "-0.5"]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, ["[1]", "[1, 2]"], ["[]", "[1,2,3]", '["1"]']),
        ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False}, ['["a", null]'], ['["a"]', "[null]"]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"a": 1, "b":2}'], ['{"a": "1"}']),
        ({"properties": {}, "additionalProperties": False}, ["{}"], ['{"a":1}']),
        ({"required": ["x"]}, ['{"x":[1]}'], ["{}"]),
        (
            {"type": "string", "format": "date"},
            ['"0001-01-01"', '"2024-02-28"', '"2023-12-31"', '"2023-11-30"'],
            ['"0000-05-03"', '"2023-02-30"', '"2023-11-31"', '"2023-1-1"'],
        ),
        ({"type": "string", "format": "date-time"}, ['"2024-02-28T10:00:00Z"'], ['"2024-02-28"', '"2024-02-28T25:00:00Z"']),
        ({"anyOf": [{"type": "boolean"}, {"allOf": [{"const": "x"}]}]}, ["true", "false", '"x"'], ["null", '"y"']),
        ({"enum": ["x", 1, 2.0, 2.5, True], "type": "integer"}, ["1", "2.0"], ['"x"', "2.5", "true"]),
        (
            {
                "$defs": {"a/b": {"type": "null"}, "b": {"const": 1}},
                "type": "array",
                "prefixItems": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/b"}],
            },
            ["[null,1]"],
            ["[1,1]", "[null,null]"],
        ),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, ['{"next":{"next":{}}}'], ['{"next":1}']),
        ({}, ["1", '"x"', "[{}]"], ["x"]),
    ],
)
def test_a_schema_allows_its_values_and_no_others(vocabulary: SmallVocabulary, schema: Any, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not fits(vocabulary, schema, text)] == []
    assert [text for text in wrong if fits(vocabulary, schema, text)] == []


LARGEST = {
    "type": "array",
    "minItems": 2000,
    "maxItems": 2000,
    "items": {"type": "array", "maxItems": 2000, "items": {"type": "string", "minLength": 1999, "maxLength": 2000}},
}
MANY = {"properties": {f"p{index}": True for index in range(3000)}, "required": [f"p{index}" for index in range(3000)]}
LONG = {"enum": ["a" * index for index in range(440)]}
OPTIONAL = {"properties": {f"p{index}": True for index in range(99)}}


@pytest.mark.parametrize("schema", [LARGEST, MANY, LONG, OPTIONAL], ids=["repetitions", "properties", "prefixes", "optional"])
def test_llama_cpp_reads_the_largest_grammars(vocabulary: SmallVocabulary, schema: Any) -> None:
    grammar = vocabulary.grammar(schema_grammar(schema))
    assert len(grammar.allowed()) > 0


def test_formats_without_a_schema() -> None:
    assert grammar_of(None) is None
    assert grammar_of({"type": "text"}) is None
    assert str(grammar_of({"type": "json_object"})).startswith("root ::= object\n")
    assert "root ::= r" in str(grammar_of({"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}))


CHAIN = {f"d{index}": {"anyOf": [{"$ref": f"#/$defs/d{index + 1}"}, {"type": "null"}]} for index in range(60)}
DOUBLING = {f"d{index}": {"anyOf": [{"$ref": f"#/$defs/d{index + 1}"}] * 2 + [{"items": {}}, True]} for index in range(30)}
WIDE = {"anyOf": [{"anyOf": [{"type": "array", "maxItems": each} for each in range(20)]} for _ in range(20)]}


STRINGS = {"prefixItems": [{"maxLength": 1999}] * 9}


def deep(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "pattern": "^a+$"}, "pattern"),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, r"#/properties/a, got uniqueItems"),
        ({"type": "string", "format": "email"}, "format of date, time"),
        ({"$ref": "https://example.com/schema"}, r"reference inside the schema \(#/...\) at #/\$ref, got https://example.com/schema"),
        ({"$ref": "#/$defs/none"}, "to something in the schema"),
        ({"$ref": "#"}, "leads to itself"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "leads to itself"),
        ({"$defs": CHAIN | {"d60": True}, "$ref": "#/$defs/d0"}, "50 levels"),
        ({"$defs": DOUBLING | {"d30": True}, "$ref": "#/$defs/d0"}, "50 levels|100 forms"),
        (WIDE, "100 forms"),
        (deep(60), "50 levels"),
        ({"enum": list(range(501))}, "500 values"),
        ({"enum": []}, "a value that is allowed"),
        ({"type": "null", "enum": [1]}, "a value that is allowed"),
        ({"title": "x" * 100_001}, "100000 characters"),
        ({"type": "array", "minItems": 2001}, "from 0 to 2000"),
        ({"minItems": None}, "a whole number from 0 to 2000 at #/minItems, got None"),
        ({"type": "string", "maxLength": None}, "from 0 to 2000"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "at least minLength"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "range with a whole number"),
        ({"type": "integer", "minimum": 1e300}, "a number from"),
        ({"type": "number", "minimum": 1}, "0 or none"),
        ({"type": ["integer", "number"], "maximum": 5}, "keywords of the type number at #, got maximum"),
        ({"type": ["null", "number", "integer"], "exclusiveMinimum": 0}, "keywords of the type null or number at #, got exclusiveMinimum"),
        ({"type": ["integer", "number"], "minimum": 5}, "0 or none"),
        ({"prefixItems": [{"maxLength": 2000}] * 11}, "at most 20000 .* at #/prefixItems/10, got 22000"),
        ({"properties": {"a": {"items": {"minLength": 2000}, "maxItems": 1990}, "b": STRINGS}}, "20000 .* at #/properties/a.*, got"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/" + "1" * 5000}]}, "to something in the schema"),
        ({"type": "tuple"}, "a type of object"),
        ({"type": "string", "minimum": 1}, "keywords of the type string"),
        ({"anyOf": [], "title": "x"}, "a list of schemas"),
        ({"anyOf": [True], "type": "string"}, "no other keyword beside anyOf"),
        ({"allOf": [True, True]}, "a list of one schema"),
        ({"required": ["a"], "additionalProperties": False}, "names of properties"),
        ({"properties": {"a": False}}, "an object at #/properties/a, got False"),
        ({"type": "array", "prefixItems": [True], "minItems": 2}, "room for the 1 items"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        schema_grammar(schema)
    assert str(caught.value).startswith("response_format: schema: expected ")
    assert len(str(caught.value)) < 600


def test_a_value_that_is_referred_to_in_several_spellings_is_written_once() -> None:
    defs = {"a": [{"type": "object", "properties": {"b": {"type": "string"}}}]}
    one, *others = [
        schema_grammar({"$defs": defs, "prefixItems": [{"$ref": "#/$defs/a/0"}, {"$ref": f"#/{spelling}"}]})
        for spelling in ("$defs/a/0", "$defs/%61/0", "%24defs/a/00", "$defs/a/0000")
    ]
    assert others == [one] * 3


def test_a_schema_with_too_many_rules_is_refused() -> None:
    chain: Any = {"properties": {f"p{index}": {"type": "integer", "minimum": index} for index in range(100)}}
    for _ in range(40):
        chain = {"items": chain}
    references = [{"$ref": "#/$defs/c" + "/items" * index} for index in range(40)]
    with pytest.raises(ConfigError, match="at most 10000 values and properties, references included, got more"):
        schema_grammar({"$defs": {"c": chain}, "prefixItems": references})


def objects(inner: Any, count: int, key: str = "a") -> dict[str, Any]:
    """Return alternatives that only the texts after their first value tell apart."""
    return {"anyOf": [{"type": "object", "properties": {key: inner, f"x{index}": True}, "required": [key]} for index in range(count)]}


A = {"$ref": "#/$defs/A"}
RECURSIVE = {**A, "$defs": {"A": {"anyOf": [*objects(A, 4)["anyOf"], {"type": "null"}]}}}
LISTS = {**A, "$defs": {"A": {"anyOf": [{"items": A}, {"items": objects(A, 1)}]}}}
ONE_OBJECT = {**A, "$defs": {"A": {"anyOf": [*objects(A, 1)["anyOf"], {"items": A}, {"const": "a"}, {"type": "string"}, {"const": "b"}]}}}


BELOW = {"items": A, "$defs": RECURSIVE["$defs"]}


@pytest.mark.parametrize("schema", [RECURSIVE, LISTS, BELOW], ids=["objects", "lists", "below"])
def test_alternatives_that_begin_alike_and_hold_themselves_are_refused(schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"at most 100 ways to read a value.* at #/\$defs/A.* refer back to themselves") as caught:
        schema_grammar(schema)
    assert len(str(caught.value)) < 600


def test_alternatives_that_begin_alike_multiply_along_nesting_and_not_beside_one_another(vocabulary: SmallVocabulary) -> None:
    nested: Any = {"type": "string"}
    for _ in range(3):
        nested = objects(nested, 4)
    grammar = vocabulary.grammar(schema_grammar(nested), b'{"a":{"a":{"a":"')
    assert len(grammar.allowed()) > 0
    with pytest.raises(ConfigError, match=r"at most 100 ways .* at #.*, got more"):
        schema_grammar(objects(nested, 4))
    with pytest.raises(ConfigError, match=r"at most 100 ways .* at #.*, got more"):
        schema_grammar({"items": objects(objects({"anyOf": [{"maxLength": index} for index in range(11)]}, 5), 2)})
    beside = {f"p{index}": objects(True, 10) for index in range(9)}
    assert schema_grammar({"properties": beside, "required": list(beside)})


def test_what_opens_in_another_way_may_hold_itself(vocabulary: SmallVocabulary) -> None:
    assert fits(vocabulary, ONE_OBJECT, '{"a":[{"a":"b"},["a"]]}')


@pytest.mark.parametrize(
    "given",
    [
        5,
        "json",
        {"type": "xml"},
        {},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": ["json_object"]},
        {"type": "json_object", "schema": []},
        {"type": "json_object", "schema": "object"},
        {"type": "json_object", "schema": {"type": "string", "pattern": "a+"}},
    ],
)
def test_another_format_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="response_format: "):
        grammar_of(given)


def test_an_object_may_have_a_schema_as_at_llama_cpp() -> None:
    as_schema = grammar_of({"type": "json_schema", "json_schema": {"schema": PERSON}})
    assert grammar_of({"type": "json_object", "schema": PERSON}) == as_schema


@pytest.mark.parametrize("schema", [None, {}])
def test_a_schema_that_says_nothing_leaves_any_object(schema: Any) -> None:
    assert grammar_of({"type": "json_object", "schema": schema}) == grammar_of({"type": "json_object"})


@pytest.mark.parametrize(
    ("given", "unknown"),
    [
        ({"type": "text", "grammar": "root ::= 'a'"}, "grammar"),
        ({"type": "text", "schema": PERSON}, "schema"),
        ({"type": "json_object", "json_schema": {"schema": PERSON}}, "json_schema"),
        ({"type": "json_object", "regex": "a"}, "regex"),
        ({"type": "json_schema", "json_schema": {"schema": PERSON}, "schema": PERSON}, "schema"),
        ({"type": "json_schema", "json_schema": {"schema": PERSON, "grammar": "x"}}, "grammar"),
    ],
)
def test_a_key_that_would_not_be_kept_to_is_refused_by_name(given: Any, unknown: str) -> None:
    with pytest.raises(ConfigError, match=f"^response_format: .*, got {unknown}$"):
        grammar_of(given)


def test_a_key_without_a_value_asks_for_nothing() -> None:
    assert grammar_of({"type": "text", "json_schema": None}) is None
    named = {"type": "json_schema", "json_schema": {"schema": PERSON, "name": "p", "strict": None, "description": "x"}, "schema": None}
    assert grammar_of(named) == grammar_of({"type": "json_object", "schema": PERSON})


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("given", [nested(100_000), {"type": "json_schema", "json_schema": nested(100_000)}])
def test_a_format_of_too_many_levels_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="response_format: expected JSON that can be read"):
        grammar_of(given)


@pytest.mark.parametrize("schema", [{"const": {1, 2}}, {"const": float("nan")}])
def test_what_is_not_json_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigError, match="expected JSON"):
        schema_grammar(schema)


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "type",
                        "properties",
                        "required",
                        "additionalProperties",
                        "items",
                        "prefixItems",
                        "minItems",
                        "maxItems",
                        "enum",
                        "const",
                    ),
                    *(
                        "anyOf",
                        "oneOf",
                        "allOf",
                        "enum",
                        "const",
                        "$ref",
                        "$defs",
                        "minLength",
                        "maxLength",
                        "format",
                        "minimum",
                        "maximum",
                        "pattern",
                    ),
                ]
            ),
            st.one_of(inner, st.sampled_from(["string", "object", "integer", "#", "#/$defs/x", "#/items", "date", "number"])),
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@given(JUNK)
def test_junk_gives_a_grammar_or_the_documented_error(vocabulary: SmallVocabulary, schema: Any) -> None:
    try:
        text = schema_grammar(schema)
    except ConfigError:
        return
    vocabulary.grammar(text)


def test_a_schema_is_converted_once_for_equal_requests() -> None:
    first, again = ({"type": "array", "items": {"type": "string", "maxLength": 7}} for _ in range(2))
    assert schema_grammar(first) is schema_grammar(again)
