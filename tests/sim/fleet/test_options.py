from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streamco.errors import ConfigError
from streamco.sim.fleet.options import DevicePool, PolicyOptions, ServerPool


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (DevicePool, {"share": 1, "count": 1, "draft_tokens_per_s": 30}, "expected share or count, got 1.0 and 1"),
        (DevicePool, {}, "expected either model and gpu, or draft_tokens_per_s, got neither"),
        (DevicePool, {"model": "llama2-7b", "gpu": "a40", "draft_tokens_per_s": 30}, "got both"),
        (DevicePool, {"model": "llama2-7b"}, "expected model and gpu, got model 'llama2-7b' alone"),
        (DevicePool, {"draft_tokens_per_s": 0}, "> 0"),
        (ServerPool, {"gpu": "a100"}, "got gpu 'a100' alone"),
        (ServerPool, {}, "or step_times, got neither"),
        (PolicyOptions, {"routing": "random-choice"}, "routing: expected random, .* or jsq, got 'random-choice'; did you mean random?"),
        (PolicyOptions, {"batching": "fof"}, "batching: expected one of fifo"),
        (PolicyOptions, {"batching": "length-aware", "batching_options": {"widht": 1}}, "expected one of tolerance"),
        (PolicyOptions, {"window": 0}, "window"),
        (PolicyOptions, {"budget": 1.5}, "budget"),
        (PolicyOptions, {"budget": 0.5, "ahead": 1}, "ahead: expected 0 with a budget below 1"),
        (PolicyOptions, {"offload": "perplexity"}, "offload"),
        (PolicyOptions, {"offload": "answers", "execution": "auto"}, "offload: expected execution 'distributed' with whole answers"),
        (PolicyOptions, {"ahead": 1}, "ahead: expected 0 without branches"),
        (PolicyOptions, {"is_calibrated": True}, "is_calibrated: expected false unless execution is"),
        (PolicyOptions, {"answers_before": 3, "execution": "fused"}, "answers_before: expected 0 where devices don't learn"),
    ],
)
def test_what_contradicts_itself_or_is_not_there_is_refused(kind: type, data: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(data, kind)


@pytest.mark.parametrize("window", [4, "dynamic", "adaptive", "confident", "predicted"])
def test_a_window_is_a_number_or_who_chooses_it(window: object) -> None:
    assert msgspec.convert({"window": window, "routing": "jsq"}, PolicyOptions).window == window


def test_a_price_list_goes_in_place_of_hardware_and_step_times() -> None:
    assert ServerPool(row_costs_ms=((1, 40.0),)).row_costs is not None
    assert ServerPool(step_times="llama2-70b-a100x2").row_costs is None
    with pytest.raises(ConfigError, match="either step_times or row_costs_ms, got both"):
        ServerPool(step_times="llama2-70b-a100x2", row_costs_ms=((1, 40.0),))
    with pytest.raises(ConfigError, match="row_costs_ms or step_times, got both"):
        ServerPool(model="llama-2-70b", gpu="a100", row_costs_ms=((1, 40.0),))
