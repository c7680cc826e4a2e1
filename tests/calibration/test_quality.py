"""What calibration makes of a device's answers to labelled prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.calibration.quality import LabelledPrompt, MeasuredAnswer, curve, fit_score, measure_answers, read_labelled
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import ConfigError, EngineError
from streamco.policies.quality import AnswerFacts, Perplexity
from streamco.testing.engine import FakeEngine
from tests.client.helpers import device


def measured(probability: float, good: bool | None) -> MeasuredAnswer:
    return MeasuredAnswer(AnswerFacts(probabilities=(probability,), is_complete=True, prompt_tokens=9), good)


def test_prompts_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b", "expected": ["x", "y"], "task": "t"}\n', encoding="utf-8")
    assert read_labelled(path) == [LabelledPrompt(prompt="a"), LabelledPrompt(prompt="b", expected=("x", "y"), task="t")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_where_json_lines_do(tmp_path: Path, end: str) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = ['{"prompt": "a\u2028b\u2029c\u0085d"}', '{"prompt": "e"}', ""]
    path.write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    assert [each.prompt for each in read_labelled(path)] == ["a\u2028b\u2029c\u0085d", "e"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 1 to 10000 prompts, got 0"),
        ('{"prompt": "a"}\n{"prompt": 1}\n', "line 2: expected"),
        ('{"prompt": "a", "answer": "b"}\n', "line 1: expected .* unknown field `answer`"),
        ("prompt\n", "line 1: expected"),
        ('{"prompt": "a"}\n\n{"prompt": "b", "expected": ["x", " "]}\n', "line 3: expected texts with words, got an empty one"),
    ],
)
def test_what_is_no_file_of_prompts_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_labelled(path)
    with pytest.raises(ConfigError, match="expected a file of prompts that can be read"):
        read_labelled(tmp_path / "missing")


@pytest.mark.parametrize(
    ("expected", "answer", "good"),
    [(("B",), "The answer is b.", True), (("B",), "Because", False), (("12", "twelve"), "It is 12", True), (("12",), "123", False)],
)
def test_a_good_answer_has_an_expected_word(expected: tuple[str, ...], answer: str, good: bool) -> None:
    assert LabelledPrompt(prompt="?", expected=expected).judge(answer) is good
    assert LabelledPrompt(prompt="?").judge(answer) is None


@pytest.mark.parametrize(
    ("expected", "answer", "good"),
    [
        ("東京", "日本の首都は東京です。", True),
        ("東京", "日本の首都は京都です。", False),
        ("カタ", "これはカタです", True),
        ("กรุงเทพ", "เมืองหลวงคือกรุงเทพครับ", True),
        ("B", "答えはBです。", True),
        ("B", "答えはBCです。", False),
        ("3月", "13月です", False),
        ("nai\u0308ve", "A na\u00efve one.", True),
        ("NA\u00cfVE", "A nai\u0308ve one.", True),
        ("naive", "A naively made one.", False),
        ("C++", "It is C++.", True),
    ],
)
def test_a_word_is_one_of_its_own_language(expected: str, answer: str, good: bool) -> None:
    assert LabelledPrompt(prompt="?", expected=(expected,)).judge(answer) is good


async def test_each_prompt_is_answered_and_judged() -> None:
    local = DeviceEndpoint(FakeEngine("It is B", probability=0.4))
    steps: list[tuple[int, int]] = []
    prompts = [LabelledPrompt(prompt="one", expected=("B",), task="choice"), LabelledPrompt(prompt="two", expected=("C",))]
    answers, failures = await measure_answers(local, prompts, max_tokens=8, on_progress=lambda done, whole: steps.append((done, whole)))
    assert not failures
    assert [each.good for each in answers] == [True, False]
    assert answers[0].facts == AnswerFacts(probabilities=(0.4,) * 3, is_complete=True, prompt_tokens=3, task="choice")
    assert steps == [(1, 2), (2, 2)]
    await local.aclose()


async def test_a_device_that_does_not_tell_how_sure_it_is_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match="the device doesn't tell how sure it is"):
        await measure_answers(device(), [LabelledPrompt(prompt="one")], max_tokens=8, on_progress=lambda *_: None)


async def test_answers_that_begin_with_thinking_are_not_measured_because_no_gate_grades_them() -> None:
    made = FakeEngine(["<think>", "hm", "</think>", "It", " is", " B"], probability=0.4)
    made.info = replace(made.info, has_reasoning=True)
    local = DeviceEndpoint(made)
    with pytest.raises(ConfigError, match="begins its answers with thinking"):
        await measure_answers(local, [LabelledPrompt(prompt="one")], max_tokens=8, on_progress=lambda *_: None)
    await local.aclose()


async def test_a_prompt_that_fails_is_skipped_and_if_all_do_the_first_error_is_raised() -> None:
    local = DeviceEndpoint(FakeEngine("It is B", probability=0.4, context_tokens=16))
    steps: list[int] = []
    prompts = [LabelledPrompt(prompt=text, expected=("B",)) for text in ("word " * 40, "two", "word " * 30, "four")]
    answers, failures = await measure_answers(local, prompts, max_tokens=8, on_progress=lambda done, _: steps.append(done))
    assert [each.good for each in answers] == [True, True]
    assert ["expected at most" in str(each) for each in failures] == [True, True]
    assert steps == [1, 2, 3, 4]
    with pytest.raises(EngineError, match="got 42"):
        await measure_answers(local, prompts[::2], max_tokens=8, on_progress=lambda *_: None)
    await local.aclose()


def test_the_curve_says_how_many_bad_answers_a_threshold_catches() -> None:
    answers = [measured(0.01 + number / 200, number >= 60) for number in range(200)]
    points = curve(answers)
    assert [(point.share, round(point.caught or 0.0, 2)) for point in points] == [(0.1, 0.33), (0.2, 0.67), (0.3, 1.0), (0.5, 1.0)]
    assert [sum(0.01 + number / 200 < point.min_score for number in range(200)) for point in points] == [20, 40, 60, 100]
    assert points[2].caught_learned == pytest.approx(1.0, abs=0.02)
    assert fit_score(answers).labels == 200


def test_a_point_is_true_of_equal_scores_and_the_same_point_comes_once() -> None:
    answers = [measured(0.2, good=number >= 3) for number in range(6)]
    answers += [measured(0.24, number >= 2) for number in range(40)]
    answers += [measured(0.2412345, good=True) for _ in range(4)] + [measured(0.2412999, good=number > 0) for number in range(50)]
    points = curve(answers)
    assert [(point.share, point.min_score, point.caught) for point in points] == [(0.06, 0.22, 0.5), (0.46, 0.2412, pytest.approx(5 / 6))]


@pytest.mark.parametrize(
    ("scores", "min_score"),
    [((0.2, 0.3), 0.25), ((0.243, 0.246), 0.244), ((0.2431, 0.2433), 0.2432), ((0.5, 0.5), 0.0)],
)
def test_a_threshold_has_as_many_digits_as_it_takes_to_lie_between_scores(scores: tuple[float, float], min_score: float) -> None:
    assert curve([measured(score, good=None) for score in scores])[-1].min_score == min_score


@given(st.lists(st.tuples(st.floats(0.0, 1.0) | st.sampled_from([0.2, 0.201, 0.5]), st.none() | st.booleans()), min_size=1, max_size=60))
def test_any_answers_have_a_curve_and_the_gate_does_what_it_says(given_answers: list[tuple[float, bool | None]]) -> None:
    answers = [measured(*each) for each in given_answers]
    points = curve(answers)
    bad = [each for each in answers if each.good is False]
    assert points
    assert len({point.share for point in points}) == len(points)
    for point in points:
        assert 0.0 <= point.min_score == round(point.min_score, 4) <= 1.0
        sent = [each for each in answers if Perplexity().score(each.facts) < point.min_score]
        assert point.share == len(sent) / len(answers)
        assert point.caught == (sum(each.good is False for each in sent) / len(bad) if bad else None)
