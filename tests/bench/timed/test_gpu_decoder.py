"""The decoder that is timed on a GPU computes what a decoder computes; needs PyTorch, and no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.timed.gpu_rows import DecoderShape

torch: Any = pytest.importorskip("torch")

SHAPES = {
    "each head has keys": DecoderShape(2, 64, 96, 50, 4, 4),
    "heads share keys": DecoderShape(2, 64, 96, 50, 4, 2, has_bias=True, is_tied=True),
}


@pytest.fixture(params=SHAPES)
def decoder(request: pytest.FixtureRequest) -> Iterator[Any]:
    from bench.timed.gpu_decoder import Decoder

    with torch.no_grad():
        yield Decoder(SHAPES[request.param], device="cpu", dtype=torch.float32, cached_tokens=256)


def logits(decoder: Any, tokens: list[list[int]], context: int = 0, **options: bool) -> Any:
    from bench.timed.gpu_decoder import Pass

    return Pass(decoder, torch.tensor(tokens), context, **options)()


def test_a_pass_over_rows_gives_the_logits_of_as_many_passes(decoder: Any) -> None:
    from bench.timed.gpu_decoder import check

    assert check(decoder) < 1e-5


def test_a_check_fails_if_rows_see_those_after_them(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.timed import gpu_decoder

    monkeypatch.setattr(gpu_decoder.bias, "causal_lower_right", torch.zeros)
    with pytest.raises(AssertionError, match="expected one pass over 5 rows to give the logits of 5 passes"):
        gpu_decoder.check(decoder)


def test_sequences_do_not_see_each_other(decoder: Any) -> None:
    first, second = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3]
    together = logits(decoder, [first, second])
    assert torch.allclose(together[0], logits(decoder, [first])[0], atol=1e-5)
    assert torch.allclose(together[1], logits(decoder, [second])[0], atol=1e-5)


def test_the_order_of_tokens_counts(decoder: Any) -> None:
    assert not torch.allclose(logits(decoder, [[3, 1, 4]])[0, -1], logits(decoder, [[1, 3, 4]])[0, -1], atol=1e-2)


def test_only_the_last_row_of_a_prompt_goes_through_the_head(decoder: Any) -> None:
    whole, last = logits(decoder, [[3, 1, 4]]), logits(decoder, [[3, 1, 4]], is_prompt=True)
    assert last.shape == (1, 1, 50)
    assert torch.allclose(last[:, 0], whole[:, -1], atol=1e-5)


def test_attention_is_what_its_formula_says(decoder: Any) -> None:
    """The first row attends to itself alone: its attention is its value, so a layer can be computed by hand."""
    from torch.nn import functional  # type: ignore[import-not-found, unused-ignore]

    shape, layers = decoder.shape, decoder.layers

    def norm(state: Any, weight: Any) -> Any:
        return state / (state.square().mean() + 1e-5).sqrt() * weight

    hidden = decoder.embedding[7]
    for layer in layers:
        qkv = layer.qkv @ norm(hidden, layer.norm) + (0.0 if layer.qkv_bias is None else layer.qkv_bias)
        head = shape.width // shape.heads
        values = qkv[-shape.kv_heads * head :].view(shape.kv_heads, head).repeat_interleave(shape.heads // shape.kv_heads, 0)
        hidden = hidden + layer.out @ values.flatten()
        gate, up = (layer.gate_up @ norm(hidden, layer.next_norm)).chunk(2)
        hidden = hidden + layer.down @ (functional.silu(gate) * up)
    assert torch.allclose(logits(decoder, [[7]])[0, 0], decoder.head @ norm(hidden, decoder.norm), atol=1e-4)


def test_weights_that_a_pass_reads_are_counted(decoder: Any) -> None:
    shape = decoder.shape
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.width // shape.heads
    matrices = shape.width * (qkv + shape.width + 3 * shape.feed_forward) + 2 * shape.width + qkv * shape.has_bias
    assert decoder.weight_bytes == 4 * (shape.layers * matrices + shape.vocabulary * shape.width)
