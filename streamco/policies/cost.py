"""Computes the cost of an answer: money at the server, energy on the device, and both in one unit (DiSCo section 4.1 and Appendix E).

Device energy is counted in floating-point operations per token and converted to money at an exchange rate lambda. The code deviates from
the paper, or the paper contradicts itself, in three points:

- The appendix prints the rate as "$ per million FLOPs", at which a device token would cost about 10^8 dollars. Read as $ per million
  *GFLOPs*, a million tokens of BLOOM-1.1B cost 0.25 $ at the lower rate, compared with 0.14 to 60 $ at servers, which fits the paper's
  scenarios.
- Equation 10 divides the L^2 d term by the number of heads, but Table 6 was computed without that division. It is left out here.
- Table 6's column for BLOOM-560M doesn't follow from the shape given for it, however you read it (its column in Table 7 adds up to 80 %).
"""

from __future__ import annotations

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.policies.dispatch import Side
from streamco.profiles import ModelShape, Prices

__all__ = ["RATE_DEVICE_CONSTRAINED", "RATE_SERVER_CONSTRAINED", "DeviceCosts", "RequestCost", "Usage", "constraint", "decode_flops"]
__all__ += ["device_costs", "prefill_flops", "request_cost"]

RATE_SERVER_CONSTRAINED = 0.3  # $ per million GFLOPs; Appendix E's rate for its server-constrained experiments
RATE_DEVICE_CONSTRAINED = 5.0  # $ per million GFLOPs; Appendix E's rate for its device-constrained experiments

_REFERENCE_LENGTH = 64  # tokens; Table 6 covers 32 to 128
_JOULES_PER_GFLOP = 0.35  # a phone decodes BLOOM-1.1B (0.82 GFLOPs a token) at 13.9 tokens/s with about 4 W; an estimate
_FLOPS_PER_MILLION_GFLOPS = 1e15


class DeviceCosts(Struct, frozen=True, kw_only=True):
    """The cost of a token on the device.

    Args:
        prompt: US dollars per prompt token, at the exchange rate.
        completion: US dollars per generated token.
        prompt_joules: energy per prompt token.
        completion_joules: energy per generated token.
    """

    prompt: float
    completion: float
    prompt_joules: float = 0.0
    completion_joules: float = 0.0


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens of one request on both sides, including a race's loser. ``server_cached`` counts prompt tokens found in the server's cache."""

    server_prompt: int = 0
    server_completion: int = 0
    server_cached: int = 0
    device_prompt: int = 0
    device_completion: int = 0


class RequestCost(Struct, frozen=True, kw_only=True):
    """The cost of one request.

    Args:
        server: money at the server in US dollars, or None if its prices aren't known.
        device_joules: estimated energy on the device, or None if its model's shape isn't known.
        device: that energy in US dollars at the exchange rate.
        total: unified cost (equation 8) in US dollars, or None if a part of it isn't known.
    """

    server: float | None
    device_joules: float | None
    device: float | None
    total: float | None

    @property
    def known(self) -> float | None:
        """The known cost in US dollars: ``total``, or else the server's money. None if the server's prices aren't known."""
        return self.server if self.total is None else self.total


def prefill_flops(shape: ModelShape, length: int) -> float:
    """Return the FLOPs per token for a prompt of ``length`` tokens, by equations 9 and 10 as in Table 6.

    The L^2 d term counts the whole prompt, so this is meant for short prompts as in that table.
    """
    return _base_flops(shape) + shape.layers * (length * length + length) * shape.width


def decode_flops(shape: ModelShape, length: int) -> float:
    """Return the FLOPs per generated token after ``length`` tokens, by equations 9 and 11 as in Table 6."""
    return _base_flops(shape) + shape.layers * 2 * length * shape.width


def device_costs(
    shape: ModelShape,
    *,
    exchange_rate: float = RATE_SERVER_CONSTRAINED,
    length: int = _REFERENCE_LENGTH,
    joules_per_gflop: float = _JOULES_PER_GFLOP,
) -> DeviceCosts:
    """Return a device model's costs per token.

    Args:
        shape: the model's shape.
        exchange_rate: lambda in US dollars per million GFLOPs, which says how much the user's battery is worth.
        length: context length, in tokens, at which the costs are computed. They grow with it, but Algorithm 1 treats them as constants.
        joules_per_gflop: energy that the device needs for a GFLOP.

    Raises:
        ConfigError: ``exchange_rate`` or ``joules_per_gflop`` is negative.
    """
    if not (exchange_rate >= 0 and joules_per_gflop >= 0):
        raise ConfigError(f"device costs: expected rates >= 0, got {exchange_rate!r} $/MGFLOPs and {joules_per_gflop!r} J/GFLOP")
    prompt, completion = prefill_flops(shape, length), decode_flops(shape, length)
    price = exchange_rate / _FLOPS_PER_MILLION_GFLOPS
    joules = joules_per_gflop / 1e9
    return DeviceCosts(
        prompt=prompt * price, completion=completion * price, prompt_joules=prompt * joules, completion_joules=completion * joules
    )


def constraint(prices: Prices | None, costs: DeviceCosts | None) -> Side:
    """Return the constrained side (Algorithm 1). It is the device if its cheapest token costs more than the server's dearest token.

    If either cost isn't known, it is the server, because a bill is certain and the worth of a battery isn't.
    """
    if prices is None or costs is None:
        return "server"
    return "device" if min(costs.prompt, costs.completion) > max(prices.prompt, prices.completion) else "server"


def request_cost(usage: Usage, prices: Prices | None, costs: DeviceCosts | None) -> RequestCost:
    """Return the cost of one request (equation 8). A side that did nothing costs nothing, whether its prices are known or not."""
    server = device = joules = None
    if prices is not None:
        cached = prices.prompt if prices.cached_prompt is None else prices.cached_prompt
        reused = min(usage.server_cached, usage.server_prompt)  # some servers report more cached tokens than the prompt has
        server = (usage.server_prompt - reused) * prices.prompt + reused * cached + usage.server_completion * prices.completion
    elif not (usage.server_prompt or usage.server_completion):
        server = 0.0
    if costs is not None:
        device = usage.device_prompt * costs.prompt + usage.device_completion * costs.completion
        joules = usage.device_prompt * costs.prompt_joules + usage.device_completion * costs.completion_joules
    elif not (usage.device_prompt or usage.device_completion):
        device = joules = 0.0
    # Equation 8: server money + lambda x device energy.
    total = None if server is None or device is None else server + device
    return RequestCost(server=server, device_joules=joules, device=device, total=total)


def _base_flops(shape: ModelShape) -> float:
    """Return the FLOPs that don't depend on the length: projections, feed-forward, norms, embedding and output."""
    width = float(shape.width)
    layer = 4 * width * width + 2 * width * shape.ffn_width + 2 * width
    return shape.layers * layer + 2 * width * shape.vocabulary
