"""Rows of a real model through the protocol: the same greedy verdicts as from whole distributions, for a thousandth of their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamco._native import top_k
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.policies.acceptance import verify_greedy
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import VerdictFrame
from streamco.wire.verify.topk import quantise
from tests.support.verify_frames import make_draft, make_verdict

pytestmark = pytest.mark.model

WINDOW = 4
TEXT = (
    "The sun rises in the east and sets in the west. Water boils at a hundred degrees, freezes at zero, and the quick brown fox jumps over"
)
TEXT += (
    " the lazy dog, as it has done since typewriters were first tested. One two three four five six seven, said the old count to the child."
)


@pytest.fixture(scope="module")
def scored() -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """A text's ids, and the logits after each of them."""
    model = LlamaModel(Path(packaged_model()))
    context = LlamaContext(model, cells=256, sequences=1, rows=128, threads=1)
    ids = model.tokenize(TEXT)
    for position, token in enumerate(ids):
        context.add(token, position, 0, wants_logits=True)
    assert context.decode() == 0
    yield ids, np.stack([context.logits(row).copy() for row in range(len(ids))])
    context.close()
    model.close()


@pytest.mark.parametrize("count", [1, 8, 20])
def test_greedy_verdicts_from_rows_are_those_from_whole_distributions(scored: tuple[list[int], NDArray[np.float32]], count: int) -> None:
    ids, logits = scored
    codec = VerifyCodec(logits.shape[1])
    outcomes = set()
    for start in range(1, len(ids) - WINDOW):
        draft = ids[start : start + WINDOW]
        target = logits[start - 1 : start + WINDOW]
        whole = verify_greedy(draft, [int(row.argmax()) for row in target])
        sent = make_verdict(0, 0, whole.accepted, whole.token, rows=tuple(quantise(top_k(row, count), is_whole=False) for row in target))
        message = codec.encode(sent)
        received = codec.decode_down(message)
        assert isinstance(received, VerdictFrame)
        assert verify_greedy(draft, [row.ids[0] for row in received.rows]) == whole
        assert len(message) <= 0.005 * target.nbytes
        outcomes.add(whole.accepted)
    assert {0, 1} < outcomes  # accepted ones too


def test_real_rounds_are_small_in_every_mode(scored: tuple[list[int], NDArray[np.float32]]) -> None:
    ids, logits = scored
    codec = VerifyCodec(logits.shape[1])
    for start in range(1, len(ids) - WINDOW):
        rows = tuple(quantise(top_k(row, 8), is_whole=True) for row in logits[start - 1 : start - 1 + WINDOW])
        drafted = tuple(row.ids[0] for row in rows)
        greedy = codec.encode(make_draft(0, start, start, drafted))
        sampled = codec.encode(make_draft(0, start, start, drafted, 0, rows))
        assert len(greedy) < 25
        assert len(sampled) - len(greedy) <= 0.0005 * WINDOW * logits[0].nbytes
        assert codec.decode_up(sampled) == make_draft(0, start, start, drafted, 0, rows)
