"""What an answer is worth beside its reference, 0.0 to 1.0.

None of these asks a model: a number is right or not, a word is named or not, a function passes its tests or not, and Rouge-1 counts words.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["named_choice", "named_label", "number_of", "rouge_1", "same_number"]

_NUMBER = r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_MARKED = re.compile(rf"(?:####|\\boxed\{{|answer(?:\s+is|:))[\s*$:=\\{{(]*({_NUMBER})", re.IGNORECASE)
_ANY = re.compile(_NUMBER)
_CHOICE = re.compile(r"(?:[Aa]nswer(?:\s+is|:)?[\s*:(]*|^[\s*(]*)(A(?!\s+[a-z])|[B-E])(?![A-Za-z'])")


def same_number(answer: str, reference: str) -> float:
    """Return 1.0 if the answer's final number is the reference's, else 0.0 (GSM8K's exact match)."""
    found, wanted = number_of(answer), number_of(reference)
    return float(found is not None and found == wanted)


def number_of(text: str) -> Decimal | None:
    r"""Return the final number of a text: the last one that is marked as the answer, else the last one; None: there is none.

    Marks are ``####`` (GSM8K's own), ``\boxed{`` and "answer is" or "answer:". Thousands separators don't count.
    """
    found = _MARKED.findall(text) or _ANY.findall(text)
    if not found:
        return None
    try:
        return Decimal(found[-1].replace(",", ""))
    except InvalidOperation as exc:
        raise AssertionError(f"a number without its commas is a decimal, got {found[-1]!r}") from exc


def named_choice(answer: str, reference: str) -> float:
    """Return 1.0 if the answer names the reference's letter, A to E: after "answer", else at its beginning; else 0.0."""
    found = _CHOICE.findall(answer.strip())
    return float(bool(found) and found[-1] == reference)


def named_label(answer: str, reference: str, labels: tuple[str, ...] = ("positive", "negative")) -> float:
    """Return 1.0 if the answer names the reference's label and none of the others, else 0.0."""
    return float([label for label in labels if re.search(rf"\b{label}\b", answer, re.IGNORECASE)] == [reference])


def rouge_1(answer: str, reference: str) -> float:
    """Return Rouge-1 F with Porter's stemmer.

    Raises:
        SystemExit: the package rouge-score isn't installed.
    """
    return float(_scorer().score(reference, answer)["rouge1"].fmeasure)


@cache
def _scorer() -> Any:
    try:
        module = import_module("rouge_score.rouge_scorer")
    except ModuleNotFoundError as exc:
        raise SystemExit('Rouge-1 needs the package rouge-score: pip install ".[dev]"') from exc
    return module.RougeScorer(["rouge1"], use_stemmer=True)
