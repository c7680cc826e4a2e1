from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.cli.ui.slash_commands import (
    ALIASES,
    COMMANDS,
    NAMES,
    POLICIES,
    CommandError,
    SlashCall,
    help_lines,
    parse_budget,
    parse_line,
    parse_pace_text,
    parse_policy,
)
from streamco.core.race.learner import PolicyName
from streamco.errors import ConfigError


@pytest.mark.parametrize("line", ["hello", "", " /help", "a /new", "//etc/passwd is a file", "1/2"])
def test_a_line_without_a_leading_slash_is_a_prompt(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize("name", NAMES)
def test_each_command_is_found_by_its_name_in_any_case(name: str) -> None:
    assert parse_line(f"/{name}") == SlashCall(name, "")
    assert parse_line(f"/{name.upper()} ") == SlashCall(name, "")


def test_the_rest_of_the_line_is_the_argument_with_its_inner_spaces() -> None:
    assert parse_line("/system  You are  terse. ") == SlashCall("system", "You are  terse.")


@pytest.mark.parametrize(("typed", "name"), [("rep", "report"), ("he", "help"), ("sa", "save"), ("pol", "policy"), ("sy", "system")])
def test_an_unambiguous_beginning_will_do(typed: str, name: str) -> None:
    assert parse_line(f"/{typed}") == SlashCall(name, "")


@pytest.mark.parametrize(("typed", "name"), list(ALIASES.items()))
def test_names_that_people_know_from_elsewhere_work(typed: str, name: str) -> None:
    assert parse_line(f"/{typed}") == SlashCall(name, "")


def test_an_ambiguous_beginning_names_the_candidates() -> None:
    with pytest.raises(CommandError, match=r"^/p could be /pace or /policy$"):
        parse_line("/p")


@pytest.mark.parametrize(
    ("typed", "meant"), [("hlep", "help"), ("quite", "quit"), ("rset", "new"), ("polciy", "policy"), ("buget", "budget")]
)
def test_an_unknown_command_gets_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(CommandError, match=rf"unknown command /{typed}: did you mean /{meant}\?"):
        parse_line(f"/{typed}")


@pytest.mark.parametrize("line", ["/", "/xyzzy", "/etc/passwd is a file"])
def test_a_command_like_no_other_is_told_where_the_list_is_and_how_to_send_a_slash(line: str) -> None:
    with pytest.raises(CommandError, match=r"/help lists them all .*write two"):
        parse_line(line)


@given(st.text())
def test_any_line_is_a_prompt_a_known_command_or_a_clear_error(line: str) -> None:
    try:
        call = parse_line(line)
    except CommandError as error:
        assert str(error).startswith(("/", "unknown command /"))  # noqa: PT017
    else:
        assert call is None or call.name in NAMES


def test_help_lists_every_command_and_the_keys() -> None:
    left = [typed for typed, _ in help_lines()]
    assert [typed.split(maxsplit=1)[0] for typed in left[: len(COMMANDS)]] == [f"/{name}" for name in NAMES]
    assert {"Ctrl-C", "Alt-Enter", "//text"} <= set(left)
    assert all(text and not text.endswith(".") for _, text in help_lines())


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("off", None),
        ("None", None),
        ("0", None),
        ("reading", "reading"),
        ("Listening", "listening"),
        ("Smooth", "smooth"),
        ("5", 5.0),
        (" 2.5 ", 2.5),
    ],
)
def test_a_pace_is_a_word_or_tokens_per_second(text: str, pace: object) -> None:
    assert parse_pace_text(text) == pace


@pytest.mark.parametrize("text", ["", "fast", "-1", "nan", "5 tokens"])
def test_a_wrong_pace_says_what_would_be_right_and_repeats_what_was_typed(text: str) -> None:
    with pytest.raises(ConfigError, match="expected off, reading, listening, smooth or tokens per second above 0, got ") as caught:
        parse_pace_text(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("text", "share"), [("0", 0.0), ("1", 1.0), ("0.3", 0.3), ("30%", 0.3), (" 5 % ", 0.05), ("100%", 1.0)])
def test_a_budget_is_a_share_or_a_percentage(text: str, share: float) -> None:
    assert parse_budget(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "1.1", "-0.1", "101%", "nan", "inf", "half", "%"])
def test_a_budget_beyond_a_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="budget: expected a share from 0 to 1"):
        parse_budget(text)


def test_the_policies_on_offer_are_the_ones_there_are() -> None:
    assert sorted(POLICIES) == sorted(get_args(PolicyName))


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_known_with_underscores_too(name: str) -> None:
    assert parse_policy(name) == name
    assert parse_policy(f" {name.replace('-', '_').upper()} ") == name


def test_a_policy_with_a_slip_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"got 'devise-only' \(did you mean device-only\?\)"):
        parse_policy("devise-only")
    with pytest.raises(ConfigError, match=r"expected one of auto, .*, got 'zzz'$"):
        parse_policy("zzz")
