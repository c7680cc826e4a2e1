"""The options of an experiment with a split model, in readable units (HAT, section 4.1)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamco.errors import ConfigError
from streamco.policies.chunking import ChunkingRule
from streamco.policies.serving.batching import Mixed
from streamco.sim.hardware.operators import Engine
from streamco.sim.workload.workload import WorkloadOptions

__all__ = ["LinkRange", "MiddleServerOptions", "SplitDevicePool", "SplitKindOptions", "SplitPolicyOptions", "SplitWorldOptions"]

Above = Annotated[float, Meta(gt=0)]
AtLeastZero = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class SplitDevicePool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one kind. All times are in milliseconds, in the fastest mode.

    Args:
        count: number of devices.
        input_ms: time of a pass of one row through the input layers.
        head_ms: time of a pass through the head.
        draft_ms: time of a pass of one row through the draft layer.
        heads_ms: time of a pass through all Medusa heads.
        draft_head_ms: time of a pass through the draft layer's own, smaller head, or None if it uses the model's.
        row_ms: time that each further row adds to a pass through input layers or head.
        head_row_ms: time that each further row adds to a pass through the head, or None to use ``row_ms``.
        branch_share: time that each further branch adds to a draft step, as a share of the step.
        paces: factors on all times, one for each mode. A device changes its mode every ``pace_requests`` requests.
    """

    count: Count
    input_ms: AtLeastZero
    head_ms: AtLeastZero
    draft_ms: AtLeastZero = 0.0
    heads_ms: AtLeastZero = 0.0
    draft_head_ms: AtLeastZero | None = None
    row_ms: AtLeastZero = 0.0
    head_row_ms: AtLeastZero | None = None
    branch_share: AtLeastZero = 0.05
    paces: tuple[Above, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.paces:
            raise ConfigError("device_pools: paces: expected at least one factor, got none")


class LinkRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link of a device. New rates are drawn for each request, uniformly between two bounds.

    Args:
        rtt_ms: milliseconds of a round trip without payload.
        up_mb_s, down_mb_s: smallest and largest rate from the device, and to it, in megabytes per second.
    """

    rtt_ms: AtLeastZero = 5.0
    up_mb_s: tuple[Above, Above] = (5.0, 10.0)  # HAT 4.1
    down_mb_s: tuple[Above, Above] = (10.0, 15.0)

    def __post_init__(self) -> None:
        for name in ("up_mb_s", "down_mb_s"):
            low, high = getattr(self, name)
            if low > high:
                raise ConfigError(f"link: {name}: expected the smaller rate first, got {low} and {high}")


class MiddleServerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server with the middle layers: the times of its batches, and its pipeline.

    Args:
        model, gpu, engine: hardware for which times are predicted; see ``sim.hardware.forward_pass_times``.
        time_factor: factor on these times, because the middle layers aren't the whole model.
        row_costs_ms: instead of the hardware, pairs of a batch's rows and milliseconds, which are interpolated.
        stages: number of pipeline stages (P). In each stage, a batch takes its time divided by P.
    """

    model: str | None = None
    gpu: str | None = None
    engine: Engine = "graphs"
    time_factor: Above = 1.0
    row_costs_ms: tuple[tuple[Count, Above], ...] = ()
    stages: Count = 1

    def __post_init__(self) -> None:
        if (self.model is None) != (self.gpu is None) or (self.model is None) != bool(self.row_costs_ms):
            raise ConfigError("server: expected either model and gpu, or row_costs_ms, got neither or both")


class SplitWorldOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices, their links, and the server.

    Args:
        device_pools: kinds of devices.
        server: the server.
        link: link of each device.
        state_bytes: bytes of a hidden state on the wire (A), which is 2 for each of the model's dimensions in half precision.
        pace_requests: number of requests after which a device changes its mode.
        is_shared: True if the answers that a device works on at the same time share its processor and link, False if each has its own.
    """

    device_pools: tuple[SplitDevicePool, ...]
    server: MiddleServerOptions
    link: LinkRange = LinkRange()
    state_bytes: Count = 8192
    pace_requests: Count = 5
    is_shared: bool = True

    def __post_init__(self) -> None:
        if not self.device_pools:
            raise ConfigError("device_pools: expected at least one pool, got none")


class SplitPolicyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policies of devices and server.

    Args:
        drafting: ``none`` for one row per round; ``threshold`` for the draft layer, until a token's probability is below ``threshold``
            (equation 5); ``tree`` for Medusa's heads and a tree of rows.
        threshold: a draft token with a probability below this, 0..1, is its draft's last.
        max_draft: maximum tokens of a draft, up to 31.
        branches: number of candidates for the last draft token from which drafting continues while the verdict is pending (section 3.5), or
            0 to wait instead.
        tree_rows, tree_heads: rows that a tree takes on the wire, and the maximum number of its tokens that are accepted.
        tree_accept: mean tokens of a round with the tree, including the server's own. Each further token has the same probability.
        chunking: how a prompt is sent: ``whole`` in one piece; ``balanced`` in chunks of the size of equation 3; ``fastest`` in chunks with
            the shortest predicted time (``fastest_chunk_size``); a number for chunks of that many rows.
        chunks_in_flight: maximum number of chunks that are sent but not answered, or ``covering`` for as many as it takes so that neither
            device nor link waits for an answer, or None for no limit.
        prompt_rows: deep states of a prompt that come back: ``all``, as in the paper, or only the ``last`` one, which is the only one used.
        room: maximum rows of a batch, or None for no limit.
        is_merged: True if the server reads in one batch all chunks of a prompt that have arrived, False if it reads one after another.
        prefill_sla_ms, decode_sla_ms: time limits for 128 tokens of a prompt and for 10 tokens of an answer, for the metrics that give the
            share within them.
    """

    drafting: Literal["none", "threshold", "tree"] = "none"
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.6
    max_draft: Annotated[int, Meta(ge=1, le=31)] = 8
    branches: Annotated[int, Meta(ge=0, le=3)] = 0
    tree_rows: Annotated[int, Meta(ge=1, le=32)] = 8
    tree_heads: Annotated[int, Meta(ge=1)] = 4
    tree_accept: Annotated[float, Meta(ge=1)] = 1.89
    chunking: ChunkingRule | Count = "whole"
    chunks_in_flight: Count | Literal["covering"] | None = None
    prompt_rows: Literal["all", "last"] = "all"
    room: Count | None = None
    is_merged: bool = True
    prefill_sla_ms: Above = 350.0
    decode_sla_ms: Above = 500.0

    def __post_init__(self) -> None:
        if self.branches and self.drafting != "threshold":
            raise ConfigError(f"branches: expected 0 unless drafting is 'threshold', got {self.branches} with drafting {self.drafting!r}")
        if self.tree_accept > self.tree_heads + 1:
            raise ConfigError(f"tree_accept: expected at most tree_heads + 1, got {self.tree_accept} with {self.tree_heads} heads")
        if self.room is not None:
            Mixed(room=self.room)


class SplitKindOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All options of an experiment of this kind."""

    world: SplitWorldOptions
    workload: WorkloadOptions
    policy: SplitPolicyOptions = SplitPolicyOptions()
