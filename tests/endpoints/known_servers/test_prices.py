"""Known prices are the recorded ones; unknown ones are unknown."""

from __future__ import annotations

import csv
import gzip
import io

import pytest

from streamco.endpoints.known_servers.prices import _PER_MILLION, UNKNOWN, find_prices
from tests.support.data import data_path


def test_a_price_is_per_token() -> None:
    prices = find_prices("openai", "gpt-4o-mini")
    assert (prices.prompt, prices.completion, prices.cached_prompt) == pytest.approx((0.15e-6, 0.6e-6, 0.075e-6))


def test_a_missing_part_stays_unknown() -> None:
    assert find_prices("perplexity", "sonar").cached_prompt is None


@pytest.mark.parametrize(("provider", "model"), [("openai", "gpt-9"), ("azure", "gpt-4o"), ("generic", "gpt-4o"), ("openai", "GPT-4o")])
def test_anything_else_is_unknown_rather_than_guessed(provider: str, model: str) -> None:
    assert find_prices(provider, model) == UNKNOWN


def test_every_price_agrees_with_the_recorded_table() -> None:
    with gzip.open(data_path("prices", "litellm_chat_prices.csv.gz")) as file:
        rows = {row["model"]: row for row in csv.DictReader(io.TextIOWrapper(file))}
    for provider, models in _PER_MILLION.items():
        for model in models:
            row = rows[model] if model in rows else rows[f"{provider}/{model}"]
            prices = find_prices(provider, model)
            cached = row["usd_per_cached_input_token"]
            assert prices.prompt == pytest.approx(float(row["usd_per_input_token"])), model
            assert prices.completion == pytest.approx(float(row["usd_per_output_token"])), model
            assert prices.cached_prompt == (pytest.approx(float(cached)) if cached else None), model
