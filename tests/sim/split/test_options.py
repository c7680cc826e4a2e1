"""Options that contradict themselves are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streamco.errors import ConfigError
from tests.sim.split.worlds import run

SERVER = {"row_costs_ms": [[1, 20.0]]}


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"branches": 2}, "branches: expected 0 unless drafting is 'threshold'"),
        ({"tree_accept": 5.5}, "tree_accept: expected at most tree_heads"),
        ({"room": 20}, "mixed: expected"),
        ({"chunking": "half"}, "chunking"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run(**policy)


@pytest.mark.parametrize(
    ("world", "text"),
    [
        ({"server": {}}, "server: expected either model and gpu, or row_costs_ms"),
        ({"server": {**SERVER, "model": "llama2-7b", "gpu": "a6000"}}, "server: expected either"),
        ({"server": {"model": "llama2-7b", "gpu": "abacus"}}, "hardware: expected a gpu of"),
        ({"link": {"up_mb_s": [10, 5]}}, "link: up_mb_s: expected the smaller rate first"),
        ({"device_pools": []}, "device_pools: expected at least one pool"),
        ({"device_pools": [{"count": 1, "input_ms": 1, "head_ms": 1, "paces": []}]}, "paces: expected at least one factor"),
    ],
)
def test_a_world_that_makes_no_sense_is_refused(world: dict[str, Any], text: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=text):
        run(world=world)
