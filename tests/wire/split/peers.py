"""A client and a server of the split protocol, for the tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamco.wire.row_costs import RowCost
from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import LayersMark, ServerBatches, SplitClientFrame, SplitLimits, SplitServerFrame, States
from streamco.wire.split.server import SplitServer
from streamco.wire.tensors import StateFormat

WIDTH = 8
MARK = LayersMark("model-digest", 2, 28, WIDTH)
LIMITS = SplitLimits(context_rows=100, rows=16, sessions=4, rounds=4)
COSTS = (RowCost(1, 5000), RowCost(64, 40_000))
BATCHES = ServerBatches(64, 9, 3)
KEY = bytes(range(16))


def states(rows: int, value: float = 1.0) -> NDArray[np.float32]:
    """Rows of states that tell their positions apart."""
    return (value + np.arange(rows * WIDTH, dtype=np.float32)).reshape(rows, WIDTH)


class Pair:
    """Both ends of one connection; ``up`` and ``down`` carry what waits and return the frames that came out."""

    def __init__(self, *, limits: SplitLimits = LIMITS, client_limits: SplitLimits | None = None, mark: LayersMark = MARK) -> None:
        self.client = SplitClient(SplitCodec(WIDTH, client_limits or limits), mark)
        self.server = SplitServer(SplitCodec(WIDTH, limits), MARK, model="m", row_costs=COSTS, batches=BATCHES)

    def up(self) -> list[SplitClientFrame]:
        """The frames that the server accepts."""
        return [frame for message in self.client.take_messages() if (frame := self.server.receive(message)) is not None]

    def down(self) -> list[SplitServerFrame]:
        """The frames that the client accepts."""
        return [frame for message in self.server.take_messages() if (frame := self.client.receive(message)) is not None]

    def greet(self) -> Pair:
        """Hello and welcome."""
        self.up()
        self.server.welcome()
        self.down()
        return self


def make_states(
    session: int, round_number: int, form: StateFormat, rows: NDArray[np.float32], *, row_costs: tuple[RowCost, ...] = (), **figures: int
) -> States:
    """The frame, with 0 for the figures that are left out."""
    queue, compute, load, steady = (figures.get(name, 0) for name in ("queue_us", "compute_us", "load_rows", "steady_rows"))
    return States(session, round_number, form, rows, queue, compute, load, steady, row_costs)
