"""The frames between a device that holds the first layers and the head of a model, and a server that holds the layers between them.

docs/split-protocol.md is the specification. It is version 2 of the verifier protocol, with the same path, keys and refusals, but other
frames. None of them has a token id, a character or anything from the sampler. A frame is an object here and one msgpack array on the wire
(``SplitCodec``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from streamco.wire.row_costs import RowCost, RowCostTable
from streamco.wire.tensors import StateFormat
from streamco.wire.verify.frames import Byte, Close, Digest, Name, Number, Positive, Refusal, Secret

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Form = StateFormat
    StateRows = NDArray[np.float32]

__all__ = [
    "FORMATS",
    "SPLIT_VERSIONS",
    "Close",
    "SplitHello",
    "LayersMark",
    "SplitOpen",
    "SplitOpened",
    "Refusal",
    "SplitResume",
    "SplitResumed",
    "ServerBatches",
    "Rows",
    "SplitClientFrame",
    "SplitLimits",
    "SplitServerFrame",
    "States",
    "SplitWelcome",
]

SPLIT_VERSIONS = (2, 2)
"""The first and the last version of the protocol that carry states."""

FORMATS: tuple[StateFormat, ...] = ("f32", "f16", "i8")
"""Formats by their number on the wire."""

if not TYPE_CHECKING:  # what msgspec reads from a message; SplitCodec replaces it by format and states
    Form = Annotated[int, Meta(ge=0, lt=len(FORMATS))]
    StateRows = memoryview


class SplitLimits(Struct, frozen=True, kw_only=True, array_like=True):
    """Sizes beyond which a frame is refused. The server's limits are part of its welcome; the client observes both sides' limits."""

    context_rows: Positive = 1 << 17  # positions of one session
    rows: Positive = 2048  # rows of one frame
    sessions: Positive = 64  # sessions of one connection at a time
    rounds: Positive = 64  # unanswered rounds of one session


class LayersMark(Struct, frozen=True, array_like=True):
    """The layers of a model that a server computes. Both sides must mean the same ones, or states make no sense."""

    source: Name  # digest of the whole model's file
    first_layer: Number
    layers: Positive
    width: Annotated[int, Meta(ge=1, le=1 << 20)]  # numbers in a state

    def __str__(self) -> str:
        last = self.first_layer + self.layers - 1
        return f"layers {self.first_layer} to {last} of model {self.source} with states of {self.width} numbers"


class SplitHello(Struct, frozen=True, array_like=True, tag=1):
    """The client's first frame. Its number and the two versions have the same position in every version of the protocol."""

    first_version: Positive
    last_version: Positive
    mark: LayersMark
    token: Secret | None = None  # bearer token, if the WebSocket's own request could not carry it
    agent: Name = ""

    def __repr__(self) -> str:
        token = None if self.token is None else "..."
        return f"SplitHello({self.first_version} to {self.last_version}, {self.mark}, token={token}, agent={self.agent!r})"


class SplitOpen(Struct, frozen=True, array_like=True, tag=2):
    """Begin an empty session. Answered with ``SplitOpened``; rows may follow at once."""

    session: Number
    reserve: Number = 0  # largest number of positions that it will reach; 0 if not known


class Rows(Struct, frozen=True, array_like=True, tag=3, gc=False, eq=False):
    """One round: forget the positions from ``position`` on, and compute these rows there.

    Answered with ``States``. Rows that begin where an unanswered round's rows end may follow at once. All others wait for its answer.

    Args:
        session: number that identifies the session on its connection.
        round_number: grows with each round of a session on a connection.
        position: position of the first row, from 0; at most the session's length.
        wanted: number of states that come back, for the last rows.
        form: format of the states, both ways.
        states: states before the middle layers, shape (rows, width).
    """

    session: Number
    round_number: Number
    position: Number
    wanted: Number
    form: Form
    states: StateRows

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.position + len(self.states)


class SplitResume(Struct, frozen=True, array_like=True, tag=5):
    """Continue a session of a lost connection under a new number. Answered with ``SplitResumed``."""

    session: Number
    key: Digest


class ServerBatches(Struct, frozen=True, array_like=True):
    """Sizes of a server's batches. The averages are rounded moving averages (equation 1)."""

    room: Positive  # maximum number of rows of one; longer rounds are computed in several
    load_rows: Number = 0  # average at present
    steady_rows: Number = 0  # average without rows of prompts


class SplitWelcome(Struct, frozen=True, array_like=True, tag=16):
    """The answer to an accepted hello."""

    version: Positive
    model: Name
    limits: SplitLimits
    resume_s: Number  # seconds that sessions of a lost connection are kept
    stages: Byte  # pipeline stages of the server, at least 1
    row_costs: Annotated[tuple[RowCost, ...], Meta(min_length=1, max_length=64)]  # measured, by rows
    batches: ServerBatches
    is_exact: bool = False  # a state has the same bits whatever rows are computed with it


class SplitOpened(Struct, frozen=True, array_like=True, tag=17):
    """The answer to an accepted open: the session exists."""

    session: Number
    key: Digest  # resumes the session, for the client that was authenticated when it was opened


class States(Struct, frozen=True, array_like=True, tag=18, gc=False, eq=False):
    """The answer to ``Rows``.

    Args:
        session, round_number: the same as in the rows.
        form: format of the states: the requested one, or f32 if a number is too large for that.
        states: states after the middle layers of the last rows, shape (wanted, width).
        queue_us: microseconds that the rows waited at the server while none of their batches ran.
        compute_us: microseconds of their batches.
        load_rows: rows of the server's batches at present, a moving average (equation 1).
        steady_rows: the same without rows of prompts, which soon end.
        row_costs: what batches now cost; empty if that hasn't changed. ``SplitServer`` leaves out what the client knows.
    """

    session: Number
    round_number: Number
    form: Form
    states: StateRows
    queue_us: Number
    compute_us: Number
    load_rows: Number
    steady_rows: Number
    row_costs: RowCostTable = ()


class SplitResumed(Struct, frozen=True, array_like=True, tag=19):
    """The answer to a resume: the session continues with its first ``length`` positions."""

    session: Number
    length: Number


SplitClientFrame = SplitHello | SplitOpen | Rows | SplitResume | Close
SplitServerFrame = SplitWelcome | SplitOpened | States | SplitResumed | Refusal
