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
            "line 1: expected YAML, got expected ',' or '}', but got '.'; a text with one of , : . # in it needs quotes",
        ),
        ("a: why: so\n", "got mapping values are not allowed here; a text with one of"),
        ("a: \x07\n", "expected YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "expected YAML, got could not determine a constructor"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "file.yaml, line 4: b.c: expected each key once, got it again"),
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
    with pytest.raises(ConfigError, match=r"PyYAML, got none: pip install 'streamco\[sim\]'"):
        read_document(write(tmp_path, "a: 1\n"))
