"""The specification of the split protocol: its examples are frames, its exchange goes through, its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from streamco.wire.row_costs import RowCost
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import (
    FORMATS,
    LayersMark,
    Refusal,
    ServerBatches,
    SplitHello,
    SplitLimits,
    SplitOpened,
    SplitResumed,
    SplitWelcome,
    States,
)
from streamco.wire.split.server import SplitServer
from streamco.wire.tensors import state_bytes
from streamco.wire.verify.codec import HELLO, frame_number
from streamco.wire.verify.frames import PATH, SUBPROTOCOL

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "split-protocol.md").read_text()
LINES = re.findall(r"^([><]) ((?:[0-9a-f]{2} ?)+)", PAGE, flags=re.MULTILINE)
CODEC = SplitCodec(2, SplitLimits(context_rows=2048))
MARK = LayersMark("1af136305739", 2, 28, 2)


def new_server() -> SplitServer:
    return SplitServer(CODEC, MARK, model="smollm2", row_costs=(RowCost(1, 5200), RowCost(64, 45_000)), batches=ServerBatches(256, 9, 3))


def test_every_example_is_the_frame_it_shows() -> None:
    assert len(LINES) >= 17
    for side, digits in LINES:
        message = bytes.fromhex(digits)
        assert CODEC.encode(CODEC.decode_up(message) if side == ">" else CODEC.decode_down(message)) == message


def test_the_exchange_goes_through_a_server_as_it_is_written() -> None:
    server = new_server()
    for side, digits in LINES:
        message = bytes.fromhex(digits)
        if side == ">":
            if frame_number(message) == HELLO:  # a connection begins
                server = new_server()
            server.receive(message)
        else:
            answer(server, message)
            assert server.take_messages() == [message]
    assert server.sessions == ()


def answer(server: SplitServer, message: bytes) -> None:
    """Make the server send this message, as a shell would."""
    match CODEC.decode_down(message):
        case SplitWelcome():
            server.welcome()
        case SplitOpened() | States() as frame:
            assert server.send(frame)
        case SplitResumed() as frame:
            assert server.resume(frame)
        case Refusal() as frame:
            assert frame.code == "wrong_base"  # which the protocol itself finds


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    limits = SplitLimits()
    assert f"`{PATH}`" in PAGE
    assert f"`{SUBPROTOCOL}`" in PAGE
    shown = re.search(r"^\| limits \|.*$", PAGE, flags=re.MULTILINE)
    assert shown
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\([a-z ]*([\d,]+)\)", shown[0])]
    assert numbers == [limits.context_rows, limits.rows, limits.sessions, limits.rounds]
    rows = dict(re.findall(r"^\| (\d) \| (\w+) \|", PAGE, flags=re.MULTILINE))
    assert tuple(rows[str(number)] for number in range(len(rows))) == FORMATS
    for width in (1, 32, 33, 576):
        sizes = {"f32": 4 * width, "f16": 2 * width, "i8": width + 2 * -(-width // 32)}
        assert all(state_bytes(1, width, form) == sizes[form] for form in FORMATS)


def test_a_hello_keeps_its_token_out_of_logs() -> None:
    shown = repr(SplitHello(2, 2, MARK, "secret", "tests"))
    assert "secret" not in shown
    assert "tests" in shown
    assert "token=None" in repr(SplitHello(2, 2, MARK))
