"""What one answer of a split model has sent, received and drafted. The engine's thread and the event loop each write a part of it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from streamco.core.report_parts import SplitFigures, StatesName
from streamco.core.split.machine import SplitCounts

__all__ = ["BranchCounts", "LookupCounts", "SplitTally", "SplitTraffic", "total_traffic"]


class SplitTraffic(Struct):
    """What went to the servers and came back, for one answer or for several together.

    Args:
        bytes_up, bytes_down: bytes of the frames.
        rows_up, rows_down: hidden states in them.
        trips: number of times that states came back.
        servers: names of the servers that had a session, in order; a resumed session's server is not named again.
        states: format of one answer's states; None if none were sent, or for several answers.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    rows_up: int = 0
    rows_down: int = 0
    trips: int = 0
    servers: list[str] = field(default_factory=list)
    states: StatesName | None = None


def total_traffic(parts: Iterable[SplitTraffic]) -> SplitTraffic:
    """Return the sum of several answers' traffic; each server is named once."""
    total = SplitTraffic()
    for part in parts:
        total.bytes_up += part.bytes_up
        total.bytes_down += part.bytes_down
        total.rows_up += part.rows_up
        total.rows_down += part.rows_down
        total.trips += part.trips
        total.servers += [name for name in part.servers if name not in total.servers]
    return total


class BranchCounts(Struct):
    """What was drafted while verdicts were out (HAT, section 3.5).

    Args:
        begun: number of branches that were begun.
        hits: number of verdicts that matched one of them.
        sent: how many of these branches' drafts were sent as they were; the others were drafted again, from the verified states.
        sent_tokens, accepted: tokens of the drafts that were sent as they were, and how many of these were accepted.
    """

    begun: int = 0
    hits: int = 0
    sent: int = 0
    sent_tokens: int = 0
    accepted: int = 0


class LookupCounts(Struct):
    """Counts of draft tokens that were found in the prompt or the answer, and how many of them were accepted."""

    drafted: int = 0
    accepted: int = 0


class SplitTally(Struct):
    """The tally of one answer.

    Args:
        counts: what its machine has sent; the event loop writes it.
        traffic: what its session has sent and received; the event loop writes it.
        drafted, accepted: tokens that were drafted, and how many of them the model chose itself; the engine's thread writes them.
        lookups: counts of draft tokens that were found in the prompt or the answer; the engine's thread writes it.
        branches: counts of branches drafted while verdicts were out; the engine's thread writes it.
    """

    counts: SplitCounts = field(default_factory=SplitCounts)
    traffic: SplitTraffic = field(default_factory=SplitTraffic)
    drafted: int = 0
    accepted: int = 0
    branches: BranchCounts = field(default_factory=BranchCounts)
    lookups: LookupCounts = field(default_factory=LookupCounts)

    def figures(self, *, tokens: int, input_layers: int, states: StatesName) -> SplitFigures:
        """Return the tally as the figures that users see.

        Args:
            tokens: tokens generated so far.
            input_layers: layers on the device.
            states: format of the states on the wire, if none were sent yet.
        """
        counts, traffic = self.counts, self.traffic
        states = traffic.states or states
        return SplitFigures(
            trips=counts.trips,
            tokens_per_trip=tokens / counts.trips if counts.trips else None,
            bytes_up=traffic.bytes_up,
            bytes_down=traffic.bytes_down,
            rows_up=traffic.rows_up,
            rows_down=traffic.rows_down,
            chunks=counts.chunks,
            repeated_rows=counts.repeated,
            sessions=counts.sessions,
            servers=list(traffic.servers),
            drafted=self.drafted,
            accepted=self.accepted,
            looked_up=self.lookups.drafted,
            lookups_accepted=self.lookups.accepted,
            branches=self.branches.begun,
            branch_hits=self.branches.hits,
            branch_tokens=self.branches.accepted,
            states=states,
            is_exact=states == "f32",
            sent=f"hidden states of layer {input_layers}, {states}; no token id, no text",
        )
