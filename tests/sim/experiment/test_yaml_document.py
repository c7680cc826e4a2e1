from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment import yaml_document as module
from streamco.sim.experiment.yaml_document import read_document


def write(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nworld:\n  pools:\n    - {share: 1}\n    - share: 2\n      model: m\n  # nothing\n  devices: 3\n")
    document = read_document(path)
    assert document.data == {"name": "a", "world": {"pools": [{"share": 1}, {"share": 2, "model": "m"}], "devices": 3}}
    assert document.where(("world", "devices")) == f"{path}, line 8: world.devices"
    assert document.where(("world", "pools", 1, "model")) == f"{path}, line 6: world.pools.1.model"
    assert document.where(("world", "pools", 0, "modle")) == f"{path}, line 4: world.pools.0.modle"  # not there: where it would be
    assert document.where(()) == f"{path}, line 1"
    assert document.where(("name",), ()) == f"{path}, line 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", r"file.yaml, line \d: expected YAML, got "),
        (
            "a: {title: Who is it?}\n",
            "line 1: expected YAML, got expected ',' or '}', but got '.'; a string with one of , : . # in it needs quotes",
        ),
        ("a: why: so\n", "got mapping values are not allowed here; a string with one of"),
        ("a: \x07\n", "expected YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "expected YAML, got could not determine a constructor"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "file.yaml, line 4: b.c: this key is given twice"),
    ],
)
def test_what_is_no_yaml_or_says_something_twice_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_document(write(tmp_path, text))


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert read_document(write(tmp_path, "# nothing\n")).data is None


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"nosuch\.yaml: expected a YAML file that can be read"):
        read_document(tmp_path / "nosuch.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4\n")
    with pytest.raises(ConfigError, match="expected a YAML file that can be read"):
        read_document(tmp_path / "latin.yaml")
    monkeypatch.setattr(module, "MAX_CHARACTERS", 10)
    with pytest.raises(ConfigError, match="expected at most 10 characters"):
        read_document(write(tmp_path, "a: 1234567890\n"))


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"needs the package PyYAML: pip install 'streamco\[sim\]'"):
        read_document(write(tmp_path, "a: 1\n"))


def laughs(levels: int, form: str) -> str:
    """A file whose last value is ten times the one before, which is ten times the one before."""
    first = "a0: &a0 {x: 1}" if "<<" in form else "a0: &a0 [x]"
    rest = (f"a{level}: &a{level} " + form.replace("*", ", ".join([f"*a{level - 1}"] * 10)) for level in range(1, levels))
    return "\n".join([first, *rest])


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("levels", [9, 30, 90])
@pytest.mark.parametrize("form", ["[*]", "{b: [*]}", "{<<: [*]}"])
def test_aliases_that_stand_for_a_billion_values_are_refused_before_they_are_expanded(tmp_path: Path, levels: int, form: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.yaml, line \d+: expected at most (250000 values, aliases expanded|100 levels)"):
        read_document(write(tmp_path, laughs(levels, form)))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "&a [*a]\n",
        "&a {b: *a}\n",
        "a: &a\n  b:\n    - c: 1\n      d: *a\n",
        "a: &a {<<: *a}\n",
        "a: &a {<<: [{b: 1}, *a]}\n",
        "a: &a [&b [*a, *b]]\n",
    ],
)
def test_a_value_that_holds_itself_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.yaml, line \d: .*expected a value that doesn't hold itself, got an alias to one"):
        read_document(write(tmp_path, text))


@pytest.mark.parametrize("text", ["? [a]\n: 1\n", "? &a [*a]\n: 1\n", "? {a: 1}\n: 1\n", "? &a {b: *a}\n: 1\n"])
def test_a_key_that_is_no_text_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.yaml, line 1: .*expected strings as keys, got a (sequence|mapping)"):
        read_document(write(tmp_path, text))


@pytest.mark.parametrize("levels", [150, 5000])
@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_values_that_are_nested_very_deep_are_refused(tmp_path: Path, levels: int, bracket: str) -> None:
    opened = "[" if bracket == "[]" else "{a: "
    with pytest.raises(ConfigError, match="expected at most 100 levels of lists and mappings, got more"):
        read_document(write(tmp_path, f"a: {opened * levels}1{bracket[1] * levels}\n"))


def test_aliases_are_taken_where_they_stand_for_little(tmp_path: Path) -> None:
    path = write(tmp_path, "base: &base {rtt_ms: 1, loss: 0}\nlinks: [*base, {<<: *base, rtt_ms: 2}]\nagain: *base\n")
    document = read_document(path)
    assert document.data["links"] == [{"rtt_ms": 1, "loss": 0}, {"rtt_ms": 2, "loss": 0}]
    assert document.data["again"] == document.data["base"]
    assert document.where(("links", 1, "rtt_ms")) == f"{path}, line 2: links.1.rtt_ms"


def test_a_file_may_have_many_values_and_levels(tmp_path: Path) -> None:
    assert len(read_document(write(tmp_path, f"a: [{'1, ' * 20_000}]\n")).data["a"]) == 20_000
    deep = read_document(write(tmp_path, f"a: {'[' * 90}1{']' * 90}\n")).data["a"]
    for _ in range(90):
        (deep,) = deep
    assert deep == 1


@pytest.mark.parametrize(
    "value",
    [
        "9" * 5000,
        "2001-13-01",
        "2001-02-30 25:61:61",
        "2001-01-01 00:00:00 +99:99",
        '!!int ""',
        "!!float x",
        "!!bool 7",
        "!!timestamp x",
        "1:" * 2000 + "1.5",
        "!!binary abc\xe4",
        "!!set {a, [b]}",
        "!!omap [1]",
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_line(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.yaml, line 2: .*expected"):
        read_document(write(tmp_path, f"a: 1\nb: {value}\n"))
