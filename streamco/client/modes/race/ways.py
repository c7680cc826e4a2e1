"""The ways in which a race can be made: each side alone with the other in reserve, both at once, and both with a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from streamco.client.modes.base import CostOf
from streamco.endpoints.base import Endpoint
from streamco.policies.dispatch import Decision, Side
from streamco.policies.ways import GateOutlook, Reading, SideTerms, Way, Weights, forecast_race, least_score, race_way
from streamco.profiles import DeviceSpeed, TTFTDistribution

__all__ = ["ALONE", "GATED", "RACE", "AskedWay", "RaceTerms", "side_terms"]

RACE, GATED = "race", "gated race"
ALONE: Mapping[str, Decision] = {
    "device": Decision(0.0, None, "auto", "device alone, server in reserve"),
    "server": Decision(None, 0.0, "auto", "server alone, device in reserve"),
}
_MEASURED = {"device": ("device",), "server": ("server",), RACE: ("device", "server"), GATED: ("device", "server")}


class AskedWay(NamedTuple):
    """A way that may be chosen for an answer.

    Args:
        name: the way's.
        decision: when each side starts.
        min_score: lowest score of a device's answer that is shown; None: it isn't graded, or as the gate has it.
    """

    name: str
    decision: Decision
    min_score: float | None = None


class RaceTerms(NamedTuple):
    """What is known of both sides for one request.

    Args:
        times: the server's time to first token and the device's speed; None: not known.
        prompt_tokens: the prompt's length.
        queue: seconds until the device comes to the prompt.
        device, server: what their work costs, and how good it is.
        constrained: the side that the budget limits.
    """

    times: tuple[TTFTDistribution | None, DeviceSpeed | None]
    prompt_tokens: int
    queue: float
    device: SideTerms
    server: SideTerms
    constrained: Side

    def least_score(self, weights: Weights) -> float | None:
        """Return the lowest score of a device's answer that is worth more than the server's; None: quality doesn't count or isn't known."""
        times = self.times[0]
        if not weights.quality or self.server.quality is None or times is None:
            return None
        return least_score(weights, self.device, self.server, times)

    def way(self, name: str, decision: Decision, gate: GateOutlook | None = None) -> Way:
        """Return what is predicted of a decision. ``gate``: grades the device's beginning; None: nothing does."""
        server, device = self.times
        forecast = forecast_race(
            decision,
            device=device,
            server=server,
            prompt_tokens=self.prompt_tokens,
            queue=self.queue,
            gate=gate,
            rate=self.device.rate,
        )
        graded = None if gate is None else gate.quality
        way = race_way(name, forecast, self.device, self.server, graded_quality=graded)
        starts = 0.0 if forecast is None else forecast.server_starts if self.constrained == "server" else forecast.device_starts
        return replace(way, measured=_MEASURED[name], spends=starts * self.prompt_tokens)


def side_terms(
    endpoint: Endpoint, cost: CostOf, reading: Reading, *, prompt_tokens: int, rate: float | None, quality: float | None
) -> SideTerms:
    """Return what an endpoint's work costs and how good it is."""
    return SideTerms(
        rate=rate,
        late=reading.late(rate),
        quality=quality,
        prompt=cost(endpoint, prompt_tokens, 0, 0),
        completion=cost(endpoint, 0, round(reading.tokens), 0),
    )
