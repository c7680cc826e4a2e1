"""The options of an experiment with drafting devices and target servers, in readable units (DSD section 3.1).

A device or server has either a model and hardware, from which its times are predicted (``streamco.sim.hardware.forward_pass_times``),
or rates. ``streamco.sim.fleet.topology`` makes single devices and servers from the pools.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from streamco.core.speculation.estimates import Forecast
from streamco.errors import ConfigError
from streamco.policies.offload import OffloadRule
from streamco.policies.serving.routing import routing_policy
from streamco.profiles.row_costs import RowCosts, padded_costs
from streamco.sim.fleet.batch_policies import batch_policy
from streamco.sim.hardware.links import LinkOptions
from streamco.sim.hardware.operators import Engine

__all__ = ["DevicePool", "OffloadSetting", "PolicyOptions", "ServerPool", "WorldOptions"]

Above = Annotated[float, Meta(gt=0)]
AtLeastZero = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]

OffloadSetting = OffloadRule | Literal["answers"]
"""How a budget below 1 is spent: by a rule that chooses drafts (``policies.offload``), or with ``answers``, which leaves whole answers to
the server if the draft model's perplexity at their beginning is high (``sim.fleet.answer_routing``); the device writes the others alone."""


class DevicePool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one kind, given by a model on a GPU or by their rates.

    Args:
        share: share of all devices, in proportion to the other pools' shares, which needn't add up to 1.
        count: number of devices, instead of a share.
        model, gpu, tensor_parallel, engine: see ``Hardware``.
        draft_tokens_per_s: tokens per second that the draft model writes.
        prefill_tokens_per_s: prompt tokens per second that it reads, or None for five times ``draft_tokens_per_s``, the median of 549
            measurements on phones (PocketPal's benchmarks).
        prefill_ms: additional milliseconds for reading a prompt.
        prompt_joules, token_joules: energy to read a token, and to write one.
        link: link of these devices, or None for the world's link.
    """

    share: Above | None = None
    count: Count | None = None
    model: str | None = None
    gpu: str | None = None
    tensor_parallel: Count = 1
    engine: Engine = "eager"
    draft_tokens_per_s: Above | None = None
    prefill_tokens_per_s: Above | None = None
    prefill_ms: AtLeastZero = 0.0
    prompt_joules: AtLeastZero = 0.0
    token_joules: AtLeastZero = 0.0
    link: LinkOptions | None = None

    def __post_init__(self) -> None:
        _check_sizes("device_pools", self.share, self.count)
        _check_hardware("device_pools", self.model, self.gpu, "draft_tokens_per_s", self.draft_tokens_per_s)


class ServerPool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Servers of one kind, given by a model on some GPUs or by a table of step times.

    Args:
        share, count: see ``DevicePool``.
        model, gpu, tensor_parallel, engine: see ``Hardware``.
        step_times: name or JSON file of a packaged or calibrated profile of step times, instead of the hardware.
        row_costs_ms: instead of both, pairs of a batch's rows and milliseconds, as ``streamco serve`` prints when it starts. Batches are
            padded to a cheaper size, sizes in between are interpolated, and devices plan with the list from their first round on.
        draft_model: draft model on the same GPUs, for ``execution: co-located``; a key of ``operators.MODELS``.
    """

    share: Above | None = None
    count: Count | None = None
    model: str | None = None
    gpu: str | None = None
    tensor_parallel: Count = 1
    engine: Engine = "eager"
    step_times: str | None = None
    row_costs_ms: tuple[tuple[Count, Above], ...] = ()
    draft_model: str | None = None

    def __post_init__(self) -> None:
        _check_sizes("server_pools", self.share, self.count)
        if self.draft_model is not None and self.gpu is None:
            raise ConfigError("server_pools: draft_model: only valid with model and gpu")
        if self.step_times is not None and self.row_costs_ms:
            raise ConfigError("server_pools: expected either step_times or row_costs_ms, got both")
        _check_hardware("server_pools", self.model, self.gpu, "row_costs_ms or step_times", self.step_times or self.row_costs_ms or None)

    @property
    def row_costs(self) -> RowCosts | None:
        """Seconds of a padded batch by its rows, or None if the pool has hardware or step times."""
        measured = {rows: milliseconds / 1e3 for rows, milliseconds in self.row_costs_ms}
        return RowCosts(padded_costs(measured)) if measured else None


class WorldOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices, servers, and the links between them.

    Args:
        devices, servers: number of each.
        device_pools, server_pools: their kinds. Pools without a share or count divide the rest among themselves.
        link: link between each device and the servers.
    """

    devices: Count
    servers: Count
    device_pools: tuple[DevicePool, ...]
    server_pools: tuple[ServerPool, ...]
    link: LinkOptions = LinkOptions()


class PolicyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Policies of devices and servers.

    Args:
        routing: name of the routing policy; ``jsq`` is short for ``join-shortest-queue``.
        batching: name of the batch policy.
        batching_options: settings of that policy.
        is_padded: True if a batch costs as if every request in it were as long as the longest, as without variable-length kernels.
        window: tokens of a draft, or the name of the policy that chooses it.
            ``dynamic`` uses the accepted share of all drafted tokens, ``dynamic-verified`` only counts tokens up to the first rejected one.
        execution: with ``distributed``, the device always drafts; with ``fused``, answers are always remote streams; ``auto`` uses
            whichever is faster; with ``co-located``, the server drafts ``window`` tokens with its own draft model and verifies them (DSD
            3.3, fused mode).
        is_calibrated: True if a client knows before its first answer how fast the remote stream is, as after ``streamco calibrate``.
            Otherwise its first answer begins with the stream, to measure it. Only for ``auto``: ``distributed`` clients always know it.
        answers_before: answers that one device of each pool has given before the run, with the servers to itself. All devices of the pool
            begin with what it has learned, like clients that have run for some minutes or have a profile.
        branches: maximum number of branches that are pre-drafted while a verdict is pending, or 0 to wait instead (Synera 4.4).
        ahead: maximum number of drafts that are sent before the verdicts on earlier ones, so that the server needn't wait for the link;
            needs branches and a budget of 1.
        siblings: maximum number of alternative tokens that a draft carries for its positions, where the server's row costs say that they
            pay off; 0 for chains only.
        budget: share of the drafts that are verified. Below 1 the device chooses which (Synera 4.2); with 0 it writes alone.
        offload: how the device chooses these drafts. ``combined`` and ``importance`` need a trace with attention.
        forecast: how verdicts are forecast; ``sampled`` is the paper's way, which draws one branch (Synera 4.4).
        draft_token_bytes: bytes of a drafted token in a frame: 2 for its id, 86 with the 20 likeliest candidates, which sampling needs, and
            98,304 with all 49,152 candidates in half precision (``bench/timed/verify_wire.py``).
    """

    routing: str = "join-shortest-queue"
    batching: str = "alternating"
    batching_options: dict[str, Any] = {}
    is_padded: bool = False
    window: Count | Literal["dynamic", "dynamic-verified", "adaptive", "confident", "predicted"] = 4
    execution: Literal["distributed", "fused", "co-located", "auto"] = "distributed"
    is_calibrated: bool = False
    answers_before: Annotated[int, Meta(ge=0)] = 0
    branches: Annotated[int, Meta(ge=0)] = 0
    ahead: Annotated[int, Meta(ge=0, le=4)] = 0
    siblings: Annotated[int, Meta(ge=0, le=30)] = 0
    budget: Annotated[float, Meta(ge=0, le=1)] = 1.0
    offload: OffloadSetting = "combined"
    forecast: Forecast = "learned"
    draft_token_bytes: Above = 2.0

    def __post_init__(self) -> None:
        routing_policy(self.routing)
        if self.is_calibrated and self.execution != "auto":
            raise ConfigError(f"is_calibrated: expected false unless execution is 'auto', got true with execution {self.execution!r}")
        if self.answers_before and (self.execution in {"fused", "co-located"} or self.offload == "answers"):
            raise ConfigError(f"answers_before: expected 0 where devices don't learn, got {self.answers_before}")
        if self.execution == "co-located" and not isinstance(self.window, int):
            raise ConfigError(f"window: expected a number with execution 'co-located', got {self.window!r}")
        if self.ahead and self.budget < 1.0:
            raise ConfigError(f"ahead: expected 0 with a budget below 1, because not every draft is verified, got {self.ahead}")
        if self.ahead and not self.branches:
            raise ConfigError(f"ahead: expected 0 without branches, because a draft sent ahead is a branch, got {self.ahead}")
        if self.offload == "answers" and self.execution != "distributed":
            raise ConfigError(f"offload: expected execution 'distributed' with whole answers, got {self.execution!r}")
        batch_policy(self.batching, **self.batching_options)

    @property
    def needs_importance(self) -> bool:
        """True if a filter needs the importance of drafts."""
        return 0.0 < self.budget < 1.0 and self.offload in {"combined", "importance"}


def _check_sizes(where: str, share: float | None, count: int | None) -> None:
    if share is not None and count is not None:
        raise ConfigError(f"{where}: expected share or count, got {share} and {count}")


def _check_hardware(where: str, model: str | None, gpu: str | None, other: str, value: object) -> None:
    """Check that a pool has either a model and a GPU or ``other``, but not both."""
    if (model is None) != (gpu is None):
        raise ConfigError(f"{where}: expected model and gpu, got {f'model {model!r}' if gpu is None else f'gpu {gpu!r}'} alone")
    if (model is None) == (value is None):
        raise ConfigError(f"{where}: expected either model and gpu, or {other}, got {'neither' if value is None else 'both'}")
