"""Settings of the machine for one answer."""

from __future__ import annotations

from typing import Any

import pytest

from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.errors import ConfigError


@pytest.mark.parametrize(
    "wrong", [{"max_branches": -1}, {"alternatives": -1}, {"max_draft": 0}, {"patience": 0.0}, {"verdict_timeout": -1.0}]
)
def test_options_that_can_not_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SpeculationMachineOptions(**wrong)


def test_the_least_settings_are_allowed() -> None:
    options = SpeculationMachineOptions(max_branches=0, alternatives=0, max_ahead=0, max_draft=1, patience=0.01, max_tokens=0)
    assert options.max_draft == 1
