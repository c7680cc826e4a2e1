"""What is told of a row of logits."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.config import SamplingOptions
from streamco.engines.base import Prediction
from streamco.engines.prediction import Predictor
from streamco.engines.sampling import Sampler
from streamco.errors import ConfigError, EngineError
from streamco.wire.verify.topk import TopK

PLAIN = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def row(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def test_without_alternatives_only_the_greedy_token_is_told() -> None:
    told = Predictor(PLAIN, 0).read_row(row(1, 3, 2), 7, 2)
    assert told == Prediction(position=7, greedy=1, token=2)
    assert (told.confidence, told.margin) == (0.0, float("inf"))


def test_the_models_own_probabilities_and_logits_know_no_options() -> None:
    for sampling in (PLAIN, SamplingOptions(temperature=0), SamplingOptions(temperature=0.2, top_k=1)):
        told = Predictor(sampling, 2).read_row(row(0, np.log(3), 0), 0, None)
        assert told.logits == pytest.approx((np.log(3), 0.0))
        assert dict(told.likeliest) == pytest.approx({1: 0.6, 0: 0.2})
        assert told.confidence == pytest.approx(0.6)
        assert told.margin == pytest.approx(np.log(3))


def test_what_may_be_drawn_is_told_under_the_options() -> None:
    told = Predictor(SamplingOptions(temperature=0.5, top_k=2, top_p=1.0, min_p=0.0), 8).read_row(row(0, np.log(3), -1), 0, 0)
    assert dict(told.drawable) == pytest.approx({1: 0.9, 0: 0.1})
    assert told.probability == pytest.approx(0.1)
    assert told.is_complete


def test_a_token_that_the_options_rule_out_has_no_probability() -> None:
    predictor = Predictor(SamplingOptions(temperature=0), 2)
    assert predictor.read_row(row(0, 2, 1), 0, 2).probability == 0.0
    assert predictor.read_row(row(0, 2, 1), 0, 1).probability == 1.0
    assert predictor.read_row(row(0, 2, 1), 0, None).probability is None


def test_fewer_alternatives_than_may_be_drawn_are_said_to_be_incomplete() -> None:
    told = Predictor(PLAIN, 2).read_row(row(0, 0, 0), 0, 2)
    assert not told.is_complete
    assert len(told.drawable) == 2
    assert told.probability == pytest.approx(1 / 3)  # of the draft's token also where it isn't among them


def test_a_drawn_token_has_a_margin_also_without_alternatives() -> None:
    told = Predictor(SamplingOptions(temperature=0), 0).draw(row(1, 5, 2), 3)
    assert (told.token, told.greedy, told.probability, told.drawable) == (1, 1, 1.0, ())
    assert told.margin == pytest.approx(3.0)


@given(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=30), st.integers(0, 2**20), st.integers(1, 6))
def test_a_drawn_token_is_one_that_may_be_drawn_with_its_probability(values: list[float], seed: int, top_k: int) -> None:
    sampling = SamplingOptions(temperature=0.9, top_k=top_k, top_p=1.0, min_p=0.0, seed=seed)
    told = Predictor(sampling, top_k).draw(row(*values), 0)
    assert told.is_complete
    assert told.token is not None
    assert told.probability == dict(told.drawable)[told.token]
    assert sum(share for _, share in told.drawable) == pytest.approx(1.0)
    assert told == Predictor(sampling, top_k).draw(row(*values), 0)


def test_draws_follow_the_distribution_they_tell() -> None:
    predictor = Predictor(SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11), 3)
    logits = row(0, np.log(2), np.log(5))
    drawn = [predictor.draw(logits, 0).token for _ in range(4000)]
    assert [drawn.count(token) / 4000 for token in range(3)] == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.03)


def test_the_models_own_share_of_a_token_knows_no_options_and_no_limit() -> None:
    sampling = SamplingOptions(temperature=0.5, top_k=2, top_p=1.0, min_p=0.0)
    told = Predictor(sampling, 2).read_row(row(0, np.log(3), -1, 0, np.log(2)), 0, 3)
    assert told.share == pytest.approx(1 / (1 + 3 + np.exp(-1) + 1 + 2))
    assert told.share not in dict(told.likeliest)
    assert Predictor(sampling, 2).read_row(row(0, 1), 0, None).share is None


def test_a_token_is_drawn_from_the_weights_that_are_told() -> None:
    predictor = Predictor(SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3), 1, row_ids=3)
    logits = row(0, np.log(2), np.log(5), np.log(4), -20)
    told = [predictor.draw(logits, 0) for _ in range(4000)]
    assert {each.row for each in told} == {TopK((2, 3, 1), (65535, 52428, 26214))}
    drawn = [each.token for each in told]
    assert [drawn.count(token) / 4000 for token in (0, 1, 2, 3, 4)] == pytest.approx([0, 2 / 11, 5 / 11, 4 / 11, 0], abs=0.03)


def test_a_row_has_no_id_that_cannot_be_drawn_and_a_greedy_one_has_a_single_id() -> None:
    plain = Predictor(PLAIN, 1, row_ids=255).draw(row(3, -1e4, 3), 0)
    assert plain.row == TopK((0, 2), (65535, 65535))
    assert Predictor(SamplingOptions(temperature=0), 1, row_ids=4).draw(row(1, 5, 2), 0).row == TopK((1,), (65535,))


@given(st.lists(st.integers(1, 65535), min_size=1, max_size=255), st.integers(0, 2**20))
def test_whole_weights_draw_each_id_for_as_many_numbers_of_the_dice_as_its_weight(weights: list[int], seed: int) -> None:
    number = Random(seed).randrange(sum(weights))
    drawn = Sampler(SamplingOptions(seed=seed)).draw_weighted(range(len(weights)), weights)
    assert sum(weights[:drawn]) <= number < sum(weights[: drawn + 1])


@pytest.mark.parametrize("row_ids", [-1, 256])
def test_rows_longer_than_the_wire_has_room_for_are_the_callers_fault(row_ids: int) -> None:
    with pytest.raises(ConfigError, match=f"row_ids: expected 0 to 255, got {row_ids}"):
        Predictor(PLAIN, 1, row_ids=row_ids)


def test_logits_that_are_not_numbers_are_an_error() -> None:
    for predictor in (Predictor(PLAIN, 0), Predictor(PLAIN, 2)):
        with pytest.raises(EngineError, match="expected finite numbers"):
            predictor.read_row(row(float("nan"), 1, 2), 0, None)


@pytest.mark.parametrize("top", [-1, 1025])
def test_alternatives_out_of_range_are_the_callers_fault(top: int) -> None:
    with pytest.raises(ConfigError, match=f"top: expected 0 to 1024, got {top}"):
        Predictor(PLAIN, top)


def test_penalties_are_refused_because_drafts_would_not_keep_to_them() -> None:
    with pytest.raises(ConfigError, match="presence_penalty: expected none"):
        Predictor(SamplingOptions(presence_penalty=1.0), 0)
