"""The frames, and the specification's examples: each line of hex decodes and encodes again, and the exchange runs through a server."""

from __future__ import annotations

import re
from pathlib import Path

from streamco.policies.acceptance import Rule
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.codec import HELLO, VerifyCodec, frame_number
from streamco.wire.verify.errors import VerifyProtocolError
from streamco.wire.verify.frames import (
    MAX_FOLLOWS,
    PATH,
    SUBPROTOCOL,
    ClientFrame,
    Follow,
    Hello,
    Opened,
    Refusal,
    Resumed,
    VerdictFrame,
    VerifyLimits,
    Welcome,
)
from streamco.wire.verify.server import VerifyServer
from streamco.wire.verify.topk import pack_rows, unpack_rows
from tests.support.verify_frames import make_draft, make_verdict
from tests.wire.verify.peers import SIZE, VOCABULARY

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "verifier-protocol.md").read_text()
CODEC = VerifyCodec(SIZE, VerifyLimits(paths=4))
LINES = re.findall(r"^([><]) ((?:[0-9a-f]{2} ?)+)", PAGE, flags=re.MULTILINE)


def test_every_example_is_the_frame_it_shows() -> None:
    assert len(LINES) >= 17
    for side, digits in LINES:
        message = bytes.fromhex(digits)
        frame = CODEC.decode_up(message) if side == ">" else CODEC.decode_down(message)
        assert CODEC.encode(frame) == message


def test_the_exchange_goes_through_a_server_as_it_is_written() -> None:
    server = VerifyServer(CODEC, VOCABULARY, model="smollm2")
    for side, digits in LINES:
        message = bytes.fromhex(digits)
        if side == ">":
            if frame_number(message) == HELLO:  # a connection begins
                server = VerifyServer(CODEC, VOCABULARY, model="smollm2")
            server.receive(message)
        else:
            answer(server, message)
            assert server.take_messages() == [message]
    assert server.sessions == (0,)


def answer(server: VerifyServer, message: bytes) -> None:
    """Make the server send this message, as a shell would."""
    match CODEC.decode_down(message):
        case Welcome():
            server.welcome()
        case Opened() | VerdictFrame() as frame:
            assert server.send(frame)
        case Resumed() as frame:
            assert server.resume(frame, Rule())
        case Refusal() as frame:
            error: VerifyProtocolError = frame.error()
            if error.code != "wrong_base":  # which the protocol itself finds
                server.refuse(error)


def test_the_row_and_the_hash_are_as_shown() -> None:
    shown = re.search(r"row `([0-9a-f ]+)`", PAGE)
    assert shown is not None
    data = bytes.fromhex(shown[1])
    rows = unpack_rows(data, 16, vocabulary_size=SIZE, max_rows=1, max_ids=2)
    assert pack_rows(rows, 16) == data
    assert (rows[0].ids, rows[0].weights, rows[0].rest) == ((504, 7), (65535, 21845), 0)
    assert f"`{prefix_hash((1, 4093, 198)).hex()}`" in PAGE


def test_a_hello_keeps_its_token_out_of_logs() -> None:
    shown = repr(Hello(1, 1, VOCABULARY, SIZE, "secret", "tests"))
    assert "secret" not in shown
    assert "tests" in shown
    assert "token=None" in repr(Hello(1, 1, VOCABULARY, SIZE))


def test_a_draft_verifies_what_follows_its_given_ids() -> None:
    assert make_draft(0, 0, 3, (7, 8, 9), given=1).pending == (8, 9)
    assert make_draft(0, 0, 3, (7, 8), given=2).pending == ()


def test_a_draft_sent_ahead_is_a_round_only_after_the_verdict_it_expects() -> None:
    follow = Follow(0, 5, 4, 2, 11, (12, 13))
    assert follow.matches(make_verdict(0, 4, 2, 11, queue_depth=3))
    for other in (make_verdict(0, 3, 2, 11), make_verdict(0, 4, 1, 11), make_verdict(0, 4, 2, 10), make_verdict(0, 4, 2, None)):
        assert not follow.matches(other)
    assert follow.as_round(30) == make_draft(0, 5, 30, (12, 13))


def test_the_limits_and_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"`{PATH}`" in PAGE
    assert f"`{SUBPROTOCOL}`" in PAGE
    follow = re.search(r"^### \d+ follow$(.*?)^###", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert follow
    assert re.search(rf"must accept {MAX_FOLLOWS}\b", follow[1])
    limits = VerifyLimits()
    for name, value in (
        ("frame_bytes", limits.frame_bytes),
        ("context_tokens", limits.context_tokens),
        ("draft_tokens", limits.draft_tokens),
        ("top_k", limits.top_k),
        ("sessions", limits.sessions),
    ):
        assert re.search(rf"^\| `{name}` \|.* {value:,} \|$", PAGE, flags=re.MULTILINE), name
    for frame in (*ClientFrame.__args__, Welcome, Opened, VerdictFrame, Resumed, Refusal):
        name = frame.__name__.removesuffix("Frame").lower()
        assert re.search(rf"^### \d+ {name}$", PAGE, flags=re.MULTILINE), frame


def test_a_verdict_on_a_tree_accepts_the_path_to_the_id_that_it_names() -> None:
    draft = make_draft(0, 0, 10, (5, 6, 7, 8), 1, parents=(0, 1, 0))
    assert [draft.accepted_ids(accepted) for accepted in range(4)] == [(), (6,), (6, 7), (8,)]
    assert [draft.length_after(make_verdict(0, 0, accepted, 9)) for accepted in range(4)] == [12, 13, 14, 13]
    assert draft.length_after(make_verdict(0, 0, 3, None)) == 12
    assert (draft.paths, make_draft(0, 0, 10, (5, 6)).paths) == (2, 1)
    assert Follow(0, 5, 4, 2, 11, (12, 13), parents=(0, 0)).as_round(30) == make_draft(0, 5, 30, (12, 13), parents=(0, 0))
