"""``streamco calibrate --pair``: what is asked for, what is printed, what is kept."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from streamco.calibration.profile_store import load_profile, save_profile
from streamco.calibration.prompts import PROMPTS, read_prompts
from streamco.calibration.quality import CurvePoint, MeasuredAnswer
from streamco.cli import calibrate
from streamco.cli.main import main
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import ConfigError, EndpointError
from streamco.policies.quality import AnswerFacts
from streamco.profiles import DeviceSpeed, Link, PairProfile, Prices, Profile
from streamco.profiles.rated_answer import RatedAnswer
from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing import FakeEngine, ScriptedServer, json_answer
from tests.server.verifying import SIZE, VOCABULARY, serving, target

PAIR = PairProfile(
    draft="small",
    target="large",
    window=4,
    rounds=120,
    acceptance=0.5,
    hit_rate=0.25,
    confidence_threshold=0.8,
    importance_thresholds=((0.1, 0.5), (0.9, 0.1)),
    rtt=0.03,
    wait=0.2,
    step_times=(0.01, 0.0125),
    verify_times=((1, 0.05), (4, 0.1)),
    remote_step=0.05,
)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    calibrate.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def draft(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Drafts in place of the packaged model; every prompt is one word of its vocabulary."""
    engine = FakeEngine(vocabulary=VOCABULARY, successor=FakeDistribution(1, SIZE, noise=1.0), context_tokens=256)
    monkeypatch.setattr(engine, "apply_template", lambda messages, **_options: "word")
    monkeypatch.setattr(calibrate, "make_device", lambda _args: DeviceEndpoint(engine))
    return engine


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Answers in place of the model that ``--quality`` loads."""
    engine = FakeEngine("It is B", probability=0.4, context_tokens=16)
    monkeypatch.setattr(calibrate, "device_path_of", lambda *_args, **_options: Path("small.gguf"))
    monkeypatch.setattr("streamco.endpoints.device.DeviceEndpoint", lambda *_args, **_options: DeviceEndpoint(engine))
    return engine


@pytest.mark.usefixtures("small")
async def test_prompts_that_fail_are_counted_and_the_others_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "expected": ["B"]}\n' + json.dumps({"prompt": "secret " * 40}) + '\n{"prompt": "two"}\n')
    assert await calibrate._calibrate_quality(parse("--quality", str(path))) == 0
    output = capsys.readouterr()
    assert "2 answers of small: 1 good, 0 not" in output.out
    assert "1 of 3 prompts skipped, the first because of: " in output.err
    assert "expected at most" in output.err
    assert "secret" not in output.err


async def test_ratings_are_added_to_those_that_came_in_the_meantime(
    small: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, prompts = tmp_path / "profile.json", tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one", "expected": ["B"]}\n')
    other = RatedAnswer(mean=0.5, tenth=0.1, median=0.5, tokens=3, is_complete=True, prompt_tokens=7, good=False)
    submit = small.submit

    def rate_and_submit(*args: Any) -> Any:
        save_profile(Profile(name="mine", ratings=(other,)), path)
        return submit(*args)

    monkeypatch.setattr(small, "submit", rate_and_submit)
    assert await calibrate._calibrate_quality(parse("--quality", str(prompts), "--profile", str(path))) == 0
    kept = load_profile(path)
    assert (kept.name, kept.ratings[0], [each.good for each in kept.ratings]) == ("mine", other, [False, True])
    assert f"2 ratings kept in {path}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--quality", "{}"), ("--pair", "--verifier", "ws://127.0.0.1:9")])
def test_a_profile_that_can_not_be_written_is_told_before_anything_is_measured(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    monkeypatch.setattr(calibrate, "device_path_of", lambda *_args, **_options: pytest.fail("the model is looked for"))
    given = [word.format(prompts) for word in words]
    assert main(["calibrate", *given, "--profile", str(tmp_path / "none" / "profile.json")]) == 2
    assert "profile.json: its folder doesn't exist" in capsys.readouterr().err


async def test_the_figures_are_printed_and_kept_beside_what_was_known(
    draft: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    save_profile(Profile(name="mine", prices=Prices(prompt=1e-6, completion=2e-6), link=Link(rtt=9.0, bytes_per_s=1e6)), path)
    async with serving(target()) as server:
        words = ("--pair", "--verifier", server.url, "--rounds", "12", "--sequences", "2", "--max-tokens", "20", "--profile", str(path))
        assert await calibrate._calibrate(parse(*words)) == 0
    kept = load_profile(path)
    assert kept.pair is not None
    assert (kept.name, kept.pair.rounds, len(kept.pair.step_times)) == ("mine", 12, 2)
    assert kept.prices is not None
    assert kept.link is not None
    assert (kept.link.rtt, kept.link.bytes_per_s) == (kept.pair.rtt, 1e6)
    output = capsys.readouterr()
    assert f"{kept.pair.acceptance:.3f}" in output.out
    assert f"kept in {path}" in output.err
    assert draft.sequences.held == 0


async def test_a_server_that_verifies_is_found_behind_its_api(draft: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(target()) as server:
        words = ("--pair", "--server", "fake", "--base-url", f"{server.http}/v1", "--rounds", "4", "--sequences", "1", "--json")
        assert await calibrate._calibrate(parse(*words)) == 0
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert figures["rounds"] == 4
    assert figures["target"] == "fake"


async def test_a_server_that_does_not_verify_is_an_error() -> None:
    async with ScriptedServer(*[json_answer({"object": "list", "data": [{"id": "m", "object": "model"}]})] * 8) as server:
        with pytest.raises(EndpointError, match="expected a server that verifies"):
            await calibrate.make_verifier(parse("--pair", "--server", "m", "--base-url", server.url))


async def test_a_verifier_has_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIFIER_KEY", "sk-secret")
    verifier = await calibrate.make_verifier(parse("--pair", "--verifier", "ws://127.0.0.1:9", "--api-key-env", "VERIFIER_KEY"))
    assert isinstance(verifier, VerifierEndpoint)
    assert verifier._token.given == "sk-secret"
    assert "sk-secret" not in repr(verifier)
    await verifier.aclose()


def test_the_device_reads_attention_and_has_room_for_the_branches(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    device = calibrate.make_device(parse("--pair", "--device", str(model), "--threads", "1", "--sequences", "5"))
    assert (device._options.threads, device._options.held_sequences) == (1, 7)
    assert device._options.attention_layers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--verifier", "ws://127.0.0.1:9", "--server", "m"), "expected either --verifier URL or --server MODEL, got both\n"),
        (("--api-key-env", "KEY"), "--api-key-env: only valid with --verifier URL or --server MODEL"),
        (("--device", "/nowhere.gguf"), "expected a GGUF file, got nothing at /nowhere.gguf"),
        (("--pair", "--verifier", "ws://127.0.0.1:9", "--base-url", "http://127.0.0.1:9"), "--base-url: only valid with --server MODEL"),
        (("--pair", "--verifier", "ws://127.0.0.1:9", "--device", "/nowhere.gguf"), "expected a GGUF file, got nothing at /nowhere.gguf"),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_said(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_table_says_what_is_not_known() -> None:
    text = calibrate.format_pair(PAIR)
    assert "small drafts, large verifies; 120 drafts of up to 4 tokens" in text
    assert "0.500, so 1.94 tokens a round" in text
    assert "i_th by budget  0.1: 0.5000 · 0.9: 0.1000" in text
    assert "draft step    1: 10.0 ms · 2: 12.5 ms" in text
    assert "verify batch  1: 50.0 ms · 4: 100.0 ms" in text
    unknown = calibrate.format_pair(PairProfile(window=4, rounds=1, acceptance=0.5, wait=0.1, step_times=(0.01,), note="so it was"))
    assert unknown.count("not known") == 4
    assert "not measured" in unknown
    assert "not reported" in unknown
    assert "so it was" in unknown


async def test_without_a_server_the_device_is_measured_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(mode="thread", prefill_s=0.0002, token_s=0.005)
    monkeypatch.setattr(calibrate, "_lone_device", lambda _args: (Path("small.gguf"), DeviceEndpoint(engine)))
    path = tmp_path / "profile.json"
    save_profile(Profile(name="mine", prices=Prices(prompt=1e-6, completion=2e-6)), path)
    assert await calibrate._calibrate_device(parse("--profile", str(path))) == 0
    kept = load_profile(path)
    assert kept.device is not None
    assert (kept.name, kept.prices is not None) == ("mine", True)
    assert 0.0001 < kept.device.seconds_per_token < 0.01
    assert kept.device.decode_tokens_per_s is not None
    assert kept.device.decode_tokens_per_s < 250
    output = capsys.readouterr()
    assert output.out.splitlines()[0].startswith("small: first token after ")
    assert output.out.splitlines()[0].endswith(" tokens/s; a person reads 4.8")
    assert f"kept in {path}" in output.err


def test_a_pair_without_a_server_is_the_device_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(_args: argparse.Namespace) -> int:
        return 0

    monkeypatch.setattr(calibrate, "_calibrate_device", measured)
    assert main(["calibrate", "--pair"]) == 0
    assert "neither --verifier URL nor --server MODEL is named, so the device is measured alone" in capsys.readouterr().err


def test_a_speed_says_what_is_not_known() -> None:
    speed = DeviceSpeed(seconds_per_token=0.002, overhead=0.03)
    lines = calibrate.format_device("small", speed).splitlines()
    assert lines[0] == "small: first token after 430 ms for a prompt of 200 tokens"
    assert "prompt        2.00 ms a token and 30 ms once" in lines
    assert "answer        not measured" in lines


def test_a_threshold_is_printed_as_it_is() -> None:
    points = [CurvePoint(0.06, 0.2, 0.11, None), CurvePoint(0.1, 0.24, None, 0.5), CurvePoint(0.2, 0.2437, None, None)]
    answer = MeasuredAnswer(AnswerFacts(probabilities=(0.5,), is_complete=True, prompt_tokens=9), good=False)
    lines = calibrate.format_quality("small", [answer], points).splitlines()
    assert lines[0] == "1 answers of small: 0 good, 1 not"
    assert [line.split()[:2] for line in lines[3:]] == [["6%", "0.20"], ["10%", "0.24"], ["20%", "0.2437"]]


def test_prompts_are_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("One.\n\n  Two, with ümlauts.  \n", encoding="utf-8")
    assert read_prompts(path) == ["One.", "Two, with ümlauts."]
    assert all(Request(messages=[{"role": "user", "content": prompt}]) for prompt in PROMPTS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "expected 1 prompt or more"),
        (b"\xff\xfe\xfa", "expected a text file of prompts"),
        (b"a" * (1 << 20) + b"b", "in 1048577"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_prompts(path)
    with pytest.raises(ConfigError, match="expected a text file of prompts"):
        read_prompts(tmp_path / "none.txt")


def test_a_verifier_that_is_not_there_is_told_in_a_line_and_nothing_is_kept(
    draft: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    assert main(["calibrate", "--pair", "--verifier", "ws://127.0.0.1:9", "--profile", str(path)]) == 1
    errors = capsys.readouterr().err
    assert "streamco: " in errors
    assert "127.0.0.1:9" in errors
    assert "Traceback" not in errors
    assert not path.exists()
    assert draft.sequences.held == 0


@pytest.mark.parametrize(
    ("step", "wait", "remote_step", "verdict"),
    [
        (0.0401, 0.397, 0.0779, "drafting: about 4.6 tokens/s, server alone 12.8: don't"),  # four steps and a verdict for 2.59 tokens
        (0.005, 0.03, 0.0779, "drafting: about 51.7 tokens/s, server alone 12.8: do"),
        (0.0401, 0.397, 0.215, "drafting: about 4.6 tokens/s, server alone 4.7: about the same, so measure it in use"),
        (0.0401, 0.397, None, "drafting: about 4.6 tokens/s, server alone not measured"),
    ],
)
def test_the_first_line_says_in_tokens_per_second_whether_drafting_pays(
    step: float, wait: float, remote_step: float | None, verdict: str
) -> None:
    pair = PairProfile(window=4, rounds=120, acceptance=0.663, wait=wait, step_times=(step,), remote_step=remote_step)
    assert calibrate.format_pair(pair).splitlines()[0] == verdict


def test_drafting_ahead_of_verdicts_is_counted_where_it_helps() -> None:
    text = calibrate.format_verdict(PAIR)
    assert text.startswith("drafting: about 8.1 tokens/s (8.")
    assert text.endswith("server alone 20.0: don't")


def test_a_bar_counts_the_verified_drafts() -> None:
    bar = calibrate.ProgressText()
    assert str(bar) == "verifying drafts"
    bar.record(30, 120)
    assert str(bar) == f"verifying drafts {'█' * 6}{'░' * 18} 30/120"
    bar.record(120, 120)
    assert str(bar) == "120 drafts verified, timing steps and batches"
