"""What devices know of their pair of models before their first answer."""

from __future__ import annotations

import pytest

from streamco.policies.offload import CONFIDENCE_THRESHOLD
from streamco.sim.fleet.offload_profile import OffloadProfile, prefix_perplexity, profile_offloading
from streamco.sim.workload.workload import SimulatedRequest


def request(accepted: bytes, confidences: tuple[float, ...], attention: bytes = b"") -> SimulatedRequest:
    tokens = len(accepted)
    return SimulatedRequest(
        number=0, arrival=0.0, prompt_tokens=5, output_tokens=tokens, accepted=accepted, confidences=confidences, attention=attention
    )


def test_the_threshold_is_the_mean_confidence_of_chunks_accepted_whole() -> None:
    found = profile_offloading([request(bytes([1, 1, 0, 1, 1, 1, 1]), (0.9, 0.7, 0.2, 0.4, 0.6, 0.4, 0.1))], 2)
    assert found.confidence_threshold == pytest.approx((0.8 + 0.5) / 2)
    assert [chunk for chunk, _ in found.chunks] == pytest.approx([0.8, 0.3, 0.5])
    assert [importance for _, importance in found.chunks] == [None, None, None]


def test_chunks_have_their_importance_where_it_was_recorded() -> None:
    found = profile_offloading([request(bytes([1, 1, 1, 1]), (0.5,) * 4, bytes([51, 0, 102, 0]))], 2)
    assert [importance for _, importance in found.chunks] == [pytest.approx(0.2), pytest.approx(0.4)]


def test_without_confidences_nothing_is_known() -> None:
    assert profile_offloading([request(bytes([1, 1, 1, 1]), ())], 2) == OffloadProfile()
    assert OffloadProfile().confidence_threshold == CONFIDENCE_THRESHOLD


def test_perplexity_is_that_of_the_beginning() -> None:
    assert prefix_perplexity(request(bytes(20), (0.5,) * 16 + (0.001,) * 4)) == pytest.approx(2.0)
