"""The chat's commands, which begin with a slash: names, arguments and error texts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from streamco.config import Pace, parse_pace
from streamco.errors import ConfigError

if TYPE_CHECKING:
    from streamco.core.race.learner import PolicyName  # only for the name; importing it loads all of the race's learning

__all__ = [
    "COMMANDS",
    "MODES",
    "POLICIES",
    "USUAL_PACE",
    "SlashCall",
    "Command",
    "CommandError",
    "help_lines",
    "pace_text",
    "parse_budget",
    "parse_line",
    "parse_mode",
    "parse_pace_text",
    "parse_policy",
]

MODES = ("race", "speculate", "auto")
POLICIES: tuple[PolicyName, ...] = (
    "auto",
    "disco",
    "device-constrained",
    "server-constrained",
    "optimal",
    "stochastic",
    "both",
    "proportional-wait",
    "device-first",
    "device-only",
    "server-first",
    "server-only",
)


class Command(Struct, frozen=True):
    """One command: its name, its argument as shown in the help, and what it does."""

    name: str
    argument: str
    help: str


class SlashCall(Struct, frozen=True):
    """A command as typed. ``argument`` is "" if there is none."""

    name: str
    argument: str


class CommandError(ValueError):
    """A line that can't be understood; the text says what was expected."""


COMMANDS = (
    Command("help", "", "show this list"),
    Command("new", "", "forget the conversation and begin a new one"),
    Command("system", "[TEXT|off]", "show or set the system message"),
    Command("report", "[--all]", "show the report of the last answer; --all: every row of it"),
    Command("retry", "", "answer the last prompt again, in the place of the last answer"),
    Command("edit", "[TEXT]", "change the last prompt: its new answer takes the place of the last one"),
    Command("copy", "", "copy the last answer to the clipboard, if the terminal allows it"),
    Command("good", "", "the last answer was good: with --quality gate, the score of the device's answers learns from it"),
    Command("bad", "", "the last answer was not good enough"),
    Command("model", "[NAME|FILE]", "show the models, or change one: a file, hf: name or URL is the device's, any other name the server's"),
    Command("device", "[FILE|hf:NAME|URL|off]", "show or change the model on this machine; the conversation stays"),
    Command("server", "[MODEL [URL [KEY_VARIABLE]]|off]", "show or change the remote model; the conversation stays"),
    Command("pace", "[N|reading|listening|smooth|off]", "show or set how fast text appears, in tokens per second"),
    Command("budget", "[0..1]", "show or set the share of the work for the expensive side"),
    Command("mode", "[race|speculate|auto]", "show or set whether one side writes or the device drafts and the server verifies"),
    Command("policy", "[NAME]", "show or set the rule for which side starts when"),
    Command("save", "[-f] FILE", "write the conversation to a Markdown file, or to a .json file for /load; -f overwrites"),
    Command("load", "[N|FILE.json]", "list the kept conversations, or go on with one of them"),
    Command("quit", "", "leave (so do Ctrl-D, exit and quit)"),
)
NAMES = tuple(command.name for command in COMMANDS)
LEAVING = {"exit", "quit", ":q"}  # lines that leave the chat
ALIASES = {"exit": "quit", "bye": "quit", "q": "quit", "?": "help", "reset": "new", "clear": "new"}


def parse_line(line: str) -> SlashCall | None:
    """Return the command in a line, or None if the line is a prompt. ``//text`` is a prompt that begins with a slash.

    A name may be shortened as long as it is unambiguous. A line that is only ``exit`` or ``quit`` also leaves the chat.

    Raises:
        CommandError: the line begins with a slash but isn't a command.
    """
    if line.strip().lower() in LEAVING:
        return SlashCall("quit", "")
    if not line.startswith("/") or line.startswith("//"):
        return None
    typed, _, argument = line[1:].strip().partition(" ")
    return SlashCall(_resolve(typed.lower()), argument.strip())


def _resolve(typed: str) -> str:
    name = ALIASES.get(typed, typed)
    if name in NAMES:
        return name
    matches = [candidate for candidate in NAMES if typed and candidate.startswith(typed)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise CommandError(f"/{typed} could be {' or '.join('/' + match for match in matches)}")
    near = difflib.get_close_matches(typed, [*NAMES, *ALIASES], n=1, cutoff=0.5)
    hint = f"did you mean /{ALIASES.get(near[0], near[0])}?" if near else "/help lists them all"
    raise CommandError(f"unknown command /{typed}: {hint} (to send a line that begins with a slash, write two)")


def help_lines() -> list[tuple[str, str]]:
    """Return (what to type, what it does) for every command and key."""
    commands = [(f"/{command.name} {command.argument}".rstrip(), command.help) for command in COMMANDS]
    keys = [
        ("Enter", "send"),
        ("Alt-Enter", "new line (so does a backslash at the end of the line)"),
        ("Ctrl-C", "stop the answer; what was said so far stays in the conversation"),
        ("Up, Ctrl-R", "earlier prompts"),
        ("@FILE", "at the beginning of a line: send this file of text, or image"),
        ("//text", "a prompt that begins with a slash"),
        ("@@text", "a line that begins with @"),
    ]
    return commands + keys


USUAL_PACE = object()
"""The pace if no option sets it: evenly on a terminal, and otherwise as the text comes."""


_PACES: Mapping[str, Pace] = {
    **dict.fromkeys(("off", "none", "0")),
    "reading": "reading",
    "listening": "listening",
    "smooth": "smooth",
}


def parse_pace_text(text: str) -> Pace:
    """Parse a pace as people type it: ``off``, ``reading``, ``listening``, ``smooth`` or tokens per second.

    Raises:
        ConfigError: it is none of these.
    """
    word = text.strip().lower()
    if word in _PACES:
        return _PACES[word]
    try:
        pace = float(word)
        parse_pace(pace)
    except ValueError:  # ConfigError is one
        raise ConfigError(f"pace: expected off, reading, listening, smooth or tokens per second above 0, got {text!r}") from None
    return pace


def pace_text(pace: Pace) -> str:
    """Return a pace as text."""
    return "off" if pace is None else pace if isinstance(pace, str) else f"{pace:g} tokens/s"


def parse_budget(text: str) -> float:
    """Parse a budget as people type it, such as ``0.3`` or ``30%``, and return a share from 0 to 1.

    Raises:
        ConfigError: it isn't a share from 0 to 1.
    """
    word = text.strip()
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"budget: expected a share from 0 to 1, such as 0.3 or 30%, got {text!r}")
    return share


def parse_mode(text: str) -> Literal["race", "speculate", "auto"]:
    """Parse a mode's name, in upper or lower case.

    Raises:
        ConfigError: there is no such mode.
    """
    match text.strip().lower():
        case "race":
            return "race"
        case "speculate":
            return "speculate"
        case "auto":
            return "auto"
    raise ConfigError(f"mode: expected race, speculate or auto, got {text!r}")


def parse_policy(text: str) -> PolicyName:
    """Parse a policy's name, in upper or lower case and with hyphens or underscores.

    Raises:
        ConfigError: there is no such policy.
    """
    name = text.strip().lower().replace("_", "-")
    for policy in POLICIES:
        if policy == name:
            return policy
    near = difflib.get_close_matches(name, POLICIES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(f"policy: expected one of {', '.join(POLICIES)}, got {text!r}{hint}")
