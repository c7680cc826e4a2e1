"""What is assumed of a pair of models before anything is measured."""

from __future__ import annotations

import pytest

from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import ConfigError


@pytest.mark.parametrize(
    "wrong",
    [{"acceptance": 1.2}, {"hit_rate": -0.1}, {"step_times": ()}, {"step_times": (0.02, 0.0)}, {"wait": 0.0}, {"remote_step": -1.0}],
)
def test_a_prior_that_can_not_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        EstimatesPrior(**wrong)  # type: ignore[arg-type]
