"""Figures of callers for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from streamco.proxy.callers.caller_metrics import CallerMetrics
from streamco.proxy.callers.store import SettledCost


def test_requests_tokens_and_money_are_counted_by_the_callers_name() -> None:
    registry = CollectorRegistry()
    metrics = CallerMetrics(registry)
    metrics.record_request("alice", "admitted")
    metrics.record_request("alice", "rate exceeded")
    metrics.record_cost("alice", SettledCost(cost=16_000, prompt_tokens=10, completion_tokens=3))
    metrics.record_cost("bob", SettledCost(prompt_tokens=7, completion_tokens=2, estimated_prompt_tokens=7, estimated_completion_tokens=2))
    metrics.record_failure()
    value = registry.get_sample_value
    assert value("streamco_caller_requests_total", {"caller": "alice", "outcome": "admitted"}) == 1
    assert value("streamco_caller_requests_total", {"caller": "alice", "outcome": "rate exceeded"}) == 1
    assert value("streamco_caller_tokens_total", {"caller": "alice", "kind": "prompt"}) == 10
    assert value("streamco_caller_tokens_total", {"caller": "alice", "kind": "completion"}) == 3
    for kind, tokens in {"prompt": 7, "completion": 2}.items():
        assert value("streamco_caller_tokens_total", {"caller": "bob", "kind": kind}) == tokens
        assert value("streamco_caller_estimated_tokens_total", {"caller": "bob", "kind": kind}) == tokens
        assert value("streamco_caller_estimated_tokens_total", {"caller": "alice", "kind": kind}) is None
    every = [each for metric in registry.collect() for each in metric.samples if each.name == "streamco_caller_tokens_total"]
    assert sum(each.value for each in every) == 22, "each token counts once"
    assert value("streamco_caller_cost_usd_total", {"caller": "alice"}) == 16e-6
    assert value("streamco_callers_file_errors_total") == 1
