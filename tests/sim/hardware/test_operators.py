"""The operators of a forward pass, reckoned by hand for a small model on a made-up GPU."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streamco.sim.hardware.operators import Engine, Gpu, Transformer, all_reduce_seconds, forward_pass

GPU = Gpu(
    name="toy",
    title="Toy",
    source="nobody",
    license="none",
    note="",
    memory=1e9,
    bandwidth=1e9,
    link=1e9,
    gap=0.0,
    all_reduce=((100.0, 0.5), (300.0, 1.0)),
    host_decode=0.0,
    host_prefill=0.0,
    host_row=0.0,
    tokens=(1, 10, 20),
    layer_ms={"toy": {1: (1.0, 1.0, 2.0)}},
)
MODEL = Transformer(layers=2, width=8, feed_forward=16, vocabulary=10, heads=4, kv_heads=4)
HEAD = 2 * 8 * 10 / 1e9  # seconds to read its matrix


def seconds(rows: int, tokens: int, *, context: int = 0, sequences: int = 1, engine: Engine = "eager", ways: int = 1, **gpu: Any) -> float:
    changed = msgspec.structs.replace(GPU, **gpu)
    return forward_pass(changed, MODEL, (1.0, 1.0, 2.0), ways, engine)(rows, tokens, context, sequences)


def test_weights_and_cache_follow_from_the_sizes() -> None:
    assert MODEL.layer_weights == 4 * 8 * 8 + 3 * 8 * 16
    assert MODEL.weight_bytes == 2 * (2 * (4 * 8 * 8 + 3 * 8 * 16) + 2 * 10 * 8)
    assert MODEL.cache_bytes == 2 * 2 * 2 * 8


def test_grouped_queries_have_smaller_keys_and_values_and_no_gate_means_two_matrices() -> None:
    grouped = msgspec.structs.replace(MODEL, kv_heads=1)
    assert MODEL.layer_weights - grouped.layer_weights == 2 * 8 * (8 - 2)
    assert grouped.cache_bytes == MODEL.cache_bytes // 4
    assert MODEL.layer_weights - msgspec.structs.replace(MODEL, matrices=2).layer_weights == 8 * 16


def test_an_all_reduce_moves_the_message_in_a_ring_at_its_share_of_the_link() -> None:
    assert all_reduce_seconds(GPU, 100.0, 1) == 0.0
    assert all_reduce_seconds(GPU, 100.0, 2) == pytest.approx(2 * (1 / 2) * 100 / 0.5 / 1e9)
    assert all_reduce_seconds(GPU, 300.0, 4) == pytest.approx(2 * (3 / 4) * 300 / 1.0 / 1e9)
    assert all_reduce_seconds(GPU, 200.0, 2) == pytest.approx((200 + 300) / 2 / 1e9), "linear in time between the points"
    assert all_reduce_seconds(GPU, 0.0, 2) == 0.0


@pytest.mark.parametrize(("tokens", "milliseconds"), [(1, 1.0), (5, 1.0), (10, 1.0), (15, 1.5), (20, 2.0), (40, 4.0)])
def test_linear_operators_are_linear_between_the_measured_points_and_beyond_them(tokens: int, milliseconds: float) -> None:
    assert seconds(tokens, 0) == pytest.approx(2 * milliseconds / 1000 + HEAD)


def test_nothing_takes_no_time() -> None:
    assert seconds(0, 0, context=100) == 0.0


def test_each_layer_has_its_gap_and_two_all_reduces() -> None:
    assert seconds(1, 0, gap=0.25) - seconds(1, 0) == pytest.approx(2 * 0.25)
    state = 2.0 * MODEL.width  # bytes
    assert seconds(1, 0, ways=2) - seconds(1, 0) == pytest.approx(2 * 2 * all_reduce_seconds(GPU, state, 2) - HEAD / 2)


def test_decoding_reads_the_caches_once() -> None:
    assert seconds(2, 0, context=1000) - seconds(2, 0) == pytest.approx(1000 * MODEL.cache_bytes / 1e9)


def test_a_prefill_pays_for_its_pairs_of_tokens() -> None:
    rate = 2.0 * MODEL.layer_weights * 20 / 0.002  # FLOP/s at the last point
    pairs = 20 * (0 + 20)
    assert seconds(0, 20) - seconds(20, 0) == pytest.approx(4.0 * 8 * 2 * pairs / rate)
    halves = 20 * 10  # of two sequences, each sees its own tokens alone
    assert seconds(0, 20, sequences=2) - seconds(20, 0) == pytest.approx(4.0 * 8 * 2 * halves / rate)


def test_a_pass_waits_for_the_host_and_graphs_have_none() -> None:
    slow: dict[str, Any] = {"host_decode": 0.5, "host_prefill": 0.75, "host_row": 0.01}
    assert seconds(3, 0, **slow) == pytest.approx(2 * 0.5 + 3 * 0.01)
    assert seconds(1, 10, sequences=2, **slow) == pytest.approx(2 * 0.75 + 3 * 0.01)
    assert seconds(3, 0, engine="graphs", **slow) == seconds(3, 0)
