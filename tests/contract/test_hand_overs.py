"""Thousands of simulated hand-overs at random places lose nothing and repeat nothing.

A hundred thousand are a bench (``bench.counted.migration``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.counted.migration_simulated import Tally, simulate
from streamco.core.pacer import Pacer
from streamco.core.race.transcript import Transcript
from streamco.endpoints.continuation import BoundaryWhitespace


def test_the_reader_gets_the_uninterrupted_answer() -> None:
    tally = simulate(5_000)
    assert tally.wrong == []
    assert tally.hand_overs - tally.by_ids > 500  # by text
    assert min(tally.by_ids, tally.paced) > 1_000
    assert tally.planned > 200
    assert tally.most >= 4
    assert tally.unfinished < tally.answers / 50


def lose_a_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    def lossy(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return None if calls % 50 == 0 else original(self, *arguments, **options)

    return lossy


def keep_all(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, event: event  # a method


def is_found(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    monkeypatch.setattr(kind, name, change(getattr(kind, name)))
    try:
        tally: Tally = simulate(300)
    except AssertionError:  # a model was given a beginning that is not its answer's
        return True
    return bool(tally.wrong)


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [(Transcript, "add", lose_a_batch), (Pacer, "feed", lose_a_batch), (BoundaryWhitespace, "strip", keep_all)],
    ids=["the transcript misses a batch", "the pacer loses a batch", "spaces are doubled"],
)
def test_a_fault_would_be_found(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    assert is_found(monkeypatch, kind, name, change)
