"""What is known of a pair, in a profile and out of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import ConfigError
from streamco.policies.offload import CONFIDENCE_THRESHOLD
from streamco.profiles import PairProfile, Profile

PAIR = PairProfile(
    draft="small",
    target="large",
    window=4,
    rounds=120,
    acceptance=0.75,
    hit_rate=0.5,
    mean_confidence=0.6,
    confidence_threshold=0.83,
    importance_thresholds=((0.5, 0.2),),
    chunks=((0.7, 0.1), (0.4, None)),
    rtt=0.03,
    wait=0.2,
    step_times=(0.01, 0.012),
    verify_times=((4, 0.1),),
    remote_step=0.05,
    note="measured",
)


def test_a_profile_keeps_it() -> None:
    profile = Profile(name="both", pair=PAIR)
    assert Profile.from_json(profile.to_json()) == profile
    assert Profile.from_json(b'{"version": 1}').pair is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"acceptance": 1.2}, "pair: acceptance: expected 0 to 1, got 1.2"),
        ({"hit_rate": -0.1}, "pair: hit_rate: expected 0 to 1, got -0.1"),
        ({"confidence_threshold": float("nan")}, "pair: confidence_threshold"),
        ({"rounds": 0}, "pair: expected a window and rounds of at least 1, got 4 and 0"),
        ({"step_times": ()}, "pair: expected times above 0 s and at least one step time"),
        ({"wait": 0.0}, "pair: expected times above 0 s"),
        ({"remote_step": float("inf")}, "pair: expected times above 0 s"),
        ({"rtt": -1.0}, "pair: rtt: expected seconds >= 0, got -1.0"),
    ],
)
def test_figures_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(PAIR, **changes)
    with pytest.raises(ConfigError, match=r"expected a profile in JSON, got: .*pair"):
        Profile.from_json(b'{"version": 1, "pair": {"window": 4, "rounds": 1, "acceptance": 2, "wait": 1, "step_times": [1]}}')


def test_a_client_begins_with_what_was_measured() -> None:
    assert Speculate().with_profile(PAIR).tuning.chunks == (), "single tokens are no chunks"
    options = Speculate(window=4).with_profile(PAIR)
    assert options.tuning.prior == EstimatesPrior(
        acceptance=0.75, step_times=(0.01, 0.012), wait=0.2, remote_step=0.05, hit_rate=0.5, mean_confidence=0.6
    )
    assert (options.tuning.confidence_threshold, options.tuning.chunks) == (0.83, PAIR.chunks)
    pair = options.estimates(0.5)
    assert (pair.acceptance, pair.wait, list(pair.step_times)) == (0.75, 0.2, [0.01, 0.012])
    assert Speculate().with_profile(None) == Speculate()


def test_what_was_said_goes_before_what_was_measured() -> None:
    own = EstimatesPrior(acceptance=0.5)
    options = Speculate(tuning=SpeculationTuning(prior=own, confidence_threshold=0.9, chunks=((0.1, 0.2),))).with_profile(PAIR)
    assert (options.tuning.prior, options.tuning.confidence_threshold, options.tuning.chunks) == (own, 0.9, ((0.1, 0.2),))


def test_what_was_not_measured_is_as_usual() -> None:
    options = Speculate().with_profile(replace(PAIR, hit_rate=None, remote_step=None, confidence_threshold=None, chunks=()))
    assert options.tuning.prior is not None
    assert (options.tuning.prior.hit_rate, options.tuning.prior.remote_step) == (EstimatesPrior().hit_rate, EstimatesPrior().remote_step)
    assert (options.tuning.confidence_threshold, options.tuning.chunks) == (CONFIDENCE_THRESHOLD, ())
