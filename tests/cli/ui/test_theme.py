from __future__ import annotations

import pytest

from streamco.cli.ui.theme import THEMES, pick_theme
from streamco.errors import ConfigError


@pytest.mark.parametrize("name", sorted(THEMES))
def test_a_theme_is_picked_by_its_name(name: str) -> None:
    assert pick_theme(name).name == name


@pytest.mark.parametrize(
    ("ground", "name"), [("0;15", "light"), ("0;7", "light"), ("15;0", "dark"), ("15;default;0", "dark"), ("", "dark"), ("x", "dark")]
)
def test_the_terminals_ground_decides_where_it_is_told(ground: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORFGBG", ground)
    assert pick_theme("auto").name == name


def test_an_unknown_theme_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="theme: expected auto, dark, light, mono, got 'pink'"):
        pick_theme("pink")


@pytest.mark.parametrize("name", ["dark", "light"])
def test_device_and_server_can_be_told_apart_whatever_the_terminal(name: str) -> None:
    for colors in ("truecolor", "256", "standard", "windows", None):
        theme = pick_theme(name).fit(colors)
        assert theme.tint("device") != theme.tint("server")


def test_with_few_colours_the_tints_are_plain_ones() -> None:
    assert THEMES["dark"].fit("256") is THEMES["dark"]
    assert (THEMES["dark"].fit("standard").device, THEMES["dark"].fit("standard").server) == ("green", "cyan")


def test_mono_has_no_tints_anywhere() -> None:
    for colors in ("truecolor", "standard"):
        theme = THEMES["mono"].fit(colors)
        assert [theme.tint(kind) for kind in ("device", "server", "unknown")] == ["", "", ""]
