"""Step times: how long one batch step of a large model takes, imposed on the steps of a small one.

A step costs one forward pass over its tokens. Decoding reads all weights once for any number of rows, so its cost hardly depends on the
rows. The cost of prefill is nearly linear in tokens once arithmetic, not memory, is the limit. A step that does both costs as much as its
slower part, because both share one pass over the weights (Splitwise, section 4; Sarathi-Serve, section 3).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.profiles.interpolation import interpolate

__all__ = ["RowStep", "StepTimes"]

Points = tuple[tuple[int, float], ...]


class StepTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The seconds of one step as a function of its decode rows and prefill tokens; call it with both.

    Args:
        name: model and hardware.
        source: origin of the measurements, and where they are published.
        license: license of the measurements.
        decode_ms: (rows, milliseconds) points of steps that decode one token in each row, rows ascending; at least one.
        prefill_ms: (tokens, milliseconds) points of steps that prefill this many tokens, tokens ascending; may be empty.
        note: a remark on the figures.
        kind: ``step_times``, so that profiles of different kinds aren't mixed up.
    """

    name: str
    source: str
    license: str
    decode_ms: Points
    prefill_ms: Points = ()
    note: str = ""
    kind: Literal["step_times"] = "step_times"

    def __post_init__(self) -> None:
        if not self.decode_ms:
            raise ConfigError(f"step times {self.name}: decode_ms: expected at least one (rows, milliseconds) point, got none")
        for field in ("decode_ms", "prefill_ms"):
            points: Points = getattr(self, field)
            if any(count < 1 or not math.isfinite(ms) or ms < 0 for count, ms in points):
                raise ConfigError(f"step times {self.name}: {field}: expected counts >= 1 and milliseconds >= 0")
            if any(left[0] >= right[0] for left, right in pairwise(points)):
                raise ConfigError(f"step times {self.name}: {field}: expected ascending counts")

    def __call__(self, rows: int, prefill_tokens: int) -> float:
        """Return how many seconds one step takes.

        Args:
            rows: number of sequences that decode one token in this step.
            prefill_tokens: number of prompt tokens in the same batch, including the tokens of drafts to verify.
        """
        decode = interpolate(self.decode_ms, rows) if rows else 0.0
        if not prefill_tokens:
            return decode / 1000
        # a short prefill still reads all the weights: below the first measured point the cost falls to the cost of a decode step, not to 0
        floor = (1, self.decode_ms[0][1])
        points = self.prefill_ms if self.prefill_ms and self.prefill_ms[0][0] == 1 else (floor, *self.prefill_ms)
        return max(decode, interpolate(points, prefill_tokens + rows)) / 1000


class RowStep(Struct, frozen=True, kw_only=True):
    """Imposed batch times in seconds, such as a larger model or other hardware needs. Implements ``StepTime``."""

    setup: float
    per_row: float

    def __post_init__(self) -> None:
        if not (0 <= self.setup < 3600 and 0 <= self.per_row < 3600):
            raise ConfigError(f"step: expected seconds from 0 to 3600, got {self.setup} and {self.per_row}")

    def __call__(self, rows: int, prefill_rows: int) -> float:
        """Return how many seconds a batch takes."""
        return self.setup + self.per_row * (rows + prefill_rows)
