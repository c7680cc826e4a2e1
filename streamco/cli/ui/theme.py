"""The chat's colours: a tint shows which endpoint made a token, and is readable on dark and light backgrounds."""

from __future__ import annotations

import os

from msgspec import Struct, structs

from streamco.errors import ConfigError

__all__ = ["THEMES", "Theme", "pick_theme"]


class Theme(Struct, frozen=True, kw_only=True):
    """Styles in rich's notation."""

    name: str
    device: str  # also its drafts that the server accepted
    server: str  # also its corrections
    local: str  # drafts of the device that weren't verified
    thinking: str = "dim italic"
    quiet: str = "dim"
    notice: str = "yellow"
    error: str = "bold red"
    title: str = "bold"
    inline_code: str = "bold"
    code: str  # Pygments style; the ansi_* ones keep the background and follow the terminal's palette

    def tint(self, kind: str) -> str:
        """Return the style for text from this kind of endpoint, or "" for an unknown one."""
        return {"device": self.device, "server": self.server, "local": self.local}.get(kind, "")

    def fit(self, colors: str | None) -> Theme:
        """Return the theme for a colour depth, by rich's name for it. With 16 colours, soft tints would all become white."""
        if colors in {"truecolor", "256"} or not self.device:
            return self
        return structs.replace(self, device="green", server="cyan", local="yellow")


THEMES = {
    "dark": Theme(name="dark", device="#a9dcb6", server="#a8c7fa", local="#e0c58f", code="ansi_dark"),
    "light": Theme(name="light", device="#1a6334", server="#1b4b96", local="#7a5200", code="ansi_light"),
    "mono": Theme(name="mono", device="", server="", local="", notice="", error="bold", code="bw"),
}


def pick_theme(name: str) -> Theme:
    """Return the theme with this name. ``auto`` uses the terminal's ``COLORFGBG`` (rxvt's "foreground;background"), or else dark.

    Raises:
        ConfigError: there is no such theme.
    """
    if name == "auto":
        ground = os.environ.get("COLORFGBG", "").rpartition(";")[2]
        name = "light" if ground in {"7", "15"} else "dark"
    if name not in THEMES:
        raise ConfigError(f"theme: expected auto, {', '.join(THEMES)}, got {name!r}")
    return THEMES[name]
