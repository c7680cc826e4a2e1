"""Recordings of answers go on where they were broken off, as if they had not been."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.counted.selective import Pair
from bench.papers.synera.answers import load_models
from bench.papers.synera.recording import Recording, read_results, record
from bench.papers.synera.rules import Cell
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from tests.support.data import data_path

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

CELLS = (Cell("device", 0.0), Cell("server", 1.0), Cell("combined", 0.4))


@pytest.fixture(scope="module")
def models() -> Iterator[Pair]:
    small, large = derived(packaged_model(), "Q2_K"), derived(packaged_model(), "Q8_0")
    with closing(load_models(small, large, cells=3, context_tokens=1024)) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.papers.synera.recording.PROFILE_QUESTIONS", 1)
    monkeypatch.setattr("bench.papers.synera.recording.PROFILE_TOKENS", 12)


def run(folder: Path, models: Pair, items: int, *, ends: float = math.inf) -> list[tuple[str, int]]:
    data_path("prompts")
    return list(record(folder, {"sst2": items, "csqa": items}, CELLS, models, max_tokens=8, ends=ends))


@pytest.mark.long
def test_tasks_take_turns_and_a_second_run_adds_what_is_missing(tmp_path: Path, models: Pair) -> None:
    assert run(tmp_path, models, 1) == [("sst2", 1), ("csqa", 1)]
    whole = (tmp_path / "sst2.jsonl").read_text()
    (tmp_path / "sst2.jsonl").write_text(whole + whole[:50])
    assert run(tmp_path, models, 2) == [("sst2", 2), ("csqa", 2)]
    assert run(tmp_path, models, 2) == []
    lines = [json.loads(line) for line in (tmp_path / "sst2.jsonl").read_text().splitlines()]
    assert len({line["question"] for line in lines}) == 2
    assert json.loads(whole) == lines[0]
    results = read_results(tmp_path, "sst2")
    assert [set(each) for each in results.values()] == [{"device", "server", "combined 0.4"}] * 2
    assert all(0.0 <= each["device"].score <= 1.0 and each["device"].tokens <= 8 for each in results.values())


@pytest.mark.long
def test_nothing_is_begun_after_the_time_and_other_contenders_are_refused(tmp_path: Path, models: Pair) -> None:
    assert run(tmp_path, models, 1, ends=0.0) == []
    Recording(tmp_path, "sst2").add({"question": "q", "cells": {"device": {"chunks": []}}})
    with pytest.raises(SystemExit, match="expected the contenders device, as recorded, got others"):
        run(tmp_path, models, 1)


def test_a_task_without_answers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected recorded answers, got none"):
        read_results(tmp_path, "gsm8k")
