"""Measures how often a device's answers are good, and how many of the bad ones a quality gate would catch, on an application's prompts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from unicodedata import normalize

import msgspec
from msgspec import Struct

from streamco.config import SamplingOptions
from streamco.endpoints.base import Endpoint, Request
from streamco.errors import ConfigError, EndpointError
from streamco.events import TokensReceived
from streamco.policies.quality import MAX_TOKENS, AnswerFacts, LearnedScore, Perplexity

__all__ = ["CurvePoint", "LabelledPrompt", "MeasuredAnswer", "curve", "fit_score", "measure_answers", "read_labelled"]

_SHARES = (0.1, 0.2, 0.3, 0.5)
_DIGITS = (2, 3, 4)  # of a threshold
_FOLDS = 5
# Scripts that don't separate words by spaces: Thai, Lao, Khmer, Myanmar, Hiragana, Katakana, CJK ideographs
_RANGES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\ua9e0-\ua9ff\uaa60-\uaa7f"
    r"\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{_RANGES}]")
_SPACED_LETTER = rf"[^\W{_RANGES}]"
_MOST = 10_000  # prompts


class LabelledPrompt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt, and what a good answer to it contains.

    Args:
        prompt: the user's message.
        expected: texts; a good answer contains at least one of them, as a whole word where words are separated by spaces. () if it isn't
            known which answers are good.
        task: name of the kind of task; None if there is none.
    """

    prompt: str
    expected: tuple[str, ...] = ()
    task: str | None = None

    def judge(self, answer: str) -> bool | None:
        """Return whether the answer is good, or None if that isn't known."""
        if not self.expected:
            return None
        whole = normalize("NFC", answer)
        return any(_pattern(normalize("NFC", text.strip())).search(whole) for text in self.expected)


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that finds a text unless it is part of a longer word."""
    before = "" if _UNSPACED.match(text[:1]) else rf"(?<!{_SPACED_LETTER})"
    after = "" if _UNSPACED.match(text[-1:]) else rf"(?!{_SPACED_LETTER})"
    return re.compile(before + re.escape(text) + after, re.IGNORECASE)


class MeasuredAnswer(Struct, frozen=True):
    """The device's answer to a prompt: the inputs of a score, and whether it was good (None if not known)."""

    facts: AnswerFacts
    good: bool | None


class CurvePoint(Struct, frozen=True):
    """The effect of having the server write the answers for which the device's scores are lowest.

    Args:
        share: share of the answers that the server writes, because the device's answers have a plain score below ``min_score``.
        min_score: the lowest plain score with which a device's answer is used, with two to four digits.
        caught: share of the device's bad answers that the server replaces; None if it isn't known which are bad.
        caught_learned: the same, if equally many answers are chosen by a score learned from other answers; None if there are too few.
    """

    share: float
    min_score: float
    caught: float | None
    caught_learned: float | None


def read_labelled(path: Path) -> list[LabelledPrompt]:
    """Read a file of prompts, one JSON object per line: {"prompt": "...", "expected": ["B"], "task": "choice"}; the last two are optional.

    Raises:
        ConfigError: the file can't be read, has no prompts or too many, or has a line in another form.
    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8-sig").split("\n")  # JSON may contain other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a file of prompts that can be read, got: {error}") from error
    decoder, found = msgspec.json.Decoder(LabelledPrompt), []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise ConfigError(f'{path}, line {number}: expected {{"prompt": "...", "expected": ["..."]}}, got: {error}') from error
        if not all(text.strip() for text in found[-1].expected):
            raise ConfigError(f"{path}, line {number}: expected texts with words, got an empty one")
    if not 1 <= len(found) <= _MOST:
        raise ConfigError(f"{path}: expected 1 to {_MOST} prompts, got {len(found)}")
    return found


async def measure_answers(
    device: Endpoint, prompts: Sequence[LabelledPrompt], *, max_tokens: int, on_progress: Callable[[int, int], None]
) -> tuple[list[MeasuredAnswer], list[EndpointError]]:
    """Have the device answer each prompt greedily, and judge its answers. Return them, and the errors from prompts that failed.

    Args:
        device: a started endpoint that reports how sure it is of its tokens.
        prompts: the prompts.
        max_tokens: maximum number of tokens in an answer.
        on_progress: called with the number of prompts done so far and the number of all prompts.

    Raises:
        EndpointError: every prompt failed.
        ConfigError: the device doesn't report how sure it is, or begins its answers with thinking.
    """
    found, failures = list[MeasuredAnswer](), list[EndpointError]()
    for number, each in enumerate(prompts, start=1):
        try:
            found += await _measure(device, each, max_tokens)
        except EndpointError as error:
            failures.append(error)
        on_progress(number, len(prompts))
    if len(failures) == len(prompts):
        raise failures[0]
    if not found:
        raise ConfigError("calibrate: the device doesn't tell how sure it is of its tokens, or begins its answers with thinking")
    return found, failures


async def _measure(device: Endpoint, prompt: LabelledPrompt, max_tokens: int) -> list[MeasuredAnswer]:
    """Return the device's answer to a prompt, or [] if it doesn't report how sure it is."""
    request = Request(
        messages=[{"role": "user", "content": prompt.prompt}],
        sampling=SamplingOptions(temperature=0.0, max_tokens=max_tokens),
        is_graded=True,
    )
    text, probabilities = await _answer(device.open(request).receive)
    if not probabilities:
        return []
    facts = AnswerFacts(
        probabilities=tuple(probabilities[:MAX_TOKENS]),
        is_complete=len(probabilities) <= MAX_TOKENS,
        prompt_tokens=device.count_tokens(request) or len(prompt.prompt) // 4 + 1,
        task=prompt.task,
    )
    return [MeasuredAnswer(facts, prompt.judge(text))]


async def _answer(receive: Callable[[], Awaitable[object]]) -> tuple[str, list[float]]:
    """Return a whole answer's text and the probabilities of its tokens, which are [] if it begins with thinking (no gate grades that)."""
    text, probabilities, thinks = "", list[float](), False
    while isinstance(event := await receive(), TokensReceived):
        for delta in (choice.delta for chunk in event.chunks for choice in chunk.choices[:1]):
            text += delta.content or ""
            thinks = thinks or bool(not text.strip() and (delta.reasoning_content or delta.reasoning or "").strip())
        probabilities += (each.probability for each in event.confidences)
    return text, [] if thinks else probabilities


def fit_score(answers: Iterable[MeasuredAnswer]) -> LearnedScore:
    """Return the score learned from the judged answers."""
    score = LearnedScore()
    for each in answers:
        if each.good is not None:
            score.observe(each.facts, each.good)
    return score


def curve(answers: Sequence[MeasuredAnswer]) -> list[CurvePoint]:
    """Return the points of the curve at which the server writes a tenth, a fifth, 30 % and half of the answers.

    It writes fewer if scores are equal, or too close to differ in four digits. A point that repeats the one before is left out. The
    learned score of an answer was fitted to the other four fifths of the answers.
    """
    plain = [Perplexity().score(each.facts) for each in answers]
    bad = [number for number, each in enumerate(answers) if each.good is False]
    learned = _held_out(answers)
    ordered, points = sorted(plain), dict[int, CurvePoint]()
    for share in _SHARES:
        threshold = _threshold(ordered, min(len(answers) - 1, round(share * len(answers))))
        sent = bisect_left(ordered, threshold)
        points.setdefault(
            sent,
            CurvePoint(
                sent / len(answers),
                threshold,
                _caught(plain, bad, sent) if bad else None,
                _caught(learned, bad, sent) if bad and learned else None,
            ),
        )
    return list(points.values())


def _threshold(ordered: Sequence[float], count: int) -> float:
    """Return the number with the fewest digits that exceeds ``count`` of the sorted scores, or fewer if four digits can't separate them."""
    above = ordered[count]
    count = bisect_left(ordered, above)
    if count == 0:
        return 0.0
    below = ordered[count - 1]
    for digits in _DIGITS:
        if below < (between := round((below + above) / 2, digits)) <= above:
            return between
    rounded = round(above, _DIGITS[-1])
    return rounded if rounded <= above else round(rounded - 10.0 ** -_DIGITS[-1], _DIGITS[-1])


def _held_out(answers: Sequence[MeasuredAnswer]) -> list[float]:
    """Return the learned scores of all answers, each fitted to other answers, or [] if too few were judged."""
    scores = [0.0] * len(answers)
    for fold in range(_FOLDS):
        fitted = fit_score(each for number, each in enumerate(answers) if number % _FOLDS != fold)
        if not fitted.is_ready:
            return []
        for number in range(fold, len(answers), _FOLDS):
            scores[number] = fitted.score(answers[number].facts)
    return scores


def _caught(scores: Sequence[float], bad: Sequence[int], count: int) -> float:
    lowest = set(sorted(range(len(scores)), key=scores.__getitem__)[:count])
    return sum(number in lowest for number in bad) / len(bad)
