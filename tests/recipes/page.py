"""The blocks of docs/frontends.md: the tests run what the page shows."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

from msgspec import Struct

from streamco.proxy.config import ProxyConfig, parse_config
from tests.support.data import ROOT

__all__ = ["ADDRESS", "COMMON", "Block", "PAGE", "block", "blocks", "exports", "proxy_config", "sections", "toml", "typed"]

PAGE = ROOT / "docs" / "frontends.md"
COMMON = "For all of them"  # the section with the proxy's own settings
ADDRESS = "http://127.0.0.1:8080"  # of the proxy, in the blocks


class Block(Struct, frozen=True):
    """A fenced block of the page.

    Args:
        section: title of its section.
        language: of the fence.
        file: the file that the first line names; "": none, for what is typed.
        text: the block.
    """

    section: str
    language: str
    file: str
    text: str


def sections() -> dict[str, str]:
    """The sections of the page, by title."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def blocks() -> list[Block]:
    """All blocks."""
    found = []
    for title, body in sections().items():
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL):
            named = re.match(r"# (\S+)\n", text) if language in {"toml", "yaml"} else None
            found.append(Block(title, language, named[1] if named else "", text))
    return found


def block(section: str, what: str) -> str:
    """The text of the one block of a section that shows this file, or is in this language."""
    (found,) = [each.text for each in blocks() if each.section == section and what in {each.file, each.language}]
    return found


def exports(text: str) -> dict[str, str]:
    """The variables that the lines of a shell set."""
    words = [shlex.split(line, comments=True) for line in text.splitlines()]
    pairs = [word.partition("=") for line in words if line[:1] == ["export"] for word in line[1:]]
    return {name: value for name, _, value in pairs}


def proxy_config() -> ProxyConfig:
    """The proxy's settings."""
    return parse_config(block(COMMON, "proxy.toml"))


def toml(text: str) -> dict[str, Any]:
    """A block in TOML, decoded."""
    return tomllib.loads(text)


def typed(text: str, program: str) -> list[str]:
    """The words after a program's name in the last line that begins with it."""
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line[1:] for line in lines if line[:1] == [program]][-1]
