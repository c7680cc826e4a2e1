"""Figures in the words of the documentation's pages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tests.support.data import ROOT

__all__ = ["NUMBERS", "fraction", "page_words", "span"]

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_FRACTIONS = {
    1 / 20: "a twentieth",
    1 / 6: "a sixth",
    1 / 5: "a fifth",
    1 / 4: "a quarter",
    1 / 3: "a third",
    1 / 2: "half",
    2 / 3: "two thirds",
    3 / 4: "three quarters",
    1: "all",
}
_NEAR = 0.13  # of a fraction, within which a share is called by it
_HALF = 1e-9  # makes a half round up, which a kept figure may be


@cache
def page_words(path: str) -> str:
    """Return a page's text without its line breaks.

    Args:
        path: the page's path in the repository.
    """
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def span(values: Iterable[float], digits: int = 0, sign: str = "") -> str:
    """Return the lowest and the highest value, or one if they look alike; ``sign``: "+" for one before each."""
    found = [*values]
    low, high = (f"{each + _HALF:{sign},.{digits}f}" for each in (min(found), max(found)))
    return low if low == high else f"{low} to {high}"


def fraction(share: float) -> str:
    """Return the nearest fraction in words."""
    nearest = min(_FRACTIONS, key=lambda each: abs(each - share))
    assert abs(nearest - share) < _NEAR * nearest, share
    return _FRACTIONS[nearest]
