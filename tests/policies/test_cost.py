"""Costs: the FLOPs of Appendix E, which side they spare, and what a request comes to."""

from __future__ import annotations

import pytest

from streamco.errors import ConfigError
from streamco.policies.cost import (
    RATE_DEVICE_CONSTRAINED,
    RATE_SERVER_CONSTRAINED,
    DeviceCosts,
    RequestCost,
    Usage,
    constraint,
    decode_flops,
    device_costs,
    prefill_flops,
    request_cost,
)
from streamco.profiles import ModelShape, Prices

# Appendix E.2; vocabularies are those of the published models, and give the embedding's share of Table 7
BLOOM_1B1 = ModelShape(layers=24, width=1024, heads=16, ffn_width=4096, vocabulary=250_880)
BLOOM_560M = ModelShape(layers=24, width=512, heads=8, ffn_width=2048, vocabulary=250_880)
QWEN_0B5 = ModelShape(layers=24, width=768, heads=12, ffn_width=2048, vocabulary=151_936)
GPT_4O_MINI = Prices(prompt=0.15e-6, completion=0.60e-6)  # Table 8
CLAUDE = Prices(prompt=3e-6, completion=15e-6)


@pytest.mark.parametrize(
    ("shape", "length", "prefill", "decode"),
    [
        (BLOOM_1B1, 32, 0.85, 0.82),
        (BLOOM_1B1, 64, 0.93, 0.82),
        (BLOOM_1B1, 128, 1.25, 0.82),
        (QWEN_0B5, 32, 0.39, 0.37),
        (QWEN_0B5, 64, 0.45, 0.37),
        (QWEN_0B5, 128, 0.69, 0.37),
    ],
)
def test_flops_are_those_of_table_6(shape: ModelShape, length: int, prefill: float, decode: float) -> None:
    assert prefill_flops(shape, length) / 1e9 == pytest.approx(prefill, rel=0.03)
    assert decode_flops(shape, length) / 1e9 == pytest.approx(decode, rel=0.01)


def test_dividing_by_the_heads_as_printed_would_miss_table_6() -> None:
    quadratic = 24 * 128 * 128 * 1024
    printed = prefill_flops(BLOOM_1B1, 128) - quadratic + quadratic / 16
    assert printed / 1e9 < 0.7 * 1.25


@pytest.mark.parametrize(("shape", "embedding", "ffn", "attention"), [(BLOOM_1B1, 31.24, 24.48, 13.01), (QWEN_0B5, 31.51, 20.38, 16.56)])
def test_component_shares_are_those_of_table_7(shape: ModelShape, embedding: float, ffn: float, attention: float) -> None:
    total = decode_flops(shape, 128)
    assert 100 * shape.vocabulary * shape.width / total == pytest.approx(embedding, abs=0.05)
    assert 100 * shape.layers * 2 * shape.width * shape.ffn_width / total == pytest.approx(ffn, abs=0.05)
    assert 100 * shape.layers * (4 * shape.width**2 + 2 * 128 * shape.width) / total == pytest.approx(attention, abs=0.05)


def test_the_column_of_bloom_560m_does_not_follow_from_its_shape() -> None:
    assert decode_flops(BLOOM_560M, 64) / 1e9 == pytest.approx(0.334, abs=0.001)  # the table: 0.42


def test_rates_are_per_million_gflops() -> None:
    costs = device_costs(BLOOM_1B1, exchange_rate=RATE_SERVER_CONSTRAINED)
    assert costs.completion * 1e6 == pytest.approx(0.246, abs=0.001)  # $ per million tokens
    assert device_costs(BLOOM_1B1, exchange_rate=RATE_DEVICE_CONSTRAINED).completion * 1e6 == pytest.approx(4.09, abs=0.01)


def test_energy_follows_the_flops() -> None:
    costs = device_costs(BLOOM_1B1, joules_per_gflop=0.5)
    assert costs.completion_joules == pytest.approx(0.5 * decode_flops(BLOOM_1B1, 64) / 1e9)
    assert costs.prompt_joules == pytest.approx(0.5 * prefill_flops(BLOOM_1B1, 64) / 1e9)
    phone = device_costs(BLOOM_1B1)
    assert 3.0 < phone.completion_joules * 13.93 < 5.0  # watts while it decodes


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="device costs: expected rates >= 0"):
        device_costs(BLOOM_1B1, exchange_rate=-1)
    with pytest.raises(ConfigError, match="device costs: expected rates >= 0"):
        device_costs(BLOOM_1B1, joules_per_gflop=-1)


# Algorithm 1


def test_the_papers_two_rates_give_its_two_scenarios() -> None:
    assert constraint(GPT_4O_MINI, device_costs(BLOOM_1B1, exchange_rate=RATE_DEVICE_CONSTRAINED)) == "device"
    assert constraint(GPT_4O_MINI, device_costs(BLOOM_1B1, exchange_rate=RATE_SERVER_CONSTRAINED)) == "server"
    assert constraint(CLAUDE, device_costs(BLOOM_1B1, exchange_rate=RATE_DEVICE_CONSTRAINED)) == "server"


def test_read_as_per_million_flops_every_server_would_be_free() -> None:
    assert constraint(CLAUDE, device_costs(BLOOM_1B1, exchange_rate=RATE_SERVER_CONSTRAINED * 1e9)) == "device"


def test_the_device_is_spared_only_when_each_of_its_tokens_costs_more() -> None:
    prices = Prices(prompt=1e-6, completion=2e-6)
    assert constraint(prices, DeviceCosts(prompt=3e-6, completion=3e-6)) == "device"
    assert constraint(prices, DeviceCosts(prompt=3e-6, completion=2e-6)) == "server"
    assert constraint(prices, DeviceCosts(prompt=1e-6, completion=9e-6)) == "server"


def test_without_knowing_both_costs_the_bill_is_spared() -> None:
    costs = DeviceCosts(prompt=1.0, completion=1.0)
    assert constraint(None, costs) == constraint(GPT_4O_MINI, None) == constraint(None, None) == "server"


# Requests


def test_a_request_costs_what_both_sides_did() -> None:
    usage = Usage(server_prompt=100, server_completion=10, device_prompt=100, device_completion=40)
    costs = DeviceCosts(prompt=1e-7, completion=2e-7, prompt_joules=0.1, completion_joules=0.3)
    found = request_cost(usage, Prices(prompt=1e-6, completion=4e-6), costs)
    assert found.server == pytest.approx(140e-6)
    assert found.device == pytest.approx(18e-6)
    assert found.device_joules == pytest.approx(22)
    assert found.total == pytest.approx(158e-6)


def test_cached_prompt_tokens_have_their_own_price() -> None:
    usage = Usage(server_prompt=100, server_cached=80)
    assert request_cost(usage, Prices(prompt=1e-6, completion=0.0, cached_prompt=1e-7), None).server == pytest.approx(28e-6)
    assert request_cost(usage, Prices(prompt=1e-6, completion=0.0), None).server == pytest.approx(100e-6)
    assert request_cost(usage, Prices(prompt=1e-6, completion=0.0, cached_prompt=0.0), None).server == pytest.approx(20e-6)


def test_what_is_not_known_is_not_guessed() -> None:
    both = Usage(server_prompt=1, device_prompt=1)
    assert request_cost(both, None, None) == RequestCost(server=None, device_joules=None, device=None, total=None)
    known = request_cost(both, GPT_4O_MINI, None)
    assert known.server is not None
    assert known.total is None


def test_a_side_that_did_nothing_costs_nothing() -> None:
    assert request_cost(Usage(), None, None) == RequestCost(server=0.0, device_joules=0.0, device=0.0, total=0.0)
    alone = request_cost(Usage(server_prompt=10), GPT_4O_MINI, None)
    assert alone.total == alone.server == pytest.approx(1.5e-6)
