from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment.sweep_axes import change, label_of, read_axes
from streamco.sim.experiment.yaml_document import Document, read_document

SWEEP = """\
sweep:
  policy.window: [4, dynamic]
  world.pools.1.share: [0.5, 2]
  who:
    nobody: {}
    both: {policy.window: 2, world.link.rtt_ms: 30}
"""


def document(folder: Path, text: str) -> Document:
    path = folder / "file.yaml"
    path.write_text(text)
    return read_document(path)


def test_an_axis_is_a_path_with_values_or_a_name_with_cases(tmp_path: Path) -> None:
    read = document(tmp_path, SWEEP)
    window, share, axis = read_axes(read, read.data["sweep"])
    assert [value.label for value in window.values] == [4, "dynamic"]
    assert [value.settings for value in share.values] == [{("world", "pools", 1, "share"): 0.5}, {("world", "pools", 1, "share"): 2}]
    assert [(value.label, len(value.settings)) for value in axis.values] == [("nobody", 0), ("both", 2)]
    assert (window.is_numeric, share.is_numeric, axis.is_numeric) == (False, True, False)
    assert read.where(window.values[1].locations["policy", "window"]).endswith("line 2: sweep.policy.window.1")
    assert read.where(axis.values[1].locations["world", "link", "rtt_ms"]).endswith("line 6: sweep.who.both.world.link.rtt_ms")


def test_a_value_changes_a_copy_and_what_is_not_on_its_way_is_shared(tmp_path: Path) -> None:
    read = document(tmp_path, SWEEP)
    _, share, axis = read_axes(read, read.data["sweep"])
    settings: dict[str, Any] = {"world": {"pools": [{"share": 1}, {"share": 1}], "other": {}}, "policy": {}}
    changed = change(settings, share.values[1], read)
    assert changed["world"]["pools"] == [{"share": 1}, {"share": 2}]
    assert settings["world"]["pools"] == [{"share": 1}, {"share": 1}]
    assert changed["world"]["other"] is settings["world"]["other"]
    assert change(settings, axis.values[1], read)["world"]["link"] == {"rtt_ms": 30}  # made where it wasn't


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("a: 1", r"line 2: sweep\.a: expected a list of values, or cases by name, got 1"),
        ("a: []", "expected a list of values"),
        ("a: [1, 2]", "expected a path that begins with world, workload, policy, or cases by name, got 'a'"),
        ("policy.window: [4, 4]", "expected different values, got 4, 4"),
        ("who: {one: 3}", r"sweep\.who\.one: expected settings by their paths, got 3"),
        ("who: {one: {window: 3}}", r"sweep\.who\.one\.window: expected a path that begins with"),
    ],
)
def test_what_can_not_be_varied_is_told(tmp_path: Path, sweep: str, message: str) -> None:
    read = document(tmp_path, f"sweep:\n  {sweep}\n")
    with pytest.raises(ConfigError, match=message):
        read_axes(read, read.data["sweep"])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("world.pools.5.share", "expected a path to a setting, got world.pools.5.share: expected an element below 1, got 5"),
        ("world.pools.first.share", "expected the number of an element, got first"),
        ("world.devices.many", "expected settings in front of many, got 3"),
    ],
)
def test_a_path_through_what_has_no_settings_is_told(tmp_path: Path, path: str, message: str) -> None:
    read = document(tmp_path, f"sweep:\n  {path}: [1]\n")
    (axis,) = read_axes(read, read.data["sweep"])
    with pytest.raises(ConfigError, match=f"line 2: sweep.{path}.0: .*{message}"):
        change({"world": {"devices": 3, "pools": [{}]}}, axis.values[0], read)


def test_labels_are_what_people_wrote() -> None:
    assert [label_of(value) for value in (4, 0.5, "dynamic", True)] == [4, 0.5, "dynamic", True]
    assert label_of({"rtt_ms": 3}) == '{"rtt_ms":3}'
