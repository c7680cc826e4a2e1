"""Names of functions in namespaces: there and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.responses_api.namespaces import NamespacedNames, join_name

NAMES = st.text("abc_-", min_size=1, max_size=80)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=5))
def test_names_are_short_and_lead_back(pairs: list[tuple[str, str]]) -> None:
    names = NamespacedNames()
    joined = {names.add(*pair): pair for pair in pairs}
    for name, (namespace, own) in joined.items():
        assert name == join_name(namespace, own)
        assert 0 < len(name) <= 64
        assert names.fields(name) == {"name": own, "namespace": namespace}


def test_long_names_stay_apart() -> None:
    assert join_name("files", "read") == "files__read"
    assert join_name("s" * 70, "read") != join_name("s" * 70, "write")


def test_another_name_is_in_no_namespace() -> None:
    assert NamespacedNames().fields("f") == {"name": "f"}
