from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from streamco.cli import options
from streamco.cli.options import (
    add_answer_arguments,
    add_look_arguments,
    add_prompt_arguments,
    api_key_of,
    device_path_of,
    number,
    parse_share,
    prices,
    quality_of,
    whole_number,
)
from streamco.cli.ui.slash_commands import USUAL_PACE
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.endpoints.base import TokenPrices
from streamco.engines.llamacpp import bundled_model as packaged
from streamco.errors import ConfigError, EngineError


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_prompt_arguments(parser)
    add_answer_arguments(parser)
    add_look_arguments(parser)
    return parser.parse_args(words)


def test_the_defaults_leave_everything_to_the_endpoints() -> None:
    args = parse()
    assert (args.prompt, args.json, args.max_tokens, args.temperature, args.seed, args.system) == (None, False, *[None] * 4)
    assert args.pace is USUAL_PACE
    assert (args.budget, args.policy, args.theme, args.no_color, args.no_migration) == (None, "auto", "auto", False, False)


def test_values_are_read_as_people_write_them() -> None:
    args = parse("--budget", "20%", "--policy", "device_only", "--pace", "reading", "--max-tokens", "9", "--temperature", "0")
    assert (args.budget, args.policy, args.pace, args.max_tokens, args.temperature) == (0.2, "device-only", "reading", 9, 0.0)


def test_a_pace_may_follow_the_text() -> None:
    assert parse("--pace", "Smooth").pace == "smooth"


def test_a_quality_is_a_share_of_another() -> None:
    assert [parse_share(text) for text in ("0", "0.9", "90%", "1")] == [0.0, 0.9, 0.9, 1.0]
    assert (parse().min_quality, parse("--min-quality", "75%").min_quality) == (None, 0.75)
    with pytest.raises(ConfigError, match="expected a share from 0 to 1"):
        parse_share("1.5")


def test_a_gate_needs_something_to_decide_by() -> None:
    assert quality_of(parse()) is None
    assert quality_of(parse("--quality", "gate", "--min-score", "60%")) == QualityGate(min_score=0.6)
    with pytest.raises(ConfigError, match="expected --min-score SCORE, or --profile FILE"):
        quality_of(parse("--quality", "gate"))
    with pytest.raises(ConfigError, match="--min-score: only valid with --quality gate"):
        quality_of(parse("--min-score", "0.6"))
    with pytest.raises(ConfigError, match="expected --mode race or auto, got speculate"):
        quality_of(parse("--quality", "gate", "--min-score", "0.6", "--mode", "speculate"))


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "x", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_whole_number_is_above_zero(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a whole number above 0"):
        whole_number(text)


@pytest.mark.parametrize("text", ["-0.1", "nan", "inf", "x", ""])
def test_a_number_is_finite_and_not_negative(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a number, 0 or more"):
        number(text)


def test_prices_are_dollars_per_million_tokens() -> None:
    assert prices("0.5/1.5") == TokenPrices(prompt=0.5e-6, completion=1.5e-6)


@pytest.mark.parametrize("text", ["", "0.5", "0.5/", "/1", "-1/2", "a/b", "1/2/3"])
def test_anything_but_two_prices_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected two prices such as 0\.15/0\.6, got"):
        prices(text)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    assert api_key_of("MY_KEY") == "secret"
    assert api_key_of(None) is None


def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ConfigError, match="expected a key in the environment variable MY_KEY, got none"):
        api_key_of("MY_KEY")


def test_a_key_given_in_place_of_a_variable_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        api_key_of("sk-very-secret")
    assert "secret" not in str(caught.value)


def test_a_device_file_must_be_there(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    with pytest.raises(ConfigError, match="--device: expected a GGUF file, got nothing at"):
        device_path_of(str(model), has_server=True)
    model.touch()
    assert device_path_of(str(model), has_server=False) == model
    (tmp_path / "large.input.gguf").touch()
    with pytest.raises(ConfigError, match=r"--device: .*/large \(but parts of a split model: these need --split URL\)"):
        device_path_of(str(tmp_path / "large"), has_server=True)


@pytest.mark.parametrize("named", [None, "packaged"])
def test_without_a_file_and_by_its_name_the_packaged_model_is_taken(
    named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "small.gguf"
    model.touch()
    monkeypatch.setattr(packaged, "packaged_model", lambda: model)
    assert device_path_of(named, has_server=False) == model


def test_without_any_model_a_server_will_do_and_nothing_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise EngineError("packaged model: no such package")

    monkeypatch.setattr(packaged, "packaged_model", absent)
    assert device_path_of(None, has_server=True) is None
    with pytest.raises(ConfigError, match=r"expected a device model or a server, got neither.*streamco models get packaged"):
        device_path_of(None, has_server=False)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(options, name) for name in options.__all__)


def test_a_device_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert device_path_of("~/model.gguf", has_server=False) == tmp_path / "model.gguf"
