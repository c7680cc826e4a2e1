"""The family of errors: codes, what each ends, and the way over the wire and back."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from streamco.errors import VerifierError
from streamco.wire.verify import errors as verify_errors
from streamco.wire.verify.errors import MalformedFrameError, OverloadedError, Scope, VerifyProtocolError, VersionError, error_for
from streamco.wire.verify.frames import Refusal
from streamco.wire.verify.server import VerifyServer
from tests.wire.verify.peers import VOCABULARY, codec

KINDS = VerifyProtocolError.__subclasses__()
PAGE = Path(__file__).resolve().parents[3] / "docs" / "verifier-protocol.md"


def test_every_kind_has_a_code_of_its_own_and_is_public() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS) > 15
    for kind in KINDS:
        assert kind.__name__ in verify_errors.__all__
        assert issubclass(kind, VerifierError)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_over_the_wire_with_all_it_says(kind: type[VerifyProtocolError]) -> None:
    error = kind("expected this, got that", session=3, round_number=4, retry_after=1.5)
    frame = codec().decode_down(codec().encode(Refusal.of(error)))
    assert isinstance(frame, Refusal)
    again = frame.error()
    assert type(again) is kind
    assert (str(again), again.session, again.round_number, again.retry_after) == ("expected this, got that", 3, 4, 1.5)


def test_a_code_of_a_later_version_is_an_error_all_the_same() -> None:
    error = error_for("sulking", "no", session=1)
    assert type(error) is VerifyProtocolError
    assert (error.code, error.scope) == ("sulking", "session")
    assert VerifyProtocolError.code == "unknown"


@pytest.mark.parametrize(
    ("error", "scope"),
    [
        (VersionError("x", session=1), "connection"),
        (MalformedFrameError("x"), "frame"),
        (OverloadedError("x", session=0), "session"),
        (OverloadedError("x", session=0, round_number=0), "round"),
    ],
)
def test_what_an_error_ends_follows_from_what_it_names(error: VerifyProtocolError, scope: Scope) -> None:
    assert error.scope == scope


def test_a_message_is_cut_and_cleaned_rather_than_unsendable() -> None:
    frame = Refusal.of(OverloadedError("\ud800" + "x" * 5000, retry_after=1e12))
    assert codec().decode_down(codec().encode(frame)) == frame
    assert len(frame.message) == 1024
    assert frame.retry_after_ms == (1 << 32) - 1


def test_errors_cross_process_borders_with_their_fields() -> None:
    again = pickle.loads(pickle.dumps(OverloadedError("x", session=1, retry_after=2.0)))
    assert (type(again), again.session, again.retry_after) == (OverloadedError, 1, 2.0)


def test_the_specification_lists_every_code_and_those_that_end_the_connection() -> None:
    table = PAGE.read_text().partition("## Refusals")[2]
    listed = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, flags=re.MULTILINE))
    assert listed.keys() == {kind.code for kind in KINDS}
    assert {code for code, ends in listed.items() if ends.strip() == "connection"} == {kind.code for kind in KINDS if kind.is_fatal}


def test_the_specification_names_the_faults_that_are_counted() -> None:
    row = re.search(r"^\| `too_many_faults` \|.*$", PAGE.read_text(), flags=re.MULTILINE)
    assert row is not None
    assert set(re.findall(r"`(\w+)`", row[0])) - {"too_many_faults"} == {kind.code for kind in KINDS if kind.is_fault}
    assert f"{VerifyServer(codec(), VOCABULARY)._max_faults} frames" in row[0]


def test_the_tree_at_the_modules_head_is_the_tree_of_classes() -> None:
    assert verify_errors.__doc__ is not None
    drawn = re.findall(r"[├└]── (\w+) +(\w+)(,? *\.retry_after)?( *\*)?", verify_errors.__doc__)
    assert {(name, code, bool(star)) for name, code, _, star in drawn} == {(kind.__name__, kind.code, kind.is_fatal) for kind in KINDS}
    assert len(drawn) == len(KINDS)
