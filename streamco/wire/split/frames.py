"""The frames sent between a device that has the first layers and the head of a model, and a server that has the middle layers.

docs/split-protocol.md is the specification. The protocol is version 2 of the verifier protocol, with the same path, keys and refusals, but
other frames. No frame has a token id, a character or anything from the sampler. A frame is an object here, and ``SplitCodec`` sends it as
one msgpack array.
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
"""The first and the last protocol version in which frames carry states."""

FORMATS: tuple[StateFormat, ...] = ("f32", "f16", "i8")
"""The formats of states, in the order of the numbers that stand for them in messages."""

if not TYPE_CHECKING:  # the types that msgspec decodes; SplitCodec replaces the values by the format's name and the states
    Form = Annotated[int, Meta(ge=0, lt=len(FORMATS))]
    StateRows = memoryview


class SplitLimits(Struct, frozen=True, kw_only=True, array_like=True):
    """Sizes beyond which a frame is refused. The server sends its limits in its welcome, and the client respects both sides' limits."""

    context_rows: Positive = 1 << 17  # positions of one session
    rows: Positive = 2048  # rows of one frame
    sessions: Positive = 64  # sessions of one connection at a time
    rounds: Positive = 64  # unanswered rounds of one session


class LayersMark(Struct, frozen=True, array_like=True):
    """The layers of a model that a server computes. Both sides must mean the same layers, or the states make no sense."""

    source: Name  # digest of the whole model's file
    first_layer: Number
    layers: Positive
    width: Annotated[int, Meta(ge=1, le=1 << 20)]  # count of numbers in a state

    def __str__(self) -> str:
        last = self.first_layer + self.layers - 1
        return f"layers {self.first_layer} to {last} of model {self.source} with states of {self.width} numbers"


class SplitHello(Struct, frozen=True, array_like=True, tag=1):
    """The client's first frame. The frame number and the two versions have the same positions in every version of the protocol."""

    first_version: Positive
    last_version: Positive
    mark: LayersMark
    token: Secret | None = None  # bearer token, if the WebSocket's own request could not carry it
    agent: Name = ""

    def __repr__(self) -> str:
        token = None if self.token is None else "..."
        return f"SplitHello({self.first_version} to {self.last_version}, {self.mark}, token={token}, agent={self.agent!r})"


class SplitOpen(Struct, frozen=True, array_like=True, tag=2):
    """Begins an empty session. The server answers with ``SplitOpened``, but rows may be sent before that."""

    session: Number
    reserve: Number = 0  # largest number of positions that the session will reach, or 0 if that isn't known


class Rows(Struct, frozen=True, array_like=True, tag=3, gc=False, eq=False):
    """One round: the server drops all positions from ``position`` on, and computes these rows in their place.

    The server answers with ``States``. Before it does, the client may only send rows that begin where the unanswered round's rows end.

    Args:
        session: number that identifies the session on its connection.
        round_number: number of the round, larger than in all earlier rounds of the session on this connection.
        position: position of the first row, from 0 to the session's length.
        wanted: number of states that the server sends back, for the last rows.
        form: format of the states in both directions.
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
    """Continues a session of a lost connection under a new number. The server answers with ``SplitResumed``."""

    session: Number
    key: Digest


class ServerBatches(Struct, frozen=True, array_like=True):
    """Sizes of a server's batches. The averages are moving averages (equation 1), rounded to integers."""

    room: Positive  # maximum number of rows in a batch; longer rounds are computed in several batches
    load_rows: Number = 0  # average number of rows at present
    steady_rows: Number = 0  # average number of rows, not counting prompts


class SplitWelcome(Struct, frozen=True, array_like=True, tag=16):
    """The server's answer to a hello that it accepts."""

    version: Positive
    model: Name
    limits: SplitLimits
    resume_s: Number  # how long sessions of a lost connection are kept, in seconds
    stages: Byte  # number of the server's pipeline stages, at least 1
    row_costs: Annotated[tuple[RowCost, ...], Meta(min_length=1, max_length=64)]  # measured times, by number of rows
    batches: ServerBatches
    is_exact: bool = False  # a state has the same bits whatever rows are computed with it


class SplitOpened(Struct, frozen=True, array_like=True, tag=17):
    """The server's answer to an open that it accepts. The session now exists."""

    session: Number
    key: Digest  # resumes the session, but only for the client that opened it


class States(Struct, frozen=True, array_like=True, tag=18, gc=False, eq=False):
    """The server's answer to ``Rows``.

    Args:
        session, round_number: the same numbers as in the rows.
        form: format of the states. This is the requested format, or f32 if a number is too large for it.
        states: states of the last rows after the middle layers, shape (wanted, width).
        queue_us: microseconds that the rows waited at the server while none of their batches ran.
        compute_us: microseconds that their batches took.
        load_rows: moving average of the rows in the server's batches (equation 1).
        steady_rows: the same average without rows of prompts, which soon end.
        row_costs: how long batches now take, or empty if that hasn't changed. ``SplitServer`` leaves out costs that the client knows.
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
    """The server's answer to a resume. The session continues with its first ``length`` positions."""

    session: Number
    length: Number


SplitClientFrame = SplitHello | SplitOpen | Rows | SplitResume | Close
SplitServerFrame = SplitWelcome | SplitOpened | States | SplitResumed | Refusal
